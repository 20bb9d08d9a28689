//! Proptest strategies for frames, and for bodies in all JSON spellings.

use bytestring::ByteString;
use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;
use toolbus_protocol::{
    AckResult, AgentEnd, AgentRef, Announce, Announced, AskHosts, Body, BrokerFrame, CancelOutcome, CancelResult,
    ClientFrame, Connection, Deliver, Envelope, ErrorCode, Event, Follow, Followed, Framing, Hello, HostEntry, Hosts,
    InboxKind, InboxMessage, Inspect, Inspected, JournalClaim, Limits, MailboxStatus, MessageRef, MessageRow, MsgId,
    Push, Refusal, RoleManifest, Status, Timestamp, Welcome, check_name,
};

pub fn client_frame() -> impl Strategy<Value = ClientFrame> {
    let hello = (agent(), any_text(), of(any::<u32>()), of(framing()));
    let hello = hello.prop_map(|(agent, token, version, framing)| Hello { agent, token, version, framing });
    let numbers = (of(any::<u64>()), of(any::<u64>()), of(any::<u64>()));
    let deliver = (name(), envelope(), numbers).prop_map(|(to, envelope, (deadline_ms, ack, age_ms))| Deliver {
        to,
        envelope,
        deadline_ms,
        ack,
        age_ms,
    });
    let receipt = (name(), name()).prop_map(|(id, request_id)| ClientFrame::AckWithReceipt { id, request_id });
    let cancel = (name(), name(), of(name()));
    let cancel =
        cancel.prop_map(|(to, correlation_id, request_id)| ClientFrame::Cancel { to, correlation_id, request_id });
    prop_oneof![
        1 => hello.prop_map(ClientFrame::Hello),
        1 => Just(ClientFrame::Subscribe),
        4 => deliver.prop_map(ClientFrame::Deliver),
        1 => name().prop_map(|id| ClientFrame::Ack { id }),
        1 => vec(any::<u64>(), 0..20).prop_map(|tags| ClientFrame::AckTags { tags }),
        1 => receipt,
        1 => cancel,
        1 => name().prop_map(|role| ClientFrame::ListConnected { role }),
        2 => event().prop_map(ClientFrame::Event),
        1 => (name(), name(), batch())
            .prop_map(|(peer, correlation_id, body)| ClientFrame::EventBatch(Event { peer, correlation_id, body })),
        1 => name().prop_map(|request_id| ClientFrame::Status { request_id }),
        1 => inspect().prop_map(ClientFrame::Inspect),
        1 => follow().prop_map(ClientFrame::Follow),
        1 => name().prop_map(|request_id| ClientFrame::Unfollow { request_id }),
        1 => (name(), any::<u64>(), name(), vec(name(), 0..5)).prop_map(|(journal, epoch, instance, ancestors)| {
            ClientFrame::Claim(JournalClaim { journal, epoch, instance, ancestors })
        }),
        1 => vec(any::<u64>(), 0..20).prop_map(|tags| ClientFrame::Refused { tags }),
        1 => announce().prop_map(ClientFrame::Announce),
        1 => ask_hosts().prop_map(ClientFrame::Hosts),
        1 => unknown_kind(ClientFrame::KINDS).prop_map(|kind| ClientFrame::Unknown { kind }),
    ]
}

pub fn broker_frame() -> impl Strategy<Value = BrokerFrame> {
    let refusal = (any_text(), of(name()), of(proptest::sample::select(ErrorCode::ALL)));
    let refusal = refusal.prop_map(|(reason, id, code)| Refusal { reason, id, code });
    let ack_result = (name(), name(), any::<bool>(), of(any_text()));
    let ack_result =
        ack_result.prop_map(|(id, request_id, accepted, reason)| AckResult { id, request_id, accepted, reason });
    let push = (of(any::<u64>()), 1u32.., agent(), of(any::<u64>()), envelope());
    let push =
        push.prop_map(|(tag, attempt, from, deadline_ms, envelope)| Push { tag, attempt, from, deadline_ms, envelope });
    prop_oneof![
        1 => welcome().prop_map(BrokerFrame::Welcome),
        1 => name().prop_map(|id| BrokerFrame::BrokerIdentity { id }),
        1 => refusal.prop_map(BrokerFrame::Error),
        4 => push.prop_map(BrokerFrame::Message),
        1 => name().prop_map(|id| BrokerFrame::Delivered { id }),
        1 => vec(range(), 0..20).prop_map(|ranges| BrokerFrame::Receipts { ranges }),
        1 => ack_result.prop_map(BrokerFrame::AckResult),
        1 => (name(), of(name()))
            .prop_map(|(correlation_id, from)| BrokerFrame::Cancel { correlation_id, from }),
        1 => cancel_result().prop_map(BrokerFrame::CancelResult),
        1 => vec(name(), 0..4).prop_map(|ids| BrokerFrame::Connected { ids }),
        2 => event().prop_map(BrokerFrame::Event),
        1 => (name(), batch()).prop_map(|(correlation_id, batch)| BrokerFrame::EventBatch { correlation_id, batch }),
        1 => status().prop_map(BrokerFrame::Status),
        1 => inspected().prop_map(BrokerFrame::Inspected),
        1 => followed().prop_map(BrokerFrame::Followed),
        1 => name().prop_map(|id| BrokerFrame::Unsure { id }),
        1 => vec(agent_end(), 0..4).prop_map(|agents| BrokerFrame::AgentsEnded { agents }),
        1 => announced().prop_map(BrokerFrame::Announced),
        1 => hosts().prop_map(BrokerFrame::Hosts),
        1 => Just(BrokerFrame::HostsChanged),
        1 => unknown_kind(BrokerFrame::KINDS).prop_map(|kind| BrokerFrame::Unknown { kind }),
    ]
}

fn agent_end() -> impl Strategy<Value = AgentEnd> {
    (name(), any::<u64>(), any::<bool>()).prop_map(|(name, generation, expired)| AgentEnd { name, generation, expired })
}

fn cancel_result() -> impl Strategy<Value = CancelResult> {
    let parts = (name(), name(), proptest::sample::select(&CancelOutcome::ALL[..]));
    parts.prop_map(|(request_id, correlation_id, outcome)| CancelResult { request_id, correlation_id, outcome })
}

pub fn agent() -> impl Strategy<Value = AgentRef> {
    (name(), of(name())).prop_map(|(session_id, role)| AgentRef { session_id, role })
}

fn welcome() -> impl Strategy<Value = Welcome> {
    let limits = any::<(u64, u64, u64)>().prop_map(|(max_frame_bytes, window_messages, window_bytes)| Limits {
        max_frame_bytes,
        window_messages,
        window_bytes,
    });
    let parts = (of(any::<u32>()), of(framing()), of(limits), of(any::<u64>()), of(agent()));
    parts.prop_map(|(version, framing, limits, heartbeat_ms, agent)| Welcome {
        version,
        framing,
        limits,
        heartbeat_ms,
        agent,
    })
}

fn status() -> impl Strategy<Value = Status> {
    let connection = (agent(), any::<bool>(), any::<u64>());
    let connection =
        connection.prop_map(|(agent, subscribed, connected_ms)| Connection { agent, subscribed, connected_ms });
    let mailbox = (name(), any::<(u64, u64, u64)>(), of(any::<u64>()));
    let mailbox = mailbox.prop_map(|(name, (messages, bytes, in_flight), oldest_ms)| MailboxStatus {
        name,
        messages,
        bytes,
        in_flight,
        oldest_ms,
    });
    let parts = (name(), vec(connection, 0..3), vec(mailbox, 0..3), any::<u64>(), any::<u64>());
    parts.prop_map(|(request_id, connections, mailboxes, more_mailboxes, set_aside)| Status {
        request_id,
        connections,
        mailboxes,
        more_mailboxes,
        set_aside,
    })
}

fn message_ref() -> impl Strategy<Value = MessageRef> {
    (name(), name()).prop_map(|(to, id)| MessageRef { to, id })
}

fn follow() -> impl Strategy<Value = Follow> {
    let parts = (name(), vec(name(), 0..4), vec(message_ref(), 0..4));
    parts.prop_map(|(request_id, peers, messages)| Follow { request_id, peers, messages })
}

fn followed() -> impl Strategy<Value = Followed> {
    let parts = (name(), vec(any::<bool>(), 0..4), vec(any::<bool>(), 0..4));
    parts.prop_map(|(request_id, peers, uncollected)| Followed { request_id, peers, uncollected })
}

fn inspect() -> impl Strategy<Value = Inspect> {
    let parts = (name(), vec(name(), 0..4), vec(message_ref(), 0..4), of(name()));
    parts.prop_map(|(request_id, peers, messages, rows_of)| Inspect { request_id, peers, messages, rows_of })
}

fn inspected() -> impl Strategy<Value = Inspected> {
    let row = (name(), name(), any::<(u64, u32, bool)>(), of(any::<u64>()));
    let row = row.prop_map(|(id, from, (age_ms, attempt, in_flight), deadline_ms)| MessageRow {
        id,
        from,
        age_ms,
        attempt,
        in_flight,
        deadline_ms,
    });
    let flags = (vec(any::<bool>(), 0..4), vec(any::<bool>(), 0..4), any::<u64>());
    let parts = (name(), vec(any::<bool>(), 0..4), vec(of(any::<u64>()), 0..4), flags, vec(row, 0..4), any::<bool>());
    parts.prop_map(|(request_id, peers, messages, (unknown, settled, remembered_ms), rows, more)| Inspected {
        request_id,
        peers,
        unknown,
        messages,
        settled,
        remembered_ms,
        rows,
        more,
    })
}

fn announce() -> impl Strategy<Value = Announce> {
    let manifest = (of(name()), body()).prop_map(|(role, manifest)| RoleManifest { role, manifest });
    (name(), vec(manifest, 0..4)).prop_map(|(request_id, manifests)| Announce { request_id, manifests })
}

fn announced() -> impl Strategy<Value = Announced> {
    let parts = (name(), of(any_text()), of(proptest::sample::select(ErrorCode::ALL)));
    parts.prop_map(|(request_id, reason, code)| Announced { request_id, reason, code })
}

fn ask_hosts() -> impl Strategy<Value = AskHosts> {
    let known = proptest::collection::btree_map(name().prop_map(|name| name.to_string()), any::<u64>(), 0..4);
    let known = known.prop_map(|known| known.into_iter().map(|(id, version)| (id.into(), version)).collect());
    (name(), any::<bool>(), known).prop_map(|(request_id, watch, known)| AskHosts { request_id, watch, known })
}

fn hosts() -> impl Strategy<Value = Hosts> {
    let host = (name(), any::<(bool, u64, u64)>(), of(body()));
    let host = host.prop_map(|(id, (online, since_ms, version), manifest)| HostEntry {
        id,
        online,
        since_ms,
        version,
        manifest,
    });
    (name(), vec(host, 0..4)).prop_map(|(request_id, hosts)| Hosts { request_id, hosts })
}

fn batch() -> impl Strategy<Value = Body> {
    (1..u64::MAX / 2, 1..65u64).prop_map(|(first, count)| {
        let (last, events) = (first + count - 1, vec!["null"; count as usize].join(","));
        let text = format!(r#"{{"first_seq":{first},"last_seq":{last},"qos":"snapshot","events":[{events}]}}"#);
        Body::parse(text).expect("JSON")
    })
}

fn event() -> impl Strategy<Value = Event> {
    let parts = (name(), name(), body());
    parts.prop_map(|(peer, correlation_id, body)| Event { peer, correlation_id, body })
}

pub fn envelope() -> impl Strategy<Value = Envelope> {
    let parts = (name(), name(), body(), any::<i64>(), of(name()), of(any_text()));
    parts.prop_map(|(id, kind, body, created_at, correlation_id, trace)| {
        let message = InboxMessage {
            id: MsgId::from(id),
            from: AgentRef::new("unsealed"),
            kind: InboxKind::from(kind),
            body,
            created_at: Timestamp(created_at),
            correlation_id: correlation_id.map(MsgId::from),
            trace: trace.map(ByteString::from),
        };
        message.seal()
    })
}

fn framing() -> impl Strategy<Value = Framing> {
    prop_oneof![Just(Framing::Json), Just(Framing::Compact)]
}

fn range() -> impl Strategy<Value = (u64, u64)> {
    any::<(u64, u64)>().prop_map(|(a, b)| (a.min(b), a.max(b)))
}

fn unknown_kind(known: &'static [&'static str]) -> impl Strategy<Value = String> {
    any_text().prop_filter("an unknown kind", |kind| !known.contains(&kind.as_str()))
}

/// Names in any script, mostly short, occasionally of maximum length.
fn name() -> impl Strategy<Value = ByteString> {
    let chars = prop_oneof![proptest::char::range(' ', '~'), any::<char>()];
    let allowed = chars.prop_map(|c| if c.is_control() || matches!(c, '/' | '\\') { '_' } else { c });
    let short = vec(allowed, 1..20).prop_map(|chars| chars.into_iter().collect::<String>());
    let longest = Just("n".repeat(toolbus_protocol::MAX_NAME_BYTES));
    let any = prop_oneof![20 => short, 1 => longest];
    any.prop_filter("an acceptable name", |name| check_name(name).is_ok()).prop_map(ByteString::from)
}

fn any_text() -> impl Strategy<Value = String> {
    vec(any::<char>(), 0..20).prop_map(|chars| chars.into_iter().collect())
}

fn body() -> impl Strategy<Value = Body> {
    json_text().prop_map(|text| Body::parse(text).expect("the strategy generates JSON"))
}

/// JSON in unusual spellings: whitespace, escapes, extreme numbers and duplicate keys.
fn json_text() -> impl Strategy<Value = String> {
    let number = prop_oneof!["-?(0|[1-9][0-9]{0,40})(\\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?"];
    let plain = any_text().prop_map(|text| serde_json::to_string(&text).expect("strings always serialise"));
    let escaped = "\"(\\\\u[0-9a-fA-F]{4}|\\\\[bfnrt/\"\\\\]|[a-zA-Z{}\\[\\],:]){0,12}\"";
    let leaf = prop_oneof![Just("null".to_owned()), Just("true".to_owned()), number, plain, escaped];
    leaf.prop_recursive(5, 40, 4, |inner| {
        let member =
            (whitespace(), any_text(), whitespace(), inner.clone(), whitespace()).prop_map(|(a, key, b, value, c)| {
                let key = serde_json::to_string(&key).expect("strings always serialise");
                format!("{a}{key}{b}:{value}{c}")
            });
        let item = (whitespace(), inner, whitespace()).prop_map(|(a, value, b)| format!("{a}{value}{b}"));
        prop_oneof![
            vec(member, 0..4).prop_map(|members| format!("{{{}}}", members.join(","))),
            vec(item, 0..4).prop_map(|items| format!("[{}]", items.join(","))),
        ]
    })
}

fn whitespace() -> impl Strategy<Value = &'static str> {
    proptest::sample::select(vec!["", "", " ", "\n\t", "\r\n  "])
}
