//! Runs one client request: authorises it, translates its name, determines the server's era and chooses the handler for
//! it.

mod attempts;
mod audited;
mod authorise;
mod legacy_client;
mod listen;
mod modern_client;
mod pass_through;
mod relay;

pub use audited::subject_of;
pub use authorise::Authorised;
pub use legacy_client::keep_listening;

use crate::caller::{Caller, Cause};
use crate::catalog::names::{is_prefixed, own_name};
use crate::catalog::page::Viewer;
use crate::failure;
use crate::host::Host;
use crate::journaled::Record;
use crate::outbox::Answer;
use crate::pending_calls::CallIdentity;
use crate::server::Server;
use crate::session::{Session, SessionId};
use crate::session_order::OrderTicket;
use crate::translate::listen::LISTEN;
use futures_util::FutureExt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::task_tracker::TaskTrackerToken;
use toolbus_audit::Subject;
use toolbus_journal::End;
use toolbus_mcp::{
    Era, HostReply, ListKind, Members, MembersError, NameError, NameKey, Outcome, Raw, Rpc, RpcError, codes, raw,
    required_name,
};
use toolbus_protocol::ErrorCode;

/// A client's request with everything needed to run it.
pub struct Job {
    /// Counted by the drain.
    _running: TaskTrackerToken,
    pub host: Arc<Host>,
    pub caller: Caller,
    pub server: Arc<Server>,
    pub rpc: Rpc,
    /// Its journal record.
    pub record: Option<Record>,
    /// The session of a legacy client, and the request's ticket in its session order.
    pub session: Option<(Arc<Session>, OrderTicket)>,
    /// Permits of the policy's concurrency limits.
    pub permits: Vec<OwnedSemaphorePermit>,
    /// True for a follow-up of an already approved call (for example the answer to an elicitation). Such a request must
    /// not start a new call.
    pub continues: bool,
    /// The era used with the server, once known.
    era: Option<Era>,
    received_at: Instant,
    /// When its limits admitted it.
    started_at: Option<Instant>,
    /// What the audit log says about it, as the caller named it.
    subject: Subject,
    /// Cancelled once it has queued for a permit of the server.
    pub queued: CancellationToken,
    /// An approver has approved it.
    is_approved: bool,
    /// It was answered with an earlier call's answer.
    pub is_joined: bool,
}

/// An authorised request.
pub struct Permission {
    key: Option<NameKey>,
    authorised: Authorised,
}

/// How a request ends without an answer of the server.
pub enum Stop {
    /// With this outcome.
    With(Outcome),
    /// The shutdown of this host closed the server under the call.
    Unknown(RpcError),
    Cancelled,
    /// Another call or host replies.
    HandedOver,
}

/// Why a request has no outcome.
pub enum NoAnswer {
    /// The shutdown of this host closed the server under the call.
    Unknown(RpcError),
    Cancelled,
    /// Another call or host replies.
    HandedOver,
}

impl<T: Into<Outcome>> From<T> for Stop {
    fn from(outcome: T) -> Self {
        Self::With(outcome.into())
    }
}

impl Job {
    /// Takes the request's ticket in its session order. Must be called in the order of arrival.
    pub fn begin(
        host: &Arc<Host>,
        caller: Caller,
        server: Arc<Server>,
        rpc: Rpc,
        record: Option<Record>,
    ) -> Result<Self, RpcError> {
        let session = match rpc.client.era {
            Era::Modern => None,
            Era::Legacy => {
                let id = SessionId { mailbox: caller.mailbox().to_owned(), key: rpc.session.clone() };
                let session = server.session(host, id, Era::Legacy)?;
                let ticket = session.order.take_ticket();
                Some((session, ticket))
            }
        };
        Ok(Self {
            _running: host.jobs.token(),
            host: Arc::clone(host),
            caller,
            server,
            rpc,
            record,
            session,
            permits: Vec::new(),
            continues: false,
            era: None,
            received_at: Instant::now(),
            started_at: None,
            subject: Subject::default(),
            queued: CancellationToken::new(),
            is_approved: false,
            is_joined: false,
        })
    }

    /// Runs the request and answers it. A panic ends only this call: it is answered like one whose host died.
    pub async fn run(self) {
        let (host, caller) = (Arc::clone(&self.host), self.caller.clone());
        let (server, tool) = (self.rpc.server.clone(), self.rpc.method.clone());
        if AssertUnwindSafe(self.run_to_end()).catch_unwind().await.is_err() {
            tracing::error!(server, method = tool, id = caller.id().as_str(), "a call ended by a panic");
            let error = failure::panicked(&server, &tool);
            host.finish(&caller, None, Answer { end: End::Unknown, ..Answer::of(&HostReply::Rpc(error.into())) }).await;
        }
    }

    async fn run_to_end(mut self) {
        let answer = match self.outcome().await {
            Ok(outcome) | Err(Stop::With(outcome)) => Answer::of(&HostReply::Rpc(outcome)),
            Err(Stop::Cancelled) if self.caller.cancel.is_fired_for(Cause::Admin) => {
                Answer { end: End::Cancelled, ..Answer::of(&self.cancelled_reply()) }
            }
            Err(Stop::Cancelled) => Answer::of(&self.cancelled_reply()),
            Err(Stop::Unknown(error)) => Answer { end: End::Unknown, ..Answer::of(&HostReply::Rpc(error.into())) },
            Err(Stop::HandedOver) => return,
        };
        self.host.finish(&self.caller, self.record.as_ref(), answer).await;
    }

    /// Runs the request; returns its outcome, and its record to be journaled before the reply.
    pub async fn answer(self) -> (Result<Outcome, NoAnswer>, Option<Record>) {
        self.answer_to(None).await
    }

    /// Like [`Self::answer`], with an authorisation that may have been made already.
    pub async fn answer_to(mut self, decided: Option<Permission>) -> (Result<Outcome, NoAnswer>, Option<Record>) {
        let outcome = match decided {
            Some(permission) => self.outcome_with(permission).await,
            None => self.outcome().await,
        };
        let answer = match outcome {
            Ok(outcome) | Err(Stop::With(outcome)) => Ok(outcome),
            Err(Stop::Cancelled) => match self.cancelled_reply() {
                HostReply::Rpc(outcome) => Ok(outcome),
                _ => Err(NoAnswer::Cancelled),
            },
            Err(Stop::Unknown(error)) => Err(NoAnswer::Unknown(error)),
            Err(Stop::HandedOver) => Err(NoAnswer::HandedOver),
        };
        (answer, self.record)
    }

    async fn outcome(&mut self) -> Result<Outcome, Stop> {
        let permission = self.permission().await?;
        self.outcome_with(permission).await
    }

    /// Authorises the request, and audits the decision.
    pub async fn permission(&mut self) -> Result<Permission, Stop> {
        let unnamed = |error: NameError| RpcError::invalid_params(format!("Invalid params: {error}"));
        let key = required_name(&self.rpc.method, self.rpc.params.as_deref()).map_err(unnamed)?;
        self.subject = self.audit_subject();
        let decided = self.authorise(key.as_ref());
        self.audit_decision(&decided).await?;
        Ok(Permission { key, authorised: decided? })
    }

    async fn outcome_with(&mut self, Permission { key, authorised }: Permission) -> Result<Outcome, Stop> {
        let outcome = match self.join_earlier().await {
            Ok(Some(joined)) => Ok(joined),
            Ok(None) => self.permitted_outcome(key, &authorised).await,
            Err(stop) => Err(stop),
        };
        let outcome = self.after_shutdown(outcome).await;
        self.audit_end(&outcome).await;
        outcome
    }

    async fn permitted_outcome(&mut self, key: Option<NameKey>, authorised: &Authorised) -> Result<Outcome, Stop> {
        self.host.wait_for_caller(&self.caller).await;
        self.wait_for_limits(authorised, key.as_ref()).await?;
        self.started_at = Some(Instant::now());
        let tool = match &key {
            Some(NameKey::Tool(tool)) => Some(tool.clone()),
            _ => None,
        };
        let outcome = match self.run_behind_circuit_breaker(key).await {
            Ok(outcome) | Err(Stop::With(outcome)) => outcome,
            Err(stop) => return Err(stop),
        };
        if let Some(tool) = tool {
            let owners = &self.host.options.policy.task_owners;
            owners.remember(self.server.name(), &outcome, self.caller.mailbox(), &tool);
        }
        Ok(self.within_size(authorised, outcome))
    }

    /// Runs an admitted request.
    async fn run_at_server(&mut self, key: Option<NameKey>) -> Result<Outcome, Stop> {
        let timeout = self.use_own_name(key.as_ref())?;
        let eras = tokio::select! {
            biased;
            eras = self.server.eras(&self.host) => eras?,
            () = self.caller.cancel.fired() => return Err(Stop::Cancelled),
        };
        // Checked again, because the server's lists may have been unknown before.
        self.refuse_changed_target(key.as_ref())?;
        let era = self.server.era_for(self.rpc.client.era, &eras);
        self.era = Some(era);
        if self.continues && era != Era::Legacy {
            return Err(failure::unknown_state().into());
        }
        match (self.rpc.client.era, era) {
            (Era::Legacy, Era::Legacy) => pass_through::legacy(self, timeout).await,
            (Era::Modern, Era::Modern) => pass_through::modern(self, &eras, timeout).await,
            (Era::Modern, Era::Legacy) => modern_client::run(self, &eras, timeout).await,
            (Era::Legacy, Era::Modern) => legacy_client::run(self, &eras, timeout).await,
        }
    }

    /// Removes the prefix from the name in the request. Returns the time limit of the named item.
    fn use_own_name(&mut self, key: Option<&NameKey>) -> Result<Option<Duration>, RpcError> {
        let (kind, visible) = match key {
            Some(NameKey::Tool(name)) => (ListKind::Tools, name),
            Some(NameKey::Prompt(name)) => (ListKind::Prompts, name),
            _ if self.rpc.method == LISTEN => return Ok(None),
            _ => return Ok(self.server.config.timeout),
        };
        let prefix = self.server.config.prefix.as_deref().filter(|_| is_prefixed(kind));
        let Some(own) = own_name(prefix, visible) else {
            let message =
                format!("server {:?} has no {visible:?}: its names start with {prefix:?}", self.server.name());
            return Err(failure::bus(ErrorCode::UnknownName, message));
        };
        if prefix.is_some() {
            self.rpc.params = Some(renamed(&self.rpc, own).map_err(bad_params)?);
        }
        Ok(match kind {
            ListKind::Tools => self.server.config.timeout_of(own),
            _ => self.server.config.timeout,
        })
    }

    pub fn session_id(&self) -> SessionId {
        SessionId { mailbox: self.caller.mailbox().to_owned(), key: self.rpc.session.clone() }
    }

    /// Valid after [`Self::permission`].
    pub fn identity(&self) -> CallIdentity {
        CallIdentity {
            session: self.session_id(),
            server: self.server.index,
            method: self.rpc.method.clone(),
            name: self.subject.name.clone(),
            arguments: self.subject.args.clone(),
        }
    }

    /// Waits until the session's earlier messages have been sent.
    async fn wait_for_order(&mut self) -> Result<(), Stop> {
        let Some((_, ticket)) = &mut self.session else { return Ok(()) };
        tokio::select! {
            biased;
            () = ticket.wait() => Ok(()),
            () = self.caller.cancel.fired() => Err(Stop::Cancelled),
        }
    }

    /// Waits in FIFO order for a permit of the server.
    async fn server_permit(&self) -> Result<OwnedSemaphorePermit, Stop> {
        if self.caller.cancel.is_fired() {
            return Err(Stop::Cancelled);
        }
        // Polled after the acquisition has queued; then the next resumed task may queue.
        let queued = async {
            self.queued.cancel();
            std::future::pending().await
        };
        tokio::select! {
            biased;
            permit = Arc::clone(&self.server.permits).acquire_owned() => {
                self.queued.cancel();
                permit.map_err(|_| Stop::Cancelled)
            }
            never = queued => never,
            () = self.caller.cancel.fired() => Err(Stop::Cancelled),
        }
    }

    /// Filters a list for this worker; other outcomes are unchanged.
    fn filtered(&self, outcome: Outcome) -> Outcome {
        let Some(kind) = ListKind::of_method(&self.rpc.method) else { return outcome };
        let Outcome::Result(result) = outcome else { return outcome };
        let owners = self.host.catalog.owners();
        let policy = self.host.options.policy.current();
        let viewer = self.host.viewer(self.caller.role(), &policy, &owners, &self.server);
        let viewer = Viewer { era: self.era, ..viewer };
        match viewer.page(kind, result) {
            Ok(page) => Outcome::Result(page),
            Err(error) => {
                let message = format!("server {:?} answered {} with {error}", self.server.name(), self.rpc.method);
                failure::bus(ErrorCode::BadServerMessage, message).into()
            }
        }
    }

    fn bad_result(&self, error: &MembersError) -> Stop {
        let message = format!("server {:?} answered {} with {error}", self.server.name(), self.rpc.method);
        failure::bus(ErrorCode::BadServerMessage, message).into()
    }

    /// The reply to a call that ended before the server answered.
    fn cancelled_reply(&self) -> HostReply {
        let cancel = &self.caller.cancel;
        match self.past_limit() {
            Some(outcome) => HostReply::Rpc(outcome),
            None if cancel.caller_is_gone() => {
                let message = format!("the caller of {} was disconnected for too long", self.rpc.method);
                HostReply::Rpc(failure::bus(ErrorCode::CallerGone, message).into())
            }
            None if cancel.is_fired_for(Cause::Admin) => {
                let why = cancel.reason().unwrap_or("cancelled");
                let message = format!("{} of server {:?} was {why}", self.rpc.method, self.server.name());
                HostReply::Rpc(failure::bus(ErrorCode::Cancelled, message).into())
            }
            None if cancel.passed_deadline() => {
                let message = format!("the caller's deadline passed before {} was answered", self.rpc.method);
                HostReply::Rpc(failure::bus(ErrorCode::Expired, message).into())
            }
            None => HostReply::Cancelled,
        }
    }

    /// The error for a call that the policy's time limit ended.
    fn past_limit(&self) -> Option<Outcome> {
        let limit = self.caller.cancel.passed_limit()?;
        let message = format!("server {:?} did not answer {} in time: {limit}", self.server.name(), self.rpc.method);
        Some(failure::bus(ErrorCode::CallTimeout, message).into())
    }

    fn timed_out(&self) -> Stop {
        let message = format!("server {:?} did not answer {} in time", self.server.name(), self.rpc.method);
        failure::bus(ErrorCode::CallTimeout, message).into()
    }
}

pub fn bad_params(error: MembersError) -> RpcError {
    RpcError::new(codes::INVALID_PARAMS, format!("Invalid params: {error}"))
}

fn renamed(rpc: &Rpc, own: &str) -> Result<Raw, MembersError> {
    let mut params = Members::of(rpc.params.as_deref())?;
    if rpc.method == "completion/complete" {
        params.edit("ref", |reference| reference.set("name", raw(own)))?;
    } else {
        params.set("name", raw(own));
    }
    Ok(params.to_raw())
}
