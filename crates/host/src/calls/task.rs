//! The tokio task of a call: carries out the machine's effects for it, one after the other, and reports back.

use super::answers::{Given, code_of, is_tool_error};
use super::connect::{self, Connected, Link};
use super::flow::{Flow, FlowEnd, Step};
use super::listen::listen_to_lists;
use super::not_connected::NotConnected;
use super::reserve::{Reservation, reserve};
use super::slot::Slot;
use super::suspended::{Continuation, hold};
use crate::approvals;
use crate::failure;
use crate::host::Host;
use crate::tasks;
use futures_util::FutureExt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use tokio::sync::oneshot;
use tokio::time::Instant;
use toolbus_call::{Answer, Effect, Event, Failure};
use toolbus_journal::End;
use toolbus_mcp::Outcome;
use toolbus_protocol::ErrorCode;

struct CallTask {
    host: Arc<Host>,
    slot: Arc<Slot>,
    activity: Activity,
    link: Option<Box<Link>>,
    /// Held until the call ends.
    _reservation: Reservation,
    /// The call goes on at its server while its client answers a request of the server.
    suspended: Option<(Box<Flow>, oneshot::Receiver<Continuation>)>,
    left: bool,
}

/// What the task does while it waits for the next effect.
enum Activity {
    None,
    Waiting(Pin<Box<dyn Future<Output = Waited> + Send>>),
    Following(Box<Flow>),
}

/// The end of a wait.
enum Waited {
    Approved(Result<(), Given>),
    Reserved(Reservation),
    Connected(Result<Connected, NotConnected>),
    Sent(Result<Box<Flow>, NotConnected>),
}

enum Next {
    Effect(Effect<Given>),
    Waited(Waited),
    Step(Step),
}

impl Activity {
    /// Cancellation-safe.
    async fn next(&mut self) -> Next {
        match self {
            Self::None => std::future::pending().await,
            Self::Waiting(wait) => Next::Waited(wait.await),
            Self::Following(flow) => Next::Step(flow.next().await),
        }
    }
}

impl Host {
    /// A panic ends only this call: the machine answers it as unknown, and another task carries that out.
    pub(super) fn spawn_call(self: &Arc<Self>, slot: Arc<Slot>) {
        let (host, running) = (Arc::clone(self), self.jobs.token());
        // Boxed, because the future is large and the runtime moves it several times.
        self.tracker.spawn(Box::pin(async move {
            let _running = running;
            let task = || CallTask::new(Arc::clone(&host), Arc::clone(&slot)).run();
            if AssertUnwindSafe(task()).catch_unwind().await.is_ok() {
                return;
            }
            tracing::error!(server = slot.server.name(), id = slot.id().as_str(), "a call ended by a panic");
            host.feed(Event::Crashed { call: slot.no });
            if AssertUnwindSafe(task()).catch_unwind().await.is_err() {
                tracing::error!(id = slot.id().as_str(), "a panic ended the answer to a call");
                slot.ended.cancel();
            }
        }));
    }
}

impl CallTask {
    fn new(host: Arc<Host>, slot: Arc<Slot>) -> Self {
        let (activity, link, _reservation) = (Activity::None, None, Reservation::default());
        Self { host, slot, activity, link, _reservation, suspended: None, left: false }
    }

    async fn run(mut self) {
        loop {
            let next = tokio::select! {
                biased;
                effect = self.slot.effects.next() => Next::Effect(effect),
                next = self.activity.next() => next,
            };
            match next {
                Next::Effect(Effect::Ended { left, .. }) => {
                    self.left = left;
                    return self.end().await;
                }
                Next::Effect(effect) => self.carry_out(effect).await,
                Next::Waited(waited) => {
                    self.activity = Activity::None;
                    self.waited(waited).await;
                }
                Next::Step(step) => self.step(step).await,
            }
        }
    }

    fn wait(&mut self, wait: impl Future<Output = Waited> + Send + 'static) {
        self.activity = Activity::Waiting(Box::pin(wait));
    }

    async fn carry_out(&mut self, effect: Effect<Given>) {
        let (host, slot, call) = (Arc::clone(&self.host), Arc::clone(&self.slot), self.slot.no);
        match effect {
            Effect::Authorise { again, .. } => {
                let verdict = host.authorise_and_audit(&slot, again).await.map_err(Given::from);
                host.feed(Event::Authorised { call, verdict });
            }
            Effect::Park { until, .. } => {
                self.wait(async move { Waited::Approved(approvals::park(&host, &slot, until).await) });
            }
            Effect::Unpark { expired, .. } => {
                self.activity = Activity::None;
                approvals::audit_unparked(&host, &slot, expired).await;
            }
            Effect::Reserve { .. } => {
                self.wait(async move { Waited::Reserved(reserve(&host, &slot).await) });
            }
            Effect::Connect { .. } => {
                // An earlier connection did not take the request.
                (self.activity, self.link) = (Activity::None, None);
                self.wait(async move { Waited::Connected(connect::connect(&host, &slot).await) });
            }
            Effect::Send { .. } => self.send(),
            Effect::CancelAtServer { reason, .. } => {
                if let Activity::Following(flow) = &mut self.activity {
                    flow.cancel(reason.as_deref()).await;
                }
            }
            Effect::Abort { .. } => self.activity = Activity::None,
            Effect::Accepted { .. } => self.accepted().await,
            Effect::Reply { answer, .. } => self.reply(&answer).await,
            Effect::Resend { reply_id, location, .. } => {
                slot.state().outcome = Some(("repeated".to_owned(), 0));
                match host.stored_answer(&slot.key(), &slot.parsed.content, &location) {
                    Ok(body) => host.outbox.resend(&slot.request, &reply_id, body, slot.form).await,
                    Err(error) => {
                        let error = failure::unreadable_answer(&slot.parsed.tool, &error.to_string());
                        slot.state().outcome = Some((code_of(&error), 0));
                        host.outbox
                            .answer(&slot.request, slot.encode(&Answer::Given(error.into()), End::Unknown))
                            .await;
                    }
                }
                host.audit_end(&slot).await;
            }
            Effect::ResendTask { .. } => host.resend_task(&slot.request).await,
            _ => {}
        }
    }

    async fn waited(&mut self, waited: Waited) {
        let call = self.slot.no;
        let event = match waited {
            Waited::Approved(verdict) => Event::Approved { call, verdict },
            Waited::Reserved(reservation) => {
                self._reservation = reservation;
                Event::Reserved { call }
            }
            Waited::Connected(Ok(Connected::Link(link))) => {
                self.link = Some(link);
                Event::Connected { call, outcome: Ok(()) }
            }
            Waited::Connected(Ok(Connected::Answered(answer)) | Err(NotConnected::Refused(answer))) => {
                Event::Refused { call, answer }
            }
            Waited::Connected(Err(NotConnected::ServerFailed(error))) => Event::Connected { call, outcome: Err(error) },
            Waited::Sent(Ok(flow)) => return self.sent(flow).await,
            Waited::Sent(Err(NotConnected::ServerFailed(error))) => Event::NotTaken { call, error },
            Waited::Sent(Err(NotConnected::Refused(answer))) => Event::Refused { call, answer },
        };
        self.host.feed(event);
    }

    /// Sends the request. A connection that does not take it must not hold up later effects, such as the end of the call.
    fn send(&mut self) {
        let (host, slot, call) = (Arc::clone(&self.host), Arc::clone(&self.slot), self.slot.no);
        let Some(link) = self.link.take() else {
            let error = failure::panicked(self.slot.server.name(), &self.slot.parsed.rpc.method);
            return self.host.feed(Event::Refused { call, answer: error.into() });
        };
        self.slot.state().started_at = Some(Instant::now());
        if let Some(filter) = link.list_changes() {
            self.host.feed(Event::Sent { call });
            return self.wait(async move {
                let Err(error) = listen_to_lists(&host, &slot, filter).await;
                Waited::Sent(Err(error.into()))
            });
        }
        self.wait(async move { Waited::Sent(link.send(&host, &slot).await) });
    }

    async fn sent(&mut self, mut flow: Box<Flow>) {
        self.host.feed(Event::Sent { call: self.slot.no });
        let end = flow.begin().await;
        self.activity = Activity::Following(flow);
        if let Some(end) = end {
            self.server_done(end).await;
        }
    }

    async fn step(&mut self, step: Step) {
        let Activity::Following(flow) = &mut self.activity else { return };
        if let Some(end) = flow.handle(step).await {
            self.server_done(end).await;
        }
    }

    async fn server_done(&mut self, end: FlowEnd) {
        // Its RESULT is to be journaled.
        self.host.journal_room().await;
        let Activity::Following(flow) = std::mem::replace(&mut self.activity, Activity::None) else { return };
        let call = self.slot.no;
        let event = match end {
            FlowEnd::Answered(answer) => {
                let answer = self.checked(answer);
                let end = self.end_of(&answer);
                Event::Answered { call, answer, end }
            }
            FlowEnd::Suspended(answer, continuation) => {
                self.suspended = Some((flow, continuation));
                Event::Answered { call, answer, end: End::Done }
            }
            FlowEnd::NotTaken(error) => Event::NotTaken { call, error },
            FlowEnd::Died { error, why, retry } => Event::Died { call, error, why, retry },
            FlowEnd::Failed(answer) => Event::Refused { call, answer },
        };
        self.host.feed(event);
    }

    /// The server's answer: remembered as the origin of a task, refused if a task can't use it, and within the limits.
    fn checked(&self, answer: Given) -> Given {
        let slot = &self.slot;
        if let (Some(tool), Given::Outcome(outcome)) = (slot.parsed.named_tool(), &answer) {
            let owners = &self.host.options.policy.task_owners;
            owners.remember(slot.server.name(), outcome, slot.mailbox(), tool);
        }
        let answer = if slot.is_task() { tasks::without_input_required(answer) } else { answer };
        slot.within_size(answer)
    }

    /// A task whose tool reports an error is listed as failed.
    fn end_of(&self, answer: &Given) -> End {
        match answer {
            Given::Outcome(Outcome::Result(result)) if self.slot.is_task() && is_tool_error(result) => End::Failed,
            answer => answer.end(),
        }
    }

    /// The task was accepted; from here on it has no caller.
    async fn accepted(&mut self) {
        let operator = self.slot.state().operator.take();
        match operator {
            Some(operator) => {
                let row = self.host.options.journal.task(self.slot.id().as_str(), Some(self.slot.agent()));
                let view = row
                    .map(|row| self.host.view_of_task(&row))
                    .ok_or_else(|| failure::bus(ErrorCode::UnknownTask, "the task ended and was forgotten already"));
                operator.send(view).ok();
            }
            None => self.host.resend_task(&self.slot.request).await,
        }
    }

    async fn reply(&mut self, answer: &Answer<Given>) {
        let (host, slot) = (Arc::clone(&self.host), Arc::clone(&self.slot));
        // The refusal of a request is audited as a decision, not as the end of a call.
        let is_refused = matches!(answer, Answer::Given(Given::Error(_)) | Answer::Failure(Failure::TooManyCalls));
        let mut end = None;
        if !is_refused || slot.state().authorised.is_some() {
            slot.state().outcome.get_or_insert_with(|| slot.word_for(answer));
            end = host.end_of(&slot);
        }
        self.send_answer(answer, is_refused).await;
        // It has happened, so its caller need not wait for the record: the tasks that pass the answer on go first.
        tokio::task::yield_now().await;
        host.audit_ended(end).await;
    }

    async fn send_answer(&mut self, answer: &Answer<Given>, is_refused: bool) {
        let (host, slot) = (&self.host, &self.slot);
        let refusal = || match answer {
            Answer::Given(Given::Error(error)) => Some((**error).clone()),
            Answer::Failure(failure) => Some(slot.error_of(failure)),
            _ => None,
        };
        let is_over_share = || refusal().is_some_and(|error| code_of(&error) == ErrorCode::TooManySessions.code());
        if is_refused && (slot.state().authorised.is_none() || is_over_share()) {
            host.outbox.client().report_refused(slot.id());
        }
        if let Some(operator) = slot.state().operator.take() {
            let stopped = || failure::bus(ErrorCode::Cancelled, "the task was cancelled");
            operator.send(Err(refusal().unwrap_or_else(stopped))).ok();
            return;
        }
        if let Some(error) = refusal().filter(|_| slot.is_task()) {
            // Its worker may have accepted it while this host was away.
            host.task_memory.note_refusal(slot.id(), slot.agent(), error);
        }
        let journaled = slot.state().reply.take();
        match journaled {
            Some(reply) => host.outbox.send_or_replace(&slot.request, &reply, slot.form).await,
            None => host.outbox.answer(&slot.request, slot.encode(answer, End::Failed)).await,
        }
    }

    async fn end(mut self) {
        let (host, slot) = (Arc::clone(&self.host), Arc::clone(&self.slot));
        self.activity = Activity::None;
        if !self.left {
            host.audit_end(&slot).await;
        }
        if slot.is_task() {
            host.task_memory.forget(slot.id());
            let operator = slot.state().operator.take();
            if let Some(operator) = operator {
                let stops = failure::bus(ErrorCode::Cancelled, "the host is shutting down");
                operator.send(Err(stops)).ok();
            }
        }
        slot.ended.cancel();
        if slot.is_task() {
            slot.server.close_session(&slot.session_id()).await;
        }
        if let Some((flow, continuation)) = self.suspended.take() {
            host.tracker.spawn(hold(Arc::clone(&host), flow, continuation));
        }
    }
}
