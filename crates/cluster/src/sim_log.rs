//! A replicated log in memory that behaves as badly as a real one may: requests and answers get lost, appends arrive late,
//! ids are forgotten, a broker can't reach it, and a rival acts in the middle of an append. All of it follows from the seed.

use crate::{Append, AppendError, Bounds, LogError, ReplicatedLog};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use toolbus_wal::sim_disk::Rng;

/// How often the network fails, of a hundred requests each.
#[derive(Debug, Clone, Copy, Default)]
pub struct Faults {
    /// The request does not reach the log.
    pub lost_requests: u64,
    /// The request reaches the log, and its answer is lost.
    pub lost_answers: u64,
    /// The request reaches the log later, or never.
    pub late_requests: u64,
}

/// What happens while a broker waits for an answer.
type Interlude = Box<dyn FnOnce() + Send>;

struct State {
    messages: BTreeMap<u64, Bytes>,
    last: u64,
    /// The ids that the log deduplicates.
    ids: BTreeMap<String, u64>,
    /// Requests that are on their way.
    on_the_way: Vec<Append>,
    unreachable: BTreeSet<usize>,
    faults: Faults,
    interlude: Option<Interlude>,
    rng: Rng,
}

/// The log of one partition.
#[derive(Clone)]
pub struct SimLog(Arc<Mutex<State>>);

impl SimLog {
    /// An empty log without faults.
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(State {
            messages: BTreeMap::new(),
            last: 0,
            ids: BTreeMap::new(),
            on_the_way: Vec::new(),
            unreachable: BTreeSet::new(),
            faults: Faults::default(),
            interlude: None,
            rng: Rng::new(seed),
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("the simulation has one thread")
    }

    /// The log as a broker sees it.
    pub fn of_broker(&self, broker: usize) -> Arc<dyn ReplicatedLog> {
        Arc::new(SimLogClient { log: self.clone(), broker })
    }

    /// Sets how often the network fails.
    pub fn set_faults(&self, faults: Faults) {
        self.state().faults = faults;
    }

    /// Cuts a broker off, or lets it reach the log again.
    pub fn set_reachable(&self, broker: usize, reachable: bool) {
        let mut state = self.state();
        match reachable {
            true => state.unreachable.remove(&broker),
            false => state.unreachable.insert(broker),
        };
    }

    /// Runs this once, while a broker waits before it sends an append again.
    pub fn set_interlude(&self, interlude: Option<Interlude>) {
        self.state().interlude = interlude;
    }

    /// Runs the interlude now, if no broker came to wait.
    pub fn run_interlude(&self) {
        let interlude = self.state().interlude.take();
        if let Some(interlude) = interlude {
            interlude();
        }
    }

    /// A request that was on its way reaches the log, or is lost.
    pub fn deliver_late(&self) {
        let mut state = self.state();
        if !state.on_the_way.is_empty() {
            let count = state.on_the_way.len() as u64;
            let chosen = state.rng.below(count) as usize;
            let append = state.on_the_way.remove(chosen);
            // Its sender no longer waits.
            state.append(&append).ok();
        }
    }

    /// A defect of the log during an election: a late request of an epoch before that one is accepted at another place than
    /// it expected. Returns false if there is none.
    pub fn misplace_late(&self, current: u64) -> bool {
        let mut state = self.state();
        let is_older = |append: &Append| {
            let epoch = append.id.split('.').next().and_then(|epoch| epoch.parse::<u64>().ok());
            epoch.is_some_and(|epoch| epoch < current)
        };
        let Some(at) = state.on_the_way.iter().position(is_older) else { return false };
        let append = state.on_the_way.remove(at);
        state.append(&Append { expected_last: None, ..append }).is_ok()
    }

    /// The time in which ids are deduplicated has passed.
    pub fn forget_ids(&self) {
        self.state().ids.clear();
    }

    /// Everything that is on its way is lost.
    pub fn lose_late(&self) {
        self.state().on_the_way.clear();
    }

    /// All messages, as they are stored.
    pub fn messages(&self) -> Vec<(u64, Bytes)> {
        self.state().messages.iter().map(|(number, message)| (*number, message.clone())).collect()
    }

    /// Replaces the content of a message.
    pub fn corrupt(&self, sequence: u64, change: impl FnOnce(&mut Vec<u8>)) {
        let mut state = self.state();
        let message = state.messages.get_mut(&sequence).expect("the message to corrupt exists");
        let mut bytes = message.to_vec();
        change(&mut bytes);
        *message = bytes.into();
    }

    /// Removes a message without a trace.
    pub fn remove(&self, sequence: u64) {
        self.state().messages.remove(&sequence);
    }
}

impl State {
    fn append(&mut self, append: &Append) -> Result<u64, AppendError> {
        if let Some(sequence) = self.ids.get(&append.id) {
            return Ok(*sequence);
        }
        if append.expected_last.is_some_and(|expected| expected != self.last) {
            return Err(AppendError::Rejected);
        }
        self.last += 1;
        self.messages.insert(self.last, append.payload.clone());
        self.ids.insert(append.id.clone(), self.last);
        Ok(self.last)
    }

    /// The first message, or the number of the next one.
    fn first(&self) -> u64 {
        self.messages.first_key_value().map_or(self.last + 1, |(number, _)| *number)
    }
}

struct SimLogClient {
    log: SimLog,
    broker: usize,
}

impl SimLogClient {
    fn reached(&self, what: &'static str) -> Result<MutexGuard<'_, State>, LogError> {
        let mut state = self.log.state();
        let Faults { lost_requests, lost_answers, .. } = state.faults;
        if state.unreachable.contains(&self.broker) || state.rng.chance((lost_requests + lost_answers) / 4) {
            return Err(LogError { what, reason: "the simulated log does not answer".into() });
        }
        Ok(state)
    }
}

impl ReplicatedLog for SimLogClient {
    fn append(&self, append: &Append) -> Result<u64, AppendError> {
        let mut state = self.log.state();
        let Faults { lost_requests, lost_answers, late_requests } = state.faults;
        let unknown = || Err(AppendError::Unknown("the simulated log does not answer".into()));
        let is_late = state.rng.chance(late_requests);
        if state.unreachable.contains(&self.broker) || is_late {
            // A cut may come while a request is on its way.
            if is_late || state.rng.chance(30) {
                state.on_the_way.push(append.clone());
            }
            return unknown();
        }
        if state.rng.chance(lost_requests) {
            return unknown();
        }
        let appended = state.append(append);
        if state.rng.chance(lost_answers) { unknown() } else { appended }
    }

    fn wait_to_resend(&self, attempt: u32) -> bool {
        self.log.run_interlude();
        let mut state = self.log.state();
        let goes_on = u64::from(attempt) < 1 + state.rng.below(6);
        let is_late = state.rng.chance(30);
        drop(state);
        if is_late {
            self.log.deliver_late();
        }
        goes_on
    }

    fn bounds(&self) -> Result<Bounds, LogError> {
        let state = self.reached("inspect")?;
        Ok(Bounds { first: state.first(), last: state.last })
    }

    fn read(&self, from: u64, to: u64, each: &mut dyn FnMut(u64, Bytes)) -> Result<(), LogError> {
        let state = self.reached("read")?;
        state.messages.range(from..=to).for_each(|(number, message)| each(*number, message.clone()));
        Ok(())
    }

    fn purge_below(&self, sequence: u64) -> Result<(), LogError> {
        let mut state = self.reached("purge")?;
        state.messages = state.messages.split_off(&sequence);
        Ok(())
    }

    fn free_bytes(&self) -> Result<u64, LogError> {
        Ok(u64::MAX)
    }

    fn max_message(&self) -> usize {
        MAX_MESSAGE
    }
}

/// Small, so that most batches need several messages.
const MAX_MESSAGE: usize = 400;
