//! A call at its server: relays what the server sends until it answers. One driver for all combinations of eras; the
//! translations are functions in `translate`.

use super::answers::Given;
use super::connect::{bad_result, forget, not_taken};
use super::not_connected::{NotConnected, is_failure};
use super::notified::Notified;
use super::rounds::{Asking, Rounds};
use super::slot::Slot;
use super::suspended::{Continuation, Resumable};
use crate::catalog::page::Viewer;
use crate::failure;
use crate::host::Host;
use crate::session::{InUse, Session, Stray};
use crate::translate::listen;
use crate::translate::log_level::LogLevel;
use crate::translate::modern_on_legacy as translate;
use crate::upstream::{LogReceiver, Upstream, Usage};
use std::sync::Arc;
use tokio::sync::oneshot;
use tokio::time::Instant;
use toolbus_mcp::{ListKind, Members, Outcome, Raw};
use toolbus_protocol::ErrorCode;
use toolbus_upstream::{CallEvent, ServerCall, ServerError};

/// A call that its server has taken.
pub struct Flow {
    pub(super) host: Arc<Host>,
    /// The request to answer; another one after a suspended call is continued.
    pub(super) slot: Arc<Slot>,
    pub(super) upstream: Arc<Upstream>,
    pub(super) session: Option<Arc<Session>>,
    _in_use: Option<InUse>,
    pub(super) kind: Kind,
    pub(super) phase: Phase,
    _log: Option<LogReceiver>,
}

/// How messages are translated between client and server.
pub enum Kind {
    /// Not at all: both use the same era.
    Pass,
    /// `subscriptions/listen` at a modern server.
    Listen,
    /// `subscriptions/listen` at a legacy server, emulated by subscriptions.
    ListenOnLegacy,
    /// A modern client on a legacy server.
    Resumable(Box<Resumable>),
    /// A legacy client on a modern server.
    Rounds(Box<Rounds>),
}

/// What the call waits for.
pub enum Phase {
    /// The server.
    Server(ServerCall),
    /// The client's answers to requests of a modern server.
    Asking(Asking),
    /// The next round, in which the server may have an answer.
    Paused(Instant),
    /// The end of the connection or of the client's interest.
    Listening,
    /// The next request of the client, for the outcome.
    Ended(Option<Result<Outcome, ServerError>>),
}

/// Something that happened to the call.
pub enum Step {
    Server(CallEvent),
    Stray(Stray),
    Answered(Result<Outcome, ()>),
    PauseIsOver,
    ConnectionClosed,
}

/// How the server's part of a call ended.
pub enum FlowEnd {
    Answered(Given),
    /// The client's request ends with requests of the server; the call goes on.
    Suspended(Given, oneshot::Receiver<Continuation>),
    /// The server did not run it.
    NotTaken(Given),
    Died {
        error: Given,
        why: String,
        retry: bool,
    },
    /// Without a failure of the server.
    Failed(Given),
}

impl Flow {
    pub fn new(
        host: Arc<Host>,
        slot: Arc<Slot>,
        upstream: Arc<Upstream>,
        (session, in_use): (Option<Arc<Session>>, Option<InUse>),
        (kind, phase): (Kind, Phase),
        log: Option<LogReceiver>,
    ) -> Self {
        Self { host, slot, upstream, session, _in_use: in_use, kind, phase, _log: log }
    }

    /// Called once after the request was sent or the call was continued.
    pub async fn begin(&mut self) -> Option<FlowEnd> {
        match &self.kind {
            Kind::ListenOnLegacy => self.begin_listen_on_legacy().await,
            Kind::Resumable(_) => self.go_on_after_answers().await,
            _ => None,
        }
    }

    /// Cancellation-safe.
    pub async fn next(&mut self) -> Step {
        match (&mut self.phase, &mut self.kind) {
            (Phase::Server(call), Kind::Resumable(resumable)) => {
                tokio::select! {
                    biased;
                    stray = resumable.next_stray() => Step::Stray(stray),
                    event = call.next() => Step::Server(event),
                }
            }
            (Phase::Server(call), _) => Step::Server(call.next().await),
            (Phase::Asking(asking), _) => Step::Answered(asking.next().await),
            (Phase::Paused(until), _) => {
                tokio::time::sleep_until(*until).await;
                Step::PauseIsOver
            }
            (Phase::Listening, _) => {
                self.upstream.closed().await;
                Step::ConnectionClosed
            }
            (Phase::Ended(outcome), _) => match outcome.take() {
                Some(outcome) => Step::Server(CallEvent::Done(outcome)),
                None => std::future::pending().await,
            },
        }
    }

    pub async fn handle(&mut self, step: Step) -> Option<FlowEnd> {
        match step {
            Step::Server(CallEvent::Notification { method, params })
            | Step::Stray(Stray::Notification { method, params }) => {
                self.notification(method, params).await;
                None
            }
            Step::Server(CallEvent::Request { id, method, params })
            | Step::Stray(Stray::Request { id, method, params }) => self.request(id, method, params).await,
            Step::Server(CallEvent::Done(Ok(outcome))) => self.answered(outcome).await,
            Step::Server(CallEvent::Done(Err(error))) => Some(self.failed(error).await),
            Step::Answered(answer) => self.client_answered(answer).await,
            Step::PauseIsOver => self.next_round(Vec::new()).await,
            Step::ConnectionClosed => Some(self.end_listen_on_legacy()),
        }
    }

    /// Asks the server to cancel the call.
    pub async fn cancel(&mut self, reason: Option<&str>) {
        match &self.phase {
            Phase::Server(call) => call.cancel(reason).await,
            // The server waits for nothing, or is not involved.
            Phase::Asking(_) | Phase::Paused(_) | Phase::Listening | Phase::Ended(_) => {}
        }
    }

    async fn answered(&mut self, outcome: Outcome) -> Option<FlowEnd> {
        let answer = match (&self.kind, outcome) {
            (Kind::Rounds(_), Outcome::Result(result)) => return self.round_answered(result).await,
            (Kind::Listen, Outcome::Result(result)) => {
                Outcome::Result(super::listen::with_subscription(result, self.slot.id().as_str())).into()
            }
            (Kind::Resumable(_), Outcome::Result(result)) => {
                match translate::result(&self.slot.parsed.rpc.method, &result) {
                    Ok(result) => self.filtered(Outcome::Result(result)),
                    Err(error) => return Some(FlowEnd::Failed(bad_result(&self.slot, &error).into())),
                }
            }
            (Kind::Resumable(_), Outcome::Error(error)) => Outcome::Error(translate::error(&error)).into(),
            (_, outcome) => {
                self.remember(&outcome);
                self.filtered(outcome)
            }
        };
        Some(FlowEnd::Answered(answer))
    }

    async fn failed(&mut self, error: ServerError) -> FlowEnd {
        let may_retry = matches!(error, ServerError::Died { .. } | ServerError::BrokenOff { .. });
        let is_lost = may_retry || error.was_not_run();
        if let (Some(session), true, Kind::Pass | Kind::Resumable(_)) = (&self.session, is_lost, &self.kind) {
            forget(session, &self.upstream).await;
        }
        if error.was_not_run() && !matches!(&self.kind, Kind::Resumable(resumable) if resumable.has_asked()) {
            return match not_taken(&self.slot, &error) {
                NotConnected::ServerFailed(error) | NotConnected::Refused(error) => FlowEnd::NotTaken(error),
            };
        }
        let answer = Given::from(error.to_rpc_error());
        if !is_failure(&error) {
            return FlowEnd::Failed(answer);
        }
        // Running it again would ask the client everything again.
        let has_asked = match &self.kind {
            Kind::Resumable(resumable) => resumable.has_asked(),
            Kind::Rounds(rounds) => rounds.has_asked(),
            _ => false,
        };
        let retry = may_retry && !has_asked && !matches!(self.kind, Kind::Listen);
        FlowEnd::Died { error: answer, why: error.to_string(), retry }
    }

    /// Filters a list for this worker; other outcomes are unchanged.
    pub(super) fn filtered(&self, outcome: Outcome) -> Given {
        let slot = &self.slot;
        let Some(kind) = ListKind::of_method(&slot.parsed.rpc.method) else { return outcome.into() };
        let Outcome::Result(result) = outcome else { return outcome.into() };
        let owners = self.host.catalog.owners();
        let policy = self.host.options.policy.current();
        let viewer = self.host.viewer(slot.role(), &policy, &owners, &slot.server);
        let viewer = Viewer { era: slot.state().era, ..viewer };
        match viewer.page(kind, result) {
            Ok(page) => Outcome::Result(page).into(),
            Err(error) => {
                let message =
                    format!("server {:?} answered {} with {error}", slot.server.name(), slot.parsed.rpc.method);
                failure::bus(ErrorCode::BadServerMessage, message).into()
            }
        }
    }

    /// Remembers state of a legacy session that must be restored if the connection is lost.
    fn remember(&self, outcome: &Outcome) {
        let Some(session) = &self.session else { return };
        if self.upstream.usage == Usage::Shared || matches!(outcome, Outcome::Error(_)) {
            return;
        }
        let text = |name: &str| Members::of(self.slot.parsed.rpc.params.as_ref()).ok()?.text(name);
        match self.slot.parsed.rpc.method.as_str() {
            "logging/setLevel" => {
                if let Some(level) = text("level").as_deref().and_then(LogLevel::parse) {
                    session.set_level(level);
                }
            }
            "resources/subscribe" => drop(text("uri").map(|uri| session.subscribe(&uri))),
            "resources/unsubscribe" => drop(text("uri").map(|uri| session.unsubscribe(&uri))),
            _ => {}
        }
    }

    async fn notification(&mut self, method: String, params: Option<Raw>) {
        self.upstream.count_list_change(&method);
        // It may be about something else than the call: a subscription of the client.
        if listen::is_listen_notification(&method) && !self.may_notify(&method, params.as_ref()) {
            return;
        }
        match &mut self.kind {
            Kind::Resumable(resumable) => match translate::notification(&resumable.envelope, &method, params.clone()) {
                translate::Destination::Call(params) => self.host.notify_caller(&self.slot, method, params).await,
                translate::Destination::Listeners => {
                    self.upstream.broadcast(&self.host, self.slot.server.name(), &method, params).await;
                }
                translate::Destination::Dropped => {}
            },
            Kind::Listen => {
                let params = listen::tagged(params.as_ref(), self.slot.id().as_str()).map(Some).unwrap_or(params);
                self.host.notify_caller(&self.slot, method, params).await;
            }
            // On a shared connection, such notifications concern all sessions.
            Kind::Pass | Kind::Rounds(_)
                if self.upstream.usage == Usage::Shared && listen::is_listen_notification(&method) =>
            {
                self.upstream.broadcast(&self.host, self.slot.server.name(), &method, params).await;
            }
            Kind::Pass | Kind::Rounds(_) | Kind::ListenOnLegacy => {
                self.host.notify_caller(&self.slot, method, params).await;
            }
        }
    }

    /// By the rules in force. On a shared connection, all sessions are asked about one by one.
    fn may_notify(&self, method: &str, params: Option<&Raw>) -> bool {
        let (role, server) = (self.slot.role(), self.slot.server.name());
        let notified = Notified { role, server, method, params };
        match &self.kind {
            Kind::Listen => self.host.may_listen(&notified),
            Kind::Pass if self.upstream.usage == Usage::Own => self.host.may_notify(&notified),
            _ => true,
        }
    }
}
