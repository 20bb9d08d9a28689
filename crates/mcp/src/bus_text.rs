//! The JSON of the bodies in `bus`: how each is parsed and written.

use crate::bus::*;
use crate::json_text::push_text;
use crate::opened::{Opened, Part};
use crate::{AdminRequest, Era, Id, Outcome, Raw, TaskView, TaskWish, raw};
use bytestring::ByteString;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

impl HostRequest {
    /// The `op` of every request of this module. The original system also has `manifest` and `call`.
    pub const OPS: [&str; 8] =
        ["rpc", "earlier", "notify", "answer", "close", "approvals_list", "approvals_show", "approvals_decide"];

    /// Parses a message body.
    pub fn parse(body: impl Into<ByteString>) -> Result<Self, BusBodyError> {
        let body = body.into();
        Self::parse_with::<Opened<'_>>(&body).or_else(|_| Self::parse_with::<&RawValue>(&body))
    }

    fn parse_with<'a, P: Part<'a>>(body: &'a ByteString) -> Result<Self, BusBodyError> {
        let wire: RequestWire<'a, P> = serde_json::from_str(body)?;
        if AdminRequest::OPS.contains(&&*wire.op) {
            return Ok(Self::Admin(serde_json::from_str(body)?));
        }
        let id = || required(wire.id.and_then(|id| serde_json::from_str(id.get()).ok()), "id");
        match &*wire.op {
            "approvals_list" => return Ok(Self::ApprovalsList),
            "approvals_show" => return Ok(Self::ApprovalsShow { id: id()? }),
            "approvals_decide" => {
                let (hash, approve) = (required(wire.hash, "hash"), required(wire.approve, "approve"));
                return Ok(Self::ApprovalsDecide(ApprovalDecision { id: id()?, hash: hash?, approve: approve? }));
            }
            _ => {}
        }
        let part = |part: &RawValue| Raw::part_of(body, part);
        let params = wire.params.map(|params| opened(params, body)).transpose()?;
        let session = required(wire.session, "session")?;
        // Sessions keep it longer than the message.
        let client = wire.client.map(|ClientWire { era, initialize }| ClientHello {
            era,
            initialize: initialize.map(|initialize| part(initialize).detached()),
        });
        Ok(match &*wire.op {
            op @ ("rpc" | "earlier") => {
                let rpc = Rpc {
                    session,
                    server: required(wire.server, "server")?,
                    client: required(client, "client")?,
                    method: required(wire.method, "method")?,
                    params,
                    task: wire.task,
                    hand_back: wire.hand_back,
                };
                if op == "rpc" { Self::Rpc(rpc) } else { Self::Earlier(rpc) }
            }
            "notify" => Self::Notify(Notify {
                session,
                server: required(wire.server, "server")?,
                client: required(client, "client")?,
                method: required(wire.method, "method")?,
                params,
            }),
            "answer" => Self::Answer(Answer {
                session,
                server: required(wire.server, "server")?,
                id: required_id(wire.id)?,
                outcome: outcome(wire.result.map(part), wire.error.map(part))?,
            }),
            "close" => Self::Close { session },
            op => return Err(reason(format!("unknown op {op:?}"))),
        })
    }

    /// Serializes to a message body. The params are copied once.
    pub fn to_json(&self) -> ByteString {
        match self {
            Self::Admin(request) => raw(request).text(),
            Self::Rpc(rpc) => rpc_object("rpc", rpc),
            Self::Earlier(rpc) => rpc_object("earlier", rpc),
            Self::Notify(Notify { server, session, client, method, params }) => object(&[
                ("op", Value::Text("notify")),
                ("server", Value::Text(server)),
                ("session", Value::Text(session)),
                ("client", Value::Client(client)),
                ("method", Value::Text(method)),
                ("params", Value::Json(params.as_ref())),
            ]),
            Self::Answer(Answer { server, session, id, outcome }) => object(&[
                ("op", Value::Text("answer")),
                ("server", Value::Text(server)),
                ("session", Value::Text(session)),
                ("id", Value::Json(Some(&id.to_raw()))),
                member_of(outcome),
            ]),
            Self::Close { session } => object(&[("op", Value::Text("close")), ("session", Value::Text(session))]),
            Self::ApprovalsList => object(&[("op", Value::Text("approvals_list"))]),
            Self::ApprovalsShow { id } => object(&[("op", Value::Text("approvals_show")), ("id", Value::Text(id))]),
            Self::ApprovalsDecide(ApprovalDecision { id, hash, approve }) => object(&[
                ("op", Value::Text("approvals_decide")),
                ("id", Value::Text(id)),
                ("hash", Value::Text(hash)),
                ("approve", Value::Json(Some(&raw(approve)))),
            ]),
        }
    }
}

impl HostReply {
    /// Parses a message body.
    pub fn parse(body: impl Into<ByteString>) -> Result<Self, BusBodyError> {
        let body = body.into();
        Self::parse_with::<Opened<'_>>(&body).or_else(|_| Self::parse_with::<&RawValue>(&body))
    }

    fn parse_with<'a, P: Part<'a>>(body: &'a ByteString) -> Result<Self, BusBodyError> {
        let wire: ReplyWire<'a, P> = serde_json::from_str(body)?;
        // Original hosts, and hosts that can't parse the request, answer with an error text.
        if let Some(error) = wire.error {
            return Err(reason(error));
        }
        let rpc = required(wire.rpc, "rpc")?;
        if rpc.cancelled {
            return Ok(Self::Cancelled);
        }
        if rpc.handed_back {
            return Ok(Self::HandedBack);
        }
        if let Some(task) = rpc.task {
            return Ok(Self::Task(task.into()));
        }
        let result = rpc.result.map(|result| opened(result, body)).transpose()?;
        Ok(Self::Rpc(outcome(result, rpc.error.map(|error| Raw::part_of(body, error)))?))
    }

    /// Serializes to a message body. The result is copied once.
    pub fn to_json(&self) -> ByteString {
        let (name, value) = match self {
            Self::Rpc(Outcome::Result(result)) => ("result", result.clone()),
            Self::Rpc(Outcome::Error(error)) => ("error", error.clone()),
            Self::Task(task) => ("task", raw(task)),
            Self::Cancelled => ("cancelled", raw(&true)),
            Self::HandedBack => ("handed_back", raw(&true)),
        };
        ["{\"rpc\":{\"", name, "\":", value.get(), "}}"].concat().into()
    }
}

impl HostEvent {
    /// Parses a message body.
    pub fn parse(body: impl Into<ByteString>) -> Result<Self, BusBodyError> {
        let body = body.into();
        let wire: EventWire<'_> = serde_json::from_str(&body)?;
        let params = wire.params.map(|params| Raw::part_of(&body, params));
        let server = wire.server;
        Ok(match &*wire.event {
            "notification" => Self::Notification { server, method: required(wire.method, "method")?, params },
            "request" => {
                Self::Request { server, id: required_id(wire.id)?, method: required(wire.method, "method")?, params }
            }
            "closed" => Self::Closed { server, reason: wire.reason.unwrap_or_default() },
            event => return Err(reason(format!("unknown event {event:?}"))),
        })
    }

    /// Serializes to a message body.
    pub fn to_json(&self) -> ByteString {
        match self {
            Self::Notification { server, method, params } => object(&[
                ("event", Value::Text("notification")),
                ("server", Value::Text(server)),
                ("method", Value::Text(method)),
                ("params", Value::Json(params.as_ref())),
            ]),
            Self::Request { server, id, method, params } => object(&[
                ("event", Value::Text("request")),
                ("server", Value::Text(server)),
                ("id", Value::Json(Some(&id.to_raw()))),
                ("method", Value::Text(method)),
                ("params", Value::Json(params.as_ref())),
            ]),
            Self::Closed { server, reason } => object(&[
                ("event", Value::Text("closed")),
                ("server", Value::Text(server)),
                ("reason", Value::Text(reason)),
            ]),
        }
    }
}

#[derive(Deserialize)]
#[serde(bound(deserialize = "P: Deserialize<'de>, 'de: 'a"))]
struct RequestWire<'a, P> {
    op: String,
    server: Option<String>,
    session: Option<String>,
    #[serde(borrow)]
    client: Option<ClientWire<'a>>,
    method: Option<String>,
    #[serde(default, deserialize_with = "present")]
    params: Option<P>,
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    result: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    error: Option<&'a RawValue>,
    hash: Option<String>,
    approve: Option<bool>,
    task: Option<TaskWish>,
    #[serde(default)]
    hand_back: bool,
}

#[derive(Deserialize)]
struct ClientWire<'a> {
    era: Era,
    #[serde(borrow)]
    initialize: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(bound(deserialize = "P: Deserialize<'de>, 'de: 'a"))]
struct ReplyWire<'a, P> {
    #[serde(borrow)]
    rpc: Option<RpcWire<'a, P>>,
    error: Option<String>,
}

#[derive(Deserialize)]
#[serde(bound(deserialize = "P: Deserialize<'de>, 'de: 'a"))]
struct RpcWire<'a, P> {
    #[serde(default, deserialize_with = "present")]
    result: Option<P>,
    #[serde(borrow, default, deserialize_with = "present")]
    error: Option<&'a RawValue>,
    task: Option<TaskView>,
    #[serde(default)]
    cancelled: bool,
    #[serde(default)]
    handed_back: bool,
}

#[derive(Deserialize)]
struct EventWire<'a> {
    event: String,
    server: String,
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    method: Option<String>,
    #[serde(borrow, default, deserialize_with = "present")]
    params: Option<&'a RawValue>,
    reason: Option<String>,
}

/// Keeps a `null` value, which serde would turn into `None`.
fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

impl From<serde_json::Error> for BusBodyError {
    fn from(error: serde_json::Error) -> Self {
        reason(error.to_string())
    }
}

fn opened<'a>(part: impl Part<'a>, body: &ByteString) -> Result<Raw, BusBodyError> {
    part.into_raw(body).ok_or_else(|| reason("an unusual object"))
}

/// The value of a member, as it is written.
#[derive(Clone, Copy)]
enum Value<'a> {
    /// A string.
    Text(&'a str),
    /// A member that is left out if it is `None`.
    Json(Option<&'a Raw>),
    Client(&'a ClientHello),
}

fn rpc_object(op: &str, rpc: &Rpc) -> ByteString {
    let Rpc { server, session, client, method, params, task, hand_back } = rpc;
    let task = task.as_ref().map(raw);
    let hand_back = hand_back.then(|| raw(&true));
    object(&[
        ("op", Value::Text(op)),
        ("server", Value::Text(server)),
        ("session", Value::Text(session)),
        ("client", Value::Client(client)),
        ("method", Value::Text(method)),
        ("params", Value::Json(params.as_ref())),
        ("task", Value::Json(task.as_ref())),
        ("hand_back", Value::Json(hand_back.as_ref())),
    ])
}

/// An object of the members that are present.
fn object(members: &[(&'static str, Value<'_>)]) -> ByteString {
    let size: usize = members.iter().map(|(name, value)| name.len() + value.size_hint() + 6).sum();
    let mut out = String::with_capacity(size);
    write_object(&mut out, members);
    out.into()
}

fn write_object(out: &mut String, members: &[(&'static str, Value<'_>)]) {
    let present = members.iter().filter(|(_, value)| !matches!(value, Value::Json(None)));
    for (index, (name, value)) in present.enumerate() {
        out.push_str(if index == 0 { "{\"" } else { ",\"" });
        out.push_str(name);
        out.push_str("\":");
        match value {
            Value::Text(text) => push_text(out, text),
            Value::Json(json) => json.iter().for_each(|json| json.write(out, String::push_str)),
            Value::Client(ClientHello { era, initialize }) => {
                write_object(
                    out,
                    &[("era", Value::Text(era.as_str())), ("initialize", Value::Json(initialize.as_ref()))],
                );
            }
        }
    }
    out.push('}');
}

impl Value<'_> {
    fn size_hint(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Json(json) => json.map_or(0, Raw::size_hint),
            Self::Client(client) => 40 + client.initialize.as_ref().map_or(0, Raw::size_hint),
        }
    }
}

fn member_of(outcome: &Outcome) -> (&'static str, Value<'_>) {
    match outcome {
        Outcome::Result(result) => ("result", Value::Json(Some(result))),
        Outcome::Error(error) => ("error", Value::Json(Some(error))),
    }
}

fn reason(reason: impl Into<String>) -> BusBodyError {
    BusBodyError { reason: reason.into() }
}

fn required<T>(value: Option<T>, name: &str) -> Result<T, BusBodyError> {
    value.ok_or_else(|| reason(format!("{name} is missing")))
}

fn required_id(id: Option<&RawValue>) -> Result<Id, BusBodyError> {
    required(id.and_then(|id| Id::from_text(id.get())), "id")
}

fn outcome(result: Option<Raw>, error: Option<Raw>) -> Result<Outcome, BusBodyError> {
    match (result, error) {
        (Some(result), None) => Ok(Outcome::Result(result)),
        (None, Some(error)) => Ok(Outcome::Error(error)),
        _ => Err(reason("exactly one of result and error is required")),
    }
}
