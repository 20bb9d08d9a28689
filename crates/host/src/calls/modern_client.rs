//! A modern client on a legacy server. The call to the server may outlive the client's request: when the server asks
//! something, the request ends with `input_required` and the call is held until the client repeats its request.

use super::attempts::NotTaken;
use super::pass_through::forget;
use super::{Job, Stop, bad_params};
use crate::caller::Cancel;
use crate::failure;
use crate::held::Continuation;
use crate::link::Link;
use crate::outbox::Answer;
use crate::server::set_level;
use crate::session::{Session, Stray, Strays};
use crate::translate::modern_on_legacy::{self as translate, Envelope, Note, Repetition};
use crate::translate::{InputRequest, client_can, listen, server_has};
use crate::upstream_call::{Step, UpstreamCall};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::time::Instant;
use toolbus_mcp::{Era, HostReply, Id, Outcome, Raw, RpcError};
use toolbus_protocol::ErrorCode;
use toolbus_upstream::Eras;

/// Notifications that a server sends while its call is held; the oldest go first.
const MOST_KEPT_NOTES: usize = 256;

pub async fn run(job: &mut Job, eras: &Eras, timeout: Option<Duration>) -> Result<Outcome, Stop> {
    let envelope = Envelope::of(job.rpc.params.as_deref())?;
    if job.rpc.method == "server/discover"
        && let Some(initialize) = &eras.legacy
    {
        let discovered = translate::discover(initialize).map_err(|error| job.bad_result(&error))?;
        return Ok(Outcome::Result(discovered));
    }
    if translate::is_gone(&job.rpc.method) {
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
        let permit = job.permit().await?;
        let (link, call) = start(job, &session, &envelope).await?;
        let mut call = HeldCall {
            job,
            session: &session,
            link,
            call: UpstreamCall::new(call, timeout),
            envelope: envelope.clone(),
            questions: Vec::new(),
            strays: session.take_strays(),
            asked: 0,
            kept: VecDeque::new(),
            permit: Some(permit),
        };
        match call.run().await? {
            Followed::Outcome(outcome) => break outcome,
            Followed::Again => forget(&session, &Arc::clone(&call.link)).await,
        }
    };
    match outcome {
        Outcome::Result(result) => {
            let result = translate::result(&job.rpc.method, &result).map_err(|error| job.bad_result(&error))?;
            Ok(job.seen(Outcome::Result(result)))
        }
        Outcome::Error(error) => Ok(Outcome::Error(translate::error(&error))),
    }
}

/// Gives a repetition to the call that it continues. Its answers may let the server go on, so it counts as begun before.
async fn resume(job: &mut Job, envelope: Envelope, repetition: Repetition) -> Stop {
    if !job.host.held.knows(&job.identity(), &repetition.state) {
        return failure::unknown_state().into();
    }
    if let Err(stop) = job.write_start().await {
        return stop;
    }
    let (caller, record, places) = (job.caller.clone(), job.record.take(), std::mem::take(&mut job.places));
    let continuation = Continuation { caller, record, envelope, repetition, places };
    match job.host.held.resume(&job.identity(), continuation) {
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
) -> Result<(Arc<Link>, toolbus_upstream::ServerCall), Stop> {
    let params = translate::params(job.rpc.params.as_deref()).map_err(bad_params)?;
    let mut not_taken = NotTaken::default();
    loop {
        let opening = job.server.session_link(&job.host, session, || envelope.initialize());
        let link = opening.await.map_err(Stop::With)?;
        if let Some(level) = envelope.log_level
            && session.level().is_none_or(|present| level < present)
            && server_has(&link.hello(), "logging")
        {
            session.set_level(level);
            set_level(&link, level).await;
        }
        job.write_start().await?;
        match link.connection.start(&job.rpc.method, params.clone()).await {
            Ok(call) => return Ok((link, call)),
            Err(error) => {
                forget(session, &link).await;
                not_taken.count(job, error)?;
            }
        }
    }
}

/// How the server's part of a call ended.
enum Followed {
    Outcome(Outcome),
    /// The server died over it, and it may run twice.
    Again,
}

/// A call to a legacy server whose caller may change.
struct HeldCall<'a> {
    job: &'a mut Job,
    session: &'a Arc<Session>,
    link: Arc<Link>,
    call: UpstreamCall,
    envelope: Envelope,
    /// What the server waits for: the key that the client knows and the server's own id.
    questions: Vec<(InputRequest, Id)>,
    strays: Strays,
    asked: u64,
    kept: VecDeque<(String, Option<Raw>)>,
    /// Given back while the call is held: it waits for a person then.
    permit: Option<OwnedSemaphorePermit>,
}

impl HeldCall<'_> {
    async fn run(&mut self) -> Result<Followed, Stop> {
        let outcome = self.follow().await;
        self.strays.receiver.close();
        while let Ok(stray) = self.strays.receiver.try_recv() {
            if let Some(Stray::Request { id, method, .. }) = self.session.offer(stray) {
                self.link.answer_or_refuse(&id, &method).await;
            }
        }
        outcome
    }

    async fn follow(&mut self) -> Result<Followed, Stop> {
        loop {
            let step = tokio::select! {
                biased;
                Some(stray) = self.strays.receiver.recv() => match stray {
                    Stray::Notification { method, params } => Step::Notification { method, params },
                    Stray::Request { id, method, params } => Step::Request { id, method, params },
                },
                step = self.call.next(&self.job.caller.cancel) => step,
            };
            match step {
                Step::Notification { method, params } => self.note(method, params).await,
                Step::Request { id, method, params } => {
                    if self.take_question(id, method, params).await {
                        self.hold().await?;
                    }
                }
                Step::Done(Ok(outcome)) => return Ok(Followed::Outcome(outcome)),
                // What a client has answered since would have to be asked again.
                Step::Done(Err(error)) if self.asked > 0 => return Err(error.to_rpc_error().into()),
                Step::Done(Err(error)) => return self.job.run_again(&error).await.map(|()| Followed::Again),
                Step::Cancelled => return Err(Stop::Cancelled),
                Step::TimedOut => return Err(self.job.timed_out()),
            }
        }
    }

    async fn note(&mut self, method: String, params: Option<Raw>) {
        match translate::notification(&self.envelope, &method, params.clone()) {
            Note::Call(params) => self.job.tell(method, params).await,
            Note::News => self.link.spread(&self.job.host, self.job.server.name(), &method, params).await,
            Note::Nobody => {}
        }
    }

    /// True if the client is to be asked.
    async fn take_question(&mut self, id: Id, method: String, params: Option<Raw>) -> bool {
        let can = translate::can_ask_back(&self.job.rpc.method) && client_can(&self.envelope.capabilities, &method);
        if !can {
            self.link.answer_or_refuse(&id, &method).await;
            return false;
        }
        self.asked += 1;
        let key = format!("request-{}", self.asked);
        self.questions.push((InputRequest { key, method, params }, id));
        true
    }

    /// Ends the client's request with the questions, and waits for its repetition until all are answered.
    async fn hold(&mut self) -> Result<(), Stop> {
        while !self.questions.is_empty() {
            let job = &mut *self.job;
            let held = job.host.held.hold(job.identity());
            let Some((state, continuation)) = held else {
                let message = "too many calls wait for their clients to answer a server's questions";
                return Err(failure::bus(ErrorCode::TooManyCalls, message).into());
            };
            let requests: Vec<_> = self.questions.iter().map(|(request, _)| request.clone()).collect();
            let asking = HostReply::Rpc(Outcome::Result(translate::input_required(&requests, &state)));
            job.host.finish(&job.caller, job.record.as_ref(), Answer::of(&asking)).await;
            // What follows is owed to the repetition.
            job.record = None;
            self.permit = None;
            job.places.clear();
            self.strays.set_held(true);
            let continuation = self.wait_for(continuation).await?;
            self.strays.set_held(false);
            self.job.caller = continuation.caller;
            self.job.record = continuation.record;
            self.job.places = continuation.places;
            self.envelope = continuation.envelope;
            self.answer(continuation.repetition).await;
            for (method, params) in std::mem::take(&mut self.kept) {
                self.note(method, params).await;
            }
        }
        Ok(())
    }

    async fn wait_for(&mut self, mut continuation: oneshot::Receiver<Continuation>) -> Result<Continuation, Stop> {
        let patience = Instant::now() + self.job.host.options.limits.held_call_time;
        // Nobody waits for a reply meanwhile, so nobody can call the call off.
        let never = Cancel::default();
        loop {
            tokio::select! {
                biased;
                arrived = &mut continuation => return arrived.map_err(|_| Stop::HandedOver),
                Some(stray) = self.strays.receiver.recv() => match self.session.offer_running(stray) {
                    Some(Stray::Notification { method, params }) => self.keep(method, params),
                    Some(Stray::Request { id, method, params }) => drop(self.take_question(id, method, params).await),
                    None => {}
                },
                step = self.call.next(&never) => match step {
                    Step::Notification { method, params } => self.keep(method, params),
                    Step::Request { id, method, params } => {
                        self.take_question(id, method, params).await;
                    }
                    // The end is told to whoever continues, if anybody does.
                    Step::Done(outcome) => return self.wait_with(outcome, continuation, patience).await,
                    Step::Cancelled | Step::TimedOut => return Err(self.end_late(&mut continuation)),
                },
                () = tokio::time::sleep_until(patience) => return last(&mut continuation).ok_or(Stop::HandedOver),
            }
        }
    }

    /// The call is over before its questions were answered.
    async fn wait_with(
        &mut self,
        outcome: Result<Outcome, toolbus_upstream::ServerError>,
        mut continuation: oneshot::Receiver<Continuation>,
        patience: Instant,
    ) -> Result<Continuation, Stop> {
        let arrived = tokio::select! {
            biased;
            arrived = &mut continuation => arrived.ok(),
            () = tokio::time::sleep_until(patience) => last(&mut continuation),
            () = self.job.host.shutdown.cancelled() => last(&mut continuation),
        };
        let Some(continuation) = arrived else { return Err(Stop::HandedOver) };
        self.job.caller = continuation.caller;
        self.job.record = continuation.record;
        Err(match outcome {
            Ok(Outcome::Result(result)) => {
                let method = &self.job.rpc.method;
                let result = translate::result(method, &result).map_err(|error| self.job.bad_result(&error))?;
                self.job.seen(Outcome::Result(result)).into()
            }
            Ok(Outcome::Error(error)) => Outcome::Error(translate::error(&error)).into(),
            Err(error) => error.to_rpc_error().into(),
        })
    }

    /// The call's own time is over. Whoever continues it at this very moment is told.
    fn end_late(&mut self, continuation: &mut oneshot::Receiver<Continuation>) -> Stop {
        let Some(continuation) = last(continuation) else { return Stop::HandedOver };
        self.job.caller = continuation.caller;
        self.job.record = continuation.record;
        self.job.timed_out()
    }

    fn keep(&mut self, method: String, params: Option<Raw>) {
        if self.kept.len() == MOST_KEPT_NOTES {
            self.kept.pop_front();
        }
        self.kept.push_back((method, params));
    }

    /// Passes on what the client answered; what it left out is asked once more.
    async fn answer(&mut self, mut repetition: Repetition) {
        let (mut open, mut answered) = (Vec::new(), Vec::new());
        for (request, id) in std::mem::take(&mut self.questions) {
            match repetition.responses.remove(&request.key) {
                Some(response) => answered.push((id, response)),
                None => open.push((request, id)),
            }
        }
        self.questions = open;
        for (id, response) in answered {
            if let Err(error) = self.link.connection.answer(&id, Outcome::Result(response)).await {
                tracing::debug!(%error, "a client's answer did not reach the server");
            }
        }
    }
}

/// Nothing is taken any more; what came in this very moment is.
fn last(continuation: &mut oneshot::Receiver<Continuation>) -> Option<Continuation> {
    continuation.close();
    continuation.try_recv().ok()
}
