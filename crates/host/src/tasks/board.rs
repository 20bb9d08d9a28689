//! What is known of tasks beside the journal: what they say of their progress, who was refused one, and which are just being
//! accepted. It is gone with the host, and nothing depends on it but words.

use crate::journaled::now;
use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard};
use toolbus_mcp::{Members, Raw, RpcError};
use toolbus_protocol::MsgId;

/// Refusals that are remembered, for callers that were told of a task while this host was away.
const MOST_REFUSALS: usize = 1024;
/// Characters of a server's words about its progress.
const LONGEST_MESSAGE: usize = 500;

#[derive(Default)]
pub struct TaskBoard(Mutex<Board>);

#[derive(Default)]
struct Board {
    said: HashMap<MsgId, Said>,
    refusals: VecDeque<Refusal>,
    accepting: HashMap<String, usize>,
    waits: usize,
}

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

/// Somebody waits for the end of a task.
pub struct Waiting<'a>(&'a TaskBoard);

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
        let mut board = self.lock();
        if board.refusals.len() == MOST_REFUSALS {
            board.refusals.pop_front();
        }
        board.refusals.push_back(Refusal { id: id.clone(), agent: agent.to_owned(), error, at: now() });
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
    pub fn waiting(&self, most: usize) -> Option<Waiting<'_>> {
        let mut board = self.lock();
        (board.waits < most).then(|| {
            board.waits += 1;
            Waiting(self)
        })
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

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.lock().waits -= 1;
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
        assert!(board.refusal("0").is_none() && board.refusal("1").is_some());
    }
}
