//! The only place that prints. Names, texts and errors may come from servers and agents, so that everything goes to the
//! terminal without control, bidirectional and invisible characters; in JSON they are escaped.

use crate::failure::Failure;
use std::fmt::Display;
use std::io::{self, Write};
use toolbus_base::terminal_text;
use tracing_subscriber::fmt::MakeWriter;

/// Prints a line. Returns an error, rather than panicking, if standard output is closed.
pub fn print_line(line: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    // In one write, so that a reader that has seen the first line of a text has been sent all of it.
    out.write_all(format!("{}\n", terminal_text(line)).as_bytes()).and_then(|()| out.flush()).map_err(Failure::Stdout)
}

/// Prints the startup text of a service, which must run even if standard output is closed.
pub fn print_startup(line: &str) {
    if let Err(error) = print_line(line) {
        tracing::debug!("{error}");
    }
}

/// Prints a line to standard error. It may be closed.
pub fn print_error(line: impl Display) {
    let line = line.to_string();
    io::stderr().lock().write_all(format!("{}\n", terminal_text(&line)).as_bytes()).ok();
}

/// Writes the log to standard error. Its lines have names and errors of peers, and what servers print.
pub struct LogWriter {
    /// The colours of the log are escape sequences. The formatter itself escapes those in values.
    pub has_colours: bool,
}

impl<'a> MakeWriter<'a> for LogWriter {
    type Writer = SafeStderr;

    fn make_writer(&'a self) -> SafeStderr {
        SafeStderr { has_colours: self.has_colours }
    }
}

/// Standard error for complete lines of the log.
pub struct SafeStderr {
    has_colours: bool,
}

impl Write for SafeStderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        io::stderr().lock().write_all(safe_log(&String::from_utf8_lossy(bytes), self.has_colours).as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().lock().flush()
    }
}

fn safe_log(text: &str, has_colours: bool) -> String {
    if !has_colours {
        return terminal_text(text).into_owned();
    }
    let parts: Vec<_> = text.split('\u{1b}').map(terminal_text).collect();
    parts.join("\u{1b}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_keeps_only_its_own_colours() {
        let line = "\u{1b}[32m INFO\u{1b}[0m a\u{202e}b\u{9b}\n";
        assert_eq!(safe_log(line, true), "\u{1b}[32m INFO\u{1b}[0m a\\u202eb\\u009b\n");
        assert_eq!(safe_log(line, false), "\\u001b[32m INFO\\u001b[0m a\\u202eb\\u009b\n");
    }
}
