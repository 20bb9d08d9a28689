//! A legacy client on a modern server. Methods that the modern era lacks are answered here, `input_required` becomes
//! requests to the client, and notifications come from a listen that the host keeps open for the session.

use super::attempts::NotTaken;
use super::pass_through::without_session;
use super::relay::Ended;
use super::{Job, Stop, bad_params};
use crate::failure;
use crate::host::Host;
use crate::outbox::CLIENT_REQUEST_DEADLINE;
use crate::server::Server;
use crate::session::Session;
use crate::translate::legacy_on_modern::{self as translate, ClientIdentity, ModernResult};
use crate::translate::log_level::LogLevel;
use crate::translate::{InputRequest, listen, server_flag, server_has};
use crate::upstream::Usage;
use crate::upstream_call::UpstreamCall;
use serde_json::json;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use toolbus_mcp::{Members, Outcome, Raw, RpcError, empty_object, raw};
use toolbus_protocol::ErrorCode;
use toolbus_upstream::{CallEvent, Eras};

/// Maximum `input_required` results of one call.
const MAX_ROUNDS: usize = 32;
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_millis(250);
/// How long a subscription waits for the server's acknowledgement.
const ACKNOWLEDGE_TIMEOUT: Duration = Duration::from_secs(5);
const LISTEN_RETRY_INTERVAL: Duration = Duration::from_secs(1);

pub async fn run(job: &mut Job, eras: &Arc<Eras>, timeout: Option<Duration>) -> Result<Outcome, Stop> {
    job.wait_for_order().await?;
    let Some((session, ticket)) = job.session.take() else { return Err(without_session().into()) };
    let _in_use = session.begin_use();
    let discover = eras.modern.clone().unwrap_or_else(empty_object);
    if job.rpc.method == "initialize" {
        let params = job.rpc.params.clone().unwrap_or_else(empty_object);
        let answer = translate::initialize_result(&discover, &params, job.server.name());
        return answer.map(Outcome::Result).map_err(|error| job.bad_result(&error));
    }
    let Some(initialize) = &job.rpc.client.initialize else { return Err(without_session().into()) };
    let identity = ClientIdentity::of_initialize(initialize).map_err(bad_params)?;
    if let Some(outcome) = answered_here(job, &session, eras, &discover, &identity).await? {
        return Ok(outcome);
    }
    let level = session.level().or_else(|| translate::default_level(&discover));
    let _permit = job.server_permit().await?;
    drop(ticket);
    let mut params = job.rpc.params.clone();
    let mut pause = FIRST_PAUSE;
    for _ in 0..MAX_ROUNDS {
        let enveloped = identity.add_envelope(params.as_deref(), level).map_err(bad_params)?;
        let result = match ask_server(job, eras, enveloped, timeout).await? {
            Outcome::Result(result) => result,
            error => return Ok(error),
        };
        let (requests, state) = match translate::result(&result).map_err(|error| job.bad_result(&error))? {
            ModernResult::Complete(result) => return Ok(job.filtered(Outcome::Result(result))),
            ModernResult::InputRequired { requests, state } => (requests, state),
        };
        if requests.is_empty() {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(MAX_PAUSE);
        }
        let responses = ask_client(job, &session, requests).await?;
        params = Some(translate::repetition(job.rpc.params.as_deref(), responses, state).map_err(bad_params)?);
    }
    let message = format!("server {:?} requested input {MAX_ROUNDS} times without a result", job.server.name());
    Err(failure::bus(ErrorCode::BadServerMessage, message).into())
}

async fn ask_server(job: &Job, eras: &Eras, params: Raw, timeout: Option<Duration>) -> Result<Outcome, Stop> {
    let mut not_taken = NotTaken::default();
    loop {
        let upstream = job.server.modern_upstream(&job.host, eras).await.map_err(Outcome::from)?;
        job.write_start().await?;
        let call = match upstream.connection.start(&job.rpc.method, Some(params.clone())).await {
            Ok(call) => call,
            Err(error) => {
                not_taken.count(job, error)?;
                continue;
            }
        };
        match job.relay(&upstream, UpstreamCall::new(call, timeout), None).await? {
            Ended::Outcome(outcome) => return Ok(outcome),
            Ended::NotRun(error) => not_taken.count(job, error)?,
            Ended::Again => {}
        }
    }
}

/// Sends all of the server's requests to the client, and collects the answers.
async fn ask_client(job: &Job, session: &Session, requests: Vec<InputRequest>) -> Result<Vec<(String, Raw)>, Stop> {
    let mut waiting = Vec::with_capacity(requests.len());
    for InputRequest { key, method, params } in requests {
        let (id, answer) = session.new_client_request();
        let sent = job.send_client_request(id, method.clone(), params).await;
        let code = if job.rpc.task.is_some() { ErrorCode::NobodyToAsk } else { ErrorCode::HostAway };
        sent.map_err(|error| failure::bus(code, format!("cannot send the server's request to the client: {error}")))?;
        waiting.push((key, method, answer));
    }
    let mut responses = Vec::with_capacity(waiting.len());
    for (key, method, answer) in waiting {
        let outcome = tokio::select! {
            answer = tokio::time::timeout(CLIENT_REQUEST_DEADLINE, answer) => answer.ok().and_then(Result::ok),
            () = job.caller.cancel.fired() => return Err(Stop::Cancelled),
        };
        let unanswered = || failure::bus(ErrorCode::CallTimeout, format!("the client did not answer {method} in time"));
        let response = translate::input_response(&method, outcome.ok_or_else(unanswered)?);
        responses.push((key, response.map_err(Outcome::Error)?));
    }
    Ok(responses)
}

/// Answers methods that a modern server doesn't have.
async fn answered_here(
    job: &Job,
    session: &Arc<Session>,
    eras: &Arc<Eras>,
    discover: &Raw,
    identity: &ClientIdentity,
) -> Result<Option<Outcome>, Stop> {
    let method = job.rpc.method.as_str();
    let unknown = || Stop::from(RpcError::method_not_found(method));
    let params = Members::of(job.rpc.params.as_deref()).map_err(bad_params)?;
    match method {
        "ping" => {}
        "logging/setLevel" if server_has(discover, "logging") => {
            let level = params.text("level").as_deref().and_then(LogLevel::parse);
            let bad = || RpcError::invalid_params("level must be one of the eight log levels");
            session.set_level(level.ok_or_else(bad)?);
        }
        "resources/subscribe" | "resources/unsubscribe" if server_flag(discover, "resources", "subscribe") => {
            let uri = params.text("uri").ok_or_else(|| RpcError::invalid_params("uri is missing"))?;
            let changed =
                if method == "resources/subscribe" { session.subscribe(&uri) } else { session.unsubscribe(&uri) };
            if changed {
                keep_listening(&job.host, &job.server, session, eras, identity.clone()).await;
            }
        }
        "logging/setLevel" | "resources/subscribe" | "resources/unsubscribe" => return Err(unknown()),
        _ if translate::is_unsupported(method) => return Err(unknown()),
        _ => {
            if !session.is_listening() {
                keep_listening(&job.host, &job.server, session, eras, identity.clone()).await;
            }
            return Ok(None);
        }
    }
    Ok(Some(Outcome::Result(empty_object())))
}

/// Opens a listen for the session's subscriptions, and only then ends the previous one.
pub async fn keep_listening(
    host: &Arc<Host>,
    server: &Arc<Server>,
    session: &Arc<Session>,
    eras: &Arc<Eras>,
    identity: ClientIdentity,
) {
    let discover = eras.modern.clone().unwrap_or_else(empty_object);
    let filter = listen::Filter::everything(&discover, session.uris());
    let end = CancellationToken::new();
    if filter.is_empty() {
        return session.replace_listening(Some(end));
    }
    let Ok(params) = identity.add_envelope(Some(&raw(&json!({"notifications": filter.to_raw()}))), None) else {
        return;
    };
    let (ready, acknowledged) = oneshot::channel();
    let listening = Listening {
        host: Arc::downgrade(host),
        server: Arc::clone(server),
        session: Arc::downgrade(session),
        eras: Arc::clone(eras),
        params,
        end: end.clone(),
    };
    host.tracker.spawn(listening.run(ready));
    tokio::time::timeout(ACKNOWLEDGE_TIMEOUT, acknowledged).await.ok();
    session.replace_listening(Some(end));
}

/// A listen on behalf of a legacy session, reopened when the server ends it.
struct Listening {
    host: Weak<Host>,
    server: Arc<Server>,
    session: Weak<Session>,
    eras: Arc<Eras>,
    params: Raw,
    end: CancellationToken,
}

impl Listening {
    async fn run(self, ready: oneshot::Sender<()>) {
        let mut ready = Some(ready);
        loop {
            let Some(host) = self.host.upgrade() else { return };
            tokio::select! {
                supported = self.listen_once(&host, &mut ready) => if !supported { return },
                () = self.end.cancelled() => return,
                () = host.shutdown.cancelled() => return,
            }
            tokio::time::sleep(LISTEN_RETRY_INTERVAL).await;
        }
    }

    /// Returns false if the server doesn't support listening.
    async fn listen_once(&self, host: &Arc<Host>, ready: &mut Option<oneshot::Sender<()>>) -> bool {
        let Ok(upstream) = self.server.modern_upstream(host, &self.eras).await else { return true };
        let Ok(mut call) = upstream.connection.start(listen::LISTEN, Some(self.params.clone())).await else {
            return true;
        };
        loop {
            match call.next().await {
                CallEvent::Notification { method, .. } if method == listen::ACKNOWLEDGED => {
                    ready.take().map(|ready| ready.send(()));
                }
                CallEvent::Notification { method, params } => {
                    let Some(session) = self.session.upgrade() else { return false };
                    let params = listen::untagged(params.as_deref());
                    session.deliver_notification(host, self.server.name(), Usage::Own, &method, params).await;
                }
                CallEvent::Request { id, method, .. } => upstream.answer_or_refuse(&id, &method).await,
                CallEvent::Done(Ok(Outcome::Error(_))) => return false,
                CallEvent::Done(_) => return true,
            }
        }
    }
}
