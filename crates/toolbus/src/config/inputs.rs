//! Asks for the inputs of a client's file (`${input:ID}`) at the terminal, each one once in the life of the process.

use std::collections::BTreeMap;
use std::io::{self, BufRead, IsTerminal, Write};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use toolbus_upstream::Input;

/// How long the user may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(300);

/// Whether the user may be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asking {
    /// At a start, if there is a terminal.
    AtTerminal,
    /// Only earlier answers are used: the process serves already and must not wait.
    Never,
}

static ANSWERS: Mutex<BTreeMap<String, String>> = Mutex::new(BTreeMap::new());

impl Asking {
    pub fn ask(self, input: &Input) -> Option<String> {
        let mut answers = ANSWERS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(answer) = answers.get(&input.id) {
            return Some(answer.clone());
        }
        let may_ask = self == Self::AtTerminal && io::stdin().is_terminal() && io::stderr().is_terminal();
        let answer = may_ask.then(|| ask_at_terminal(input)).flatten()?;
        answers.insert(input.id.clone(), answer.clone());
        Some(answer)
    }
}

/// `None` if the user gives no answer.
fn ask_at_terminal(input: &Input) -> Option<String> {
    let description = if input.description.is_empty() { &input.id } else { &input.description };
    let default = input.default.as_ref().filter(|_| !input.password);
    let default = default.map_or_else(String::new, |default| format!(" [{default}]"));
    let mut stderr = io::stderr();
    write!(stderr, "{}{default}: ", toolbus_base::terminal_line(description)).and_then(|()| stderr.flush()).ok()?;
    let hidden = input.password.then(HiddenTyping::start).flatten();
    let line = read_line();
    if hidden.is_some() {
        writeln!(stderr).ok();
    }
    line.filter(|line| !line.is_empty())
}

fn read_line() -> Option<String> {
    let stdin = io::stdin();
    let mut ready = [rustix::event::PollFd::new(&stdin, rustix::event::PollFlags::IN)];
    let timeout = rustix::event::Timespec::try_from(ANSWER_TIMEOUT).ok()?;
    if rustix::event::poll(&mut ready, Some(&timeout)).ok()? == 0 {
        return None;
    }
    let mut line = String::new();
    stdin.lock().read_line(&mut line).ok()?;
    Some(line.trim_end_matches(['\r', '\n']).to_owned())
}

/// The terminal doesn't show what is typed until this is dropped.
struct HiddenTyping(rustix::termios::Termios);

impl HiddenTyping {
    fn start() -> Option<Self> {
        let before = rustix::termios::tcgetattr(io::stdin()).ok()?;
        let mut hidden = before.clone();
        hidden.local_modes.remove(rustix::termios::LocalModes::ECHO);
        rustix::termios::tcsetattr(io::stdin(), rustix::termios::OptionalActions::Flush, &hidden).ok()?;
        Some(Self(before))
    }
}

impl Drop for HiddenTyping {
    fn drop(&mut self) {
        rustix::termios::tcsetattr(io::stdin(), rustix::termios::OptionalActions::Now, &self.0).ok();
    }
}
