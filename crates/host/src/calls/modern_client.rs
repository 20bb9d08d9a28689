//! A modern client on a legacy server. The call may outlive the client's request: when the server sends a request to
//! the client, the client's request ends with `input_required`, and the call is suspended until the client repeats it.

use super::attempts::NotTaken;
use super::pass_through::forget;
use super::{Job, Stop, bad_params};
use crate::caller::Cancel;
use crate::failure;
use crate::outbox::Answer;
use crate::pending_calls::Continuation;
use crate::server::set_level;
use crate::session::{Session, Stray, Strays};
use crate::translate::modern_on_legacy::{self as translate, Destination, Envelope, Repetition};
use crate::translate::{InputRequest, client_can, listen, server_has};
use crate::upstream::Upstream;
use crate::upstream_call::{CallStep, UpstreamCall};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::time::Instant;
use toolbus_mcp::{Era, HostReply, Id, Outcome, Raw, RpcError};
use toolbus_protocol::ErrorCode;
use toolbus_upstream::Eras;

/// Notifications kept while a call is suspended; the oldest are dropped first.
const MAX_QUEUED_NOTIFICATIONS: usize = 256;

pub async fn run(job: &mut Job, eras: &Eras, timeout: Option<Duration>) -> Result<Outcome, Stop> {
    let envelope = Envelope::of(job.rpc.params.as_deref())?;
    if job.rpc.method == "server/discover"
        && let Some(initialize) = &eras.legacy
    {
        let discovered = translate::discover(initialize).map_err(|error| job.bad_result(&error))?;
        return Ok(Outcome::Result(discovered));
    }
    if translate::is_removed(&job.rpc.method) {
        return Err(RpcError::method_not_found(&job.rpc.method).into());
    }
    let session = job.server.session(&job.host, job.session_id(), Era::Modern)?;
    let _in_use = session.begin_use();
    if job.rpc.method == listen::LISTEN {
        return job.listen_on_legacy(&session, &envelope).await;
    }
    if let Some(repetition) = Repetition::of(job.rpc.params.as_deref())? {
        return Err(resume(job, envelope, repetition).await);
    }
    let outcome = loop {
        let permit = job.server_permit().await?;
        let (upstream, call) = start(job, &session, &envelope).await?;
        let mut call = ResumableCall {
            job,
            session: &session,
            upstream,
            call: UpstreamCall::new(call, timeout),
            envelope: envelope.clone(),
            client_requests: Vec::new(),
            strays: session.take_strays(),
            requested: 0,
            queued_notifications: VecDeque::new(),
            permit: Some(permit),
        };
        match call.run().await? {
            Followed::Outcome(outcome) => break outcome,
            Followed::Again => forget(&session, &Arc::clone(&call.upstream)).await,
        }
    };
    match outcome {
        Outcome::Result(result) => {
            let result = translate::result(&job.rpc.method, &result).map_err(|error| job.bad_result(&error))?;
            Ok(job.filtered(Outcome::Result(result)))
        }
        Outcome::Error(error) => Ok(Outcome::Error(translate::error(&error))),
    }
}

/// Hands a repetition to the call that it continues. START is journaled first, because the answers may make the server
/// continue.
async fn resume(job: &mut Job, envelope: Envelope, repetition: Repetition) -> Stop {
    if !job.host.pending_calls.knows(&job.identity(), &repetition.state) {
        return failure::unknown_state().into();
    }
    if let Err(stop) = job.write_start().await {
        return stop;
    }
    let (caller, record, permits) = (job.caller.clone(), job.record.take(), std::mem::take(&mut job.permits));
    let continuation = Continuation { caller, record, envelope, repetition, permits };
    match job.host.pending_calls.resume(&job.identity(), continuation) {
        Ok(()) => Stop::HandedOver,
        Err(continuation) => {
            job.record = continuation.record;
            failure::unknown_state().into()
        }
    }
}

async fn start(
    job: &Job,
    session: &Arc<Session>,
    envelope: &Envelope,
) -> Result<(Arc<Upstream>, toolbus_upstream::ServerCall), Stop> {
    let params = translate::params(job.rpc.params.as_deref()).map_err(bad_params)?;
    let mut not_taken = NotTaken::default();
    loop {
        let opening = job.server.session_upstream(&job.host, session, || envelope.initialize());
        let upstream = opening.await.map_err(Stop::With)?;
        if let Some(level) = envelope.log_level
            && session.level().is_none_or(|present| level < present)
            && server_has(&upstream.handshake(), "logging")
        {
            session.set_level(level);
            set_level(&upstream, level).await;
        }
        job.write_start().await?;
        match upstream.connection.start(&job.rpc.method, params.clone()).await {
            Ok(call) => return Ok((upstream, call)),
            Err(error) => {
                forget(session, &upstream).await;
                not_taken.count(job, error)?;
            }
        }
    }
}

/// How the server's part of a call ended.
enum Followed {
    Outcome(Outcome),
    /// The server died, and the call is replay-safe.
    Again,
}

/// A call to a legacy server that can be continued by another request of its client.
struct ResumableCall<'a> {
    job: &'a mut Job,
    session: &'a Arc<Session>,
    upstream: Arc<Upstream>,
    call: UpstreamCall,
    envelope: Envelope,
    /// Unanswered requests of the server, each with the server's own id.
    client_requests: Vec<(InputRequest, Id)>,
    strays: Strays,
    requested: u64,
    queued_notifications: VecDeque<(String, Option<Raw>)>,
    /// Released while the call is suspended, since it waits for a person then.
    permit: Option<OwnedSemaphorePermit>,
}

impl ResumableCall<'_> {
    async fn run(&mut self) -> Result<Followed, Stop> {
        let outcome = self.follow().await;
        self.strays.receiver.close();
        while let Ok(stray) = self.strays.receiver.try_recv() {
            if let Some(Stray::Request { id, method, .. }) = self.session.offer(stray) {
                self.upstream.answer_or_refuse(&id, &method).await;
            }
        }
        outcome
    }

    async fn follow(&mut self) -> Result<Followed, Stop> {
        loop {
            let step = tokio::select! {
                biased;
                Some(stray) = self.strays.receiver.recv() => match stray {
                    Stray::Notification { method, params } => CallStep::Notification { method, params },
                    Stray::Request { id, method, params } => CallStep::Request { id, method, params },
                },
                step = self.call.next(&self.job.caller.cancel) => step,
            };
            match step {
                CallStep::Notification { method, params } => self.notify(method, params).await,
                CallStep::Request { id, method, params } => {
                    if self.take_client_request(id, method, params).await {
                        self.suspend().await?;
                    }
                }
                CallStep::Done(Ok(outcome)) => return Ok(Followed::Outcome(outcome)),
                // Running it again would ask the client everything again.
                CallStep::Done(Err(error)) if self.requested > 0 => return Err(error.to_rpc_error().into()),
                CallStep::Done(Err(error)) => return self.job.run_again(&error).await.map(|()| Followed::Again),
                CallStep::Cancelled => return Err(Stop::Cancelled),
                CallStep::TimedOut => return Err(self.job.timed_out()),
            }
        }
    }

    async fn notify(&mut self, method: String, params: Option<Raw>) {
        match translate::notification(&self.envelope, &method, params.clone()) {
            Destination::Call(params) => self.job.notify_caller(method, params).await,
            Destination::Listeners => {
                self.upstream.broadcast(&self.job.host, self.job.server.name(), &method, params).await
            }
            Destination::Dropped => {}
        }
    }

    /// Returns true if the request is to be sent to the client.
    async fn take_client_request(&mut self, id: Id, method: String, params: Option<Raw>) -> bool {
        let can =
            translate::may_request_input(&self.job.rpc.method) && client_can(&self.envelope.capabilities, &method);
        if !can {
            self.upstream.answer_or_refuse(&id, &method).await;
            return false;
        }
        self.requested += 1;
        let key = format!("request-{}", self.requested);
        self.client_requests.push((InputRequest { key, method, params }, id));
        true
    }

    /// Ends the client's request with the server's requests, and waits for repetitions until all are answered.
    async fn suspend(&mut self) -> Result<(), Stop> {
        while !self.client_requests.is_empty() {
            let job = &mut *self.job;
            let suspended = job.host.pending_calls.suspend(job.identity());
            let Some((state, continuation)) = suspended else {
                let message = "too many calls wait for their clients to answer requests of a server";
                return Err(failure::bus(ErrorCode::TooManyCalls, message).into());
            };
            let requests: Vec<_> = self.client_requests.iter().map(|(request, _)| request.clone()).collect();
            let reply = HostReply::Rpc(Outcome::Result(translate::input_required(&requests, &state)));
            job.host.finish(&job.caller, job.record.as_ref(), Answer::of(&reply)).await;
            // From here on, the repetition is the request to answer.
            job.record = None;
            self.permit = None;
            job.permits.clear();
            self.strays.set_suspended(true);
            let continuation = self.wait_for(continuation).await?;
            self.strays.set_suspended(false);
            self.job.caller = continuation.caller;
            self.job.record = continuation.record;
            self.job.permits = continuation.permits;
            self.envelope = continuation.envelope;
            self.answer(continuation.repetition).await;
            for (method, params) in std::mem::take(&mut self.queued_notifications) {
                self.notify(method, params).await;
            }
        }
        Ok(())
    }

    async fn wait_for(&mut self, mut continuation: oneshot::Receiver<Continuation>) -> Result<Continuation, Stop> {
        let deadline = Instant::now() + self.job.host.options.limits.held_call_time;
        // No request is open meanwhile, so none can be cancelled.
        let never = Cancel::default();
        loop {
            tokio::select! {
                biased;
                arrived = &mut continuation => return arrived.map_err(|_| Stop::HandedOver),
                Some(stray) = self.strays.receiver.recv() => match self.session.offer_running(stray) {
                    Some(Stray::Notification { method, params }) => self.queue_notification(method, params),
                    Some(Stray::Request { id, method, params }) => {
                        self.take_client_request(id, method, params).await;
                    }
                    None => {}
                },
                step = self.call.next(&never) => match step {
                    CallStep::Notification { method, params } => self.queue_notification(method, params),
                    CallStep::Request { id, method, params } => {
                        self.take_client_request(id, method, params).await;
                    }
                    // The outcome is for the continuation, if one arrives.
                    CallStep::Done(outcome) => return self.wait_with(outcome, continuation, deadline).await,
                    CallStep::Cancelled | CallStep::TimedOut => return Err(self.time_out(&mut continuation)),
                },
                () = tokio::time::sleep_until(deadline) => return take_last(&mut continuation).ok_or(Stop::HandedOver),
            }
        }
    }

    /// Waits for a continuation of a call that has already ended, to answer it with the outcome.
    async fn wait_with(
        &mut self,
        outcome: Result<Outcome, toolbus_upstream::ServerError>,
        mut continuation: oneshot::Receiver<Continuation>,
        deadline: Instant,
    ) -> Result<Continuation, Stop> {
        let arrived = tokio::select! {
            biased;
            arrived = &mut continuation => arrived.ok(),
            () = tokio::time::sleep_until(deadline) => take_last(&mut continuation),
            () = self.job.host.shutdown.cancelled() => take_last(&mut continuation),
        };
        let Some(continuation) = arrived else { return Err(Stop::HandedOver) };
        self.job.caller = continuation.caller;
        self.job.record = continuation.record;
        Err(match outcome {
            Ok(Outcome::Result(result)) => {
                let method = &self.job.rpc.method;
                let result = translate::result(method, &result).map_err(|error| self.job.bad_result(&error))?;
                self.job.filtered(Outcome::Result(result)).into()
            }
            Ok(Outcome::Error(error)) => Outcome::Error(translate::error(&error)).into(),
            Err(error) => error.to_rpc_error().into(),
        })
    }

    /// The call timed out. A continuation that has just arrived gets the error.
    fn time_out(&mut self, continuation: &mut oneshot::Receiver<Continuation>) -> Stop {
        let Some(continuation) = take_last(continuation) else { return Stop::HandedOver };
        self.job.caller = continuation.caller;
        self.job.record = continuation.record;
        self.job.timed_out()
    }

    fn queue_notification(&mut self, method: String, params: Option<Raw>) {
        if self.queued_notifications.len() == MAX_QUEUED_NOTIFICATIONS {
            self.queued_notifications.pop_front();
        }
        self.queued_notifications.push_back((method, params));
    }

    /// Forwards the client's answers; requests without an answer are sent again.
    async fn answer(&mut self, mut repetition: Repetition) {
        let (mut open, mut answered) = (Vec::new(), Vec::new());
        for (request, id) in std::mem::take(&mut self.client_requests) {
            match repetition.responses.remove(&request.key) {
                Some(response) => answered.push((id, response)),
                None => open.push((request, id)),
            }
        }
        self.client_requests = open;
        for (id, response) in answered {
            if let Err(error) = self.upstream.connection.answer(&id, Outcome::Result(response)).await {
                tracing::debug!(%error, "could not forward a client's answer to its server");
            }
        }
    }
}

/// Closes the channel, and takes a continuation that arrived before.
fn take_last(continuation: &mut oneshot::Receiver<Continuation>) -> Option<Continuation> {
    continuation.close();
    continuation.try_recv().ok()
}
