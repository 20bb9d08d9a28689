//! The calls of this host, indexed by id, agent and content.

use crate::caller::{CallDescription, Caller};
use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard};
use toolbus_protocol::{InboxMessage, MsgId, principal_of};

/// Capacity of each set of remembered keys: finished calls, and cancels that arrived before their call.
const MAX_REMEMBERED: usize = 32 << 10;

/// One agent may have at most `1 / AGENT_SHARE` of a host's calls, open listens included.
const AGENT_SHARE: usize = 4;

/// Why a request is not started.
#[derive(Debug, PartialEq, Eq)]
pub enum Refused {
    /// Already running: the broker redelivered it after a reconnect. The one reply settles both deliveries.
    Running,
    /// Already answered.
    Finished,
    /// A limit on calls is reached.
    TooMany,
}

#[derive(Default)]
pub struct RunningCalls(Mutex<Table>);

/// The caller's mailbox and the call's id, so that equal ids of different callers don't collide.
type Key = (String, MsgId);

fn key_of(request: &InboxMessage) -> Key {
    (request.from.session_id.to_string(), request.id.clone())
}

#[derive(Default)]
struct Table {
    calls: HashMap<Key, Caller>,
    /// The broker reports a cancelled message by its id only, without its sender.
    by_id: HashMap<MsgId, Vec<Key>>,
    /// Number of calls per agent.
    by_agent: HashMap<String, usize>,
    /// Calls that others may join, by content, in the order of admission.
    by_content: HashMap<[u8; 32], Vec<Key>>,
    finished: BoundedSet<Key>,
    early_cancels: BoundedSet<Key>,
    /// Cancels reported by the broker, which has checked the sender's right to cancel.
    early_cancels_by_id: BoundedSet<MsgId>,
}

impl Table {
    fn forget_content(&mut self, content: &[u8; 32], key: &Key) {
        let Some(equal) = self.by_content.get_mut(content) else { return };
        equal.retain(|other| other != key);
        if equal.is_empty() {
            self.by_content.remove(content);
        }
    }

    fn forget_id(&mut self, key: &Key) {
        let Some(equal) = self.by_id.get_mut(&key.1) else { return };
        equal.retain(|other| other != key);
        if equal.is_empty() {
            self.by_id.remove(&key.1);
        }
    }

    fn is_cancelled_early(&self, key: &Key) -> bool {
        self.early_cancels.contains(key) || self.early_cancels_by_id.contains(&key.1)
    }
}

/// A bounded set that evicts its oldest element.
struct BoundedSet<K> {
    order: VecDeque<K>,
    known: HashSet<K>,
}

impl<K> Default for BoundedSet<K> {
    fn default() -> Self {
        Self { order: VecDeque::new(), known: HashSet::new() }
    }
}

impl<K: Clone + Eq + Hash> BoundedSet<K> {
    fn add(&mut self, key: K) {
        if !self.known.insert(key.clone()) {
            return;
        }
        if self.order.len() == MAX_REMEMBERED
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

    /// Like [`Self::begin`], but also for a request that was already answered: its reply was lost, and answering a read
    /// again has no effect.
    pub fn begin_again(&self, request: Arc<InboxMessage>, limit: usize) -> Result<Caller, Refused> {
        let mut table = self.lock();
        let key = key_of(&request);
        if table.calls.contains_key(&key) {
            return Err(Refused::Running);
        }
        let agent = principal_of(&request.from.session_id).to_owned();
        let share = (limit / AGENT_SHARE).max(1);
        if table.calls.len() >= limit || table.by_agent.get(&agent).is_some_and(|calls| *calls >= share) {
            return Err(Refused::TooMany);
        }
        *table.by_agent.entry(agent).or_insert(0) += 1;
        let caller = Caller::new(request);
        if table.is_cancelled_early(&key) {
            caller.cancel.fire(None);
        }
        table.by_id.entry(key.1.clone()).or_default().push(key.clone());
        table.calls.insert(key, caller.clone());
        Ok(caller)
    }

    /// Marks a request that was answered without being started, so that a redelivery doesn't run it.
    pub fn mark_finished(&self, request: &InboxMessage) {
        self.lock().finished.add(key_of(request));
    }

    /// Sets the description of a call; later calls have no effect.
    pub fn describe(&self, caller: &Caller, description: CallDescription) {
        let content = description.content;
        if caller.progress.description.set(description).is_ok()
            && let Some(content) = content
        {
            self.lock().by_content.entry(content).or_default().push(key_of(&caller.request));
        }
    }

    /// The latest earlier call of the same agent with equal content.
    pub fn latest_equal(&self, caller: &Caller, content: &[u8; 32]) -> Option<Caller> {
        let (table, own) = (self.lock(), key_of(&caller.request));
        let equal = table.by_content.get(content)?;
        let later = equal.iter().rev().take_while(|key| **key != own).count();
        let earlier = equal.iter().rev().skip(later).filter(|key| **key != own);
        earlier.filter_map(|key| table.calls.get(key)).find(|other| other.agent() == caller.agent()).cloned()
    }

    /// The call with that id that the predicate accepts.
    pub fn get(&self, id: &MsgId, is_visible: impl Fn(&Caller) -> bool) -> Option<Caller> {
        let table = self.lock();
        let calls = table.by_id.get(id)?.iter().filter_map(|key| table.calls.get(key));
        calls.into_iter().find(|caller| is_visible(caller)).cloned()
    }

    pub fn all(&self) -> Vec<Caller> {
        self.lock().calls.values().cloned().collect()
    }

    pub fn finish(&self, caller: &Caller) {
        let mut table = self.lock();
        let key = key_of(&caller.request);
        let Some(ended) = table.calls.remove(&key) else { return };
        ended.progress.ended.cancel();
        table.forget_id(&key);
        if let Some(content) = ended.progress.description().and_then(|description| description.content) {
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

    /// Cancels a call on behalf of its own worker.
    pub fn cancel(&self, id: &MsgId, by: &str, reason: Option<String>) {
        let mut table = self.lock();
        let key = (by.to_owned(), id.clone());
        match table.calls.get(&key) {
            Some(caller) => caller.cancel.fire(reason),
            None if table.finished.contains(&key) => {}
            None => table.early_cancels.add(key),
        }
    }

    /// Cancels a call whose message the broker reports as cancelled. The broker has checked the sender's right to do
    /// so.
    pub fn cancel_message(&self, id: &MsgId) {
        let mut table = self.lock();
        match table.by_id.get(id).map(Vec::as_slice) {
            Some([key]) => {
                if let Some(caller) = table.calls.get(key) {
                    caller.cancel.fire(None);
                }
            }
            // The id is ambiguous. The worker that cancelled also sends `notifications/cancelled`, which names its
            // mailbox.
            Some(_) => {}
            None => table.early_cancels_by_id.add(id.clone()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().expect("no code panics while it holds this lock")
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
    fn a_request_starts_once_even_after_it_finished() {
        let running = RunningCalls::default();
        let request = request("w");
        let caller = running.begin(Arc::clone(&request), 8).expect("room");
        assert_eq!(running.begin(Arc::clone(&request), 8).err(), Some(Refused::Running));
        running.finish(&caller);
        assert_eq!(running.begin(request, 8).err(), Some(Refused::Finished));
    }

    #[test]
    fn an_agent_gets_at_most_its_share_of_the_calls() {
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
    fn only_its_own_worker_cancels_a_call() {
        let running = RunningCalls::default();
        let caller = running.begin(request("w"), 8).expect("room");
        running.cancel(caller.id(), "other", None);
        assert!(!caller.cancel.is_fired());
        running.cancel(caller.id(), "w", Some("enough".to_owned()));
        assert!(caller.cancel.is_fired());
        assert_eq!(caller.cancel.reason(), Some("enough"));
    }

    #[test]
    fn a_cancel_that_arrives_before_its_call_takes_effect() {
        let running = RunningCalls::default();
        let request = request("w");
        running.cancel_message(&request.id);
        let caller = running.begin(request, 8).expect("room");
        assert!(caller.cancel.is_fired());
    }

    #[test]
    fn a_cancel_before_its_call_takes_effect_only_from_its_own_worker() {
        let running = RunningCalls::default();
        let (mine, other) = (request("w"), request("w"));
        running.cancel(&mine.id, "w", None);
        running.cancel(&other.id, "v", None);
        assert!(running.begin(mine, 8).expect("room").cancel.is_fired());
        assert!(!running.begin(other, 8).expect("room").cancel.is_fired());
    }

    #[test]
    fn equal_ids_of_different_callers_are_different_calls() {
        let running = RunningCalls::default();
        let mine = request("w");
        let theirs = Arc::new(InboxMessage { from: AgentRef::new("v"), ..(*mine).clone() });
        let first = running.begin(Arc::clone(&theirs), 8).expect("room");
        let second = running.begin(Arc::clone(&mine), 8).expect("ids are scoped by caller");
        running.cancel_message(&mine.id);
        assert!(!first.cancel.is_fired() && !second.cancel.is_fired());
        let found = running.get(&mine.id, |caller| caller.agent() == "w").expect("running");
        assert_eq!(found.mailbox(), "w");
        running.finish(&first);
        assert!(running.get(&mine.id, |caller| caller.agent() == "v").is_none());
        assert_eq!(running.begin(theirs, 8).err(), Some(Refused::Finished));
        assert_eq!(running.begin(mine, 8).err(), Some(Refused::Running));
    }

    #[test]
    fn a_request_answered_without_a_start_does_not_start_later() {
        let running = RunningCalls::default();
        let refused = request("w");
        running.mark_finished(&refused);
        assert_eq!(running.begin(Arc::clone(&refused), 8).err(), Some(Refused::Finished));
        assert!(running.begin_again(refused, 8).is_ok(), "begin_again ignores finished");
    }

    #[test]
    fn latest_equal_returns_the_latest_earlier_equal_call() {
        let running = RunningCalls::default();
        let begin = |from: &str, content: u8| {
            let caller = running.begin(request(from), 100).expect("room");
            let (server, tool) = (String::new(), String::new());
            running.describe(&caller, CallDescription { server, tool, content: Some([content; 32]), is_task: false });
            caller
        };
        let (first, second, _other) = (begin("w#1", 1), begin("w#2", 1), begin("v#1", 1));
        let third = begin("w#3", 1);
        let latest = |caller: &Caller| running.latest_equal(caller, &[1; 32]).map(|found| found.id().clone());
        assert_eq!(latest(&third).as_ref(), Some(second.id()));
        assert_eq!(latest(&second).as_ref(), Some(first.id()));
        assert_eq!(latest(&first), None);
        running.finish(&second);
        assert_eq!(latest(&third).as_ref(), Some(first.id()));
        assert!(running.latest_equal(&third, &[2; 32]).is_none());
    }
}
