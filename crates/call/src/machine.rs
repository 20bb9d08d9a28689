//! The machine: all calls of a host, and the dispatch of events.

use crate::call::{Call, State};
use crate::circuit_breaker::CircuitBreaker;
use crate::effect::{Effects, RecordKind};
use crate::event::{AskNo, CallNo, CancelBy, Event, Millis, Now};
use crate::options::MachineOptions;
use crate::orphans::FollowedCallers;
use crate::permits::{Permits, Rates};
use crate::planted::PlantedBug;
use crate::session_order::SessionOrders;
use crate::timers::Timers;
use bytestring::ByteString;
use hashbrown::{HashMap, HashSet};
use std::collections::{BTreeMap, VecDeque};
use std::hash::Hash;
use toolbus_journal::{CallIndex, CallKey, JournalError, Ticket};

/// Decides what all calls of a host do next.
#[derive(Debug)]
pub struct CallMachine<A> {
    pub(crate) options: MachineOptions,
    pub(crate) calls: BTreeMap<CallNo, Call<A>>,
    pub(crate) by_key: HashMap<CallKey, CallNo>,
    /// An older broker reports a cancelled message by its id only.
    pub(crate) by_id: HashMap<ByteString, Vec<CallNo>>,
    /// Number of calls per agent.
    pub(crate) by_agent: HashMap<ByteString, usize>,
    /// Calls that others may join, by agent and content, in the order of their arrival.
    pub(crate) by_content: HashMap<(ByteString, [u8; 32]), Vec<CallNo>>,
    /// The calls that wait for the end of a call.
    pub(crate) joiners: HashMap<CallNo, Vec<CallNo>>,
    pub(crate) tickets: HashMap<Ticket, (CallNo, RecordKind)>,
    /// Replies that the broker has not receipted yet.
    pub(crate) unsettled: HashMap<CallKey, usize>,
    /// Replies that the broker refused, so that no caller got them.
    pub(crate) refused_replies: BoundedSet<CallKey>,
    /// Requests that were answered without a record in the journal.
    pub(crate) answered: BoundedSet<CallKey>,
    pub(crate) early_cancels: BoundedSet<CallKey>,
    pub(crate) permits: Permits,
    pub(crate) rates: Rates,
    pub(crate) orders: SessionOrders,
    pub(crate) breakers: Vec<CircuitBreaker>,
    pub(crate) callers: FollowedCallers,
    pub(crate) timers: Timers,
    /// Tasks whose entry is being synced, per agent.
    pub(crate) accepting: HashMap<ByteString, usize>,
    pub(crate) draining: bool,
    pub(crate) shutdown: bool,
    /// Calls whose timers may have to change.
    touched: Vec<CallNo>,
    /// Calls that go on because another one ended or moved, in order.
    woken: VecDeque<CallNo>,
    next_call: u64,
    next_ask: u64,
}

/// The environment of one event.
pub(crate) struct Context<'a, A> {
    pub now: Now,
    pub journal: &'a CallIndex,
    pub out: &'a mut Effects<A>,
}

impl<A: Clone> CallMachine<A> {
    /// A machine without calls.
    pub fn new(options: MachineOptions) -> Self {
        let breakers = options.servers.iter().map(|server| CircuitBreaker::new(server.trip)).collect();
        Self {
            calls: BTreeMap::new(),
            by_key: HashMap::new(),
            by_id: HashMap::new(),
            by_agent: HashMap::new(),
            by_content: HashMap::new(),
            joiners: HashMap::new(),
            tickets: HashMap::new(),
            unsettled: HashMap::new(),
            refused_replies: BoundedSet::default(),
            answered: BoundedSet::default(),
            early_cancels: BoundedSet::default(),
            permits: Permits::default(),
            rates: Rates::default(),
            orders: SessionOrders::default(),
            breakers,
            callers: FollowedCallers::default(),
            timers: Timers::default(),
            accepting: HashMap::new(),
            draining: false,
            shutdown: false,
            touched: Vec::new(),
            woken: VecDeque::new(),
            next_call: 0,
            next_ask: 0,
            options,
        }
    }

    /// Handles an event and appends its effects. After [`Event::Arrived`] the first effect is [`Effect::Admitted`] with
    /// the number of the call, [`Effect::Redelivered`], [`Effect::Ignored`] or [`Effect::Acknowledge`].
    ///
    /// `journal` must reflect all appends so far, as [`toolbus_journal`]'s index does.
    pub fn handle(&mut self, now: Now, event: Event<A>, journal: &CallIndex, out: &mut Effects<A>) {
        let cx = &mut Context { now, journal, out };
        self.dispatch(event, cx);
        self.go_on(cx);
        for call in self.touched.drain(..) {
            let known = self.calls.get_mut(&call);
            let next = known.as_deref().and_then(Call::next_time);
            self.timers.update(call, known.map(|call| &mut call.timer), next);
        }
    }

    /// When [`Event::Tick`] is due next.
    pub fn next_wake(&self) -> Option<Millis> {
        self.timers.next()
    }

    fn dispatch(&mut self, event: Event<A>, cx: &mut Context<'_, A>) {
        match event {
            Event::Arrived(request) => self.arrived(*request, cx),
            Event::Authorised { call, verdict } => self.authorised(call, verdict, cx),
            Event::Approved { call, verdict } => self.approved(call, verdict, cx),
            Event::Inspected { call, ask, view } => self.join_inspected(call, ask, &view, cx),
            Event::Followed { caller, connected } => self.followed(&caller, connected, cx),
            Event::Reserved { call } => self.reserved(call, cx),
            Event::Connected { call, outcome } => self.connected(call, outcome, cx),
            Event::Refused { call, answer } => self.refused_by_host(call, answer, cx),
            Event::Appended { call, record, outcome } => self.appended(call, record, outcome, cx),
            Event::Synced { tickets, outcome } => {
                for ticket in tickets {
                    if let Some((call, record)) = self.tickets.remove(&ticket) {
                        self.append_counts(call, record, outcome.clone(), cx);
                    }
                }
            }
            Event::Sent { call } => self.sent(call, cx),
            Event::NotTaken { call, error } => self.not_taken(call, error, cx),
            Event::Answered { call, answer, end } => self.server_answered(call, answer, end, cx),
            Event::Died { call, error, why, retry } => self.server_died(call, error, why, retry, cx),
            Event::Crashed { call } => self.crashed(call, cx),
            Event::AnswerRead { call, answer } => self.answer_read(call, answer, cx),
            Event::ReplySettled { key, refused } => self.reply_settled(key, refused, cx),
            Event::Cancel { call, cause, reason } => self.cancel(call, cause, reason, cx),
            Event::CancelId { id, by, reason } => self.cancel_id(id, by, reason, cx),
            Event::Notification { notification, session } => {
                self.orders.push_notification(session.clone(), notification);
                self.session_moved(&session, cx);
            }
            Event::NotificationSent { notification } => {
                if let Some(session) = self.orders.remove_notification(notification) {
                    self.session_moved(&session, cx);
                }
            }
            Event::PolicyChanged => self.policy_changed(cx),
            Event::Revoked { agent } => self.revoked(&agent, cx),
            Event::Drain => self.drain(cx),
            Event::Shutdown => self.shutdown = true,
            Event::Tick => {
                for call in self.timers.due(cx.now.ms) {
                    self.touched.push(call);
                    self.on_time(call, cx);
                }
            }
        }
    }

    /// Lets calls go on that waited for others.
    fn go_on(&mut self, cx: &mut Context<'_, A>) {
        while let Some(call) = self.woken.pop_front() {
            self.woken_up(call, cx);
        }
    }

    pub(crate) fn wake(&mut self, call: CallNo) {
        self.woken.push_back(call);
    }

    /// A call whose wait for others may be over: joined calls, and calls that waited for permits or predecessors.
    fn woken_up(&mut self, no: CallNo, cx: &mut Context<'_, A>) {
        let has_permits = !self.permits.is_waiting(no);
        match self.calls.get(&no).map(|call| &call.state) {
            Some(State::Joined { .. } | State::AwaitingReceipt { .. }) => self.seek_join(no, cx),
            Some(State::AwaitingCaller) => self.wait_for_caller(no, cx),
            Some(State::TaskShare) if has_permits => self.reserve(no, cx),
            Some(State::Ordered) => self.wait_for_order(no, cx),
            Some(State::Queued) if has_permits => self.granted(no, cx),
            Some(State::Ready) => self.send_in_order(no, cx),
            _ => {}
        }
    }

    pub(crate) fn get(&mut self, call: CallNo) -> Option<&mut Call<A>> {
        self.touched.push(call);
        self.calls.get_mut(&call)
    }

    pub(crate) fn set_state(&mut self, call: CallNo, state: State<A>) {
        if let Some(call) = self.get(call) {
            call.state = state;
            call.wait_until = None;
        }
    }

    pub(crate) fn wait_until(&mut self, call: CallNo, until: Millis) {
        if let Some(call) = self.get(call) {
            call.wait_until = Some(until);
        }
    }

    pub(crate) fn new_call(&mut self) -> CallNo {
        self.next_call += 1;
        CallNo(self.next_call)
    }

    pub(crate) fn new_ask(&mut self) -> AskNo {
        self.next_ask += 1;
        AskNo(self.next_ask)
    }

    pub(crate) fn is_planted(&self, bug: PlantedBug) -> bool {
        self.options.is_planted(bug)
    }

    fn appended(
        &mut self,
        call: CallNo,
        record: RecordKind,
        outcome: Result<Option<Ticket>, JournalError>,
        cx: &mut Context<'_, A>,
    ) {
        match outcome {
            Ok(Some(ticket)) => drop(self.tickets.insert(ticket, (call, record))),
            Ok(None) => self.append_counts(call, record, Ok(()), cx),
            Err(error) if record == RecordKind::Task => self.task_rejected(call, error, cx),
            Err(error) => self.append_counts(call, record, Err(error), cx),
        }
    }

    /// An entry is as durable as its call needs it (written or synced), or never will be.
    fn append_counts(
        &mut self,
        no: CallNo,
        record: RecordKind,
        outcome: Result<(), JournalError>,
        cx: &mut Context<'_, A>,
    ) {
        match record {
            RecordKind::Start => self.start_written(no, outcome, cx),
            RecordKind::Result => self.result_written(no, outcome, cx),
            // RESULT follows in the same log and fails as well.
            RecordKind::Joined => {}
            RecordKind::Task => self.task_written(no, outcome, cx),
            RecordKind::Dead => self.dead_letter_written(no, outcome, cx),
        }
    }

    fn cancel_id(&mut self, id: ByteString, by: CancelBy, reason: Option<String>, cx: &mut Context<'_, A>) {
        use crate::cancel::Cause;
        match by {
            CancelBy::Caller(caller) => {
                let key = CallKey { caller, id };
                match self.by_key.get(&key).copied() {
                    Some(call) => self.cancel(call, Cause::Caller, reason, cx),
                    None if self.answered.contains(&key) => {}
                    None => self.early_cancels.insert(key),
                }
            }
            // Ignored if it is ambiguous or the call is not here yet: remembered by its id alone, it could cancel a call of
            // another caller. A worker also sends a cancel of its own, which names its mailbox.
            CancelBy::Broker => {
                if let Some([call]) = self.by_id.get(&id).map(Vec::as_slice) {
                    self.cancel(*call, Cause::Caller, reason, cx);
                }
            }
        }
    }

    /// The wait of a call, its time limit, its deadline or the grace of its caller may be over.
    fn on_time(&mut self, no: CallNo, cx: &mut Context<'_, A>) {
        let now = cx.now.ms;
        let Some(call) = self.calls.get_mut(&no) else { return };
        if call.wait_until.is_some_and(|until| until <= now) {
            call.wait_until = None;
            self.wait_is_over(no, cx);
        }
        if !self.end_overdue(no, cx) {
            self.check_orphan(no, cx);
        }
    }
}

/// Capacity of each set of remembered keys.
const MAX_REMEMBERED: usize = 32 << 10;

/// A bounded set that evicts its oldest element.
#[derive(Debug)]
pub(crate) struct BoundedSet<K> {
    order: VecDeque<K>,
    known: HashSet<K>,
}

impl<K> Default for BoundedSet<K> {
    fn default() -> Self {
        Self { order: VecDeque::new(), known: HashSet::new() }
    }
}

impl<K: Clone + Eq + Hash> BoundedSet<K> {
    pub fn insert(&mut self, key: K) {
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

    pub fn remove(&mut self, key: &K) {
        if self.known.remove(key) {
            self.order.retain(|known| known != key);
        }
    }

    pub fn contains(&self, key: &K) -> bool {
        self.known.contains(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Otherwise the answer to an earlier question would count as that to a later one.
    #[test]
    fn questions_to_the_broker_have_different_numbers() {
        let mut machine = CallMachine::<()>::new(MachineOptions::default());
        assert_ne!(machine.new_ask(), machine.new_ask());
    }

    #[test]
    fn a_full_set_evicts_its_oldest_element_and_removed_ones_make_room() {
        let mut set = BoundedSet::default();
        (0..MAX_REMEMBERED).for_each(|key| set.insert(key));
        set.remove(&1);
        set.insert(MAX_REMEMBERED);
        assert!(set.contains(&0) && !set.contains(&1) && set.contains(&MAX_REMEMBERED));
        set.insert(MAX_REMEMBERED);
        assert!(set.contains(&0), "known elements need no room");
        set.insert(MAX_REMEMBERED + 1);
        assert!(!set.contains(&0) && set.contains(&2));
        assert_eq!((set.order.len(), set.known.len()), (MAX_REMEMBERED, MAX_REMEMBERED));
    }
}
