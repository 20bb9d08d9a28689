//! Live events: the frames with their bodies, and the batches of the original.

use super::object::Object;
use super::read::body;
use super::write::push_json;
use crate::{Body, DecodeError, Event};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::borrow::Cow;

/// The original's limit for one batch.
const MAX_EVENTS: usize = 64;

#[derive(Deserialize)]
struct FlatBatch<'a> {
    first_seq: u64,
    last_seq: u64,
    #[serde(borrow)]
    qos: Cow<'a, str>,
    #[serde(borrow)]
    events: Vec<&'a RawValue>,
}

/// A batch as it is relayed: each event has a sequence number, from which recipients notice lost batches. A durable batch
/// must not be lost, so it may not be sent as a live one.
pub(super) fn event_batch(raw: &RawValue) -> Result<Body, DecodeError> {
    let Object(batch): Object<FlatBatch<'_>> = serde_json::from_str(raw.get())?;
    let events = batch.events.len();
    let numbered = batch.first_seq > 0 && batch.first_seq.checked_add(events as u64) == batch.last_seq.checked_add(1);
    if events == 0 || events > MAX_EVENTS || !numbered || batch.qos == "durable" {
        return Err(DecodeError::BadBatch);
    }
    body(raw)
}

/// `fields` are the text fields before the body.
pub(super) fn event_text(kind: &str, fields: &[(&str, &str)], body: (&str, &Body)) -> String {
    let mut out = format!(r#"{{"kind":"{kind}""#);
    for (name, value) in fields {
        out.push_str(&format!(",\"{name}\":"));
        push_json(&mut out, *value);
    }
    let (name, body) = body;
    out.push_str(&format!(",\"{name}\":{}}}", String::from_utf8_lossy(body.as_bytes())));
    out
}

pub(super) fn live_event_text(event: &Event, peer: &str) -> String {
    let fields = [(peer, &*event.peer), ("correlation_id", &*event.correlation_id)];
    event_text("live_event", &fields, ("body", &event.body))
}
