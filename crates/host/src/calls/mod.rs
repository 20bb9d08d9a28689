//! The calls of this host: feeds events to the call machine, and has its effects carried out.
//!
//! `toolbus-call` decides; this module and its parts only act. One lock guards the machine. Entries are appended to the
//! journal under that lock, so their order is the order of the decisions; all other effects of a call go to the tokio
//! task of that call (`task`), in order. `connect` connects to servers, `flow` follows calls there, `authorise` asks the policy.

mod answers;
mod appends;
mod audited;
mod authorise;
mod backlog;
mod connect;
mod flow;
mod from_catalog;
mod listen;
mod not_connected;
mod notified;
mod own_lists;
mod own_params;
mod parsed;
mod relay;
mod request;
mod reserve;
mod rounds;
mod slot;
mod suspended;
mod task;

pub use answers::Given;
pub use notified::Notified;
pub use parsed::{ParsedCall, check_names};
pub use rounds::keep_listening;
pub use slot::{NewCall, Slot};
pub use suspended::PendingCalls;

use crate::host::Host;
use answers::shared_answer;
use backlog::Backlog;
use bytestring::ByteString;
use hashbrown::HashMap;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::DropGuard;
use toolbus_call::{
    BreakerChange, CallMachine, CallNo, CallView, Effect, Effects, Event, MachineOptions, Millis, NotificationNo, Now,
    Request, SessionKey,
};
use toolbus_journal::{CallKey, Journal, Synced};
use toolbus_mcp::{Notify as ClientNotification, RpcError};
use toolbus_protocol::MsgId;

/// The call machine of a host and what its calls need.
pub struct Calls {
    inner: Mutex<Inner>,
    /// Start of the machine's time.
    began: Instant,
    /// Entries that wait for the journal.
    backlog: Arc<Backlog>,
    /// What arrived from the journal's thread and from the broker's client since the last event.
    arrived: Arc<Arrived>,
    /// When the machine is woken, in its time: not later than it has to be; `u64::MAX` for never.
    next_wake: AtomicU64,
    timer: Notify,
}

struct Inner {
    machine: CallMachine<Given>,
    slots: HashMap<CallNo, Arc<Slot>>,
    /// The callers that are followed; at most one for each call.
    follows: HashMap<ByteString, DropGuard>,
    notifications: HashMap<NotificationNo, PendingNotification>,
    next_notification: u64,
}

/// A client's notification that waits for its place in the session order.
pub struct PendingNotification {
    pub server: usize,
    pub notify: ClientNotification,
    pub session: crate::session::SessionId,
    /// The role of the client.
    pub role: Option<String>,
}

/// Events from other threads, collected so that one wake-up serves all of them.
#[derive(Default)]
struct Arrived {
    synced: Mutex<Vec<Synced>>,
    settled: Mutex<Vec<(CallKey, bool)>>,
    wake: Notify,
}

impl Calls {
    pub fn new(options: MachineOptions, max_backlog_bytes: usize) -> Self {
        let inner = Inner {
            machine: CallMachine::new(options),
            slots: HashMap::new(),
            follows: HashMap::new(),
            notifications: HashMap::new(),
            next_notification: 0,
        };
        Self {
            inner: Mutex::new(inner),
            began: Instant::now(),
            backlog: Arc::new(Backlog::new(max_backlog_bytes)),
            arrived: Arc::default(),
            next_wake: AtomicU64::new(u64::MAX),
            timer: Notify::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("no code panics while it holds this lock")
    }

    /// The machine's time of an instant.
    pub fn millis(&self, at: Instant) -> Millis {
        u64::try_from(at.saturating_duration_since(self.began).as_millis()).unwrap_or(u64::MAX)
    }

    fn now(&self) -> Now {
        Now { ms: self.millis(Instant::now()), wall: toolbus_base::now_ms() }
    }

    /// All calls in progress, with their state.
    pub fn views(&self) -> Vec<(CallView, Arc<Slot>)> {
        let inner = self.lock();
        inner
            .machine
            .views()
            .filter_map(|view| Some((view.clone(), Arc::clone(inner.slots.get(&view.call)?))))
            .collect()
    }

    /// Whether another mailbox of the caller's agent made an equal call.
    pub fn knows_equal(&self, journal: &Journal, caller: &str, content: &[u8; 32], window: Duration) -> bool {
        let ended_after = toolbus_base::now_ms().saturating_sub(u64::try_from(window.as_millis()).unwrap_or(u64::MAX));
        let inner = self.lock();
        journal.with_index(|index| inner.machine.knows_equal(caller, content, index, ended_after))
    }

    /// The call in progress with that id that the predicate accepts.
    pub fn find(&self, id: &MsgId, is_visible: impl Fn(&Slot) -> bool) -> Option<(CallView, Arc<Slot>)> {
        let inner = self.lock();
        let found = inner.machine.find(id.as_str()).into_iter();
        let mut found = found.filter_map(|view| Some((view.clone(), Arc::clone(inner.slots.get(&view.call)?))));
        found.find(|(_, slot)| is_visible(slot))
    }

    pub fn view(&self, no: CallNo) -> Option<CallView> {
        self.lock().machine.view(no)
    }

    /// The calls that get the notifications of this one, because they wait for its answer.
    pub fn joiners_of(&self, no: CallNo) -> Vec<Arc<Slot>> {
        let inner = self.lock();
        inner.machine.joiners_of(no).iter().filter_map(|joiner| inner.slots.get(joiner).cloned()).collect()
    }

    /// Receives what other threads report. Set once per host.
    pub fn connect(self: &Arc<Self>, host: &Host) {
        let (arrived, backlog) = (Arc::clone(&self.arrived), Arc::clone(&self.backlog));
        host.options.journal.set_listener(Arc::new(move |synced| {
            backlog.synced(&synced.tickets);
            arrived.synced.lock().expect("no code panics while it holds this lock").push(synced);
            arrived.wake.notify_one();
        }));
        let (arrived, generations) = (Arc::clone(&self.arrived), Arc::clone(&host.generations));
        host.outbox.client().on_reply_settled(Arc::new(move |settled| {
            let key = CallKey { caller: generations.qualified(&settled.to), id: settled.request };
            arrived.settled.lock().expect("no code panics while it holds this lock").push((key, settled.refused));
            arrived.wake.notify_one();
        }));
    }
}

impl Host {
    /// Gives an event to the machine.
    pub fn feed(self: &Arc<Self>, event: Event<Given>) {
        self.feed_with(event, None);
    }

    /// Gives a request to the machine, which makes it a call, or answers or ignores it.
    pub fn admit(self: &Arc<Self>, request: Request, new: NewCall) {
        let agent = request.key.agent_name();
        self.feed_with(Event::Arrived(Box::new(request)), Some(new));
        self.end_if_late(&agent);
    }

    fn feed_with(self: &Arc<Self>, event: Event<Given>, mut new: Option<NewCall>) {
        let mut inner = self.calls.lock();
        let mut events = self.calls.reported();
        // Behind the others; alone, it needs no queue.
        let mut next = match events.pop_front() {
            Some(first) => {
                events.push_back(event);
                Some(first)
            }
            None => Some(event),
        };
        let mut effects = Effects::default();
        while let Some(event) = next {
            let now = self.calls.now();
            self.options.journal.with_index(|index| inner.machine.handle(now, event, index, &mut effects));
            for effect in effects.0.drain(..) {
                self.carry_out(&mut inner, effect, &mut new, &mut events);
            }
            next = events.pop_front();
        }
        let next = inner.machine.next_wake().unwrap_or(u64::MAX);
        drop(inner);
        // A later time is not set: calls that end before their deadline would wake the timer's task for nothing.
        if next < self.calls.next_wake.fetch_min(next, Ordering::Relaxed) {
            self.calls.timer.notify_one();
        }
    }

    fn carry_out(
        self: &Arc<Self>,
        inner: &mut Inner,
        effect: Effect<Given>,
        new: &mut Option<NewCall>,
        events: &mut VecDeque<Event<Given>>,
    ) {
        match effect {
            Effect::Admitted { call } => {
                let Some(new) = new.take() else { return };
                let slot = Slot::new(call, new);
                inner.slots.insert(call, Arc::clone(&slot));
                self.spawn_call(slot);
            }
            Effect::Redelivered { .. } | Effect::Ignored => {}
            Effect::Acknowledge => {
                let Some(NewCall { request, .. }) = new.take() else { return };
                let host = Arc::clone(self);
                self.tracker.spawn(async move { host.outbox.ack(&request).await });
            }
            Effect::Append { call, record, wait } => {
                let Some(slot) = inner.slots.get(&call) else { return };
                let kind = record.kind();
                let outcome = self.append(slot, record, wait);
                events.push_back(Event::Appended { call, record: kind, outcome });
            }
            Effect::ReadAnswer { call, of, location } => {
                let Some(slot) = inner.slots.get(&call) else { return };
                let body = self.stored_answer(&of, &slot.parsed.content, &location);
                let answer = body.map_err(|error| error.to_string()).and_then(shared_answer);
                events.push_back(Event::AnswerRead { call, answer });
            }
            Effect::Authorise { call, again } => {
                let Some(slot) = inner.slots.get(&call) else { return };
                // Without an audit record there is nothing to wait for. A refusal always has one, so the task decides again.
                match self.authorised_at_once(slot, again) {
                    Some(grant) => events.push_back(Event::Authorised { call, verdict: Ok(grant) }),
                    None if slot.effects.push(Effect::Authorise { call, again }) => {}
                    None => events.push_back(Event::Crashed { call }),
                }
            }
            Effect::Inspect { call, ask, peers, replies } => {
                let Some(slot) = inner.slots.get(&call) else { return };
                let (host, ended) = (Arc::clone(self), slot.ended.clone());
                self.tracker.spawn(async move {
                    if let Some(Some(view)) = ended.run_until_cancelled(host.inspect(&peers, &replies)).await {
                        host.feed(Event::Inspected { call, ask, view });
                    }
                });
            }
            Effect::Follow { caller } => {
                let guard = self.follow_caller(caller.clone());
                inner.follows.insert(caller, guard);
            }
            Effect::Unfollow { caller } => drop(inner.follows.remove(&caller)),
            Effect::Breaker { server, change } => self.breaker_changed(server, change),
            Effect::Forward { notification } => {
                let Some(pending) = inner.notifications.remove(&notification) else { return };
                let host = Arc::clone(self);
                self.tracker.spawn(async move {
                    host.forward_notification(pending).await;
                    host.feed(Event::NotificationSent { notification });
                });
            }
            Effect::Ended { call, left } => {
                if let Some(slot) = inner.slots.remove(&call) {
                    slot.effects.push(Effect::Ended { call, left });
                }
            }
            Effect::Park { call, .. }
            | Effect::Unpark { call, .. }
            | Effect::Reserve { call }
            | Effect::Connect { call }
            | Effect::Send { call }
            | Effect::CancelAtServer { call, .. }
            | Effect::Abort { call }
            | Effect::Accepted { call }
            | Effect::Reply { call, .. }
            | Effect::Resend { call, .. }
            | Effect::ResendTask { call } => {
                if inner.slots.get(&call).is_some_and(|slot| !slot.effects.push(effect)) {
                    tracing::error!(call = call.0, "the task of a call does not carry out its effects");
                    events.push_back(Event::Crashed { call });
                }
            }
        }
    }

    /// Puts a client's notification into the order of its session.
    pub fn queue_notification(self: &Arc<Self>, pending: PendingNotification) {
        let session = SessionKey {
            server: pending.server,
            mailbox: pending.session.mailbox.as_str().into(),
            key: pending.session.key.as_str().into(),
        };
        let mut inner = self.calls.lock();
        inner.next_notification += 1;
        let notification = NotificationNo(inner.next_notification);
        inner.notifications.insert(notification, pending);
        drop(inner);
        self.feed(Event::Notification { notification, session });
    }

    fn breaker_changed(&self, server: usize, change: BreakerChange) {
        let server = &self.servers[server];
        let (name, trip) = (server.name(), server.config.calls.trip);
        match change {
            BreakerChange::Opened => {
                let why = format!(
                    "server {name:?} failed {} times within {:?}; its calls are refused, except for one \
                     every {:?}, until one is answered",
                    trip.after, trip.window, trip.pause
                );
                tracing::error!("{why}");
                self.catalog.set_tripped(server.index, Some(why));
            }
            BreakerChange::Closed => {
                tracing::info!(server = name, "the server has recovered");
                self.catalog.set_tripped(server.index, None);
            }
        }
    }

    /// Wakes the machine when its time has come or when other threads reported something, until the host has shut down.
    pub async fn run_timer(self: Arc<Self>) {
        loop {
            let next = self.calls.next_wake.load(Ordering::Relaxed);
            let at = (next < u64::MAX).then(|| self.calls.began + Duration::from_millis(next));
            tokio::select! {
                () = crate::host::until(at) => {
                    self.calls.next_wake.store(u64::MAX, Ordering::Relaxed);
                    self.feed(Event::Tick);
                }
                () = self.calls.arrived.wake.notified() => self.feed_reported(),
                () = self.calls.timer.notified() => {}
                () = self.stopped.cancelled() => return,
            }
        }
    }

    fn feed_reported(self: &Arc<Self>) {
        let mut reported = self.calls.reported();
        while let Some(event) = reported.pop_front() {
            self.feed(event);
        }
    }

    /// The host refused a message before it became a call.
    pub async fn refuse(&self, message: &toolbus_protocol::InboxMessage, error: RpcError) {
        self.outbox.client().report_refused(&message.id);
        self.outbox.reply(message, &toolbus_mcp::HostReply::Rpc(error.into())).await;
    }
}

impl Calls {
    /// What other threads have reported since the last time.
    fn reported(&self) -> VecDeque<Event<Given>> {
        let synced = std::mem::take(&mut *self.arrived.synced.lock().expect("no code panics while it holds this lock"));
        let settled =
            std::mem::take(&mut *self.arrived.settled.lock().expect("no code panics while it holds this lock"));
        let synced = synced.into_iter().map(|Synced { tickets, outcome }| Event::Synced { tickets, outcome });
        let settled = settled.into_iter().map(|(key, refused)| Event::ReplySettled { key, refused });
        synced.chain(settled).collect()
    }
}
