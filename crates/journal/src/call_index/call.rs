//! The facts about each call in compact form. A host remembers hundreds of thousands of calls, so a call has only fields
//! that most calls need; bodies and rarely used texts stay in the log.

use super::TaskManifest;
use super::arena::{Arena, Slot};
use super::names::{Id, Mailbox, Name, Names};
use crate::entry::{CallKey, End, Start};
use crate::log::Location;
use bytes::Bytes;
use bytestring::ByteString;
use hashbrown::{DefaultHashBuilder, HashTable};
use std::hash::BuildHasher;
use std::sync::Arc;

#[derive(Debug)]
pub struct Call {
    id: Id,
    pub start: Option<Started>,
    /// The id of the message with the answer, which may not be durable yet.
    pub reply_id: Option<Id>,
    pub answer: Option<Answer>,
    /// The timestamp under which an ended call is listed.
    pub listed_at: u64,
    rare: Option<Box<Rare>>,
    caller: Mailbox,
    /// Absent if only the answer could be read; any content matches then.
    pub content: Option<[u8; 32]>,
    /// Started by this process.
    pub live: bool,
    pub is_listed: bool,
}

/// The latest START.
#[derive(Debug)]
pub struct Started {
    pub at: u64,
    pub attempt: u32,
    server: Name,
    tool: Name,
    safe: bool,
}

#[derive(Debug, Clone, Copy)]
pub struct Answer {
    pub at: u64,
    /// The location of the reply in the log.
    location: toolbus_wal::Location,
    pub end: End,
}

/// Facts that few calls have.
#[derive(Debug, Default)]
pub struct Rare {
    pub task: Option<Arc<TaskManifest>>,
    /// A START derived from the dead letter, used if no START is known.
    pub dead_lettered: Option<Arc<Start>>,
    pub joined: Option<JoinedTo>,
    /// When a join was announced that is not durable yet.
    pub joining_at: Option<u64>,
    /// Calls joined to this one; they are forgotten together with it.
    pub joiners: Vec<CallKey>,
    pub latest_join: u64,
    /// The reply, if it is not in the log.
    reply: Option<Bytes>,
}

#[derive(Debug)]
pub struct JoinedTo {
    pub to: CallKey,
    pub at: u64,
}

impl Call {
    pub fn rare_mut(&mut self) -> &mut Rare {
        self.rare.get_or_insert_default()
    }

    pub fn task(&self) -> Option<&Arc<TaskManifest>> {
        self.rare.as_ref()?.task.as_ref()
    }

    pub fn dead_lettered(&self) -> Option<&Arc<Start>> {
        self.rare.as_ref()?.dead_lettered.as_ref()
    }

    pub fn joined(&self) -> Option<&JoinedTo> {
        self.rare.as_ref()?.joined.as_ref()
    }

    pub fn joiners(&self) -> &[CallKey] {
        self.rare.as_ref().map_or(&[], |rare| &rare.joiners)
    }

    pub fn latest_join(&self) -> u64 {
        self.rare.as_ref().map_or(0, |rare| rare.latest_join)
    }

    /// When the call was last started or joined.
    pub fn began_at(&self) -> u64 {
        let joined =
            self.rare.as_ref().and_then(|rare| rare.joined.as_ref().map(|joined| joined.at).or(rare.joining_at));
        self.start.as_ref().map(|start| start.at).max(joined).unwrap_or_default()
    }

    pub fn set_answer(&mut self, end: End, at: u64, reply: Location) {
        let (reply, location) = match reply {
            Location::Log(location) => (None, location),
            Location::InMemory(bytes) => (Some(bytes), toolbus_wal::Location { segment: 0, offset: 0, length: 0 }),
        };
        self.answer = Some(Answer { at, location, end });
        if self.rare.is_some() || reply.is_some() {
            self.rare_mut().reply = reply;
        }
    }

    /// The location of the reply, if the call is answered.
    pub fn reply(&self) -> Option<Location> {
        let location = self.answer?.location;
        let in_memory = self.rare.as_ref().and_then(|rare| rare.reply.clone());
        Some(in_memory.map_or(Location::Log(location), Location::InMemory))
    }

    /// The id of the message with the durable answer to this call.
    pub fn reply_id(&self) -> ByteString {
        self.reply_id.as_ref().map(Id::text).unwrap_or_default()
    }
}

/// All calls, by slot and by key.
#[derive(Debug, Default)]
pub struct Calls {
    calls: Arena<Call>,
    by_key: HashTable<Slot>,
    names: Names,
    hasher: DefaultHashBuilder,
}

impl Calls {
    pub fn find(&self, key: &CallKey) -> Option<Slot> {
        let (caller, id) = (Mailbox::find(&key.caller, &self.names)?, Id::new(&key.id));
        let is_it = |slot: &Slot| self.calls.get(*slot).is_some_and(|call| call.caller == caller && call.id == id);
        self.by_key.find(self.hasher.hash_one((caller, &id)), is_it).copied()
    }

    pub fn get(&self, key: &CallKey) -> Option<&Call> {
        self.at(self.find(key)?)
    }

    pub fn at(&self, slot: Slot) -> Option<&Call> {
        self.calls.get(slot)
    }

    pub fn at_mut(&mut self, slot: Slot) -> Option<&mut Call> {
        self.calls.get_mut(slot)
    }

    /// The call with this key, which is added if it is unknown.
    pub fn entry(&mut self, key: &CallKey) -> (Slot, &mut Call) {
        let slot = self.find(key).unwrap_or_else(|| self.add(key));
        (slot, self.calls.get_mut(slot).expect("a found or added call exists"))
    }

    fn add(&mut self, key: &CallKey) -> Slot {
        let (caller, id) = (Mailbox::acquire(&key.caller, &mut self.names), Id::new(&key.id));
        let hash = self.hasher.hash_one((caller, &id));
        let slot = self.calls.insert(Call {
            id,
            start: None,
            reply_id: None,
            answer: None,
            listed_at: 0,
            rare: None,
            caller,
            content: None,
            live: false,
            is_listed: false,
        });
        let (calls, hasher) = (&self.calls, &self.hasher);
        let rehash = |slot: &Slot| calls.get(*slot).map_or(0, |call| hasher.hash_one((call.caller, &call.id)));
        self.by_key.insert_unique(hash, slot, rehash);
        slot
    }

    pub fn remove(&mut self, slot: Slot) -> Option<Call> {
        let call = self.calls.remove(slot)?;
        let hash = self.hasher.hash_one((call.caller, &call.id));
        if let Ok(found) = self.by_key.find_entry(hash, |other| *other == slot) {
            found.remove();
        }
        self.names.release(call.caller.prefix);
        self.release(call.start.as_ref());
        Some(call)
    }

    fn release(&mut self, start: Option<&Started>) {
        if let Some(Started { server, tool, .. }) = start {
            self.names.release(*server);
            self.names.release(*tool);
        }
    }

    pub fn key(&self, call: &Call) -> CallKey {
        CallKey { caller: call.caller.text(&self.names), id: call.id.text() }
    }

    pub fn agent(&self, call: &Call) -> &str {
        crate::entry::agent(self.names.text(call.caller.prefix))
    }

    pub fn set_start(&mut self, slot: Slot, start: &Start) {
        let (server, tool) = (self.names.acquire(&start.server), self.names.acquire(&start.tool));
        let Start { at, attempt, safe, .. } = *start;
        let call = self.calls.get_mut(slot);
        let earlier = call.and_then(|call| call.start.replace(Started { at, attempt, server, tool, safe }));
        self.release(earlier.as_ref());
    }

    /// The latest START of a call.
    pub fn start(&self, call: &Call) -> Option<Arc<Start>> {
        let Started { at, attempt, server, tool, safe } = *call.start.as_ref()?;
        let (server, tool) = (self.names.owned(server), self.names.owned(tool));
        let content = call.content.unwrap_or_default();
        Some(Arc::new(Start { key: self.key(call), server, tool, content, attempt, at, safe }))
    }

    pub fn len(&self) -> usize {
        self.by_key.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removed_call_leaves_no_names_behind() {
        let mut calls = Calls::default();
        let key = CallKey { caller: "w#mcp".into(), id: "7".into() };
        let (slot, _) = calls.entry(&key);
        for attempt in 1..4 {
            let (server, tool) = ("files".into(), "write".into());
            let start = Start { key: key.clone(), server, tool, content: [1; 32], attempt, at: 1, safe: true };
            calls.set_start(slot, &start);
        }
        assert!(calls.remove(slot).is_some() && calls.find(&key).is_none());
        assert_eq!(["w#mcp", "files", "write"].map(|name| calls.names.find(name)), [None; 3]);
    }
}
