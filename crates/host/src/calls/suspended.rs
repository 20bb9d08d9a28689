//! A modern client on a legacy server. The call may outlive the client's request: when the server sends a request to
//! the client, the client's request ends with `input_required`, and the call is suspended until the client repeats it.

use super::answers::Given;
use super::flow::{Flow, FlowEnd, Kind, Phase, Step};
use super::parsed::ParsedCall;
use super::slot::Slot;
use crate::host::Host;
use crate::lanes::Lane;
use crate::server::Server;
use crate::session::{SessionId, Stray, Strays};
use crate::translate::modern_on_legacy::{self as translate, Envelope, Repetition};
use crate::translate::{InputRequest, client_can};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use tokio::sync::oneshot;
use tokio::time::Instant;
use toolbus_mcp::{Id, Outcome, Raw};
use toolbus_protocol::InboxMessage;
use toolbus_upstream::CallEvent;

/// Notifications kept while a call is suspended; the oldest are dropped first.
const MAX_QUEUED_NOTIFICATIONS: usize = 256;
/// Marks the states that this host hands out.
const STATE_PREFIX: &str = "toolbus-";

/// Takes over a suspended call.
pub type Continuation = oneshot::Sender<Box<Flow>>;

/// Identifies a call. A continuation must match it, because only this call was authorised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallIdentity {
    session: SessionId,
    server: usize,
    method: String,
    /// As the caller named it.
    name: Option<String>,
    /// Hash of the arguments.
    arguments: Option<String>,
}

impl CallIdentity {
    pub fn of(request: &InboxMessage, parsed: &ParsedCall, server: &Server) -> Self {
        Self {
            session: SessionId { mailbox: request.from.session_id.to_string(), key: parsed.rpc.session.clone() },
            server: server.index,
            method: parsed.rpc.method.clone(),
            name: parsed.subject.name.clone(),
            arguments: parsed.subject.args.clone(),
        }
    }

    /// Whether a host made this state.
    pub fn is_own_state(state: &str) -> bool {
        state.starts_with(STATE_PREFIX)
    }
}

struct PendingCall {
    call: CallIdentity,
    waiting: oneshot::Sender<Continuation>,
}

/// The calls that wait for their clients.
pub struct PendingCalls {
    calls: Mutex<HashMap<String, PendingCall>>,
    limit: usize,
}

impl PendingCalls {
    pub fn new(limit: usize) -> Self {
        Self { calls: Mutex::default(), limit }
    }

    /// Registers a call: returns its `requestState` and the receiver of its continuation; `None` if too many calls are
    /// pending.
    fn suspend(&self, call: CallIdentity) -> Option<(String, oneshot::Receiver<Continuation>)> {
        let mut calls = self.calls.lock().expect("no code panics while it holds this lock");
        calls.retain(|_, pending| !pending.waiting.is_closed());
        if calls.len() >= self.limit {
            return None;
        }
        // Unguessable, and valid only in its own session.
        let state = format!("{STATE_PREFIX}{}", uuid::Uuid::new_v4());
        let (waiting, continuation) = oneshot::channel();
        calls.insert(state.clone(), PendingCall { call, waiting });
        Some((state, continuation))
    }

    /// Ends the calls of these mailboxes: without a continuation they are cancelled at their servers.
    pub fn end(&self, is_of: impl Fn(&str) -> bool) {
        let mut calls = self.calls.lock().expect("no code panics while it holds this lock");
        calls.retain(|_, pending| !is_of(&pending.call.session.mailbox));
    }

    /// Whether that call waits for a continuation under that state.
    pub fn knows(&self, call: &CallIdentity, state: &str) -> bool {
        let calls = self.calls.lock().expect("no code panics while it holds this lock");
        calls.get(state).is_some_and(|pending| pending.call == *call && !pending.waiting.is_closed())
    }

    /// Takes a suspended call over; `None` if no such call is pending.
    pub async fn resume(&self, call: &CallIdentity, state: &str) -> Option<Box<Flow>> {
        let pending = {
            let mut calls = self.calls.lock().expect("no code panics while it holds this lock");
            let fits = calls.get(state).is_some_and(|pending| pending.call == *call);
            fits.then(|| calls.remove(state)).flatten()?
        };
        let (give, flow) = oneshot::channel();
        pending.waiting.send(give).ok()?;
        // Answered at once: by its holder, or by the end of the request that suspended it.
        flow.await.ok()
    }
}

/// The state of a call that can be continued by another request of its client.
pub struct Resumable {
    pub envelope: Envelope,
    /// Unanswered requests of the server, each with the server's own id.
    client_requests: Vec<(InputRequest, Id)>,
    strays: Option<Strays>,
    requested: u64,
    queued_notifications: VecDeque<(String, Option<Raw>)>,
    /// The client's answers, to be forwarded first.
    repetition: Option<Repetition>,
    /// Its process is used by no other call meanwhile.
    _lane: Option<Lane>,
}

impl Resumable {
    pub fn new(envelope: Envelope, strays: Option<Strays>, lane: Option<Lane>) -> Self {
        let (client_requests, queued_notifications) = (Vec::new(), VecDeque::new());
        Self { envelope, client_requests, strays, requested: 0, queued_notifications, repetition: None, _lane: lane }
    }

    pub fn has_asked(&self) -> bool {
        self.requested > 0
    }

    pub async fn next_stray(&mut self) -> Stray {
        let next = async { self.strays.as_mut()?.receiver.recv().await };
        match next.await {
            Some(stray) => stray,
            None => std::future::pending().await,
        }
    }

    fn queue_notification(&mut self, method: String, params: Option<Raw>) {
        if self.queued_notifications.len() == MAX_QUEUED_NOTIFICATIONS {
            self.queued_notifications.pop_front();
        }
        self.queued_notifications.push_back((method, params));
    }
}

impl Flow {
    /// A request of a legacy server. It ends the client's request, unless the client can't answer it.
    pub(super) async fn request_of_legacy_server(
        &mut self,
        id: Id,
        method: String,
        params: Option<Raw>,
    ) -> Option<FlowEnd> {
        if !self.take_client_request(id, method, params).await {
            return None;
        }
        self.suspend().await
    }

    /// Returns true if the request is to be sent to the client.
    async fn take_client_request(&mut self, id: Id, method: String, params: Option<Raw>) -> bool {
        let Kind::Resumable(resumable) = &mut self.kind else { return false };
        let can = translate::may_request_input(&self.slot.parsed.rpc.method)
            && client_can(&resumable.envelope.capabilities, &method);
        if !can {
            self.upstream.answer_or_refuse(&id, &method).await;
            return false;
        }
        resumable.requested += 1;
        let key = format!("request-{}", resumable.requested);
        resumable.client_requests.push((InputRequest { key, method, params }, id));
        true
    }

    /// Ends the client's request with the server's requests. If too many calls are suspended, the server is refused
    /// instead: the call is running, so its client must not be told to call again.
    async fn suspend(&mut self) -> Option<FlowEnd> {
        let identity = CallIdentity::of(&self.slot.request, &self.slot.parsed, &self.slot.server);
        let Kind::Resumable(resumable) = &mut self.kind else { return None };
        let Some((state, continuation)) = self.host.pending_calls.suspend(identity) else {
            for (request, id) in std::mem::take(&mut resumable.client_requests) {
                self.upstream.answer_or_refuse(&id, &request.method).await;
            }
            return None;
        };
        let requests: Vec<_> = resumable.client_requests.iter().map(|(request, _)| request.clone()).collect();
        let answer = Outcome::Result(translate::input_required(&requests, &state));
        if let Some(strays) = &resumable.strays {
            strays.set_suspended(true);
        }
        Some(FlowEnd::Suspended(Given::from(answer), continuation))
    }

    /// Continues a suspended call for another request of its client.
    pub(super) fn attach(&mut self, slot: Arc<Slot>, envelope: Envelope, repetition: Repetition) {
        slot.state().era = self.slot.state().era;
        self.slot = slot;
        if let Kind::Resumable(resumable) = &mut self.kind {
            resumable.envelope = envelope;
            resumable.repetition = Some(repetition);
            if let Some(strays) = &resumable.strays {
                strays.set_suspended(false);
            }
        }
    }

    /// Forwards the client's answers and what was queued meanwhile; requests without an answer are sent again.
    pub(super) async fn go_on_after_answers(&mut self) -> Option<FlowEnd> {
        let Kind::Resumable(resumable) = &mut self.kind else { return None };
        let mut repetition = resumable.repetition.take()?;
        let (mut open, mut answered) = (Vec::new(), Vec::new());
        for (request, id) in std::mem::take(&mut resumable.client_requests) {
            match repetition.responses.remove(&request.key) {
                Some(response) => answered.push((id, response)),
                None => open.push((request, id)),
            }
        }
        resumable.client_requests = open;
        let queued = std::mem::take(&mut resumable.queued_notifications);
        let asks_again = !resumable.client_requests.is_empty();
        for (id, response) in answered {
            if let Err(error) = self.upstream.connection.answer(&id, Outcome::Result(response)).await {
                tracing::debug!(%error, "could not forward a client's answer to its server");
            }
        }
        for (method, params) in queued {
            self.handle(Step::Server(CallEvent::Notification { method, params })).await;
        }
        if asks_again { self.suspend().await } else { None }
    }

    /// Strays that this call took and did not handle go to the other calls of the client.
    pub(super) fn give_back_strays(&mut self) {
        let (Kind::Resumable(resumable), Some(session)) = (&mut self.kind, &self.session) else { return };
        let Some(strays) = &mut resumable.strays else { return };
        strays.receiver.close();
        while let Ok(stray) = strays.receiver.try_recv() {
            if let Some(Stray::Request { id, method, .. }) = session.offer(stray) {
                let upstream = Arc::clone(&self.upstream);
                self.host.tracker.spawn(async move { upstream.answer_or_refuse(&id, &method).await });
            }
        }
    }

    /// Something that happened while the call is suspended.
    async fn handle_suspended(&mut self, step: Step) {
        match step {
            Step::Server(CallEvent::Notification { method, params })
            | Step::Stray(Stray::Notification { method, params }) => {
                if let Kind::Resumable(resumable) = &mut self.kind {
                    resumable.queue_notification(method, params);
                }
            }
            Step::Server(CallEvent::Request { id, method, params })
            | Step::Stray(Stray::Request { id, method, params }) => {
                self.take_client_request(id, method, params).await;
            }
            // The outcome is for the continuation, if one arrives.
            Step::Server(CallEvent::Done(outcome)) => self.phase = Phase::Ended(Some(outcome)),
            Step::Answered(_) | Step::PauseIsOver | Step::ConnectionClosed => {}
        }
    }
}

/// Keeps a suspended call until its client repeats the request, or for the time that it may wait. Dropping it then cancels
/// it at the server.
pub async fn hold(host: Arc<Host>, mut flow: Box<Flow>, mut continuation: oneshot::Receiver<Continuation>) {
    let deadline = Instant::now() + host.options.limits.held_call_time;
    loop {
        let is_over = matches!(flow.phase, Phase::Ended(_));
        let step = tokio::select! {
            biased;
            arrived = &mut continuation => {
                if let Ok(continuation) = arrived {
                    continuation.send(flow).ok();
                }
                return;
            }
            step = flow.next(), if !is_over => step,
            () = tokio::time::sleep_until(deadline) => break,
            () = host.shutdown.cancelled() => break,
        };
        flow.handle_suspended(step).await;
    }
    // A continuation that has just arrived gets the call all the same.
    continuation.close();
    if let Ok(arrived) = continuation.try_recv() {
        arrived.send(flow).ok();
    }
}
