//! A test harness that owns a call machine, a journal in memory and the clock.
//!
//! Calls are named by their message id. Effects are recorded as one line each, which tests compare. The harness carries
//! out routine steps at once unless a test holds them back, appends to the journal at once, and syncs it when the test says so.
//! In every test it checks that no request is sent before its START counts, that no answer of a started call is given
//! before its RESULT counts, and that a call has one end.

use crate::describe::describe;
use bytes::Bytes;
use bytestring::ByteString;
use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::sync::Arc;
use toolbus_call::{
    Answer, AskNo, CallMachine, CallNo, CancelBy, Cause, Effect, Effects, Event, Failure, Grant, Inspected,
    MachineOptions, Millis, Now, Record, RecordKind, Request, ServerOptions, Stage, TripSettings,
};
use toolbus_journal::{
    Appended, CallKey, Dead, End, Entry, Finish, Joined, JournalError, JournalOptions, JournalState, Start, Task,
    Ticket,
};
use toolbus_wal::MemoryDisk;

/// The answer of a server, or a refusal.
pub type Text = &'static str;

/// A step that the harness carries out at once, unless the test holds it back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    Authorise,
    Recheck,
    Reserve,
    Connect,
    Send,
}

/// The time in milliseconds since 1970 when the monotonic clock was 0.
const WALL: u64 = 1_763_000_000_000;

pub struct Host {
    pub machine: CallMachine<Text>,
    pub now: Millis,
    /// Given to every authorised call; its replay setting is that of the request.
    pub grant: Grant,
    options: MachineOptions,
    disk: Arc<MemoryDisk>,
    pub journal: JournalState,
    held: HashSet<Step>,
    /// Whether the rules deny every call.
    pub denies: bool,
    rejects: Option<JournalError>,
    arriving: Option<Request>,
    requests: HashMap<CallNo, Request>,
    by_id: HashMap<ByteString, CallNo>,
    asks: VecDeque<(CallNo, AskNo)>,
    replies: u32,
    seen: Vec<String>,
    tickets: HashMap<Ticket, (CallNo, RecordKind)>,
    /// Records that count: they are durable, or written and need not be.
    counting: Vec<(CallNo, RecordKind)>,
    results: HashMap<CallNo, Answer<Text>>,
    ended: HashSet<CallNo>,
}

impl Host {
    pub fn new() -> Self {
        Self::with(|_| {})
    }

    /// A host with one server. Calls continue without their caller unless the options say otherwise.
    pub fn with(change: impl FnOnce(&mut MachineOptions)) -> Self {
        let server = ServerOptions { name: "files".into(), max_concurrency: 8, trip: TripSettings::default() };
        let mut options = MachineOptions { servers: vec![server], caller_grace: None, ..MachineOptions::default() };
        change(&mut options);
        let disk = Arc::new(MemoryDisk::default());
        let journal = open(&disk, 1_000);
        Self {
            machine: CallMachine::new(options.clone()),
            now: 1_000,
            grant: Grant::default(),
            options,
            disk,
            journal,
            held: HashSet::new(),
            denies: false,
            rejects: None,
            arriving: None,
            requests: HashMap::new(),
            by_id: HashMap::new(),
            asks: VecDeque::new(),
            replies: 0,
            seen: Vec::new(),
            tickets: HashMap::new(),
            counting: Vec::new(),
            results: HashMap::new(),
            ended: HashSet::new(),
        }
    }

    /// The process ends, and another one opens the journal. Appends that wait for a sync are lost.
    pub fn restarts(&mut self) {
        self.machine = CallMachine::new(self.options.clone());
        self.journal = open(&self.disk, self.now);
        self.rejects = None;
        self.asks.clear();
        self.seen.clear();
        self.tickets.clear();
        self.requests.clear();
        self.ended.clear();
        self.counting.clear();
    }

    pub fn hold(&mut self, step: Step) {
        self.held.insert(step);
    }

    /// Carries steps out at once again. Those that were held back remain open.
    pub fn release(&mut self, step: Step) {
        self.held.remove(&step);
    }

    /// The journal rejects all appends from now on.
    pub fn reject_appends(&mut self, error: JournalError) {
        self.rejects = Some(error);
    }

    pub fn accept_appends(&mut self) {
        self.rejects = None;
    }

    pub fn arrives(&mut self, request: Request) {
        self.arriving = Some(request.clone());
        self.handle(Event::Arrived(Box::new(request)));
    }

    /// Brings a call to its server.
    #[track_caller]
    pub fn running(&mut self, request: Request) {
        let send = format!("send {}", request.key.id);
        self.arrives(request);
        self.synced();
        assert_eq!(self.seen.pop(), Some(send), "after {:?}", self.seen);
        self.seen.clear();
    }

    pub fn no(&self, id: &str) -> CallNo {
        self.by_id[id]
    }

    /// Whether the latest call with this id is in progress.
    pub fn has(&self, id: &str) -> bool {
        self.by_id.get(id).is_some_and(|call| self.machine.view(*call).is_some())
    }

    pub fn authorised(&mut self, id: &str) {
        let grant = self.grant_of(self.no(id));
        self.handle(Event::Authorised { call: self.no(id), verdict: Ok(grant) });
    }

    pub fn refused(&mut self, id: &str) {
        self.handle(Event::Authorised { call: self.no(id), verdict: Err("denied") });
    }

    pub fn approved(&mut self, id: &str, verdict: Result<(), Text>) {
        self.handle(Event::Approved { call: self.no(id), verdict });
    }

    pub fn connected(&mut self, id: &str) {
        self.handle(Event::Connected { call: self.no(id), outcome: Ok(()) });
    }

    pub fn unreachable(&mut self, id: &str) {
        self.handle(Event::Connected { call: self.no(id), outcome: Err("unreachable") });
    }

    pub fn sent(&mut self, id: &str) {
        self.handle(Event::Sent { call: self.no(id) });
    }

    pub fn not_taken(&mut self, id: &str) {
        self.handle(Event::NotTaken { call: self.no(id), error: "not taken" });
    }

    pub fn answers(&mut self, id: &str, answer: Text) {
        self.handle(Event::Answered { call: self.no(id), answer, end: End::Done });
    }

    /// The server of a call ends; another connection may serve a further attempt.
    pub fn dies(&mut self, id: &str) {
        self.died(id, true);
    }

    pub fn died(&mut self, id: &str, retry: bool) {
        let call = self.no(id);
        // The next attempt needs a START of its own.
        if self.machine.view(call).is_some_and(|view| view.stage == Stage::Running) {
            self.counting.retain(|record| *record != (call, RecordKind::Start));
        }
        self.handle(Event::Died { call, error: "died", why: "exit code 1".into(), retry });
    }

    /// The code that carries out the effects of a call panics.
    pub fn crashes(&mut self, id: &str) {
        self.handle(Event::Crashed { call: self.no(id) });
    }

    pub fn cancels(&mut self, id: &str) {
        let caller = self.requests[&self.no(id)].key.caller.clone();
        self.cancels_from(&caller, id);
    }

    pub fn cancels_from(&mut self, caller: &str, id: &str) {
        let by = CancelBy::Caller(caller.into());
        self.handle(Event::CancelId { id: id.into(), by, reason: None });
    }

    pub fn cancelled_for(&mut self, id: &str, cause: Cause, reason: Option<&str>) {
        self.handle(Event::Cancel { call: self.no(id), cause, reason: reason.map(str::to_owned) });
    }

    /// The broker answers the oldest question.
    pub fn inspected(&mut self, connected: &[bool], uncollected: &[bool]) {
        let view = Inspected { connected: connected.into(), uncollected: uncollected.into() };
        let (call, ask) = self.asks.pop_front().expect("the broker was asked");
        self.handle(Event::Inspected { call, ask, view });
    }

    /// The broker reports about a followed caller; `None` if it can't tell.
    pub fn followed(&mut self, caller: &str, connected: Option<bool>) {
        self.handle(Event::Followed { caller: caller.into(), connected });
    }

    /// The broker receipts the reply to a call.
    pub fn receipted(&mut self, caller: &str, id: &str) {
        self.handle(Event::ReplySettled { key: key(caller, id), refused: false });
    }

    /// Time passes, and the machine is woken whenever it wants to.
    pub fn passes(&mut self, ms: Millis) {
        let end = self.now + ms;
        while let Some(wake) = self.machine.next_wake().filter(|wake| *wake <= end) {
            self.now = wake.max(self.now);
            self.handle(Event::Tick);
            assert_ne!(self.machine.next_wake(), Some(wake), "the machine does not rest");
        }
        self.now = end;
    }

    /// Makes all appends so far durable.
    pub fn synced(&mut self) {
        self.sync(Ok(()));
    }

    pub fn sync_fails(&mut self) {
        self.sync(Err(io::Error::other("disk failed")));
    }

    fn sync(&mut self, outcome: io::Result<()>) {
        let Some(group) = self.journal.begin_sync() else { return };
        let synced = self.journal.complete_sync(group, outcome, WALL + self.now);
        for ticket in synced.tickets.iter().filter(|_| synced.outcome.is_ok()) {
            let record = self.tickets.remove(ticket).expect("appended before");
            self.counting.push(record);
        }
        self.handle(Event::Synced { tickets: synced.tickets, outcome: synced.outcome });
    }

    pub fn handle(&mut self, event: Event<Text>) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let mut effects = Effects::default();
            let now = Now { ms: self.now, wall: WALL + self.now };
            self.machine.handle(now, event, self.journal.index(), &mut effects);
            for effect in effects.0 {
                events.extend(self.carry_out(effect));
            }
        }
    }

    /// Takes the effects since the last time and compares them.
    #[track_caller]
    pub fn expect<const N: usize>(&mut self, expected: [&str; N]) {
        assert_eq!(self.seen(), expected);
    }

    pub fn seen(&mut self) -> Vec<String> {
        std::mem::take(&mut self.seen)
    }

    fn carry_out(&mut self, effect: Effect<Text>) -> Option<Event<Text>> {
        if let (Effect::Admitted { call }, Some(request)) = (&effect, self.arriving.take()) {
            self.by_id.insert(request.key.id.clone(), *call);
            self.requests.insert(*call, request);
            return None;
        }
        self.check(&effect);
        let step = match &effect {
            Effect::Authorise { again: false, .. } => Some(Step::Authorise),
            Effect::Authorise { again: true, .. } => Some(Step::Recheck),
            Effect::Reserve { .. } => Some(Step::Reserve),
            Effect::Connect { .. } => Some(Step::Connect),
            Effect::Send { .. } => Some(Step::Send),
            _ => None,
        };
        let is_routine = step.is_some_and(|step| !self.held.contains(&step));
        let is_silent = matches!(effect, Effect::Ended { left: false, .. });
        if !is_silent && (!is_routine || step == Some(Step::Send)) {
            let name = |call: CallNo| self.requests[&call].key.id.to_string();
            self.seen.push(describe(&effect, name, self.now));
        }
        match effect {
            Effect::Authorise { call, .. } if is_routine => {
                let verdict = if self.denies { Err("denied") } else { Ok(self.grant_of(call)) };
                Some(Event::Authorised { call, verdict })
            }
            Effect::Reserve { call } if is_routine => Some(Event::Reserved { call }),
            Effect::Connect { call } if is_routine => Some(Event::Connected { call, outcome: Ok(()) }),
            Effect::Send { call } if is_routine => Some(Event::Sent { call }),
            Effect::Append { call, record, wait } => {
                let kind = record.kind();
                if let Record::Result { answer, .. } = &record {
                    self.results.insert(call, answer.clone());
                }
                let entry = self.entry(call, record);
                let appended = match self.rejects.clone() {
                    Some(error) => Err(error),
                    None => self.journal.append(entry, wait, WALL + self.now),
                };
                let outcome = appended.map(|appended| match appended {
                    Appended::Written => None,
                    Appended::Waits(ticket) => Some(ticket),
                });
                match outcome {
                    Ok(Some(ticket)) => drop(self.tickets.insert(ticket, (call, kind))),
                    Ok(None) => self.counting.push((call, kind)),
                    Err(_) => {}
                }
                Some(Event::Appended { call, record: kind, outcome })
            }
            Effect::Inspect { call, ask, .. } => {
                self.asks.push_back((call, ask));
                None
            }
            _ => None,
        }
    }

    /// What holds in every test.
    fn check(&mut self, effect: &Effect<Text>) {
        let counts = |call: &CallNo, kind| self.counting.contains(&(*call, kind));
        match effect {
            Effect::Send { call } if self.requests[call].has_effect => {
                assert!(counts(call, RecordKind::Start), "sent before its START counts");
            }
            Effect::Reply { answer: Answer::Failure(Failure::ResultNotJournaled(_)), .. } => {}
            Effect::Reply { call, answer } if counts(call, RecordKind::Start) => {
                assert!(counts(call, RecordKind::Result), "replied before its RESULT counts");
                assert_eq!(self.results[call], *answer, "the answer is not that of RESULT");
            }
            Effect::Ended { call, .. } => assert!(self.ended.insert(*call), "a call has one end"),
            _ => {}
        }
    }

    fn grant_of(&self, call: CallNo) -> Grant {
        Grant { replay: self.requests[&call].replay, ..self.grant.clone() }
    }

    fn entry(&mut self, call: CallNo, record: Record<Text>) -> Entry {
        let Request { key, tool, content, task, .. } = self.requests[&call].clone();
        let (server, at, request, role) = (ByteString::from("files"), WALL + self.now, Bytes::new(), None);
        match record {
            Record::Start { attempt, safe } => {
                Entry::Start(Arc::new(Start { key, server, tool, content, attempt, at, safe }))
            }
            Record::Result { answer, end } => {
                self.replies += 1;
                let reply_id = format!("reply-{}", self.replies).into();
                Entry::Finish(Finish { key, reply_id, reply: format!("{answer:?}").into(), end, at })
            }
            Record::Joined { to } => Entry::Joined(Joined { key, to, content, at }),
            Record::Task => {
                let ttl_ms = task.map_or(0, |task| task.ttl);
                Entry::Task(Task { key, server, tool, content, request, role, ttl_ms, at })
            }
            Record::Dead { attempts, history: story } => {
                Entry::Dead(Dead { key, server, tool, request, role, attempts, story, at })
            }
        }
    }
}

fn open(disk: &Arc<MemoryDisk>, now: Millis) -> JournalState {
    let (journal, _) = JournalState::open(Arc::clone(disk) as _, JournalOptions::default(), WALL + now).expect("opens");
    journal
}

pub fn key(caller: &str, id: &str) -> CallKey {
    CallKey { caller: caller.into(), id: id.into() }
}
