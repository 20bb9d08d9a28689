//! State of tasks that is not journaled: last progress, refusals, and reservations of tasks that are being accepted. It
//! is lost when the host ends, and only messages to people depend on it.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard};
use toolbus_base::{Share, now_ms};
use toolbus_mcp::{Members, Raw, RpcError};
use toolbus_protocol::MsgId;

/// Remembered refusals, for callers whose task was accepted by their worker while this host was away.
const MAX_REFUSALS: usize = 1024;
/// Maximum remembered refusals per agent.
const MAX_REFUSALS_PER_AGENT: usize = 256;
/// Errors longer than this are truncated.
const MAX_REFUSAL_BYTES: usize = 2048;
const MAX_REASON_CHARS: usize = 256;
/// Maximum length of a progress message.
const MAX_MESSAGE_CHARS: usize = 500;

#[derive(Default)]
pub struct TaskMemory(Mutex<State>);

#[derive(Default)]
struct State {
    progress: HashMap<MsgId, LastProgress>,
    refusals: VecDeque<Refusal>,
    accepting: HashMap<String, usize>,
    task_waits: AgentCounts,
    queries: AgentCounts,
}

/// A count per agent.
#[derive(Default)]
struct AgentCounts(HashMap<String, usize>);

/// The last progress of a task, and when it was reported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastProgress {
    pub message: String,
    pub at: u64,
}

#[derive(Debug, Clone)]
pub struct Refusal {
    pub id: MsgId,
    pub agent: String,
    pub error: RpcError,
    pub at: u64,
}

/// Reserves room for a task that is being accepted. The counts include this one.
pub struct Reservation<'a> {
    memory: &'a TaskMemory,
    agent: String,
    pub of_agent: usize,
    pub of_all: usize,
}

/// Permit of a wait for a task, or of an admin query.
pub struct RequestPermit<'a> {
    memory: &'a TaskMemory,
    agent: String,
    kind: RequestKind,
}

#[derive(Clone, Copy)]
enum RequestKind {
    TaskWait,
    Query,
}

impl State {
    fn counts(&mut self, kind: RequestKind) -> &mut AgentCounts {
        match kind {
            RequestKind::TaskWait => &mut self.task_waits,
            RequestKind::Query => &mut self.queries,
        }
    }
}

impl AgentCounts {
    fn is_full(&self, agent: &str, max: usize) -> bool {
        let of_agent = self.0.get(agent).copied().unwrap_or_default();
        let free = max.saturating_sub(self.0.values().sum::<usize>());
        !Share::DEFAULT.admits(of_agent as u64, free as u64)
    }

    fn leave(&mut self, agent: &str) {
        let Some(count) = self.0.get_mut(agent) else { return };
        *count -= 1;
        if *count == 0 {
            self.0.remove(agent);
        }
    }
}

impl TaskMemory {
    /// Remembers a progress notification of a task.
    pub fn note_progress(&self, id: &MsgId, method: &str, params: Option<&Raw>) {
        let Some(message) = (method == "notifications/progress").then(|| progress_text(params)).flatten() else {
            return;
        };
        let message = message.chars().take(MAX_MESSAGE_CHARS).collect();
        self.lock().progress.insert(id.clone(), LastProgress { message, at: now_ms() });
    }

    pub fn progress(&self, id: &MsgId) -> Option<LastProgress> {
        self.lock().progress.get(id).cloned()
    }

    pub fn forget(&self, id: &MsgId) {
        self.lock().progress.remove(id);
    }

    pub fn note_refusal(&self, id: &MsgId, agent: &str, error: RpcError) {
        let refusal = Refusal { id: id.clone(), agent: agent.to_owned(), error: truncated(error), at: now_ms() };
        let mut memory = self.lock();
        let own = memory.refusals.iter().filter(|known| known.agent == agent).count();
        if own == MAX_REFUSALS_PER_AGENT {
            let oldest = memory.refusals.iter().position(|known| known.agent == agent);
            oldest.and_then(|oldest| memory.refusals.remove(oldest));
        } else if memory.refusals.len() == MAX_REFUSALS {
            memory.refusals.pop_front();
        }
        memory.refusals.push_back(refusal);
    }

    pub fn refusal(&self, id: &str) -> Option<Refusal> {
        self.lock().refusals.iter().rev().find(|refusal| refusal.id.as_str() == id).cloned()
    }

    pub fn reserve(&self, agent: &str) -> Reservation<'_> {
        let mut memory = self.lock();
        let of_agent = memory.accepting.entry(agent.to_owned()).or_insert(0);
        *of_agent += 1;
        let of_agent = *of_agent;
        let of_all = memory.accepting.values().sum();
        Reservation { memory: self, agent: agent.to_owned(), of_agent, of_all }
    }

    /// `None` if too many waits are running.
    pub fn wait_permit(&self, agent: &str, max: usize) -> Option<RequestPermit<'_>> {
        self.permit(RequestKind::TaskWait, agent, max)
    }

    /// `None` if too many queries are running.
    pub fn query_permit(&self, agent: &str, max: usize) -> Option<RequestPermit<'_>> {
        self.permit(RequestKind::Query, agent, max)
    }

    fn permit(&self, kind: RequestKind, agent: &str, max: usize) -> Option<RequestPermit<'_>> {
        let mut memory = self.lock();
        let counts = memory.counts(kind);
        if counts.is_full(agent, max) {
            return None;
        }
        *counts.0.entry(agent.to_owned()).or_insert(0) += 1;
        Some(RequestPermit { memory: self, agent: agent.to_owned(), kind })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no code panics while it holds this lock")
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        let mut memory = self.memory.lock();
        let Some(count) = memory.accepting.get_mut(&self.agent) else { return };
        *count -= 1;
        if *count == 0 {
            memory.accepting.remove(&self.agent);
        }
    }
}

impl Drop for RequestPermit<'_> {
    fn drop(&mut self) {
        self.memory.lock().counts(self.kind).leave(&self.agent);
    }
}

/// The error, reduced to code, hint and the start of its message if it is too long.
fn truncated(error: RpcError) -> RpcError {
    if error.to_raw().get().len() <= MAX_REFUSAL_BYTES {
        return error;
    }
    let message: String = error.message.chars().take(MAX_REASON_CHARS).collect();
    let code = error.data.as_ref().and_then(|data| Some((data["code"].as_str()?, data["hint"].as_str()?)));
    let known = code.filter(|(code, hint)| code.len() + hint.len() <= MAX_REASON_CHARS);
    match known {
        Some((code, hint)) => RpcError::bus(code, message, hint),
        None => RpcError::new(error.code, message),
    }
}

/// The server's message, or the numbers if it sent none.
fn progress_text(params: Option<&Raw>) -> Option<String> {
    let params = Members::of(params).ok()?;
    let numbers = || {
        let done = params.get("progress")?.get();
        Some(params.get("total").map_or(done.to_owned(), |total| format!("{done} of {}", total.get())))
    };
    params.text("message").or_else(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use toolbus_mcp::raw;

    #[test]
    fn progress_is_the_servers_message_or_its_numbers() {
        let memory = TaskMemory::default();
        let id = MsgId::from("t");
        let check = |params: serde_json::Value, expected: &str| {
            memory.note_progress(&id, "notifications/progress", Some(&raw(&params)));
            assert_eq!(memory.progress(&id).expect("something").message, expected);
        };
        check(json!({"progress": 3, "total": 10}), "3 of 10");
        check(json!({"progress": 4.5}), "4.5");
        check(json!({"progress": 5, "total": 10, "message": "half"}), "half");
        memory.note_progress(&id, "notifications/message", Some(&raw(&json!({"data": "x"}))));
        assert_eq!(memory.progress(&id).expect("something").message, "half");
        memory.forget(&id);
        assert_eq!(memory.progress(&id), None);
    }

    #[test]
    fn reservations_count_until_they_are_dropped() {
        let memory = TaskMemory::default();
        let first = memory.reserve("a");
        let second = memory.reserve("a");
        assert_eq!((second.of_agent, second.of_all, memory.reserve("b").of_agent), (2, 2, 1));
        drop((first, second));
        assert_eq!(memory.reserve("a").of_all, 1);
    }

    #[test]
    fn the_oldest_refusals_are_evicted_first() {
        let memory = TaskMemory::default();
        for number in 0..=MAX_REFUSALS {
            memory.note_refusal(&MsgId::from(number.to_string()), "a", RpcError::invalid_params("no"));
        }
        let first = MAX_REFUSALS - MAX_REFUSALS_PER_AGENT;
        assert!(memory.refusal(&first.to_string()).is_none() && memory.refusal(&(first + 1).to_string()).is_some());
        for number in 0..=MAX_REFUSALS {
            let (id, agent) = (MsgId::from(format!("b{number}")), format!("b{}", number % 8));
            memory.note_refusal(&id, &agent, RpcError::invalid_params("no"));
        }
        let kept = memory.lock().refusals.len();
        assert!(kept == MAX_REFUSALS && memory.refusal("b0").is_none() && memory.refusal("b1").is_some());
    }

    #[test]
    fn a_long_refusal_is_truncated() {
        let memory = TaskMemory::default();
        let error = RpcError::bus("TB0403", "\u{1}".repeat(1 << 20), "ask somebody");
        memory.note_refusal(&MsgId::from("1"), "a", error);
        let kept = memory.refusal("1").expect("remembered").error;
        assert!(kept.to_raw().get().len() <= MAX_REFUSAL_BYTES, "{}", kept.to_raw().get().len());
        assert_eq!(kept.data.expect("data")["code"], "TB0403");
    }

    #[test]
    fn waits_and_queries_are_limited_per_agent_and_in_total() {
        let memory = TaskMemory::default();
        let first = memory.query_permit("a", 8).expect("room");
        let _others = [memory.query_permit("a", 8).expect("room"), memory.wait_permit("a", 8).expect("room")];
        assert!(memory.query_permit("a", 8).is_none() && memory.wait_permit("a", 8).is_some());
        drop(first);
        let _more = ["a", "b", "c", "d"].map(|agent| memory.query_permit(agent, 8).expect("room"));
        assert!(memory.query_permit("b", 8).is_none(), "something is left for the next agent");
        let _next = ["e", "f", "g"].map(|agent| memory.query_permit(agent, 8).expect("room"));
        assert!(memory.query_permit("h", 8).is_none() && memory.query_permit("h", 9).is_some());
    }
}
