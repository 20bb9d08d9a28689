//! Encoding of JSON frames. Small frames are built with serde; bodies and manifests are spliced in as raw text.

use super::events::{event_text, live_event_text};
use super::hosts::{agents_ended_text, announce_text, announced_text, hosts_text};
use super::inspect::{follow_text, followed_text, inspect_text, inspected_text};
use crate::frames::*;
use crate::{AgentRef, BodyError, BrokerFrame, CancelResult, ClientFrame, Envelope, InboxMessage, JournalClaim};
use serde::Serialize;
use serde_json::json;

pub fn client(frame: &ClientFrame, me: &AgentRef) -> String {
    match frame {
        ClientFrame::Hello(hello) => {
            let mut value = json!({"kind": "hello", "agent": agent_value(&hello.agent), "token": hello.token});
            if let Some(version) = hello.version {
                value["version"] = version.into();
            }
            if let Some(framing) = hello.framing {
                value["framing"] = framing.as_str().into();
            }
            value.to_string()
        }
        ClientFrame::Subscribe => json!({"kind": "subscribe"}).to_string(),
        ClientFrame::Deliver(deliver) => {
            let mut out = String::from(r#"{"kind":"deliver","to":"#);
            push_json(&mut out, &*deliver.to);
            push_number(&mut out, "deadline_ms", deliver.deadline_ms);
            push_number(&mut out, "ack", deliver.ack);
            push_number(&mut out, "age_ms", deliver.age_ms);
            push_message(&mut out, &deliver.envelope.open(me.clone()));
            out.push('}');
            out
        }
        ClientFrame::Ack { id } => json!({"kind": "ack", "id": &**id}).to_string(),
        ClientFrame::AckTags { tags } => json!({"kind": "ack_tags", "tags": tags}).to_string(),
        ClientFrame::AckWithReceipt { id, request_id } => {
            json!({"kind": "ack_with_receipt", "id": &**id, "request_id": &**request_id}).to_string()
        }
        ClientFrame::Cancel { to, correlation_id, request_id } => {
            let mut value = json!({"kind": "cancel", "to": &**to, "correlation_id": &**correlation_id});
            if let Some(request_id) = request_id {
                value["request_id"] = (&**request_id).into();
            }
            value.to_string()
        }
        ClientFrame::ListConnected { role } => json!({"kind": "list_connected", "role": &**role}).to_string(),
        ClientFrame::Event(event) => live_event_text(event, "to"),
        ClientFrame::EventBatch(Event { peer, correlation_id, body }) => {
            event_text("publish_event_batch", &[("to", peer), ("correlation_id", correlation_id)], ("batch", body))
        }
        ClientFrame::Status { request_id } => json!({"kind": "status", "request_id": &**request_id}).to_string(),
        ClientFrame::Inspect(inspect) => inspect_text(inspect),
        ClientFrame::Follow(follow) => follow_text(follow),
        ClientFrame::Unfollow { request_id } => json!({"kind": "unfollow", "request_id": &**request_id}).to_string(),
        ClientFrame::Announce(announce) => announce_text(announce),
        ClientFrame::Refused { tags } => json!({"kind": "refused", "tags": tags}).to_string(),
        ClientFrame::Claim(JournalClaim { journal, epoch, instance, ancestors }) => {
            let mut value = json!({"kind": "claim", "journal": &**journal, "epoch": epoch, "instance": &**instance});
            if !ancestors.is_empty() {
                value["ancestors"] = ancestors.iter().map(|name| &**name).collect();
            }
            value.to_string()
        }
        ClientFrame::Hosts(ask) => {
            let known: serde_json::Map<_, _> =
                ask.known.iter().map(|(id, version)| (id.to_string(), (*version).into())).collect();
            json!({"kind": "hosts", "request_id": &*ask.request_id, "watch": ask.watch, "known": known}).to_string()
        }
        ClientFrame::Unknown { kind } => json!({"kind": kind}).to_string(),
    }
}

pub fn broker(frame: &BrokerFrame) -> Result<String, BodyError> {
    Ok(match frame {
        BrokerFrame::Welcome(welcome) => welcome_text(welcome),
        BrokerFrame::BrokerIdentity { id } => json!({"kind": "broker_identity", "id": &**id}).to_string(),
        BrokerFrame::Error(refusal) => {
            let mut value = json!({"kind": "error", "reason": refusal.reason, "id": refusal.id.as_deref()});
            if let Some(code) = refusal.code {
                value["code"] = code.code().into();
            }
            value.to_string()
        }
        BrokerFrame::Message(push) => push_text(push)?,
        BrokerFrame::Delivered { id } => json!({"kind": "delivered", "id": &**id}).to_string(),
        BrokerFrame::Receipts { ranges } => json!({"kind": "receipts", "ranges": ranges}).to_string(),
        BrokerFrame::AckResult(result) => {
            let mut value = json!({
                "kind": "ack_result", "id": &*result.id, "request_id": &*result.request_id, "accepted": result.accepted,
            });
            if let Some(reason) = &result.reason {
                value["reason"] = reason.as_str().into();
            }
            value.to_string()
        }
        BrokerFrame::Cancel { correlation_id, from } => {
            let mut value = json!({"kind": "cancel", "correlation_id": &**correlation_id});
            if let Some(from) = from {
                value["from"] = (&**from).into();
            }
            value.to_string()
        }
        BrokerFrame::CancelResult(CancelResult { request_id, correlation_id, outcome }) => json!({
            "kind": "cancel_result", "request_id": &**request_id, "correlation_id": &**correlation_id,
            "outcome": outcome.as_str(),
        })
        .to_string(),
        BrokerFrame::Connected { ids } => {
            let ids: Vec<&str> = ids.iter().map(|id| &**id).collect();
            json!({"kind": "connected", "ids": ids}).to_string()
        }
        BrokerFrame::Event(event) => {
            event.body.check()?;
            live_event_text(event, "from")
        }
        BrokerFrame::EventBatch { correlation_id, batch } => {
            event_text("event_batch", &[("correlation_id", correlation_id)], ("batch", batch))
        }
        BrokerFrame::Status(status) => status_text(status),
        BrokerFrame::Inspected(inspected) => inspected_text(inspected),
        BrokerFrame::Followed(followed) => followed_text(followed),
        BrokerFrame::Announced(announced) => announced_text(announced),
        BrokerFrame::Hosts(hosts) => hosts_text(hosts),
        BrokerFrame::HostsChanged => json!({"kind": "hosts_changed"}).to_string(),
        BrokerFrame::Unsure { id } => json!({"kind": "unsure", "id": &**id}).to_string(),
        BrokerFrame::AgentsEnded { agents } => agents_ended_text(agents),
        BrokerFrame::Unknown { kind } => json!({"kind": kind}).to_string(),
    })
}

fn welcome_text(welcome: &Welcome) -> String {
    let mut value = json!({"kind": "welcome"});
    if let Some(version) = welcome.version {
        value["version"] = version.into();
    }
    if let Some(framing) = welcome.framing {
        value["framing"] = framing.as_str().into();
    }
    if let Some(limits) = welcome.limits {
        value["limits"] = json!({
            "max_frame_bytes": limits.max_frame_bytes,
            "window_messages": limits.window_messages,
            "window_bytes": limits.window_bytes,
        });
    }
    if let Some(heartbeat) = welcome.heartbeat_ms {
        value["heartbeat_ms"] = heartbeat.into();
    }
    if let Some(agent) = &welcome.agent {
        value["agent"] = agent_value(agent);
    }
    value.to_string()
}

fn push_text(push: &Push) -> Result<String, BodyError> {
    let message = open_checked(&push.envelope, push.from.clone())?;
    let mut out = String::with_capacity(message.body.as_bytes().len() + 320);
    out.push_str(r#"{"kind":"message""#);
    push_number(&mut out, "tag", push.tag);
    push_number(&mut out, "attempt", (push.attempt > 1).then_some(push.attempt.into()));
    push_number(&mut out, "deadline_ms", push.deadline_ms);
    push_message(&mut out, &message);
    out.push('}');
    Ok(out)
}

fn open_checked(envelope: &Envelope, from: AgentRef) -> Result<InboxMessage, BodyError> {
    let message = envelope.open(from);
    message.body.check()?;
    Ok(message)
}

/// Appends `,"message":{…}`. The caller must have checked the body.
fn push_message(out: &mut String, message: &InboxMessage) {
    out.push_str(r#","message":{"id":"#);
    push_json(out, message.id.as_str());
    out.push_str(r#","from":"#);
    push_json(out, &agent_value(&message.from));
    out.push_str(r#","kind":"#);
    push_json(out, message.kind.as_str());
    out.push_str(r#","body":"#);
    out.push_str(&String::from_utf8_lossy(message.body.as_bytes()));
    out.push_str(r#","created_at":"#);
    push_json(out, &message.created_at.to_string());
    let extras = [
        ("correlation_id", message.correlation_id.as_ref().map(|id| id.as_str())),
        ("trace", message.trace.as_deref()),
    ];
    for (name, value) in extras {
        if let Some(value) = value {
            out.push_str(&format!(",\"{name}\":"));
            push_json(out, value);
        }
    }
    out.push('}');
}

fn status_text(status: &Status) -> String {
    let connections = status.connections.iter().map(|c| {
        let mut value = agent_value(&c.agent);
        value["subscribed"] = c.subscribed.into();
        value["connected_ms"] = c.connected_ms.into();
        value
    });
    let mailboxes = status.mailboxes.iter().map(|m| {
        json!({
            "name": &*m.name, "messages": m.messages, "bytes": m.bytes,
            "in_flight": m.in_flight, "oldest_ms": m.oldest_ms,
        })
    });
    json!({
        "kind": "status",
        "request_id": &*status.request_id,
        "connections": connections.collect::<Vec<_>>(),
        "mailboxes": mailboxes.collect::<Vec<_>>(),
        "more_mailboxes": status.more_mailboxes,
        "set_aside": status.set_aside,
    })
    .to_string()
}

fn agent_value(agent: &AgentRef) -> serde_json::Value {
    let mut value = json!({"session_id": &*agent.session_id});
    if let Some(role) = &agent.role {
        value["role"] = (&**role).into();
    }
    value
}

pub(super) fn push_json(out: &mut String, value: &(impl Serialize + ?Sized)) {
    out.push_str(&serde_json::to_string(value).expect("strings and JSON values always serialise"));
}

pub(super) fn push_number(out: &mut String, name: &str, value: Option<u64>) {
    if let Some(value) = value {
        out.push_str(&format!(",\"{name}\":{value}"));
    }
}
