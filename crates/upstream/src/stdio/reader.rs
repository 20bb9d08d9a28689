//! Reads a server's stdout. Lines that are not JSON-RPC messages are ignored, unless there are too many in a row.

use super::lines::{Line, Lines};
use super::{cancelled, reply};
use crate::calls::Origin;
use crate::error::ServerError;
use crate::inbound::{Inbound, Reaction, increment};
use bytestring::ByteString;
use std::sync::Arc;
use tokio::process::ChildStdout;
use tokio::sync::mpsc;
use toolbus_mcp::Message;

/// How many invalid lines are logged.
const LOGGED_GARBAGE: u64 = 5;
const LOGGED_GARBAGE_CHARS: usize = 200;
/// After this many invalid lines in a row, the process is not an MCP server.
const MAX_GARBAGE_IN_A_ROW: usize = 1_000;

pub(super) enum ReadEnd {
    EndOfFile,
    Garbage(ServerError),
}

pub(super) async fn read(
    stdout: ChildStdout,
    inbound: Arc<Inbound>,
    replies: mpsc::WeakSender<String>,
    limit: usize,
) -> ReadEnd {
    let mut lines = Lines::new(stdout, limit);
    let mut garbage_in_a_row = 0;
    while let Some(line) = lines.next().await {
        let reaction = match line {
            Line::TooLong(found) => inbound.too_large(found, limit),
            Line::Text(line) if line.trim_ascii().is_empty() => continue,
            Line::Text(line) => match ByteString::try_from(line.clone()) {
                Ok(text) => inbound.deliver(inbound.receive(text), Origin::Pipe).await,
                Err(error) => Reaction::Garbage(error.to_string()),
            }
            .with_garbage_logged(&inbound, &line),
        };
        garbage_in_a_row = if matches!(reaction, Reaction::Garbage(_)) { garbage_in_a_row + 1 } else { 0 };
        match reaction {
            Reaction::Nothing => {}
            Reaction::Reply(response) => reply(&replies, response),
            Reaction::Cancel(number) => {
                if let Some(lines) = replies.upgrade() {
                    let _ = lines.try_send(Message::from(cancelled(number, None)).to_json());
                }
            }
            Reaction::Garbage(reason) if garbage_in_a_row >= MAX_GARBAGE_IN_A_ROW => {
                let reason =
                    format!("{MAX_GARBAGE_IN_A_ROW} lines in a row were not JSON-RPC messages; the last one: {reason}");
                return ReadEnd::Garbage(inbound.bad_message(reason));
            }
            Reaction::Garbage(_) => {}
        }
    }
    ReadEnd::EndOfFile
}

impl Reaction {
    fn with_garbage_logged(self, inbound: &Inbound, line: &[u8]) -> Self {
        if let Self::Garbage(reason) = &self
            && increment(&inbound.counters.garbage) < LOGGED_GARBAGE
        {
            let line = String::from_utf8_lossy(line);
            let line: String = inbound.redactor.redact(&line).chars().take(LOGGED_GARBAGE_CHARS).collect();
            let reason = inbound.redactor.redact(reason);
            tracing::warn!(
                server = inbound.server,
                code = "TB0409",
                %reason,
                %line,
                "ignoring a line on the server's stdout that is not a JSON-RPC message"
            );
        }
        self
    }
}
