//! A legacy client on a modern server. Methods that the modern era lacks are answered here, `input_required` becomes
//! requests to the client and another round at the server, and notifications come from a listen that the host keeps
//! open for the session.

use super::authorise::bad_params;
use super::connect::{bad_result, not_taken};
use super::flow::{Flow, FlowEnd, Kind, Phase};
use super::not_connected::NotConnected;
use super::slot::Slot;
use crate::failure;
use crate::host::Host;
use crate::outbox::CLIENT_REQUEST_DEADLINE;
use crate::server::Server;
use crate::session::Session;
use crate::translate::legacy_on_modern::{self as translate, ClientIdentity, ModernResult};
use crate::translate::log_level::LogLevel;
use crate::translate::{InputRequest, listen, server_flag, server_has};
use crate::upstream::Usage;
use serde_json::json;
use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use toolbus_mcp::{Members, MembersError, Outcome, Raw, RpcError, empty_object, raw};
use toolbus_protocol::ErrorCode;
use toolbus_upstream::{CallEvent, Eras};

/// Maximum `input_required` results of one call.
const MAX_ROUNDS: usize = 32;
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_millis(250);
/// How long a subscription waits for the server's acknowledgement.
const ACKNOWLEDGE_TIMEOUT: Duration = Duration::from_secs(5);
const LISTEN_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// The state between the rounds of a call.
pub struct Rounds {
    identity: ClientIdentity,
    level: Option<LogLevel>,
    params: Option<Raw>,
    count: usize,
    pause: Duration,
    has_asked: bool,
    /// The server's state, to be returned with the client's answers.
    state: Option<Raw>,
}

impl Rounds {
    pub fn new(identity: ClientIdentity, level: Option<LogLevel>, params: Option<Raw>) -> Self {
        Self { identity, level, params, count: 0, pause: FIRST_PAUSE, has_asked: false, state: None }
    }

    pub fn first_params(&self) -> Result<Raw, MembersError> {
        self.identity.add_envelope(self.params.as_ref(), self.level)
    }

    pub fn has_asked(&self) -> bool {
        self.has_asked
    }
}

/// Requests of the server that the client has not answered yet.
pub struct Asking {
    waiting: VecDeque<(String, String, oneshot::Receiver<Outcome>)>,
    responses: Vec<(String, Raw)>,
    deadline: Instant,
}

impl Asking {
    /// The next answer, or that it did not come in time. Cancellation-safe.
    pub async fn next(&mut self) -> Result<Outcome, ()> {
        let Some((_, _, answer)) = self.waiting.front_mut() else { return std::future::pending().await };
        let answer = tokio::time::timeout_at(self.deadline, answer).await;
        answer.ok().and_then(Result::ok).ok_or(())
    }
}

impl Flow {
    /// A round ended with a result.
    pub(super) async fn round_answered(&mut self, result: Raw) -> Option<FlowEnd> {
        let (requests, state) = match translate::result(&result) {
            Ok(ModernResult::Complete(result)) => {
                return Some(FlowEnd::Answered(self.filtered(Outcome::Result(result))));
            }
            Ok(ModernResult::InputRequired { requests, state }) => (requests, state),
            Err(error) => return Some(FlowEnd::Failed(bad_result(&self.slot, &error).into())),
        };
        let Kind::Rounds(rounds) = &mut self.kind else { return None };
        rounds.count += 1;
        rounds.state = state;
        if rounds.count >= MAX_ROUNDS {
            let server = self.slot.server.name();
            let message = format!("server {server:?} requested input {MAX_ROUNDS} times without a result");
            return Some(FlowEnd::Failed(failure::bus(ErrorCode::BadServerMessage, message).into()));
        }
        if requests.is_empty() {
            self.phase = Phase::Paused(Instant::now() + rounds.pause);
            rounds.pause = (rounds.pause * 2).min(MAX_PAUSE);
            return None;
        }
        rounds.has_asked = true;
        self.ask_client(requests).await
    }

    /// Sends all of the server's requests to the client.
    async fn ask_client(&mut self, requests: Vec<InputRequest>) -> Option<FlowEnd> {
        let session = self.session.clone()?;
        let mut waiting = VecDeque::with_capacity(requests.len());
        for InputRequest { key, method, params } in requests {
            let (id, answer) = session.new_client_request();
            let sent = self.host.send_client_request(&self.slot, id, method.clone(), params).await;
            if let Err(error) = sent {
                let code = if self.slot.is_task() { ErrorCode::NobodyToAsk } else { ErrorCode::HostAway };
                let message = format!("cannot send the server's request to the client: {error}");
                return Some(FlowEnd::Failed(failure::bus(code, message).into()));
            }
            waiting.push_back((key, method, answer));
        }
        let deadline = Instant::now() + CLIENT_REQUEST_DEADLINE;
        self.phase = Phase::Asking(Asking { waiting, responses: Vec::new(), deadline });
        None
    }

    pub(super) async fn client_answered(&mut self, answer: Result<Outcome, ()>) -> Option<FlowEnd> {
        let Phase::Asking(asking) = &mut self.phase else { return None };
        let (key, method, _) = asking.waiting.pop_front()?;
        let Ok(outcome) = answer else {
            let message = format!("the client did not answer {method} in time");
            return Some(FlowEnd::Failed(failure::bus(ErrorCode::CallTimeout, message).into()));
        };
        match translate::input_response(&method, outcome) {
            Ok(response) => asking.responses.push((key, response)),
            Err(error) => return Some(FlowEnd::Failed(Outcome::Error(error).into())),
        }
        if !asking.waiting.is_empty() {
            return None;
        }
        let responses = std::mem::take(&mut asking.responses);
        self.next_round(responses).await
    }

    /// Repeats the request with the client's answers. START is journaled already.
    pub(super) async fn next_round(&mut self, responses: Vec<(String, Raw)>) -> Option<FlowEnd> {
        let Kind::Rounds(rounds) = &mut self.kind else { return None };
        let repeated = translate::repetition(rounds.params.as_ref(), responses, rounds.state.take());
        let enveloped = repeated.and_then(|params| rounds.identity.add_envelope(Some(&params), rounds.level));
        let params = match enveloped {
            Ok(params) => params,
            Err(error) => return Some(FlowEnd::Failed(bad_params(error).into())),
        };
        let (caller, method) = (self.slot.caller(), &self.slot.parsed.rpc.method);
        match self.upstream.connection.start_for(caller, method, Some(params)).await {
            Ok(call) => {
                self.phase = Phase::Server(call);
                None
            }
            // The server ended between two rounds, which are one call to the client.
            Err(error) => match not_taken(&self.slot, &error) {
                NotConnected::ServerFailed(answer) | NotConnected::Refused(answer) => {
                    Some(FlowEnd::Died { error: answer, why: error.to_string(), retry: false })
                }
            },
        }
    }
}

/// Answers methods that a modern server doesn't have.
pub async fn answered_here(
    host: &Arc<Host>,
    slot: &Slot,
    session: &Arc<Session>,
    eras: &Arc<Eras>,
    identity: &ClientIdentity,
) -> Result<Option<Outcome>, RpcError> {
    let method = slot.parsed.rpc.method.as_str();
    let discover = eras.modern.clone().unwrap_or_else(empty_object);
    let unknown = || RpcError::method_not_found(method);
    let params = Members::of(slot.parsed.rpc.params.as_ref()).map_err(bad_params)?;
    match method {
        "ping" => {}
        "logging/setLevel" if server_has(&discover, "logging") => {
            let level = params.text("level").as_deref().and_then(LogLevel::parse);
            let bad = || RpcError::invalid_params("level must be one of the eight log levels");
            session.set_level(level.ok_or_else(bad)?);
        }
        "resources/subscribe" | "resources/unsubscribe" if server_flag(&discover, "resources", "subscribe") => {
            let uri = params.text("uri").ok_or_else(|| RpcError::invalid_params("uri is missing"))?;
            let changed =
                if method == "resources/subscribe" { session.subscribe(&uri) } else { session.unsubscribe(&uri) };
            if changed {
                keep_listening(host, &slot.server, session, eras, identity.clone()).await;
            }
        }
        "logging/setLevel" | "resources/subscribe" | "resources/unsubscribe" => return Err(unknown()),
        _ if translate::is_unsupported(method) => return Err(unknown()),
        _ => {
            if !session.is_listening() {
                keep_listening(host, &slot.server, session, eras, identity.clone()).await;
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
                    let params = listen::untagged(params.as_ref());
                    session.deliver_notification(host, self.server.name(), Usage::Own, &method, params).await;
                }
                CallEvent::Request { id, method, .. } => upstream.answer_or_refuse(&id, &method).await,
                CallEvent::Done(Ok(Outcome::Error(_))) => return false,
                CallEvent::Done(_) => return true,
            }
        }
    }
}
