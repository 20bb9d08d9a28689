//! What is known of tasks beside the journal: what they say of their progress, who was refused one, and which are just being
//! accepted. It is gone with the host, and nothing depends on it but words.

use crate::journaled::now;
use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard};
use toolbus_mcp::{Members, Raw, RpcError};
use toolbus_protocol::MsgId;

/// Refusals that are remembered, for callers that were told of a task while this host was away.
const MOST_REFUSALS: usize = 1024;
/// Of one agent.
const MOST_REFUSALS_OF_AGENT: usize = 256;
/// Bytes of an error that are remembered; of a longer one what matters.
const LONGEST_REFUSAL: usize = 2048;
const LONGEST_REASON: usize = 256;
/// The part of all who wait, or ask, that one agent may have.
const SHARE_OF_AGENT: usize = 4;
/// Characters of a server's words about its progress.
const LONGEST_MESSAGE: usize = 500;

#[derive(Default)]
pub struct TaskBoard(Mutex<Board>);

#[derive(Default)]
struct Board {
    said: HashMap<MsgId, Said>,
    refusals: VecDeque<Refusal>,
    accepting: HashMap<String, usize>,
    waiting: Visitors,
    asking: Visitors,
}

/// How many there are of each agent.
#[derive(Default)]
struct Visitors(HashMap<String, usize>);

/// What a task said last, and when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said {
    pub message: String,
    pub at: u64,
}

#[derive(Debug, Clone)]
pub struct Refusal {
    pub id: MsgId,
    pub agent: String,
    pub error: Raw,
    pub at: u64,
}

/// A place among those that are being accepted, these included.
pub struct Accepting<'a> {
    board: &'a TaskBoard,
    agent: String,
    pub of_agent: usize,
    pub of_all: usize,
}

/// Somebody waits for the end of a task, or asks something.
pub struct Visit<'a> {
    board: &'a TaskBoard,
    agent: String,
    kind: Kind,
}

#[derive(Clone, Copy)]
enum Kind {
    Waits,
    Asks,
}

impl Board {
    fn visitors(&mut self, kind: Kind) -> &mut Visitors {
        match kind {
            Kind::Waits => &mut self.waiting,
            Kind::Asks => &mut self.asking,
        }
    }
}

impl Visitors {
    fn is_full(&self, agent: &str, most: usize) -> bool {
        let of_agent = self.0.get(agent).copied().unwrap_or_default();
        of_agent >= (most / SHARE_OF_AGENT).max(1) || self.0.values().sum::<usize>() >= most
    }

    fn leave(&mut self, agent: &str) {
        let Some(count) = self.0.get_mut(agent) else { return };
        *count -= 1;
        if *count == 0 {
            self.0.remove(agent);
        }
    }
}

impl TaskBoard {
    /// Takes note of a notification that belongs to a task.
    pub fn hear(&self, id: &MsgId, method: &str, params: Option<&Raw>) {
        let Some(message) = (method == "notifications/progress").then(|| in_words(params)).flatten() else { return };
        let message = message.chars().take(LONGEST_MESSAGE).collect();
        self.lock().said.insert(id.clone(), Said { message, at: now() });
    }

    pub fn said(&self, id: &MsgId) -> Option<Said> {
        self.lock().said.get(id).cloned()
    }

    pub fn forget(&self, id: &MsgId) {
        self.lock().said.remove(id);
    }

    pub fn note_refusal(&self, id: &MsgId, agent: &str, error: Raw) {
        let refusal = Refusal { id: id.clone(), agent: agent.to_owned(), error: cut(error), at: now() };
        let mut board = self.lock();
        let own = board.refusals.iter().filter(|known| known.agent == agent).count();
        if own == MOST_REFUSALS_OF_AGENT {
            let oldest = board.refusals.iter().position(|known| known.agent == agent);
            oldest.and_then(|oldest| board.refusals.remove(oldest));
        } else if board.refusals.len() == MOST_REFUSALS {
            board.refusals.pop_front();
        }
        board.refusals.push_back(refusal);
    }

    pub fn refusal(&self, id: &str) -> Option<Refusal> {
        self.lock().refusals.iter().rev().find(|refusal| refusal.id.as_str() == id).cloned()
    }

    pub fn accepting(&self, agent: &str) -> Accepting<'_> {
        let mut board = self.lock();
        let of_agent = board.accepting.entry(agent.to_owned()).or_insert(0);
        *of_agent += 1;
        let of_agent = *of_agent;
        let of_all = board.accepting.values().sum();
        Accepting { board: self, agent: agent.to_owned(), of_agent, of_all }
    }

    /// None if so many wait already.
    pub fn waiting(&self, agent: &str, most: usize) -> Option<Visit<'_>> {
        self.visit(Kind::Waits, agent, most)
    }

    /// None if so many questions are under way already.
    pub fn asking(&self, agent: &str, most: usize) -> Option<Visit<'_>> {
        self.visit(Kind::Asks, agent, most)
    }

    fn visit(&self, kind: Kind, agent: &str, most: usize) -> Option<Visit<'_>> {
        let mut board = self.lock();
        let visitors = board.visitors(kind);
        if visitors.is_full(agent, most) {
            return None;
        }
        *visitors.0.entry(agent.to_owned()).or_insert(0) += 1;
        Some(Visit { board: self, agent: agent.to_owned(), kind })
    }

    fn lock(&self) -> MutexGuard<'_, Board> {
        self.0.lock().expect("nothing panics while it holds this lock")
    }
}

impl Drop for Accepting<'_> {
    fn drop(&mut self) {
        let mut board = self.board.lock();
        let Some(count) = board.accepting.get_mut(&self.agent) else { return };
        *count -= 1;
        if *count == 0 {
            board.accepting.remove(&self.agent);
        }
    }
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        self.board.lock().visitors(self.kind).leave(&self.agent);
    }
}

/// What a caller needs to know of an error, however much was said.
fn cut(error: Raw) -> Raw {
    if error.get().len() <= LONGEST_REFUSAL {
        return error;
    }
    let told = serde_json::from_str::<RpcError>(error.get());
    let told = told.unwrap_or_else(|_| RpcError::invalid_params("the task was refused"));
    let message: String = told.message.chars().take(LONGEST_REASON).collect();
    let code = told.data.as_ref().and_then(|data| Some((data["code"].as_str()?, data["hint"].as_str()?)));
    let known = code.filter(|(code, hint)| code.len() + hint.len() <= LONGEST_REASON);
    match known {
        Some((code, hint)) => RpcError::bus(code, message, hint).to_raw(),
        None => RpcError::new(told.code, message).to_raw(),
    }
}

/// The server's own words; without any, how far it is.
fn in_words(params: Option<&Raw>) -> Option<String> {
    let params = Members::of(params.map(|params| &**params)).ok()?;
    let numbers = || {
        let done = params.get("progress")?.get();
        Some(params.get("total").map_or(done.to_owned(), |total| format!("{done} of {}", total.get())))
    };
    params.text("message").or_else(numbers)
}

impl Refusal {
    /// What it said, in words.
    pub fn message(&self) -> Option<String> {
        serde_json::from_str::<RpcError>(self.error.get()).ok().map(|error| error.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use toolbus_mcp::raw;

    #[test]
    fn progress_is_told_in_the_servers_words_or_in_numbers() {
        let board = TaskBoard::default();
        let id = MsgId::from("t");
        let check = |params: serde_json::Value, expected: &str| {
            board.hear(&id, "notifications/progress", Some(&raw(&params)));
            assert_eq!(board.said(&id).expect("something").message, expected);
        };
        check(json!({"progress": 3, "total": 10}), "3 of 10");
        check(json!({"progress": 4.5}), "4.5");
        check(json!({"progress": 5, "total": 10, "message": "half"}), "half");
        board.hear(&id, "notifications/message", Some(&raw(&json!({"data": "x"}))));
        assert_eq!(board.said(&id).expect("something").message, "half");
        board.forget(&id);
        assert_eq!(board.said(&id), None);
    }

    #[test]
    fn those_that_are_being_accepted_count_until_they_are_written() {
        let board = TaskBoard::default();
        let first = board.accepting("a");
        let second = board.accepting("a");
        assert_eq!((second.of_agent, second.of_all, board.accepting("b").of_agent), (2, 2, 1));
        drop((first, second));
        assert_eq!(board.accepting("a").of_all, 1);
    }

    #[test]
    fn the_oldest_refusals_are_forgotten_first() {
        let board = TaskBoard::default();
        for number in 0..=MOST_REFUSALS {
            board.note_refusal(&MsgId::from(number.to_string()), "a", raw(&json!({})));
        }
        let first = MOST_REFUSALS - MOST_REFUSALS_OF_AGENT;
        assert!(board.refusal(&first.to_string()).is_none() && board.refusal(&(first + 1).to_string()).is_some());
        for number in 0..=MOST_REFUSALS {
            let (id, agent) = (MsgId::from(format!("b{number}")), format!("b{}", number % 8));
            board.note_refusal(&id, &agent, raw(&json!({})));
        }
        let kept = board.lock().refusals.len();
        assert!(kept == MOST_REFUSALS && board.refusal("b0").is_none() && board.refusal("b1").is_some());
    }

    #[test]
    fn of_a_long_refusal_only_what_matters_is_kept() {
        let board = TaskBoard::default();
        let error = RpcError::bus("TB0403", "\u{1}".repeat(1 << 20), "ask somebody");
        board.note_refusal(&MsgId::from("1"), "a", error.to_raw());
        let kept = board.refusal("1").expect("it is kept").error;
        let error: RpcError = serde_json::from_str(kept.get()).expect("an error");
        assert!(kept.get().len() <= LONGEST_REFUSAL, "{}", kept.get().len());
        assert_eq!(error.data.expect("data")["code"], "TB0403");
    }

    #[test]
    fn those_who_wait_and_ask_are_bounded_for_each_agent_and_for_all() {
        let board = TaskBoard::default();
        let first = board.asking("a", 8).expect("room");
        let _others = [board.asking("a", 8).expect("room"), board.waiting("a", 8).expect("room")];
        assert!(board.asking("a", 8).is_none() && board.waiting("a", 8).is_some());
        drop(first);
        let _more = ["a", "b", "b", "c", "c", "d", "d"].map(|agent| board.asking(agent, 8).expect("room"));
        assert!(board.asking("e", 8).is_none() && board.asking("e", 9).is_some());
    }
}
