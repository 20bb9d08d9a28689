//! A legacy client on a modern server. What the modern era has no request for is answered here; `input_required` becomes
//! requests to the client, and news come from a listen that the host keeps open for the session.

use super::attempts::NotTaken;
use super::pass_through::without_session;
use super::relay::Ended;
use super::{Job, Stop, bad_params};
use crate::failure;
use crate::host::Host;
use crate::link::Use;
use crate::outbox::QUESTION_DEADLINE;
use crate::server::Server;
use crate::session::Session;
use crate::translate::legacy_on_modern::{self as translate, Introduction, Step};
use crate::translate::log_level::LogLevel;
use crate::translate::{InputRequest, listen, server_flag, server_has};
use crate::upstream_call::UpstreamCall;
use serde_json::json;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use toolbus_mcp::{Members, Outcome, Raw, RpcError, empty_object, raw};
use toolbus_protocol::ErrorCode;
use toolbus_upstream::{CallEvent, Eras};

/// How often a server may ask for more before it gives a result.
const MOST_ROUNDS: usize = 32;
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);
/// How long a subscription waits for the server's acknowledgement.
const ACKNOWLEDGE_TIME: Duration = Duration::from_secs(5);
const LISTEN_AGAIN_AFTER: Duration = Duration::from_secs(1);

pub async fn run(job: &mut Job, eras: &Arc<Eras>, timeout: Option<Duration>) -> Result<Outcome, Stop> {
    job.wait_for_turn().await?;
    let Some((session, turn)) = job.session.take() else { return Err(without_session().into()) };
    let _in_use = session.begin_use();
    let discover = eras.modern.clone().unwrap_or_else(empty_object);
    if job.rpc.method == "initialize" {
        let params = job.rpc.params.clone().unwrap_or_else(empty_object);
        let answer = translate::initialize_result(&discover, &params, job.server.name());
        return answer.map(Outcome::Result).map_err(|error| job.bad_result(&error));
    }
    let Some(initialize) = &job.rpc.client.initialize else { return Err(without_session().into()) };
    let introduction = Introduction::of_initialize(initialize).map_err(bad_params)?;
    if let Some(outcome) = answered_here(job, &session, eras, &discover, &introduction).await? {
        return Ok(outcome);
    }
    let level = session.level().or_else(|| translate::default_level(&discover));
    let _permit = job.permit().await?;
    drop(turn);
    let mut params = job.rpc.params.clone();
    let mut pause = FIRST_PAUSE;
    for _ in 0..MOST_ROUNDS {
        let enveloped = introduction.envelop(params.as_deref(), level).map_err(bad_params)?;
        let result = match ask_server(job, eras, enveloped, timeout).await? {
            Outcome::Result(result) => result,
            error => return Ok(error),
        };
        let (requests, state) = match translate::result(&result).map_err(|error| job.bad_result(&error))? {
            Step::Complete(result) => return Ok(job.seen(Outcome::Result(result))),
            Step::Ask { requests, state } => (requests, state),
        };
        if requests.is_empty() {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        let responses = ask_client(job, &session, requests).await?;
        params = Some(translate::repetition(job.rpc.params.as_deref(), responses, state).map_err(bad_params)?);
    }
    let message = format!("server {:?} asked {MOST_ROUNDS} times for more and gave no result", job.server.name());
    Err(failure::bus(ErrorCode::BadServerMessage, message).into())
}

async fn ask_server(job: &Job, eras: &Eras, params: Raw, timeout: Option<Duration>) -> Result<Outcome, Stop> {
    let mut not_taken = NotTaken::default();
    loop {
        let link = job.server.modern_link(&job.host, eras).await.map_err(Outcome::from)?;
        job.write_start().await?;
        let call = match link.connection.start(&job.rpc.method, Some(params.clone())).await {
            Ok(call) => call,
            Err(error) => {
                not_taken.count(job, error)?;
                continue;
            }
        };
        match job.relay(&link, UpstreamCall::new(call, timeout), None).await? {
            Ended::Outcome(outcome) => return Ok(outcome),
            Ended::NotRun(error) => not_taken.count(job, error)?,
            Ended::Again => {}
        }
    }
}

/// Puts the server's questions to the client, all at once, and gathers the answers.
async fn ask_client(job: &Job, session: &Session, requests: Vec<InputRequest>) -> Result<Vec<(String, Raw)>, Stop> {
    let mut waiting = Vec::with_capacity(requests.len());
    for InputRequest { key, method, params } in requests {
        let (id, answer) = session.new_question();
        let asked = job.ask(id, method.clone(), params).await;
        let code = if job.rpc.task.is_some() { ErrorCode::NobodyToAsk } else { ErrorCode::HostAway };
        asked.map_err(|error| failure::bus(code, format!("the client can't be asked: {error}")))?;
        waiting.push((key, method, answer));
    }
    let mut responses = Vec::with_capacity(waiting.len());
    for (key, method, answer) in waiting {
        let outcome = tokio::select! {
            answer = tokio::time::timeout(QUESTION_DEADLINE, answer) => answer.ok().and_then(Result::ok),
            () = job.caller.cancel.fired() => return Err(Stop::Cancelled),
        };
        let unanswered = || failure::bus(ErrorCode::CallTimeout, format!("the client has not answered {method}"));
        let response = translate::input_response(&method, outcome.ok_or_else(unanswered)?);
        responses.push((key, response.map_err(Outcome::Error)?));
    }
    Ok(responses)
}

/// What a modern server isn't asked.
async fn answered_here(
    job: &Job,
    session: &Arc<Session>,
    eras: &Arc<Eras>,
    discover: &Raw,
    introduction: &Introduction,
) -> Result<Option<Outcome>, Stop> {
    let method = job.rpc.method.as_str();
    let unknown = || Stop::from(RpcError::method_not_found(method));
    let params = Members::of(job.rpc.params.as_deref()).map_err(bad_params)?;
    match method {
        "ping" => {}
        "logging/setLevel" if server_has(discover, "logging") => {
            let level = params.text("level").as_deref().and_then(LogLevel::parse);
            let bad = || RpcError::invalid_params("level has to be one of the eight log levels");
            session.set_level(level.ok_or_else(bad)?);
        }
        "resources/subscribe" | "resources/unsubscribe" if server_flag(discover, "resources", "subscribe") => {
            let uri = params.text("uri").ok_or_else(|| RpcError::invalid_params("uri is missing"))?;
            let changed =
                if method == "resources/subscribe" { session.subscribe(&uri) } else { session.unsubscribe(&uri) };
            if changed {
                keep_listening(&job.host, &job.server, session, eras, introduction.clone()).await;
            }
        }
        "logging/setLevel" | "resources/subscribe" | "resources/unsubscribe" => return Err(unknown()),
        _ if translate::is_unknown(method) => return Err(unknown()),
        _ => {
            if !session.is_listening() {
                keep_listening(&job.host, &job.server, session, eras, introduction.clone()).await;
            }
            return Ok(None);
        }
    }
    Ok(Some(Outcome::Result(empty_object())))
}

/// Opens a listen for what the session wants to hear, and only then ends the one before.
pub async fn keep_listening(
    host: &Arc<Host>,
    server: &Arc<Server>,
    session: &Arc<Session>,
    eras: &Arc<Eras>,
    introduction: Introduction,
) {
    let discover = eras.modern.clone().unwrap_or_else(empty_object);
    let filter = listen::Filter::everything(&discover, session.uris());
    let end = CancellationToken::new();
    if filter.is_empty() {
        return session.replace_listening(Some(end));
    }
    let Ok(params) = introduction.envelop(Some(&raw(&json!({"notifications": filter.to_raw()}))), None) else { return };
    let (ready, acknowledged) = oneshot::channel();
    let listening = Listening {
        host: Arc::downgrade(host),
        server: Arc::clone(server),
        session: Arc::downgrade(session),
        eras: Arc::clone(eras),
        params,
        end: end.clone(),
    };
    host.tasks.spawn(listening.run(ready));
    tokio::time::timeout(ACKNOWLEDGE_TIME, acknowledged).await.ok();
    session.replace_listening(Some(end));
}

/// A listen on behalf of a legacy session, opened again when the server ends it.
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
            tokio::time::sleep(LISTEN_AGAIN_AFTER).await;
        }
    }

    /// False if the server can't be listened to.
    async fn listen_once(&self, host: &Arc<Host>, ready: &mut Option<oneshot::Sender<()>>) -> bool {
        let Ok(link) = self.server.modern_link(host, &self.eras).await else { return true };
        let Ok(mut call) = link.connection.start(listen::LISTEN, Some(self.params.clone())).await else { return true };
        loop {
            match call.next().await {
                CallEvent::Notification { method, .. } if method == listen::ACKNOWLEDGED => {
                    ready.take().map(|ready| ready.send(()));
                }
                CallEvent::Notification { method, params } => {
                    let Some(session) = self.session.upgrade() else { return false };
                    let params = listen::untagged(params.as_deref());
                    session.hear(host, self.server.name(), Use::Own, &method, params).await;
                }
                CallEvent::Request { id, method, .. } => link.answer_or_refuse(&id, &method).await,
                CallEvent::Done(Ok(Outcome::Error(_))) => return false,
                CallEvent::Done(_) => return true,
            }
        }
    }
}
