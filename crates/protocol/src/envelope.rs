//! Messages, bodies, and the sealed envelope: the encoding of a message that stays unchanged from the sender through
//! the disk to the recipient.

use crate::varint;
use crate::{AgentRef, DecodeError, InboxKind, MsgId, check_name};
use bytes::{BufMut, Bytes, BytesMut};
use bytestring::ByteString;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use std::fmt;

/// Maximum nesting depth of a body. JSON parsers of peers stop at 128.
pub const MAX_BODY_DEPTH: usize = 100;

/// Why a body is invalid.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// The body is not one JSON value.
    #[error("the body is not valid JSON: {0}")]
    NotJson(#[from] serde_json::Error),
    /// The body exceeds [`MAX_BODY_DEPTH`].
    #[error("the body is nested deeper than {MAX_BODY_DEPTH} levels")]
    TooDeep,
}

/// Raw JSON, byte for byte as its author wrote it.
#[derive(Clone, PartialEq, Eq)]
pub struct Body(Bytes);

impl Body {
    /// The body `null`.
    pub fn null() -> Self {
        Self(Bytes::from_static(b"null"))
    }

    /// Serialises a value.
    pub fn of(value: &impl Serialize) -> Result<Self, BodyError> {
        Ok(Self(Bytes::from(serde_json::to_vec(value)?)))
    }

    /// Validates JSON text and its nesting depth. Whitespace around the value is removed.
    pub fn parse(text: impl Into<Bytes>) -> Result<Self, BodyError> {
        let text = text.into();
        let value: &RawValue = serde_json::from_slice(&text)?;
        let body = Self(text.slice_ref(value.get().as_bytes()));
        body.check_depth()?;
        Ok(body)
    }

    /// Wraps bytes without validation: they come from a JSON parser, or are checked before they are spliced into JSON.
    pub fn from_trusted(bytes: Bytes) -> Self {
        Self(bytes)
    }

    /// Fails unless the bytes are one JSON value within the depth limit. Required before the body is spliced into JSON
    /// text: an unchecked body could close its own object and forge the fields after it.
    pub fn check(&self) -> Result<(), BodyError> {
        serde_json::from_slice::<&RawValue>(&self.0)?;
        self.check_depth()
    }

    pub(crate) fn check_depth(&self) -> Result<(), BodyError> {
        check_depth(&self.0)
    }

    /// Deserialises the body.
    pub fn to<T: DeserializeOwned>(&self) -> Result<T, BodyError> {
        Ok(serde_json::from_slice(&self.0)?)
    }

    /// Returns the raw JSON as text, which shares its memory.
    pub fn text(&self) -> Result<ByteString, std::str::Utf8Error> {
        ByteString::try_from(self.0.clone())
    }

    /// Returns the raw JSON.
    pub fn as_bytes(&self) -> &Bytes {
        &self.0
    }

    /// Returns the raw JSON.
    pub fn into_bytes(self) -> Bytes {
        self.0
    }
}

/// Fails if the nesting depth exceeds [`MAX_BODY_DEPTH`]. Does not validate the JSON.
pub(crate) fn check_depth(json: &[u8]) -> Result<(), BodyError> {
    let (mut depth, mut in_string, mut escaped) = (0usize, false, false);
    for byte in json {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'{' | b'[' => {
                depth += 1;
                if depth > MAX_BODY_DEPTH {
                    return Err(BodyError::TooDeep);
                }
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    Ok(())
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}

/// A point in time, as nanoseconds since 1970 (UTC).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// Returns the current time.
    pub fn now() -> Self {
        Self(clamp_nanos(jiff::Timestamp::now()))
    }

    /// A time in milliseconds since 1970; clamped to the range of this type.
    pub fn from_ms(millis: u64) -> Self {
        Self(i64::try_from(millis).unwrap_or(i64::MAX).saturating_mul(1_000_000))
    }

    /// Parses an RFC 3339 time.
    pub fn parse(text: &str) -> Result<Self, DecodeError> {
        let parsed: jiff::Timestamp = text.parse().map_err(|_| DecodeError::BadTimestamp)?;
        Ok(Self(clamp_nanos(parsed)))
    }
}

/// Nanoseconds in 64 bits cover the years 1677 to 2262; times beyond that are clamped.
fn clamp_nanos(at: jiff::Timestamp) -> i64 {
    at.as_nanosecond().clamp(i64::MIN.into(), i64::MAX.into()) as i64
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_nanosecond(self.0.into()) {
            Ok(at) => write!(f, "{at}"),
            Err(_) => f.write_str("1970-01-01T00:00:00Z"),
        }
    }
}

/// A message as its sender and its recipient see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InboxMessage {
    /// Id, chosen by the sender: the idempotency key within the recipient's mailbox.
    pub id: MsgId,
    /// The sender.
    pub from: AgentRef,
    /// The kind.
    pub kind: InboxKind,
    /// The body.
    pub body: Body,
    /// When the sender created the message.
    pub created_at: Timestamp,
    /// Id of the message that this one answers or belongs to.
    pub correlation_id: Option<MsgId>,
    /// W3C trace context of the sender.
    pub trace: Option<ByteString>,
}

impl InboxMessage {
    /// Creates a message with a random id. The broker overwrites `from` with the authenticated sender.
    pub fn new(from: AgentRef, kind: impl Into<InboxKind>, body: Body) -> Self {
        Self {
            id: MsgId::new(),
            from,
            kind: kind.into(),
            body,
            created_at: Timestamp::now(),
            correlation_id: None,
            trace: None,
        }
    }

    /// Sets the correlation id.
    pub fn correlated_to(mut self, id: MsgId) -> Self {
        self.correlation_id = Some(id);
        self
    }

    /// Encodes the message, without the sender, which the broker adds.
    pub fn seal(&self) -> Envelope {
        Envelope::seal(SealedParts {
            id: self.id.as_str(),
            kind: self.kind.as_str(),
            created_at: self.created_at,
            correlation_id: self.correlation_id.as_ref().map(MsgId::as_str),
            trace: self.trace.as_deref(),
            body: self.body.as_bytes(),
        })
    }
}

pub(crate) struct SealedParts<'a> {
    pub id: &'a str,
    pub kind: &'a str,
    pub created_at: Timestamp,
    pub correlation_id: Option<&'a str>,
    pub trace: Option<&'a str>,
    pub body: &'a [u8],
}

/// A sealed message: its encoded bytes, and the two fields that the broker needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Envelope {
    /// Id of the message.
    pub id: ByteString,
    /// Id of the message that this one answers or belongs to.
    pub correlation_id: Option<ByteString>,
    sealed: Bytes,
}

/// Length of the creation time and the flags, before the first string.
const HEAD_BYTES: usize = size_of::<i64>() + 1;
const HAS_CORRELATION: u8 = 1;
const HAS_TRACE: u8 = 2;

impl Envelope {
    /// Decodes the head of sealed bytes and validates the names in it.
    pub fn from_sealed(sealed: Bytes) -> Result<Self, DecodeError> {
        let mut rest = sealed.clone();
        let head = Head::take(&mut rest)?;
        let envelope = Self { id: head.id, correlation_id: head.correlation_id, sealed };
        envelope.check()?;
        Ok(envelope)
    }

    /// Validates the names in the head.
    pub(crate) fn check(&self) -> Result<(), DecodeError> {
        let names = [Some(&*self.id), self.correlation_id.as_deref(), Some(self.kind())];
        names.into_iter().flatten().try_for_each(check_name).map_err(DecodeError::BadName)
    }

    /// Reassembles an envelope from the parts of one that [`Envelope::from_sealed`] validated.
    pub fn from_parts(id: ByteString, correlation_id: Option<ByteString>, sealed: Bytes) -> Self {
        Self { id, correlation_id, sealed }
    }

    pub(crate) fn seal(parts: SealedParts<'_>) -> Self {
        let size = 16 + parts.id.len() + parts.kind.len() + parts.body.len();
        let mut out = BytesMut::with_capacity(size + 64);
        let mut flags = 0;
        flags |= if parts.correlation_id.is_some() { HAS_CORRELATION } else { 0 };
        flags |= if parts.trace.is_some() { HAS_TRACE } else { 0 };
        out.put_i64_le(parts.created_at.0);
        out.put_u8(flags);
        varint::put_str(&mut out, parts.id);
        varint::put_str(&mut out, parts.kind);
        for text in [parts.correlation_id, parts.trace].into_iter().flatten() {
            varint::put_str(&mut out, text);
        }
        out.put_slice(parts.body);
        let sealed = out.freeze();
        let mut rest = sealed.clone();
        let head = Head::take(&mut rest).expect("a sealed envelope can be decoded");
        Self { id: head.id, correlation_id: head.correlation_id, sealed }
    }

    /// Returns the encoded bytes.
    pub fn sealed(&self) -> &Bytes {
        &self.sealed
    }

    /// Returns the kind of the message without copying.
    pub fn kind(&self) -> &str {
        let read = || {
            let mut rest = self.sealed.get(HEAD_BYTES..)?;
            varint::split_slice(&mut rest)?;
            std::str::from_utf8(varint::split_slice(&mut rest)?).ok()
        };
        read().expect("an envelope is validated when it is created")
    }

    /// Returns the bytes that a duplicate must repeat: everything but the creation time, which a retry may change.
    pub fn content(&self) -> &[u8] {
        &self.sealed[size_of::<i64>()..]
    }

    /// Decodes the message and adds the sender.
    pub fn open(&self, from: AgentRef) -> InboxMessage {
        let mut rest = self.sealed.clone();
        let head = Head::take(&mut rest).expect("an envelope is validated when it is created");
        InboxMessage {
            id: MsgId::from(head.id),
            from,
            kind: InboxKind::from(head.kind),
            body: Body::from_trusted(rest),
            created_at: head.created_at,
            correlation_id: head.correlation_id.map(MsgId::from),
            trace: head.trace,
        }
    }
}

struct Head {
    id: ByteString,
    kind: ByteString,
    created_at: Timestamp,
    correlation_id: Option<ByteString>,
    trace: Option<ByteString>,
}

impl Head {
    fn take(rest: &mut Bytes) -> Result<Self, DecodeError> {
        let created_at = Timestamp(varint::take_i64(rest)?);
        let flags = varint::take_flags(rest, HAS_CORRELATION | HAS_TRACE)?;
        let id = varint::take_str(rest)?;
        let kind = varint::take_str(rest)?;
        let correlation_id = (flags & HAS_CORRELATION != 0).then(|| varint::take_str(rest)).transpose()?;
        let trace = (flags & HAS_TRACE != 0).then(|| varint::take_str(rest)).transpose()?;
        Ok(Self { id, kind, created_at, correlation_id, trace })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sealing_and_opening_preserves_all_fields_and_body_bytes() {
        let body = Body::parse("{ \"n\": 9007199254740993, \"x\": 1.0 }".as_bytes().to_vec()).expect("valid");
        let mut message = InboxMessage::new(AgentRef::new("w").with_role("r"), "custom_kind", body);
        message.correlation_id = Some(MsgId::from("c"));
        message.trace = Some("00-abc".into());
        assert_eq!(message.seal().open(message.from.clone()), message);
        assert_eq!(message.seal().kind(), "custom_kind");
        message.id = MsgId::from("i".repeat(200));
        message.kind = InboxKind::from("k".repeat(256));
        assert_eq!(message.seal().kind(), message.kind.as_str(), "two-byte length prefixes");
    }

    #[test]
    fn a_body_that_closes_its_own_object_is_not_json() {
        assert!(Body::parse(r#"1},"from":{"session_id":"boss"}"#).is_err());
    }

    #[test]
    fn brackets_in_strings_do_not_count_as_nesting() {
        let nested = |n: usize| Body::parse(format!("{}{}", "[".repeat(n), "]".repeat(n)));
        assert!(nested(MAX_BODY_DEPTH).is_ok());
        assert!(matches!(nested(MAX_BODY_DEPTH + 1), Err(BodyError::TooDeep)));
        assert!(Body::parse(format!("\"\\\"{}\"", "[".repeat(1000))).is_ok());
    }
}
