//! The JSON of the bodies in `bus`: how each is parsed and written.

use crate::bus::*;
use crate::{AdminRequest, Id, Outcome, Raw, TaskView, TaskWish};
use serde::{Deserialize, Serialize};

impl HostRequest {
    /// The `op` of every request of this module. The original system also has `manifest` and `call`.
    pub const OPS: [&str; 7] =
        ["rpc", "notify", "answer", "close", "approvals_list", "approvals_show", "approvals_decide"];

    /// Parses a message body.
    pub fn parse(body: &str) -> Result<Self, BusBodyError> {
        let wire: RequestWire = serde_json::from_str(body).map_err(|error| reason(error.to_string()))?;
        if AdminRequest::OPS.contains(&wire.op.as_str()) {
            return serde_json::from_str(body).map(Self::Admin).map_err(|error| reason(error.to_string()));
        }
        match wire.op.as_str() {
            "approvals_list" => return Ok(Self::ApprovalsList),
            "approvals_show" => {
                let id = required(wire.id.and_then(|id| serde_json::from_str(id.get()).ok()), "id")?;
                return Ok(Self::ApprovalsShow { id });
            }
            "approvals_decide" => {
                return Ok(Self::ApprovalsDecide(ApprovalDecision {
                    id: required(wire.id.and_then(|id| serde_json::from_str(id.get()).ok()), "id")?,
                    hash: required(wire.hash, "hash")?,
                    approve: required(wire.approve, "approve")?,
                }));
            }
            _ => {}
        }
        let session = required(wire.session, "session")?;
        Ok(match wire.op.as_str() {
            "rpc" => Self::Rpc(Rpc {
                session,
                server: required(wire.server, "server")?,
                client: required(wire.client, "client")?,
                method: required(wire.method, "method")?,
                params: wire.params,
                task: wire.task,
            }),
            "notify" => Self::Notify(Notify {
                session,
                server: required(wire.server, "server")?,
                client: required(wire.client, "client")?,
                method: required(wire.method, "method")?,
                params: wire.params,
            }),
            "answer" => Self::Answer(Answer {
                session,
                server: required(wire.server, "server")?,
                id: wire.id.as_deref().and_then(Id::from_raw).ok_or_else(|| reason("id is missing"))?,
                outcome: outcome(wire.result, wire.error)?,
            }),
            "close" => Self::Close { session },
            op => return Err(reason(format!("unknown op {op:?}"))),
        })
    }

    /// Serializes to a message body.
    pub fn to_json(&self) -> String {
        self.clone().into_json()
    }

    /// Like [`Self::to_json`], without copying the params.
    pub fn into_json(self) -> String {
        let mut wire = RequestWire::default();
        match self {
            Self::Admin(request) => return to_text(&request),
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
        to_text(&wire)
    }
}

impl HostReply {
    /// Parses a message body.
    pub fn parse(body: &str) -> Result<Self, BusBodyError> {
        let wire: ReplyWire = serde_json::from_str(body).map_err(|error| reason(error.to_string()))?;
        // Original hosts, and hosts that can't parse the request, answer with an error text.
        if let Some(error) = wire.error {
            return Err(reason(error));
        }
        let rpc = required(wire.rpc, "rpc")?;
        if rpc.cancelled {
            return Ok(Self::Cancelled);
        }
        if let Some(task) = rpc.task {
            return Ok(Self::Task(task));
        }
        Ok(Self::Rpc(outcome(rpc.result, rpc.error)?))
    }

    /// Serializes to a message body.
    pub fn to_json(&self) -> String {
        self.clone().into_json()
    }

    /// Like [`Self::to_json`], without copying the result.
    pub fn into_json(self) -> String {
        let mut rpc = RpcWire::default();
        match self {
            Self::Rpc(outcome) => (rpc.result, rpc.error) = split(outcome),
            Self::Task(task) => rpc.task = Some(task),
            Self::Cancelled => rpc.cancelled = true,
        }
        to_text(&ReplyWire { rpc: Some(rpc), error: None })
    }
}

impl HostEvent {
    /// Parses a message body.
    pub fn parse(body: &str) -> Result<Self, BusBodyError> {
        let wire: EventWire = serde_json::from_str(body).map_err(|error| reason(error.to_string()))?;
        let server = wire.server;
        Ok(match wire.event.as_str() {
            "notification" => {
                Self::Notification { server, method: required(wire.method, "method")?, params: wire.params }
            }
            "request" => Self::Request {
                server,
                id: wire.id.as_deref().and_then(Id::from_raw).ok_or_else(|| reason("id is missing"))?,
                method: required(wire.method, "method")?,
                params: wire.params,
            },
            "closed" => Self::Closed { server, reason: wire.reason.unwrap_or_default() },
            event => return Err(reason(format!("unknown event {event:?}"))),
        })
    }

    /// Serializes to a message body.
    pub fn to_json(&self) -> String {
        self.clone().into_json()
    }

    /// Like [`Self::to_json`], without copying the params.
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
        to_text(&wire)
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

/// Keeps a `null` value, which serde would turn into `None`.
fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Raw>, D::Error> {
    Raw::deserialize(deserializer).map(Some)
}

fn to_text(wire: &impl Serialize) -> String {
    serde_json::to_string(wire).expect("toolbus bodies have string keys and finite numbers")
}

fn reason(reason: impl Into<String>) -> BusBodyError {
    BusBodyError { reason: reason.into() }
}

fn required<T>(value: Option<T>, name: &str) -> Result<T, BusBodyError> {
    value.ok_or_else(|| reason(format!("{name} is missing")))
}

fn outcome(result: Option<Raw>, error: Option<Raw>) -> Result<Outcome, BusBodyError> {
    match (result, error) {
        (Some(result), None) => Ok(Outcome::Result(result)),
        (None, Some(error)) => Ok(Outcome::Error(error)),
        _ => Err(reason("exactly one of result and error is required")),
    }
}

fn split(outcome: Outcome) -> (Option<Raw>, Option<Raw>) {
    match outcome {
        Outcome::Result(result) => (Some(result), None),
        Outcome::Error(error) => (None, Some(error)),
    }
}
