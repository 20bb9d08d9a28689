//! Calls under way, found by their ids, by those who have them, and by what they are.

use crate::caller::{About, Caller};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use toolbus_protocol::{InboxMessage, MsgId, principal_of};

/// Ids that are remembered although no call has them: finished ones, and cancels that came before their call.
const REMEMBERED: usize = 32 << 10;

/// No single agent takes more than its share of a host's calls, open listens included.
const MOST_AGENTS_TO_FILL_A_HOST: usize = 4;

/// Why a request is not begun.
#[derive(Debug, PartialEq, Eq)]
pub enum Refused {
    /// It runs: the broker pushed it once more after a reconnect, and the one reply will answer both.
    Running,
    /// It ran, and its reply is on its way.
    Finished,
    TooMany,
}

#[derive(Default)]
pub struct RunningCalls(Mutex<Table>);

#[derive(Default)]
struct Table {
    calls: HashMap<MsgId, Caller>,
    /// How many of them each agent has.
    by_agent: HashMap<String, usize>,
    /// Those that others may be joined to, by content, in the order in which they came.
    by_content: HashMap<[u8; 32], Vec<MsgId>>,
    finished: Remembered,
    early_cancels: Remembered,
}

impl Table {
    fn forget_content(&mut self, content: &[u8; 32], id: &MsgId) {
        let Some(alike) = self.by_content.get_mut(content) else { return };
        alike.retain(|other| other != id);
        if alike.is_empty() {
            self.by_content.remove(content);
        }
    }
}

/// The last ids, the oldest forgotten first.
#[derive(Default)]
struct Remembered {
    order: VecDeque<MsgId>,
    ids: HashSet<MsgId>,
}

impl Remembered {
    fn add(&mut self, id: MsgId) {
        if self.order.len() == REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.ids.remove(&oldest);
        }
        self.order.push_back(id.clone());
        self.ids.insert(id);
    }

    fn contains(&self, id: &MsgId) -> bool {
        self.ids.contains(id)
    }
}

impl RunningCalls {
    pub fn begin(&self, request: Arc<InboxMessage>, limit: usize) -> Result<Caller, Refused> {
        let mut table = self.lock();
        if table.calls.contains_key(&request.id) {
            return Err(Refused::Running);
        }
        if table.finished.contains(&request.id) {
            return Err(Refused::Finished);
        }
        let agent = principal_of(&request.from.session_id).to_owned();
        let share = (limit / MOST_AGENTS_TO_FILL_A_HOST).max(1);
        if table.calls.len() >= limit || table.by_agent.get(&agent).is_some_and(|calls| *calls >= share) {
            return Err(Refused::TooMany);
        }
        *table.by_agent.entry(agent).or_insert(0) += 1;
        let caller = Caller::new(request);
        if table.early_cancels.contains(caller.id()) {
            caller.cancel.fire(None);
        }
        table.calls.insert(caller.id().clone(), caller.clone());
        Ok(caller)
    }

    /// Says what a call is, once.
    pub fn describe(&self, caller: &Caller, about: About) {
        let content = about.content;
        if caller.progress.about.set(about).is_ok()
            && let Some(content) = content
        {
            self.lock().by_content.entry(content).or_default().push(caller.id().clone());
        }
    }

    /// The latest other call of the same agent with that content.
    pub fn latest_like(&self, caller: &Caller, content: &[u8; 32]) -> Option<Caller> {
        let table = self.lock();
        let alike = table.by_content.get(content)?;
        let others = alike.iter().rev().take_while(|id| *id != caller.id()).count();
        let earlier = alike.iter().rev().skip(others).filter(|id| *id != caller.id());
        earlier.filter_map(|id| table.calls.get(id)).find(|other| other.agent() == caller.agent()).cloned()
    }

    pub fn get(&self, id: &MsgId) -> Option<Caller> {
        self.lock().calls.get(id).cloned()
    }

    /// All calls that are here.
    pub fn all(&self) -> Vec<Caller> {
        self.lock().calls.values().cloned().collect()
    }

    pub fn finish(&self, id: &MsgId) {
        let mut table = self.lock();
        let Some(ended) = table.calls.remove(id) else { return };
        ended.progress.ended.cancel();
        table.finished.add(id.clone());
        if let Some(content) = ended.progress.about().and_then(|about| about.content) {
            table.forget_content(&content, id);
        }
        let agent = principal_of(ended.mailbox());
        if let Some(calls) = table.by_agent.get_mut(agent) {
            *calls -= 1;
            if *calls == 0 {
                table.by_agent.remove(agent);
            }
        }
    }

    /// Calls off what runs under that id. `by` is the mailbox that asks, where it is known: nobody calls off the calls
    /// of others.
    pub fn cancel(&self, id: &MsgId, by: Option<&str>, reason: Option<String>) {
        let mut table = self.lock();
        match table.calls.get(id) {
            Some(caller) if by.is_none_or(|by| by == caller.mailbox()) => caller.cancel.fire(reason),
            Some(_) => {}
            None if table.finished.contains(id) => {}
            None => table.early_cancels.add(id.clone()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().expect("nothing panics while it holds this lock")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use toolbus_protocol::{AgentRef, Body, InboxKind};

    fn request(from: &str) -> Arc<InboxMessage> {
        let from = AgentRef::new(from);
        Arc::new(InboxMessage::new(from, InboxKind::McpRequest, Body::null()))
    }

    #[test]
    fn a_request_is_begun_once_even_after_it_finished() {
        let running = RunningCalls::default();
        let request = request("w");
        assert!(running.begin(Arc::clone(&request), 8).is_ok());
        assert_eq!(running.begin(Arc::clone(&request), 8).err(), Some(Refused::Running));
        running.finish(&request.id);
        assert_eq!(running.begin(request, 8).err(), Some(Refused::Finished));
    }

    #[test]
    fn an_agent_takes_its_share_of_a_hosts_calls_and_leaves_the_rest() {
        let running = RunningCalls::default();
        let first = running.begin(request("w#1"), 8).expect("room");
        assert!(running.begin(request("w#2"), 8).is_ok());
        assert_eq!(running.begin(request("w#3"), 8).err(), Some(Refused::TooMany));
        assert!(running.begin(request("v"), 8).is_ok());
        running.finish(first.id());
        assert!(running.begin(request("w#3"), 8).is_ok());
    }

    #[test]
    fn calls_are_bounded() {
        let running = RunningCalls::default();
        assert!(running.begin(request("w"), 1).is_ok());
        assert_eq!(running.begin(request("w"), 1).err(), Some(Refused::TooMany));
    }

    #[test]
    fn only_its_own_worker_calls_a_call_off() {
        let running = RunningCalls::default();
        let caller = running.begin(request("w"), 8).expect("room");
        running.cancel(caller.id(), Some("other"), None);
        assert!(!caller.cancel.is_fired());
        running.cancel(caller.id(), Some("w"), Some("enough".to_owned()));
        assert!(caller.cancel.is_fired());
        assert_eq!(caller.cancel.reason(), Some("enough"));
    }

    #[test]
    fn a_cancel_that_overtakes_its_call_counts() {
        let running = RunningCalls::default();
        let request = request("w");
        running.cancel(&request.id, None, None);
        let caller = running.begin(request, 8).expect("room");
        assert!(caller.cancel.is_fired());
    }

    #[test]
    fn a_call_finds_the_latest_before_it_that_is_the_same() {
        let running = RunningCalls::default();
        let begin = |from: &str, content: u8| {
            let caller = running.begin(request(from), 100).expect("room");
            let (server, tool) = (String::new(), String::new());
            running.describe(&caller, About { server, tool, content: Some([content; 32]), is_task: false });
            caller
        };
        let (first, second, _other) = (begin("w#1", 1), begin("w#2", 1), begin("v#1", 1));
        let third = begin("w#3", 1);
        let like = |caller: &Caller| running.latest_like(caller, &[1; 32]).map(|found| found.id().clone());
        assert_eq!(like(&third).as_ref(), Some(second.id()));
        assert_eq!(like(&second).as_ref(), Some(first.id()));
        assert_eq!(like(&first), None);
        running.finish(second.id());
        assert_eq!(like(&third).as_ref(), Some(first.id()));
        assert!(running.latest_like(&third, &[2; 32]).is_none());
    }
}
