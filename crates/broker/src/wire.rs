//! Converts client frames to engine commands, and the engine's output to broker frames.

use bytes::{Bytes, BytesMut};
use bytestring::ByteString;
use std::sync::Arc;
use toolbus_engine::{
    AgentEnd, CancelOutcome, Command, Delivery, Follow, Inspect, InspectView, Message, MessageAt, MessageView,
    Outgoing, Purpose, Refusal, Sender, StatusView,
};
use toolbus_protocol::{
    self as protocol, AckResult, AgentRef, Body, BrokerFrame, CancelResult, ClientFrame, Connection, Deliver, Envelope,
    ErrorCode, Event, Followed, Inspected, JournalClaim, MailboxStatus, MessageRef, MessageRow, Push,
    Refusal as RefusalFrame, Status, compact,
};

/// Converts a client frame to a command. Returns `None` for frames that are not for the engine or of unknown kind.
pub fn command(frame: ClientFrame) -> Option<Command> {
    Some(match frame {
        ClientFrame::Deliver(deliver) => Command::Deliver(Delivery {
            content: xxhash_rust::xxh3::xxh3_64(deliver.envelope.content()),
            id: message_id(&deliver),
            to: deliver.to,
            correlation_id: deliver.envelope.correlation_id.clone(),
            purpose: purpose(deliver.envelope.kind()),
            sealed: deliver.envelope.sealed().clone(),
            deadline_ms: deliver.deadline_ms,
            ack: deliver.ack,
            age_ms: deliver.age_ms,
        }),
        ClientFrame::AckTags { tags } => Command::AckTags { tags },
        ClientFrame::Subscribe => Command::Subscribe,
        ClientFrame::Ack { id } => Command::Ack { id },
        ClientFrame::AckWithReceipt { id, request_id } => Command::AckWithReceipt { id, request_id },
        ClientFrame::Cancel { to, correlation_id, request_id } => Command::Cancel { to, correlation_id, request_id },
        ClientFrame::ListConnected { role } => Command::ListConnected { role },
        ClientFrame::Event(event) => event_command(event, false),
        ClientFrame::EventBatch(event) => event_command(event, true),
        ClientFrame::Status { request_id } => Command::Status { request_id },
        ClientFrame::Inspect(inspect) => {
            let messages = inspect.messages.into_iter().map(message_at).collect();
            let (request_id, peers, rows_of) = (inspect.request_id, inspect.peers, inspect.rows_of);
            Command::Inspect { request_id, inspect: Box::new(Inspect { peers, messages, rows_of }) }
        }
        ClientFrame::Follow(follow) => {
            let messages = follow.messages.into_iter().map(message_at).collect();
            let (request_id, peers) = (follow.request_id, follow.peers);
            Command::Follow { request_id, follow: Box::new(Follow { peers, messages }) }
        }
        ClientFrame::Unfollow { request_id } => Command::Unfollow { request_id },
        ClientFrame::Hello(_)
        | ClientFrame::Announce(_)
        | ClientFrame::Hosts(_)
        | ClientFrame::Claim(_)
        | ClientFrame::Refused { .. }
        | ClientFrame::Unknown { .. } => return None,
    })
}

/// Converts a host's claim.
pub fn claim(JournalClaim { journal, epoch, instance, ancestors }: JournalClaim) -> toolbus_engine::JournalClaim {
    toolbus_engine::JournalClaim { journal, epoch, instance, ancestors }
}

fn event_command(Event { peer, correlation_id, body }: Event, batch: bool) -> Command {
    Command::Event { to: peer, correlation_id, body: body.into_bytes(), batch }
}

fn message_at(message: MessageRef) -> MessageAt {
    MessageAt { to: message.to, id: message.id }
}

/// The purpose of a sealed message that a broker has accepted.
pub fn purpose_of_sealed(sealed: &Bytes) -> Purpose {
    Envelope::from_sealed(sealed.clone()).map_or(Purpose::Other, |envelope| purpose(envelope.kind()))
}

/// Maps a message kind to the purpose that the send rules are based on.
fn purpose(kind: &str) -> Purpose {
    match kind {
        "mcp_request" => Purpose::Request,
        "mcp_reply" => Purpose::HostReply,
        "reply" => Purpose::Reply,
        "mcp_event" => Purpose::Event,
        _ => Purpose::Other,
    }
}

/// Copies the id of a message with a deadline: the engine keeps it until then, and as a slice it would keep the whole
/// receive buffer alive.
fn message_id(deliver: &Deliver) -> ByteString {
    match deliver.deadline_ms {
        Some(_) => deep_copy(&deliver.envelope.id),
        None => deliver.envelope.id.clone(),
    }
}

/// Payload bytes of a command.
pub fn payload_bytes(command: &Command) -> usize {
    match command {
        Command::Deliver(delivery) => delivery.sealed.len(),
        Command::Event { body, .. } => body.len(),
        _ => 0,
    }
}

/// Copies a command's bytes, which are slices of the receive buffer.
pub fn unshare(command: &mut Command) {
    match command {
        Command::Deliver(delivery) => {
            delivery.to = deep_copy(&delivery.to);
            delivery.id = deep_copy(&delivery.id);
            delivery.correlation_id = delivery.correlation_id.as_ref().map(deep_copy);
            delivery.sealed = Bytes::copy_from_slice(&delivery.sealed);
        }
        Command::Event { to, correlation_id, body, .. } => {
            *to = deep_copy(to);
            *correlation_id = deep_copy(correlation_id);
            *body = Bytes::copy_from_slice(body);
        }
        _ => {}
    }
}

pub fn deep_copy(text: &ByteString) -> ByteString {
    ByteString::from(&**text)
}

/// Converts the engine's output to a broker frame. Numbered receipts are encoded by `egress` instead.
pub fn frame(outgoing: &Outgoing) -> BrokerFrame {
    match outgoing {
        Outgoing::Message { message, attempt, deadline_ms } => push(message, *attempt, *deadline_ms),
        Outgoing::RefusedSenders { .. } | Outgoing::Moved => {
            unreachable!("the outbox keeps what is for the connection")
        }
        Outgoing::Unsure { id } => BrokerFrame::Unsure { id: id.clone() },
        Outgoing::AgentsEnded { agents } => BrokerFrame::AgentsEnded { agents: agents.iter().map(agent_end).collect() },
        Outgoing::Receipt { id, .. } => BrokerFrame::Delivered { id: id.clone() },
        Outgoing::Refused { refusal, id } => {
            BrokerFrame::Error(RefusalFrame { reason: refusal.to_string(), id: id.clone(), code: Some(code(refusal)) })
        }
        Outgoing::AckResult { id, request_id, refusal } => BrokerFrame::AckResult(AckResult {
            id: id.clone(),
            request_id: request_id.clone(),
            // An id that is gone may have been acknowledged so long ago that it is not remembered.
            accepted: matches!(refusal, None | Some(Refusal::UnknownMessage { .. })),
            reason: refusal.as_ref().map(ToString::to_string),
        }),
        Outgoing::Cancel { correlation_id, from } => {
            BrokerFrame::Cancel { correlation_id: correlation_id.clone(), from: from.clone() }
        }
        Outgoing::CancelResult { request_id, correlation_id, outcome } => BrokerFrame::CancelResult(CancelResult {
            request_id: request_id.clone(),
            correlation_id: correlation_id.clone(),
            outcome: cancel_outcome(*outcome),
        }),
        Outgoing::Connected { ids } => {
            BrokerFrame::Connected { ids: ids.iter().map(|id| ByteString::from(&**id)).collect() }
        }
        Outgoing::Event { from, correlation_id, body, .. } => BrokerFrame::Event(Event {
            peer: ByteString::from(&**from),
            correlation_id: correlation_id.clone(),
            body: Body::from_trusted(body.clone()),
        }),
        Outgoing::Status { request_id, view } => BrokerFrame::Status(status(request_id, view)),
        Outgoing::Inspected { request_id, view } => BrokerFrame::Inspected(inspected(request_id, view)),
        Outgoing::Followed { request_id, view } => BrokerFrame::Followed(Followed {
            request_id: request_id.clone(),
            peers: view.peers.clone(),
            uncollected: view.uncollected.clone(),
        }),
    }
}

/// Like [`frame`], for a peer of version 1.
pub fn version1_frame(outgoing: &Outgoing) -> BrokerFrame {
    match outgoing {
        Outgoing::Event { correlation_id, body, batch: true, .. } => {
            BrokerFrame::EventBatch { correlation_id: correlation_id.clone(), batch: Body::from_trusted(body.clone()) }
        }
        other => frame(other),
    }
}

/// Appends the engine's output in compact framing. Messages, the most frequent kind, are encoded without building a
/// frame.
pub fn write_compact(outgoing: &Outgoing, out: &mut BytesMut) {
    match outgoing {
        Outgoing::Message { message, attempt, deadline_ms } => {
            let parts = compact::PushParts {
                tag: Some(message.seq),
                attempt: *attempt,
                from: &message.from.name,
                role: message.from.role.as_deref(),
                deadline_ms: *deadline_ms,
                sealed: &message.sealed,
            };
            compact::write_push_parts(parts, out);
        }
        other => compact::write_broker(&frame(other), out),
    }
}

fn push(message: &Arc<Message>, attempt: u32, deadline_ms: Option<u64>) -> BrokerFrame {
    BrokerFrame::Message(Push {
        tag: Some(message.seq),
        attempt,
        from: agent(&message.from),
        deadline_ms,
        envelope: Envelope::from_parts(message.id.clone(), message.correlation_id.clone(), message.sealed.clone()),
    })
}

fn agent_end(AgentEnd { name, generation, expired }: &AgentEnd) -> protocol::AgentEnd {
    protocol::AgentEnd { name: name.clone(), generation: *generation, expired: *expired }
}

fn agent(sender: &Sender) -> AgentRef {
    AgentRef { session_id: ByteString::from(&*sender.name), role: sender.role.as_deref().map(ByteString::from) }
}

fn status(request_id: &ByteString, view: &StatusView) -> Status {
    Status {
        request_id: request_id.clone(),
        connections: view
            .connections
            .iter()
            .map(|c| Connection { agent: agent(&c.agent), subscribed: c.subscribed, connected_ms: c.connected_ms })
            .collect(),
        mailboxes: view
            .mailboxes
            .iter()
            .map(|m| MailboxStatus {
                name: ByteString::from(&*m.name),
                messages: m.messages,
                bytes: m.bytes,
                in_flight: m.in_flight,
                oldest_ms: m.oldest_ms,
            })
            .collect(),
        more_mailboxes: view.more_mailboxes,
        set_aside: view.set_aside,
    }
}

fn inspected(request_id: &ByteString, view: &InspectView) -> Inspected {
    let row = |row: &MessageView| MessageRow {
        id: row.id.clone(),
        from: ByteString::from(&*row.from),
        age_ms: row.age_ms,
        attempt: row.attempt,
        in_flight: row.in_flight,
        deadline_ms: row.deadline_ms,
    };
    Inspected {
        request_id: request_id.clone(),
        peers: view.peers.clone(),
        unknown: view.unknown.clone(),
        messages: view.messages.clone(),
        settled: view.settled.clone(),
        remembered_ms: view.remembered_ms,
        rows: view.rows.iter().map(row).collect(),
        more: view.more,
    }
}

fn cancel_outcome(outcome: CancelOutcome) -> toolbus_protocol::CancelOutcome {
    match outcome {
        CancelOutcome::Withdrawn => toolbus_protocol::CancelOutcome::Withdrawn,
        CancelOutcome::Running => toolbus_protocol::CancelOutcome::Running,
        CancelOutcome::Finished => toolbus_protocol::CancelOutcome::Finished,
        CancelOutcome::Unknown => toolbus_protocol::CancelOutcome::Unknown,
    }
}

pub fn code(refusal: &Refusal) -> ErrorCode {
    match refusal {
        Refusal::MailboxFull { .. } => ErrorCode::MailboxFull,
        Refusal::BrokerFull { .. } => ErrorCode::BrokerFull,
        Refusal::ShareFull { .. } | Refusal::MailboxShareFull { .. } => ErrorCode::ShareFull,
        Refusal::IdConflict { .. } => ErrorCode::IdConflict,
        Refusal::Expired { .. } => ErrorCode::Expired,
        Refusal::Cancelled { .. } => ErrorCode::Cancelled,
        Refusal::TooOften { .. } => ErrorCode::PoisonCall,
        Refusal::UnknownMessage { .. } => ErrorCode::UnknownMessage,
        Refusal::Displaced { .. } => ErrorCode::Displaced,
        Refusal::DiskFull => ErrorCode::DiskFull,
        Refusal::TooManyMailboxes { .. } => ErrorCode::TooManyMailboxes,
        Refusal::TooManyFollows { .. } => ErrorCode::TooManyFollows,
        Refusal::ShuttingDown => ErrorCode::ShuttingDown,
        Refusal::Unreadable { .. } | Refusal::UnreadableLetter { .. } => ErrorCode::Unreadable,
        Refusal::NotYourRequest { .. } => ErrorCode::NotYourRequest,
        Refusal::MayNotSend { .. } => ErrorCode::MayNotSend,
        Refusal::NotAHost => ErrorCode::NotAHost,
        Refusal::OperatorOnly => ErrorCode::OperatorOnly,
    }
}
