//! `look` and `looked` as JSON.

use super::object::Object;
use super::read::{name, required};
use crate::look::{Letter, LetterRow, Look, Looked, MAX_LOOKED_AT};
use crate::{BrokerFrame, ClientFrame, DecodeError};
use bytestring::ByteString;
use serde::Deserialize;
use serde_json::json;

#[derive(Deserialize)]
pub struct FlatLetter {
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

/// The fields of a `look`, as far as they are there.
pub struct Asked {
    pub request_id: Option<String>,
    pub peers: Option<Vec<String>>,
    pub letters: Option<Vec<Object<FlatLetter>>>,
    pub rows_of: Option<String>,
}

pub fn look(asked: Asked) -> Result<ClientFrame, DecodeError> {
    let (peers, letters) = (asked.peers.unwrap_or_default(), asked.letters.unwrap_or_default());
    if peers.len().max(letters.len()) > MAX_LOOKED_AT {
        return Err(DecodeError::TooMany("look"));
    }
    let letter = |Object(flat): Object<FlatLetter>| Ok(Letter { to: name(flat.to.into())?, id: name(flat.id.into())? });
    Ok(ClientFrame::Look(Look {
        request_id: required(asked.request_id, "look", "request_id")?,
        peers: peers.into_iter().map(|peer| name(peer.into())).collect::<Result<_, _>>()?,
        letters: letters.into_iter().map(letter).collect::<Result<_, DecodeError>>()?,
        rows_of: asked.rows_of.map(|mailbox| name(mailbox.into())).transpose()?,
    }))
}

/// The fields of a `looked`, as far as they are there.
pub struct Answered {
    pub request_id: Option<String>,
    pub peers: Option<Vec<bool>>,
    pub letters: Option<Vec<Option<u64>>>,
    pub rows: Option<Vec<Object<FlatRow>>>,
    pub more: Option<bool>,
}

pub fn looked(answered: Answered) -> Result<BrokerFrame, DecodeError> {
    let row = |Object(flat): Object<FlatRow>| {
        Ok(LetterRow {
            id: name(flat.id.into())?,
            from: name(flat.from.into())?,
            age_ms: flat.age_ms,
            attempt: flat.attempt,
            in_flight: flat.in_flight,
            deadline_ms: flat.deadline_ms,
        })
    };
    Ok(BrokerFrame::Looked(Looked {
        request_id: required(answered.request_id, "looked", "request_id")?,
        peers: answered.peers.unwrap_or_default(),
        letters: answered.letters.unwrap_or_default(),
        rows: answered.rows.unwrap_or_default().into_iter().map(row).collect::<Result<_, DecodeError>>()?,
        more: answered.more.unwrap_or_default(),
    }))
}

pub fn look_text(look: &Look) -> String {
    let peers: Vec<&str> = look.peers.iter().map(|peer| &**peer).collect();
    let letter = |letter: &Letter| json!({"to": &*letter.to, "id": &*letter.id});
    let letters: Vec<_> = look.letters.iter().map(letter).collect();
    let mut value = json!({"kind": "look", "request_id": &*look.request_id, "peers": peers, "letters": letters});
    if let Some(mailbox) = &look.rows_of {
        value["rows_of"] = text(mailbox);
    }
    value.to_string()
}

pub fn looked_text(looked: &Looked) -> String {
    let row = |row: &LetterRow| {
        let mut value = json!({
            "id": &*row.id, "from": &*row.from, "age_ms": row.age_ms, "attempt": row.attempt, "in_flight": row.in_flight,
        });
        if let Some(left) = row.deadline_ms {
            value["deadline_ms"] = left.into();
        }
        value
    };
    json!({
        "kind": "looked",
        "request_id": &*looked.request_id,
        "peers": looked.peers,
        "letters": looked.letters,
        "rows": looked.rows.iter().map(row).collect::<Vec<_>>(),
        "more": looked.more,
    })
    .to_string()
}

fn text(name: &ByteString) -> serde_json::Value {
    serde_json::Value::from(&**name)
}
