//! The bodies by which workers and hosts exchange MCP over the bus: `mcp_request`, `mcp_reply` and `mcp_event`.
//!
//! A request is self-contained. It names the server, the worker's session, and the client's own words about itself, so
//! that a host that was restarted can open a legacy session again and nobody notices.

use crate::{AdminRequest, Era, Id, Outcome, Raw, TaskView, TaskWish};
use serde::{Deserialize, Serialize};

/// Tells one client's use of a server from another's. Legacy servers have a session for each.
pub type SessionKey = String;

/// The client's own words about itself.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ClientHello {
    pub era: Era,
    /// The params of a legacy client's `initialize`, untouched. A modern client says it all in each request's `_meta`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initialize: Option<Raw>,
}

impl ClientHello {
    pub fn legacy(initialize: Raw) -> Self {
        Self { era: Era::Legacy, initialize: Some(initialize) }
    }

    pub fn modern() -> Self {
        Self { era: Era::Modern, initialize: None }
    }
}

/// Worker → host.
#[derive(Debug, Clone)]
pub enum HostRequest {
    Rpc(Rpc),
    Notify(Notify),
    Answer(Answer),
    /// The client is gone; what the host keeps for its session can go too.
    Close {
        session: SessionKey,
    },
    /// Which calls wait for approval? Answered by a [`HostReply`].
    ApprovalsList,
    /// One of them, with all of its arguments. Answered by a [`HostReply`].
    ApprovalsShow {
        id: String,
    },
    /// What somebody decided about one of them. Answered by a [`HostReply`].
    ApprovalsDecide(ApprovalDecision),
    /// About calls, tasks and dead letters. Answered by a [`HostReply`].
    Admin(AdminRequest),
}

/// Bound to what was shown: the hash covers server, tool and arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApprovalDecision {
    pub id: String,
    pub hash: String,
    pub approve: bool,
}

/// One MCP request, answered by a [`HostReply`].
#[derive(Debug, Clone)]
pub struct Rpc {
    pub server: String,
    pub session: SessionKey,
    pub client: ClientHello,
    pub method: String,
    pub params: Option<Raw>,
    /// It is to be a task: answered by [`HostReply::Task`] as soon as it is written down.
    pub task: Option<TaskWish>,
}

/// A notification of the client. In `notifications/cancelled` the `requestId` is the bus id of the call.
#[derive(Debug, Clone)]
pub struct Notify {
    pub server: String,
    pub session: SessionKey,
    pub client: ClientHello,
    pub method: String,
    pub params: Option<Raw>,
}

/// The client's answer to a request that the server made of it.
#[derive(Debug, Clone)]
pub struct Answer {
    pub server: String,
    pub session: SessionKey,
    /// As it stood in the [`HostEvent::Request`].
    pub id: Id,
    pub outcome: Outcome,
}

/// Host → worker, the end of a call.
#[derive(Debug, Clone)]
pub enum HostReply {
    Rpc(Outcome),
    /// The call became a task.
    Task(TaskView),
    /// The call was cancelled and the server has not answered it: nothing is owed to the client.
    Cancelled,
}

/// Host → worker, before the end of a call or outside of any. It travels with the call's id as its correlation id, or
/// with the session's if it belongs to no call.
#[derive(Debug, Clone)]
pub enum HostEvent {
    /// On the live lane.
    Notification { server: String, method: String, params: Option<Raw> },
    /// The server asks the client. As a durable message, because the server waits for the answer.
    Request { server: String, id: Id, method: String, params: Option<Raw> },
    /// The session at the host ended (the server died, was restarted, or idled out).
    Closed { server: String, reason: String },
}

#[derive(Debug, thiserror::Error)]
#[error("not a body of MCP over the bus: {reason}")]
pub struct BusBodyError {
    pub reason: String,
}

impl HostRequest {
    /// The operations of this module, beside the original's `manifest` and `call`.
    pub const OPS: [&str; 7] =
        ["rpc", "notify", "answer", "close", "approvals_list", "approvals_show", "approvals_decide"];

    pub fn parse(body: &str) -> Result<Self, BusBodyError> {
        let wire: RequestWire = serde_json::from_str(body).map_err(|error| reason(error.to_string()))?;
        if AdminRequest::OPS.contains(&wire.op.as_str()) {
            return serde_json::from_str(body).map(Self::Admin).map_err(|error| reason(error.to_string()));
        }
        match wire.op.as_str() {
            "approvals_list" => return Ok(Self::ApprovalsList),
            "approvals_show" => {
                let id = need(wire.id.and_then(|id| serde_json::from_str(id.get()).ok()), "id")?;
                return Ok(Self::ApprovalsShow { id });
            }
            "approvals_decide" => {
                return Ok(Self::ApprovalsDecide(ApprovalDecision {
                    id: need(wire.id.and_then(|id| serde_json::from_str(id.get()).ok()), "id")?,
                    hash: need(wire.hash, "hash")?,
                    approve: need(wire.approve, "approve")?,
                }));
            }
            _ => {}
        }
        let session = need(wire.session, "session")?;
        Ok(match wire.op.as_str() {
            "rpc" => Self::Rpc(Rpc {
                session,
                server: need(wire.server, "server")?,
                client: need(wire.client, "client")?,
                method: need(wire.method, "method")?,
                params: wire.params,
                task: wire.task,
            }),
            "notify" => Self::Notify(Notify {
                session,
                server: need(wire.server, "server")?,
                client: need(wire.client, "client")?,
                method: need(wire.method, "method")?,
                params: wire.params,
            }),
            "answer" => Self::Answer(Answer {
                session,
                server: need(wire.server, "server")?,
                id: wire.id.as_deref().and_then(Id::from_raw).ok_or_else(|| reason("id is missing"))?,
                outcome: outcome(wire.result, wire.error)?,
            }),
            "close" => Self::Close { session },
            op => return Err(reason(format!("unknown op {op:?}"))),
        })
    }

    pub fn to_json(&self) -> String {
        self.clone().into_json()
    }

    /// The same without a copy of what may be long.
    pub fn into_json(self) -> String {
        let mut wire = RequestWire::default();
        match self {
            Self::Admin(request) => return written(&request),
            Self::Rpc(Rpc { server, session, client, method, params, task }) => {
                wire.op = "rpc".into();
                (wire.server, wire.session, wire.client) = (Some(server), Some(session), Some(client));
                (wire.method, wire.params, wire.task) = (Some(method), params, task);
            }
            Self::Notify(Notify { server, session, client, method, params }) => {
                wire.op = "notify".into();
                (wire.server, wire.session, wire.client) = (Some(server), Some(session), Some(client));
                (wire.method, wire.params) = (Some(method), params);
            }
            Self::Answer(Answer { server, session, id, outcome }) => {
                wire.op = "answer".into();
                (wire.server, wire.session, wire.id) = (Some(server), Some(session), Some(id.as_raw().to_owned()));
                (wire.result, wire.error) = split(outcome);
            }
            Self::Close { session } => {
                wire.op = "close".into();
                wire.session = Some(session);
            }
            Self::ApprovalsList => wire.op = "approvals_list".into(),
            Self::ApprovalsShow { id } => {
                wire.op = "approvals_show".into();
                wire.id = Some(crate::raw(&id));
            }
            Self::ApprovalsDecide(ApprovalDecision { id, hash, approve }) => {
                wire.op = "approvals_decide".into();
                (wire.id, wire.hash, wire.approve) = (Some(crate::raw(&id)), Some(hash), Some(approve));
            }
        }
        written(&wire)
    }
}

impl HostReply {
    pub fn parse(body: &str) -> Result<Self, BusBodyError> {
        let wire: ReplyWire = serde_json::from_str(body).map_err(|error| reason(error.to_string()))?;
        // An original host, or one that could not read the request, answers with a sentence.
        if let Some(error) = wire.error {
            return Err(reason(error));
        }
        let rpc = need(wire.rpc, "rpc")?;
        if rpc.cancelled {
            return Ok(Self::Cancelled);
        }
        if let Some(task) = rpc.task {
            return Ok(Self::Task(task));
        }
        Ok(Self::Rpc(outcome(rpc.result, rpc.error)?))
    }

    pub fn to_json(&self) -> String {
        self.clone().into_json()
    }

    /// The same without a copy of what may be long.
    pub fn into_json(self) -> String {
        let mut rpc = RpcWire::default();
        match self {
            Self::Rpc(outcome) => (rpc.result, rpc.error) = split(outcome),
            Self::Task(task) => rpc.task = Some(task),
            Self::Cancelled => rpc.cancelled = true,
        }
        written(&ReplyWire { rpc: Some(rpc), error: None })
    }
}

impl HostEvent {
    pub fn parse(body: &str) -> Result<Self, BusBodyError> {
        let wire: EventWire = serde_json::from_str(body).map_err(|error| reason(error.to_string()))?;
        let server = wire.server;
        Ok(match wire.event.as_str() {
            "notification" => Self::Notification { server, method: need(wire.method, "method")?, params: wire.params },
            "request" => Self::Request {
                server,
                id: wire.id.as_deref().and_then(Id::from_raw).ok_or_else(|| reason("id is missing"))?,
                method: need(wire.method, "method")?,
                params: wire.params,
            },
            "closed" => Self::Closed { server, reason: wire.reason.unwrap_or_default() },
            event => return Err(reason(format!("unknown event {event:?}"))),
        })
    }

    pub fn to_json(&self) -> String {
        self.clone().into_json()
    }

    /// The same without a copy of what may be long.
    pub fn into_json(self) -> String {
        let mut wire = EventWire::default();
        match self {
            Self::Notification { server, method, params } => {
                (wire.event, wire.server) = ("notification".into(), server);
                (wire.method, wire.params) = (Some(method), params);
            }
            Self::Request { server, id, method, params } => {
                (wire.event, wire.server, wire.id) = ("request".into(), server, Some(id.as_raw().to_owned()));
                (wire.method, wire.params) = (Some(method), params);
            }
            Self::Closed { server, reason } => {
                (wire.event, wire.server, wire.reason) = ("closed".into(), server, Some(reason));
            }
        }
        written(&wire)
    }
}

#[derive(Default, Serialize, Deserialize)]
struct RequestWire {
    op: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    server: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    session: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    client: Option<ClientHello>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    method: Option<String>,
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    params: Option<Raw>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    id: Option<Raw>,
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    result: Option<Raw>,
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    error: Option<Raw>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hash: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    approve: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    task: Option<TaskWish>,
}

#[derive(Default, Serialize, Deserialize)]
struct ReplyWire {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rpc: Option<RpcWire>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

#[derive(Default, Serialize, Deserialize)]
struct RpcWire {
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    result: Option<Raw>,
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    error: Option<Raw>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    task: Option<TaskView>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    cancelled: bool,
}

#[derive(Default, Serialize, Deserialize)]
struct EventWire {
    event: String,
    server: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    id: Option<Raw>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    method: Option<String>,
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    params: Option<Raw>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

/// A member that is `null` is there; serde would take it for absent.
fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Raw>, D::Error> {
    Raw::deserialize(deserializer).map(Some)
}

fn written(wire: &impl Serialize) -> String {
    serde_json::to_string(wire).expect("our own bodies have string keys and finite numbers")
}

fn reason(reason: impl Into<String>) -> BusBodyError {
    BusBodyError { reason: reason.into() }
}

fn need<T>(value: Option<T>, name: &str) -> Result<T, BusBodyError> {
    value.ok_or_else(|| reason(format!("{name} is missing")))
}

fn outcome(result: Option<Raw>, error: Option<Raw>) -> Result<Outcome, BusBodyError> {
    match (result, error) {
        (Some(result), None) => Ok(Outcome::Result(result)),
        (None, Some(error)) => Ok(Outcome::Error(error)),
        _ => Err(reason("one of result and error is needed")),
    }
}

fn split(outcome: Outcome) -> (Option<Raw>, Option<Raw>) {
    match outcome {
        Outcome::Result(result) => (Some(result), None),
        Outcome::Error(error) => (None, Some(error)),
    }
}
