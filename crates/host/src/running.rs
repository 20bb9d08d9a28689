//! Calls under way, found by their ids, by those who have them, and by what they are.

use crate::caller::{About, Caller};
use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard};
use toolbus_protocol::{InboxMessage, MsgId, principal_of};

/// Calls that are remembered although they are not here: finished ones, and those that were called off before they came.
const REMEMBERED: usize = 32 << 10;

/// No single agent takes more than its share of a host's calls, open listens included.
const MOST_AGENTS_TO_FILL_A_HOST: usize = 4;

/// Why a request is not begun.
#[derive(Debug, PartialEq, Eq)]
pub enum Refused {
    /// It runs: the broker pushed it once more after a reconnect, and the one reply will answer both.
    Running,
    /// It was answered.
    Finished,
    TooMany,
}

#[derive(Default)]
pub struct RunningCalls(Mutex<Table>);

/// Whose call it is, and its id: nobody's ids stand in the way of another's.
type Key = (String, MsgId);

fn key_of(request: &InboxMessage) -> Key {
    (request.from.session_id.to_string(), request.id.clone())
}

#[derive(Default)]
struct Table {
    calls: HashMap<Key, Caller>,
    /// The broker tells which message is called off, and not by whom.
    by_id: HashMap<MsgId, Vec<Key>>,
    /// How many of them each agent has.
    by_agent: HashMap<String, usize>,
    /// Those that others may be joined to, by content, in the order in which they came.
    by_content: HashMap<[u8; 32], Vec<Key>>,
    finished: Remembered<Key>,
    early_cancels: Remembered<Key>,
    /// Told by the broker, which asks who may.
    early_cancels_of_anybody: Remembered<MsgId>,
}

impl Table {
    fn forget_content(&mut self, content: &[u8; 32], key: &Key) {
        let Some(alike) = self.by_content.get_mut(content) else { return };
        alike.retain(|other| other != key);
        if alike.is_empty() {
            self.by_content.remove(content);
        }
    }

    fn forget_id(&mut self, key: &Key) {
        let Some(alike) = self.by_id.get_mut(&key.1) else { return };
        alike.retain(|other| other != key);
        if alike.is_empty() {
            self.by_id.remove(&key.1);
        }
    }

    fn is_called_off(&self, key: &Key) -> bool {
        self.early_cancels.contains(key) || self.early_cancels_of_anybody.contains(&key.1)
    }
}

/// The last ones, the oldest forgotten first.
struct Remembered<K> {
    order: VecDeque<K>,
    known: HashSet<K>,
}

impl<K> Default for Remembered<K> {
    fn default() -> Self {
        Self { order: VecDeque::new(), known: HashSet::new() }
    }
}

impl<K: Clone + Eq + Hash> Remembered<K> {
    fn add(&mut self, key: K) {
        if !self.known.insert(key.clone()) {
            return;
        }
        if self.order.len() == REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
        self.order.push_back(key);
    }

    fn contains(&self, key: &K) -> bool {
        self.known.contains(key)
    }
}

impl RunningCalls {
    pub fn begin(&self, request: Arc<InboxMessage>, limit: usize) -> Result<Caller, Refused> {
        if self.lock().finished.contains(&key_of(&request)) {
            return Err(Refused::Finished);
        }
        self.begin_again(request, limit)
    }

    /// Also of a request that was answered before: its answer is lost, and it does no harm to make another.
    pub fn begin_again(&self, request: Arc<InboxMessage>, limit: usize) -> Result<Caller, Refused> {
        let mut table = self.lock();
        let key = key_of(&request);
        if table.calls.contains_key(&key) {
            return Err(Refused::Running);
        }
        let agent = principal_of(&request.from.session_id).to_owned();
        let share = (limit / MOST_AGENTS_TO_FILL_A_HOST).max(1);
        if table.calls.len() >= limit || table.by_agent.get(&agent).is_some_and(|calls| *calls >= share) {
            return Err(Refused::TooMany);
        }
        *table.by_agent.entry(agent).or_insert(0) += 1;
        let caller = Caller::new(request);
        if table.is_called_off(&key) {
            caller.cancel.fire(None);
        }
        table.by_id.entry(key.1.clone()).or_default().push(key.clone());
        table.calls.insert(key, caller.clone());
        Ok(caller)
    }

    /// The request is answered without having been begun: should it come again, it must not run after all.
    pub fn answered(&self, request: &InboxMessage) {
        self.lock().finished.add(key_of(request));
    }

    /// Says what a call is, once.
    pub fn describe(&self, caller: &Caller, about: About) {
        let content = about.content;
        if caller.progress.about.set(about).is_ok()
            && let Some(content) = content
        {
            self.lock().by_content.entry(content).or_default().push(key_of(&caller.request));
        }
    }

    /// The latest other call of the same agent with that content.
    pub fn latest_like(&self, caller: &Caller, content: &[u8; 32]) -> Option<Caller> {
        let (table, own) = (self.lock(), key_of(&caller.request));
        let alike = table.by_content.get(content)?;
        let later = alike.iter().rev().take_while(|key| **key != own).count();
        let earlier = alike.iter().rev().skip(later).filter(|key| **key != own);
        earlier.filter_map(|key| table.calls.get(key)).find(|other| other.agent() == caller.agent()).cloned()
    }

    /// The call of that id that somebody may know of.
    pub fn get(&self, id: &MsgId, is_visible: impl Fn(&Caller) -> bool) -> Option<Caller> {
        let table = self.lock();
        let calls = table.by_id.get(id)?.iter().filter_map(|key| table.calls.get(key));
        calls.into_iter().find(|caller| is_visible(caller)).cloned()
    }

    /// All calls that are here.
    pub fn all(&self) -> Vec<Caller> {
        self.lock().calls.values().cloned().collect()
    }

    pub fn finish(&self, caller: &Caller) {
        let mut table = self.lock();
        let key = key_of(&caller.request);
        let Some(ended) = table.calls.remove(&key) else { return };
        ended.progress.ended.cancel();
        table.forget_id(&key);
        if let Some(content) = ended.progress.about().and_then(|about| about.content) {
            table.forget_content(&content, &key);
        }
        table.finished.add(key);
        let agent = principal_of(ended.mailbox());
        if let Some(calls) = table.by_agent.get_mut(agent) {
            *calls -= 1;
            if *calls == 0 {
                table.by_agent.remove(agent);
            }
        }
    }

    /// A worker calls off a call of its own.
    pub fn cancel(&self, id: &MsgId, by: &str, reason: Option<String>) {
        let mut table = self.lock();
        let key = (by.to_owned(), id.clone());
        match table.calls.get(&key) {
            Some(caller) => caller.cancel.fire(reason),
            None if table.finished.contains(&key) => {}
            None => table.early_cancels.add(key),
        }
    }

    /// The broker says that a message was called off, and has made sure that whoever did it may.
    pub fn cancel_message(&self, id: &MsgId) {
        let mut table = self.lock();
        match table.by_id.get(id).map(Vec::as_slice) {
            Some([key]) => {
                if let Some(caller) = table.calls.get(key) {
                    caller.cancel.fire(None);
                }
            }
            // Nobody can tell which of them is meant. Whoever meant it says it by itself too.
            Some(_) => {}
            None => table.early_cancels_of_anybody.add(id.clone()),
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
        let caller = running.begin(Arc::clone(&request), 8).expect("room");
        assert_eq!(running.begin(Arc::clone(&request), 8).err(), Some(Refused::Running));
        running.finish(&caller);
        assert_eq!(running.begin(request, 8).err(), Some(Refused::Finished));
    }

    #[test]
    fn an_agent_takes_its_share_of_a_hosts_calls_and_leaves_the_rest() {
        let running = RunningCalls::default();
        let first = running.begin(request("w#1"), 8).expect("room");
        assert!(running.begin(request("w#2"), 8).is_ok());
        assert_eq!(running.begin(request("w#3"), 8).err(), Some(Refused::TooMany));
        assert!(running.begin(request("v"), 8).is_ok());
        running.finish(&first);
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
        running.cancel(caller.id(), "other", None);
        assert!(!caller.cancel.is_fired());
        running.cancel(caller.id(), "w", Some("enough".to_owned()));
        assert!(caller.cancel.is_fired());
        assert_eq!(caller.cancel.reason(), Some("enough"));
    }

    #[test]
    fn a_cancel_that_overtakes_its_call_counts() {
        let running = RunningCalls::default();
        let request = request("w");
        running.cancel_message(&request.id);
        let caller = running.begin(request, 8).expect("room");
        assert!(caller.cancel.is_fired());
    }

    #[test]
    fn a_cancel_that_overtakes_its_call_counts_only_from_its_own_worker() {
        let running = RunningCalls::default();
        let (mine, other) = (request("w"), request("w"));
        running.cancel(&mine.id, "w", None);
        running.cancel(&other.id, "somebody else", None);
        assert!(running.begin(mine, 8).expect("room").cancel.is_fired());
        assert!(!running.begin(other, 8).expect("room").cancel.is_fired());
    }

    #[test]
    fn the_same_id_of_another_caller_is_another_call() {
        let running = RunningCalls::default();
        let mine = request("w");
        let theirs = Arc::new(InboxMessage { from: AgentRef::new("v"), ..(*mine).clone() });
        let first = running.begin(Arc::clone(&theirs), 8).expect("room");
        let second = running.begin(Arc::clone(&mine), 8).expect("the id of another stands in nobody's way");
        running.cancel_message(&mine.id);
        assert!(!first.cancel.is_fired() && !second.cancel.is_fired());
        let found = running.get(&mine.id, |caller| caller.agent() == "w").expect("it is here");
        assert_eq!(found.mailbox(), "w");
        running.finish(&first);
        assert!(running.get(&mine.id, |caller| caller.agent() == "v").is_none());
        assert_eq!(running.begin(theirs, 8).err(), Some(Refused::Finished));
        assert_eq!(running.begin(mine, 8).err(), Some(Refused::Running));
    }

    #[test]
    fn what_was_answered_without_being_begun_is_not_begun_later() {
        let running = RunningCalls::default();
        let refused = request("w");
        running.answered(&refused);
        assert_eq!(running.begin(Arc::clone(&refused), 8).err(), Some(Refused::Finished));
        assert!(running.begin_again(refused, 8).is_ok(), "unless that does no harm");
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
        running.finish(&second);
        assert_eq!(like(&third).as_ref(), Some(first.id()));
        assert!(running.latest_like(&third, &[2; 32]).is_none());
    }
}
