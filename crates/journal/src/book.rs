//! What is known of each call. No I/O: places in the log are numbers here.

use crate::entry::{CallKey, Entry, Start};
use crate::log::Place;
use hashbrown::HashMap;
use std::collections::VecDeque;
use std::sync::Arc;

/// What became of a call that comes (perhaps again).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Known {
    /// Never begun here.
    New,
    /// This process runs it.
    Running(Arc<Start>),
    /// It was answered; the answer is there in the log.
    Answered { start: Arc<Start>, reply: Place },
    /// It was begun by a process that is gone. Whether it had its effect is not known.
    Interrupted(Arc<Start>),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("this id was used for a call of {tool} with other arguments")]
    OtherContent { tool: String },
}

#[derive(Debug)]
enum State {
    Running,
    Interrupted,
    Answered(Place),
}

#[derive(Debug)]
struct Call {
    start: Arc<Start>,
    state: State,
    collected: bool,
}

/// All calls of a host that are remembered, each once.
#[derive(Debug, Default)]
pub struct Book {
    calls: HashMap<CallKey, Call>,
    /// Of calls that need not be remembered for ever, in the order in which they ended.
    ended: VecDeque<(u64, CallKey)>,
}

impl Book {
    /// Looks a call up by its id; the same id has to mean the same call.
    pub fn look_up(&self, key: &CallKey, content: &[u8; 32]) -> Result<Known, Refused> {
        let Some(call) = self.calls.get(key) else { return Ok(Known::New) };
        if call.start.content != *content {
            return Err(Refused::OtherContent { tool: call.start.tool.to_string() });
        }
        let start = Arc::clone(&call.start);
        Ok(match call.state {
            State::Running => Known::Running(start),
            State::Interrupted => Known::Interrupted(start),
            State::Answered(reply) => Known::Answered { start, reply },
        })
    }

    /// Enters what this process does. `place` is where a reply is in the log.
    pub fn enter(&mut self, entry: &Entry, place: Place) {
        self.apply(entry, place, State::Running);
    }

    /// Enters what an earlier process did.
    pub fn restore(&mut self, entry: &Entry, place: Place) {
        self.apply(entry, place, State::Interrupted);
    }

    fn apply(&mut self, entry: &Entry, place: Place, begun: State) {
        match entry {
            Entry::Start(start) => {
                let call = Call { start: Arc::clone(start), state: begun, collected: false };
                self.calls.insert(start.key.clone(), call);
            }
            Entry::Finish(finish) => {
                if let Some(call) = self.calls.get_mut(&finish.key) {
                    call.state = State::Answered(place);
                    self.ended.push_back((finish.at, finish.key.clone()));
                }
            }
            Entry::Collected(key) => {
                if let Some(call) = self.calls.get_mut(key) {
                    call.collected = true;
                }
            }
        }
    }

    /// Forgets calls that ended before that time, and the oldest past that number.
    pub fn forget(&mut self, ended_before: u64, most: usize) {
        while let Some((at, _)) = self.ended.front() {
            if *at >= ended_before && self.ended.len() <= most {
                return;
            }
            let Some((at, key)) = self.ended.pop_front() else { return };
            // It may have been run again since.
            if self
                .calls
                .get(&key)
                .is_some_and(|call| matches!(call.state, State::Answered(_)) && at == self.ended_at(&key, at))
            {
                self.calls.remove(&key);
            }
        }
    }

    fn ended_at(&self, key: &CallKey, default: u64) -> u64 {
        self.ended.iter().rev().find(|(_, other)| other == key).map_or(default, |(at, _)| *at)
    }

    /// Calls of that agent that are running or whose answer nobody has collected: what a repeated call joins.
    pub fn open_calls_of<'a>(
        &'a self,
        principal: &'a str,
        content: &'a [u8; 32],
    ) -> impl Iterator<Item = (&'a Arc<Start>, bool)> {
        self.calls.values().filter_map(move |call| {
            let caller = &call.start.key.caller;
            let own = caller.split_once('#').map_or(&**caller, |(name, _)| name) == principal;
            let open =
                matches!(call.state, State::Running) || (matches!(call.state, State::Answered(_)) && !call.collected);
            (own && open && call.start.content == *content)
                .then_some((&call.start, matches!(call.state, State::Answered(_))))
        })
    }

    pub fn len(&self) -> usize {
        self.calls.len()
    }

    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }
}
