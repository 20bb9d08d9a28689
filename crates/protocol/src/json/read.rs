//! Decoding of JSON frames. Each direction is deserialised into one flat struct of optional fields, because serde does
//! not support raw values inside an internally tagged enum. Unknown fields are ignored.

use super::events::event_batch;
use super::fields::{name, ranges, required, some_raw};
use super::hosts::{self, FlatAgentEnd, FlatHost, FlatManifest};
use super::inspect::{self, FlatMessageRef, FlatRow, InspectFields, InspectedFields};
use super::object::Object;
use crate::envelope::SealedParts;
use crate::frames::*;
use crate::{
    AgentRef, Body, BrokerFrame, CancelOutcome, CancelResult, ClientFrame, DecodeError, Envelope, ErrorCode, Followed,
    JournalClaim, MAX_ANCESTORS, MsgId, Timestamp, check_name,
};
use bytes::Bytes;
use bytestring::ByteString;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::collections::BTreeMap;

#[derive(Deserialize)]
struct FlatClient<'a> {
    #[serde(borrow)]
    kind: Cow<'a, str>,
    agent: Option<Object<FlatAgent>>,
    token: Option<String>,
    version: Option<u32>,
    framing: Option<String>,
    #[serde(borrow)]
    to: Option<Cow<'a, str>>,
    #[serde(borrow)]
    message: Option<Object<FlatMessage<'a>>>,
    deadline_ms: Option<u64>,
    ack: Option<u64>,
    age_ms: Option<u64>,
    id: Option<String>,
    request_id: Option<String>,
    correlation_id: Option<String>,
    role: Option<String>,
    tags: Option<Vec<u64>>,
    #[serde(borrow)]
    manifests: Option<Vec<Object<FlatManifest<'a>>>>,
    watch: Option<bool>,
    known: Option<BTreeMap<String, u64>>,
    peers: Option<Vec<String>>,
    messages: Option<Vec<Object<FlatMessageRef>>>,
    rows_of: Option<String>,
    journal: Option<String>,
    epoch: Option<u64>,
    instance: Option<String>,
    ancestors: Option<Vec<String>>,
    #[serde(borrow, default, deserialize_with = "some_raw")]
    body: Option<&'a RawValue>,
    #[serde(borrow)]
    batch: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct FlatAgent {
    session_id: String,
    role: Option<String>,
}

#[derive(Deserialize)]
struct FlatMessage<'a> {
    #[serde(borrow)]
    id: Cow<'a, str>,
    from: Option<Object<FlatAgent>>,
    #[serde(borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    body: &'a RawValue,
    #[serde(borrow)]
    created_at: Cow<'a, str>,
    #[serde(borrow)]
    correlation_id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    trace: Option<Cow<'a, str>>,
}

pub fn client(text: &[u8]) -> Result<ClientFrame, DecodeError> {
    let flat: FlatClient<'_> = match serde_json::from_slice(text) {
        Ok(Object(flat)) => flat,
        Err(error) => return Ok(ClientFrame::Unknown { kind: unknown_kind(text, error, ClientFrame::KINDS)? }),
    };
    Ok(match &*flat.kind {
        "hello" => ClientFrame::Hello(Hello {
            agent: agent(flat.agent.ok_or(DecodeError::Missing("hello", "agent"))?.0)?,
            token: flat.token.ok_or(DecodeError::Missing("hello", "token"))?,
            version: flat.version,
            framing: flat.framing.as_deref().and_then(Framing::from_name),
        }),
        "subscribe" => ClientFrame::Subscribe,
        "deliver" => ClientFrame::Deliver(Deliver {
            to: name(flat.to.ok_or(DecodeError::Missing("deliver", "to"))?)?,
            envelope: envelope(&flat.message.ok_or(DecodeError::Missing("deliver", "message"))?.0)?,
            deadline_ms: flat.deadline_ms,
            ack: flat.ack,
            age_ms: flat.age_ms,
        }),
        "ack" => ClientFrame::Ack { id: required(flat.id, "ack", "id")? },
        "ack_tags" => ClientFrame::AckTags { tags: flat.tags.ok_or(DecodeError::Missing("ack_tags", "tags"))? },
        "ack_with_receipt" => ClientFrame::AckWithReceipt {
            id: required(flat.id, "ack_with_receipt", "id")?,
            request_id: required(flat.request_id, "ack_with_receipt", "request_id")?,
        },
        "cancel" => ClientFrame::Cancel {
            to: name(flat.to.ok_or(DecodeError::Missing("cancel", "to"))?)?,
            correlation_id: required(flat.correlation_id, "cancel", "correlation_id")?,
            request_id: flat.request_id.map(|id| name(id.into())).transpose()?,
        },
        // No agent has the empty role, but clients of the original may ask for it.
        "list_connected" if flat.role.as_deref() == Some("") => ClientFrame::ListConnected { role: "".into() },
        "list_connected" => ClientFrame::ListConnected { role: required(flat.role, "list_connected", "role")? },
        "live_event" => ClientFrame::Event(Event {
            peer: name(flat.to.ok_or(DecodeError::Missing("live_event", "to"))?)?,
            correlation_id: required(flat.correlation_id, "live_event", "correlation_id")?,
            body: body(flat.body.ok_or(DecodeError::Missing("live_event", "body"))?)?,
        }),
        "publish_event_batch" => ClientFrame::EventBatch(Event {
            peer: name(flat.to.ok_or(DecodeError::Missing("publish_event_batch", "to"))?)?,
            correlation_id: required(flat.correlation_id, "publish_event_batch", "correlation_id")?,
            body: event_batch(flat.batch.ok_or(DecodeError::Missing("publish_event_batch", "batch"))?)?,
        }),
        "status" => ClientFrame::Status { request_id: required(flat.request_id, "status", "request_id")? },
        "inspect" => inspect::inspect(InspectFields {
            request_id: flat.request_id,
            peers: flat.peers,
            messages: flat.messages,
            rows_of: flat.rows_of,
        })?,
        "follow" => inspect::follow(flat.request_id, flat.peers, flat.messages)?,
        "unfollow" => ClientFrame::Unfollow { request_id: required(flat.request_id, "unfollow", "request_id")? },
        "announce" => ClientFrame::Announce(Announce {
            request_id: required(flat.request_id, "announce", "request_id")?,
            manifests: hosts::manifests(flat.manifests.ok_or(DecodeError::Missing("announce", "manifests"))?)?,
        }),
        "claim" => ClientFrame::Claim(JournalClaim {
            journal: required(flat.journal, "claim", "journal")?,
            epoch: flat.epoch.ok_or(DecodeError::Missing("claim", "epoch"))?,
            instance: required(flat.instance, "claim", "instance")?,
            ancestors: flat.ancestors.unwrap_or_default().into_iter().take(MAX_ANCESTORS).map(Into::into).collect(),
        }),
        "refused" => ClientFrame::Refused { tags: flat.tags.ok_or(DecodeError::Missing("refused", "tags"))? },
        "hosts" => ClientFrame::Hosts(AskHosts {
            request_id: required(flat.request_id, "hosts", "request_id")?,
            watch: flat.watch.unwrap_or_default(),
            known: flat.known.unwrap_or_default().into_iter().map(|(id, version)| (id.into(), version)).collect(),
        }),
        other => ClientFrame::Unknown { kind: other.to_owned() },
    })
}

#[derive(Deserialize)]
struct FlatBroker<'a> {
    #[serde(borrow)]
    kind: Cow<'a, str>,
    version: Option<u32>,
    framing: Option<String>,
    limits: Option<Object<FlatLimits>>,
    heartbeat_ms: Option<u64>,
    agent: Option<Object<FlatAgent>>,
    id: Option<String>,
    reason: Option<String>,
    code: Option<String>,
    #[serde(borrow)]
    message: Option<Object<FlatMessage<'a>>>,
    tag: Option<u64>,
    attempt: Option<u32>,
    deadline_ms: Option<u64>,
    ranges: Option<Vec<(u64, u64)>>,
    request_id: Option<String>,
    accepted: Option<bool>,
    correlation_id: Option<String>,
    outcome: Option<String>,
    ids: Option<Vec<String>>,
    from: Option<String>,
    #[serde(borrow, default, deserialize_with = "some_raw")]
    body: Option<&'a RawValue>,
    connections: Option<Vec<Object<FlatConnection>>>,
    mailboxes: Option<Vec<Object<FlatMailbox>>>,
    more_mailboxes: Option<u64>,
    set_aside: Option<u64>,
    peers: Option<Vec<bool>>,
    messages: Option<Vec<Option<u64>>>,
    unknown: Option<Vec<bool>>,
    settled: Option<Vec<bool>>,
    remembered_ms: Option<u64>,
    rows: Option<Vec<Object<FlatRow>>>,
    uncollected: Option<Vec<bool>>,
    more: Option<bool>,
    #[serde(borrow)]
    hosts: Option<Vec<Object<FlatHost<'a>>>>,
    agents: Option<Vec<Object<FlatAgentEnd>>>,
    #[serde(borrow)]
    batch: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct FlatLimits {
    max_frame_bytes: u64,
    window_messages: u64,
    window_bytes: u64,
}

#[derive(Deserialize)]
struct FlatConnection {
    session_id: String,
    role: Option<String>,
    subscribed: bool,
    connected_ms: u64,
}

#[derive(Deserialize)]
struct FlatMailbox {
    name: String,
    messages: u64,
    bytes: u64,
    in_flight: u64,
    oldest_ms: Option<u64>,
}

pub fn broker(text: &[u8]) -> Result<BrokerFrame, DecodeError> {
    let flat: FlatBroker<'_> = match serde_json::from_slice(text) {
        Ok(Object(flat)) => flat,
        Err(error) => return Ok(BrokerFrame::Unknown { kind: unknown_kind(text, error, BrokerFrame::KINDS)? }),
    };
    Ok(match &*flat.kind {
        "welcome" => BrokerFrame::Welcome(Welcome {
            version: flat.version,
            framing: flat.framing.as_deref().and_then(Framing::from_name),
            limits: flat.limits.map(|Object(l)| Limits {
                max_frame_bytes: l.max_frame_bytes,
                window_messages: l.window_messages,
                window_bytes: l.window_bytes,
            }),
            heartbeat_ms: flat.heartbeat_ms,
            agent: flat.agent.map(|Object(flat)| agent(flat)).transpose()?,
        }),
        "broker_identity" => BrokerFrame::BrokerIdentity { id: required(flat.id, "broker_identity", "id")? },
        "error" => BrokerFrame::Error(Refusal {
            reason: flat.reason.unwrap_or_default(),
            id: flat.id.map(ByteString::from),
            code: flat.code.as_deref().and_then(ErrorCode::from_code),
        }),
        "message" => push(flat)?,
        "delivered" => BrokerFrame::Delivered { id: required(flat.id, "delivered", "id")? },
        "receipts" => BrokerFrame::Receipts { ranges: ranges(flat.ranges)? },
        "ack_result" => BrokerFrame::AckResult(AckResult {
            id: required(flat.id, "ack_result", "id")?,
            request_id: required(flat.request_id, "ack_result", "request_id")?,
            accepted: flat.accepted.ok_or(DecodeError::Missing("ack_result", "accepted"))?,
            reason: flat.reason,
        }),
        "cancel" => BrokerFrame::Cancel {
            correlation_id: required(flat.correlation_id, "cancel", "correlation_id")?,
            from: flat.from.map(ByteString::from),
        },
        "cancel_result" => BrokerFrame::CancelResult(CancelResult {
            request_id: required(flat.request_id, "cancel_result", "request_id")?,
            correlation_id: required(flat.correlation_id, "cancel_result", "correlation_id")?,
            outcome: CancelOutcome::from_name(&flat.outcome.ok_or(DecodeError::Missing("cancel_result", "outcome"))?),
        }),
        "connected" => BrokerFrame::Connected {
            ids: flat.ids.ok_or(DecodeError::Missing("connected", "ids"))?.into_iter().map(ByteString::from).collect(),
        },
        "live_event" => BrokerFrame::Event(Event {
            peer: required(flat.from, "live_event", "from")?,
            correlation_id: required(flat.correlation_id, "live_event", "correlation_id")?,
            body: body(flat.body.ok_or(DecodeError::Missing("live_event", "body"))?)?,
        }),
        "event_batch" => BrokerFrame::EventBatch {
            correlation_id: required(flat.correlation_id, "event_batch", "correlation_id")?,
            batch: event_batch(flat.batch.ok_or(DecodeError::Missing("event_batch", "batch"))?)?,
        },
        "status" => status(flat)?,
        "inspected" => inspect::inspected(InspectedFields {
            request_id: flat.request_id,
            peers: flat.peers,
            messages: flat.messages,
            unknown: flat.unknown,
            settled: flat.settled,
            remembered_ms: flat.remembered_ms,
            rows: flat.rows,
            more: flat.more,
        })?,
        "followed" => BrokerFrame::Followed(Followed {
            request_id: required(flat.request_id, "followed", "request_id")?,
            peers: flat.peers.unwrap_or_default(),
            uncollected: flat.uncollected.unwrap_or_default(),
        }),
        "announced" => BrokerFrame::Announced(Announced {
            request_id: required(flat.request_id, "announced", "request_id")?,
            reason: flat.reason,
            code: flat.code.as_deref().and_then(ErrorCode::from_code),
        }),
        "hosts" => hosts::hosts(flat.request_id, flat.hosts)?,
        "hosts_changed" => BrokerFrame::HostsChanged,
        "unsure" => BrokerFrame::Unsure { id: required(flat.id, "unsure", "id")? },
        "agents_ended" => hosts::agents_ended(flat.agents)?,
        other => BrokerFrame::Unknown { kind: other.to_owned() },
    })
}

fn push(flat: FlatBroker<'_>) -> Result<BrokerFrame, DecodeError> {
    let Object(mut message) = flat.message.ok_or(DecodeError::Missing("message", "message"))?;
    let Object(from) = message.from.take().ok_or(DecodeError::Missing("message", "from"))?;
    Ok(BrokerFrame::Message(Push {
        tag: flat.tag,
        attempt: flat.attempt.unwrap_or(1).max(1),
        from: agent(from)?,
        deadline_ms: flat.deadline_ms,
        envelope: envelope(&message)?,
    }))
}

fn status(flat: FlatBroker<'_>) -> Result<BrokerFrame, DecodeError> {
    let connections = flat.connections.unwrap_or_default().into_iter().map(|Object(c)| Connection {
        agent: AgentRef { session_id: c.session_id.into(), role: c.role.map(ByteString::from) },
        subscribed: c.subscribed,
        connected_ms: c.connected_ms,
    });
    let mailboxes = flat.mailboxes.unwrap_or_default().into_iter().map(|Object(m)| MailboxStatus {
        name: m.name.into(),
        messages: m.messages,
        bytes: m.bytes,
        in_flight: m.in_flight,
        oldest_ms: m.oldest_ms,
    });
    Ok(BrokerFrame::Status(Status {
        connections: connections.collect(),
        mailboxes: mailboxes.collect(),
        more_mailboxes: flat.more_mailboxes.unwrap_or_default(),
        set_aside: flat.set_aside.unwrap_or_default(),
        request_id: required(flat.request_id, "status", "request_id")?,
    }))
}

pub fn message_id(text: &[u8]) -> Option<MsgId> {
    #[derive(Deserialize)]
    struct Outer {
        message: Object<Inner>,
    }
    #[derive(Deserialize)]
    struct Inner {
        id: String,
    }
    let Object(Outer { message: Object(Inner { id }) }) = serde_json::from_slice(text).ok()?;
    (id.len() <= crate::MAX_NAME_BYTES).then(|| MsgId::from(id))
}

/// A frame of a later version may use known field names with other types: such a frame is unknown, not malformed.
fn unknown_kind(text: &[u8], error: serde_json::Error, known: &[&str]) -> Result<String, DecodeError> {
    #[derive(Deserialize)]
    struct KindOnly<'a> {
        #[serde(borrow)]
        kind: Cow<'a, str>,
    }
    match serde_json::from_slice::<Object<KindOnly<'_>>>(text) {
        Ok(Object(KindOnly { kind })) if !known.contains(&&*kind) => Ok(kind.into_owned()),
        _ => Err(error.into()),
    }
}

fn agent(flat: FlatAgent) -> Result<AgentRef, DecodeError> {
    for text in std::iter::once(&flat.session_id).chain(&flat.role) {
        check_name(text).map_err(DecodeError::BadName)?;
    }
    Ok(AgentRef { session_id: flat.session_id.into(), role: flat.role.map(ByteString::from) })
}

pub(super) fn body(raw: &RawValue) -> Result<Body, DecodeError> {
    let body = Body::from_trusted(Bytes::copy_from_slice(raw.get().as_bytes()));
    body.check_depth()?;
    Ok(body)
}

fn envelope(message: &FlatMessage<'_>) -> Result<Envelope, DecodeError> {
    let names = [Some(&message.id), Some(&message.kind), message.correlation_id.as_ref()];
    for text in names.into_iter().flatten() {
        check_name(text).map_err(DecodeError::BadName)?;
    }
    let envelope = Envelope::seal(SealedParts {
        id: &message.id,
        kind: &message.kind,
        created_at: Timestamp::parse(&message.created_at)?,
        correlation_id: message.correlation_id.as_deref(),
        trace: message.trace.as_deref(),
        body: message.body.get().as_bytes(),
    });
    crate::envelope::check_depth(message.body.get().as_bytes())?;
    Ok(envelope)
}
