//! JSON-RPC messages with raw params, results and errors.

use crate::json_text::push_text;
use crate::members::{Members, MembersError};
use crate::{BATCH_VERSION, MAX_BATCH, Raw, RpcError, codes, raw};
use bytestring::ByteString;
use std::fmt;

/// The id of a request in its original text: `1`, `"1"` and `1.0` are three different ids.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Id(Box<str>);

impl Id {
    /// A number as an id.
    pub fn number(number: u64) -> Self {
        Self(number.to_string().into())
    }

    /// A string as an id.
    pub fn text(text: &str) -> Self {
        Self(raw(text).get().into())
    }

    /// Returns `None` if the value is neither a string nor a number.
    pub fn from_raw(value: &Raw) -> Option<Self> {
        Self::from_text(value.get())
    }

    /// A copy of its own, because an id is remembered longer than the message. The text is known to be JSON.
    pub(crate) fn from_text(text: &str) -> Option<Self> {
        let first = text.as_bytes().first()?;
        matches!(first, b'"' | b'-' | b'0'..=b'9').then(|| Self(text.into()))
    }

    /// The id as a value.
    pub fn to_raw(&self) -> Raw {
        Raw::trusted(ByteString::from(&*self.0))
    }

    /// The value of a numeric id.
    pub fn as_u64(&self) -> Option<u64> {
        self.0.parse().ok()
    }

    /// The value of a string id.
    pub fn as_text(&self) -> Option<String> {
        serde_json::from_str(&self.0).ok()
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A JSON-RPC request.
#[derive(Debug, Clone)]
pub struct Request {
    /// Id of the request.
    pub id: Id,
    /// Method.
    pub method: String,
    /// Params in their original text.
    pub params: Option<Raw>,
}

/// A JSON-RPC notification.
#[derive(Debug, Clone)]
pub struct Notification {
    /// Method.
    pub method: String,
    /// Params in their original text.
    pub params: Option<Raw>,
}

/// A JSON-RPC response.
#[derive(Debug, Clone)]
pub struct Response {
    /// `None` if the peer could not determine which request it answers.
    pub id: Option<Id>,
    /// The result or the error.
    pub outcome: Outcome,
}

/// The outcome of a request, in its original text.
#[derive(Debug, Clone)]
pub enum Outcome {
    /// The `result` member.
    Result(Raw),
    /// The `error` member.
    Error(Raw),
}

impl Outcome {
    /// Like [`Raw::detached`].
    pub fn detached(&self) -> Self {
        match self {
            Self::Result(result) => Self::Result(result.detached()),
            Self::Error(error) => Self::Error(error.detached()),
        }
    }
}

impl From<RpcError> for Outcome {
    fn from(error: RpcError) -> Self {
        Self::Error(error.to_raw())
    }
}

/// A JSON-RPC message.
#[derive(Debug, Clone)]
pub enum Message {
    /// Expects a response.
    Request(Request),
    /// Expects no response.
    Notification(Notification),
    /// Answers a request.
    Response(Response),
}

/// Why a text is not a valid JSON-RPC message.
#[derive(Debug, thiserror::Error)]
pub enum MessageError {
    /// Not a JSON object, or a duplicate member.
    #[error("Parse error: {0}")]
    Syntax(#[from] MembersError),
    /// A JSON-RPC batch, which [`parse_batch`](crate::parse_batch) reads.
    #[error("Invalid request: only version {BATCH_VERSION} of the protocol has batches; send one message at a time")]
    Batch,
    /// A batch without messages, or with too many.
    #[error("Invalid request: a batch must have 1 to {MAX_BATCH} messages")]
    BatchSize,
    /// A member is missing or has the wrong type.
    #[error("Invalid request: {reason}")]
    Shape {
        /// Description of the problem.
        reason: &'static str,
        /// Id of the message, if it has a valid one.
        id: Option<Id>,
    },
}

impl MessageError {
    /// The error to send back to the peer.
    pub fn to_rpc_error(&self) -> RpcError {
        let code = match self {
            Self::Syntax(_) => codes::PARSE_ERROR,
            Self::Batch | Self::BatchSize | Self::Shape { .. } => codes::INVALID_REQUEST,
        };
        RpcError::new(code, self.to_string())
    }

    /// The id of the message, if it has one that can be answered.
    pub fn id(&self) -> Option<&Id> {
        match self {
            Self::Shape { id, .. } => id.as_ref(),
            _ => None,
        }
    }
}

impl Message {
    /// Parses a message.
    pub fn parse(text: impl Into<ByteString>) -> Result<Self, MessageError> {
        let text = text.into();
        if text.trim_start().starts_with('[') {
            return Err(MessageError::Batch);
        }
        let mut members = Members::parse_opening(&text, &["params", "result"])?;
        let id = members.get("id").and_then(Id::from_raw);
        let shape = |reason, id| Err(MessageError::Shape { reason, id });
        if members.text("jsonrpc").as_deref() != Some("2.0") {
            return shape("jsonrpc has to be \"2.0\"", id);
        }
        if members.contains("method") {
            let Some(method) = members.text("method") else { return shape("method has to be a string", id) };
            let params = members.remove("params");
            if params.as_ref().is_some_and(|params| !matches!(params.get().as_bytes().first(), Some(b'{' | b'['))) {
                return shape("params have to be an object", id);
            }
            return match (id, members.contains("id")) {
                (Some(id), _) => Ok(Self::Request(Request { id, method, params })),
                (None, false) => Ok(Self::Notification(Notification { method, params })),
                (None, true) => shape("an id has to be a string or a number", None),
            };
        }
        match (members.remove("result"), members.remove("error")) {
            (Some(result), None) => Ok(Self::Response(Response { id, outcome: Outcome::Result(result) })),
            (None, Some(error)) => Ok(Self::Response(Response { id, outcome: Outcome::Error(error) })),
            _ => shape("neither a method nor exactly one of result and error", id),
        }
    }

    /// Serializes to one line without line breaks, as stdio requires.
    pub fn to_json(&self) -> String {
        match self {
            Self::Request(Request { id, method, params }) => {
                write(Some(&id.0), Some(method), params.as_ref().map(|params| ("params", params)))
            }
            Self::Notification(Notification { method, params }) => {
                write(None, Some(method), params.as_ref().map(|params| ("params", params)))
            }
            Self::Response(Response { id, outcome }) => {
                let member = match outcome {
                    Outcome::Result(result) => ("result", result),
                    Outcome::Error(error) => ("error", error),
                };
                write(Some(id.as_ref().map_or("null", |id| &id.0)), None, Some(member))
            }
        }
    }
}

fn write(id: Option<&str>, method: Option<&str>, member: Option<(&str, &Raw)>) -> String {
    let size = member.map_or(0, |(_, value)| value.size_hint());
    let mut text = String::with_capacity(size + 96);
    text.push_str(r#"{"jsonrpc":"2.0""#);
    if let Some(id) = id {
        text.push_str(",\"id\":");
        text.push_str(id);
    }
    if let Some(method) = method {
        text.push_str(",\"method\":");
        push_text(&mut text, method);
    }
    if let Some((name, value)) = member {
        text.push_str(",\"");
        text.push_str(name);
        text.push_str("\":");
        value.write(&mut text, push_on_one_line);
    }
    text.push('}');
    text
}

/// Raw JSON may contain line breaks between tokens, where a space is equivalent. Strings never contain a raw line
/// break.
fn push_on_one_line(text: &mut String, value: &str) {
    if memchr::memchr2(b'\n', b'\r', value.as_bytes()).is_some() {
        text.extend(value.chars().map(|c| if matches!(c, '\n' | '\r') { ' ' } else { c }));
    } else {
        text.push_str(value);
    }
}

impl From<Request> for Message {
    fn from(request: Request) -> Self {
        Self::Request(request)
    }
}

impl From<Notification> for Message {
    fn from(notification: Notification) -> Self {
        Self::Notification(notification)
    }
}

impl From<Response> for Message {
    fn from(response: Response) -> Self {
        Self::Response(response)
    }
}
