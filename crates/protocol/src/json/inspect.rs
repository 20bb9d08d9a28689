//! JSON encoding of `inspect`, `inspected`, `follow` and `followed`.

use super::fields::{name, required};
use super::object::Object;
use crate::inspect::{Inspect, Inspected, MAX_INSPECTED, MessageRef, MessageRow};
use crate::{BrokerFrame, ClientFrame, DecodeError, Follow, Followed};
use bytestring::ByteString;
use serde::Deserialize;
use serde_json::json;

#[derive(Deserialize)]
pub struct FlatMessageRef {
    to: String,
    id: String,
}

#[derive(Deserialize)]
pub struct FlatRow {
    id: String,
    from: String,
    age_ms: u64,
    attempt: u32,
    in_flight: bool,
    deadline_ms: Option<u64>,
}

/// The optional fields of an `inspect` frame.
pub struct InspectFields {
    pub request_id: Option<String>,
    pub peers: Option<Vec<String>>,
    pub messages: Option<Vec<Object<FlatMessageRef>>>,
    pub rows_of: Option<String>,
}

pub fn inspect(fields: InspectFields) -> Result<ClientFrame, DecodeError> {
    let (peers, messages) = subjects("inspect", fields.peers, fields.messages)?;
    Ok(ClientFrame::Inspect(Inspect {
        request_id: required(fields.request_id, "inspect", "request_id")?,
        peers,
        messages,
        rows_of: fields.rows_of.map(|mailbox| name(mailbox.into())).transpose()?,
    }))
}

pub fn follow(
    request_id: Option<String>,
    peers: Option<Vec<String>>,
    messages: Option<Vec<Object<FlatMessageRef>>>,
) -> Result<ClientFrame, DecodeError> {
    let (peers, messages) = subjects("follow", peers, messages)?;
    Ok(ClientFrame::Follow(Follow { request_id: required(request_id, "follow", "request_id")?, peers, messages }))
}

fn subjects(
    frame: &'static str,
    peers: Option<Vec<String>>,
    messages: Option<Vec<Object<FlatMessageRef>>>,
) -> Result<(Vec<ByteString>, Vec<MessageRef>), DecodeError> {
    let (peers, messages) = (peers.unwrap_or_default(), messages.unwrap_or_default());
    if peers.len().max(messages.len()) > MAX_INSPECTED {
        return Err(DecodeError::TooMany(frame));
    }
    let message =
        |Object(flat): Object<FlatMessageRef>| Ok(MessageRef { to: name(flat.to.into())?, id: name(flat.id.into())? });
    let peers = peers.into_iter().map(|peer| name(peer.into())).collect::<Result<_, _>>()?;
    Ok((peers, messages.into_iter().map(message).collect::<Result<_, DecodeError>>()?))
}

/// The optional fields of an `inspected` frame.
pub struct InspectedFields {
    pub request_id: Option<String>,
    pub peers: Option<Vec<bool>>,
    pub unknown: Option<Vec<bool>>,
    pub messages: Option<Vec<Option<u64>>>,
    pub settled: Option<Vec<bool>>,
    pub remembered_ms: Option<u64>,
    pub rows: Option<Vec<Object<FlatRow>>>,
    pub more: Option<bool>,
}

pub fn inspected(fields: InspectedFields) -> Result<BrokerFrame, DecodeError> {
    let row = |Object(flat): Object<FlatRow>| {
        Ok(MessageRow {
            id: name(flat.id.into())?,
            from: name(flat.from.into())?,
            age_ms: flat.age_ms,
            attempt: flat.attempt,
            in_flight: flat.in_flight,
            deadline_ms: flat.deadline_ms,
        })
    };
    Ok(BrokerFrame::Inspected(Inspected {
        request_id: required(fields.request_id, "inspected", "request_id")?,
        peers: fields.peers.unwrap_or_default(),
        unknown: fields.unknown.unwrap_or_default(),
        messages: fields.messages.unwrap_or_default(),
        settled: fields.settled.unwrap_or_default(),
        remembered_ms: fields.remembered_ms.unwrap_or_default(),
        rows: fields.rows.unwrap_or_default().into_iter().map(row).collect::<Result<_, DecodeError>>()?,
        more: fields.more.unwrap_or_default(),
    }))
}

pub fn inspect_text(inspect: &Inspect) -> String {
    let mut value = subjects_value("inspect", &inspect.request_id, &inspect.peers, &inspect.messages);
    if let Some(mailbox) = &inspect.rows_of {
        value["rows_of"] = text(mailbox);
    }
    value.to_string()
}

pub fn follow_text(follow: &Follow) -> String {
    subjects_value("follow", &follow.request_id, &follow.peers, &follow.messages).to_string()
}

pub fn followed_text(Followed { request_id, peers, uncollected }: &Followed) -> String {
    json!({"kind": "followed", "request_id": &**request_id, "peers": peers, "uncollected": uncollected}).to_string()
}

fn subjects_value(kind: &str, request_id: &str, peers: &[ByteString], messages: &[MessageRef]) -> serde_json::Value {
    let peers: Vec<&str> = peers.iter().map(|peer| &**peer).collect();
    let message = |message: &MessageRef| json!({"to": &*message.to, "id": &*message.id});
    let messages: Vec<_> = messages.iter().map(message).collect();
    json!({"kind": kind, "request_id": request_id, "peers": peers, "messages": messages})
}

pub fn inspected_text(inspected: &Inspected) -> String {
    let row = |row: &MessageRow| {
        let mut value = json!({
            "id": &*row.id, "from": &*row.from, "age_ms": row.age_ms, "attempt": row.attempt, "in_flight": row.in_flight,
        });
        if let Some(remaining) = row.deadline_ms {
            value["deadline_ms"] = remaining.into();
        }
        value
    };
    json!({
        "kind": "inspected",
        "request_id": &*inspected.request_id,
        "peers": inspected.peers,
        "unknown": inspected.unknown,
        "messages": inspected.messages,
        "settled": inspected.settled,
        "remembered_ms": inspected.remembered_ms,
        "rows": inspected.rows.iter().map(row).collect::<Vec<_>>(),
        "more": inspected.more,
    })
    .to_string()
}

fn text(name: &ByteString) -> serde_json::Value {
    serde_json::Value::from(&**name)
}
