//! The frame that each golden file encodes, by file name.

use bytestring::ByteString;
use toolbus_protocol::{
    AckResult, AgentEnd, AgentRef, Announce, Announced, AskHosts, Body, BrokerFrame, CancelOutcome, CancelResult,
    ClientFrame, Connection, Deliver, Envelope, ErrorCode, Event, Follow, Followed, Framing, Hello, HostEntry, Hosts,
    InboxKind, InboxMessage, Inspect, Inspected, JournalClaim, Limits, MailboxStatus, MessageRef, MessageRow, MsgId,
    Push, Refusal, RoleManifest, Status, Timestamp, Welcome,
};

const CALL: &str = "7c0e1d3a-58f4-4b21-9a6e-0d9c2f4b7e11";
const REPLY: &str = "b51f0c9e-2f0d-4a3c-8d55-6f1f3a0b9c22";
const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const BATCH: &str = r#"{"first_seq":4,"last_seq":5,"qos":"ephemeral","events":[{"type":"token"},{"type":"token"}]}"#;
/// 2026-11-15T19:34:13.123456Z
const SENT_AT: Timestamp = Timestamp(1_794_771_253_123_456_000);

pub fn worker() -> AgentRef {
    AgentRef::new("worker-7#mcp").with_role("researcher")
}

fn host() -> AgentRef {
    AgentRef::new("desktop#mcp").with_role("host")
}

/// A client frame and its sender.
pub struct ClientSample {
    pub name: &'static str,
    pub me: AgentRef,
    pub frame: ClientFrame,
}

pub fn client() -> Vec<ClientSample> {
    let from_worker = |(name, frame)| ClientSample { name, me: worker(), frame };
    let from = |name, me, frame| ClientSample { name, me, frame };
    let mut samples: Vec<ClientSample> = small_client_frames().into_iter().map(from_worker).collect();
    samples.extend(delivers().into_iter().map(from_worker));
    samples.extend(bodies().into_iter().map(from_worker));
    let ask = message("ask-1", "ask", r#"{"question":"status?","mode":"query"}"#);
    samples.push(from("deliver_ask", AgentRef::new("parent"), deliver("worker-8", ask, None, None)));
    let result = r#"{"result":{"success":true,"result":"ran nova_click args={\"mark\":7}"}}"#;
    let reply = message(REPLY, "mcp_reply", result).correlated_to(CALL.into());
    samples.push(from("deliver_reply_with_ack", host(), deliver("worker-7#mcp", reply, None, Some(42))));
    let unicode = message("b3", "task", "\"äöü ☃ 🦀 \u{2028} \u{200f}\"");
    let sender = AgentRef::new("wörker").with_role("prüfer");
    samples.push(from("deliver_body_unicode", sender, deliver("näme ☃", unicode, None, None)));
    samples
}

fn small_client_frames() -> Vec<(&'static str, ClientFrame)> {
    let hello =
        |agent, version, framing| ClientFrame::Hello(Hello { agent, token: "s3cret".to_owned(), version, framing });
    let event = |body| {
        let (peer, correlation_id) = ("worker-7#mcp".into(), CALL.into());
        ClientFrame::Event(Event { peer, correlation_id, body })
    };
    let batch = Event { peer: "worker-7#mcp".into(), correlation_id: CALL.into(), body: body(BATCH) };
    vec![
        ("hello", hello(worker(), None, None)),
        ("hello_without_role", hello(AgentRef::new("worker-7#mcp"), None, None)),
        ("hello_version_2", hello(worker(), Some(2), Some(Framing::Json))),
        ("hello_compact", hello(worker(), Some(2), Some(Framing::Compact))),
        ("subscribe", ClientFrame::Subscribe),
        ("ack", ClientFrame::Ack { id: CALL.into() }),
        ("ack_tags", ClientFrame::AckTags { tags: vec![1, 2, 300, u64::MAX] }),
        ("ack_tags_none", ClientFrame::AckTags { tags: vec![] }),
        ("ack_with_receipt", ClientFrame::AckWithReceipt { id: CALL.into(), request_id: "ack-9".into() }),
        ("cancel", cancel(None)),
        ("cancel_with_request_id", cancel(Some("cancel-3"))),
        ("list_connected", ClientFrame::ListConnected { role: "researcher".into() }),
        ("list_connected_empty", ClientFrame::ListConnected { role: "".into() }),
        ("live_event", event(body(r#"{ "progress": 0.50, "total": 1.0 }"#))),
        ("live_event_null", event(Body::null())),
        ("publish_event_batch", ClientFrame::EventBatch(batch)),
        ("status", ClientFrame::Status { request_id: "ps-1".into() }),
        ("inspect", inspect()),
        ("inspect_nothing", ClientFrame::Inspect(Inspect { request_id: "l-1".into(), ..Inspect::default() })),
        ("follow", follow()),
        ("follow_nothing", ClientFrame::Follow(Follow { request_id: "f-1".into(), ..Follow::default() })),
        ("unfollow", ClientFrame::Unfollow { request_id: "f-1".into() }),
        ("claim", claim(vec![])),
        ("claim_ancestors", claim(vec!["9d0b4f9f-7b0f-4c8a-b540-0a8f5b1c2d3e".into(), "older".into()])),
        ("refused", ClientFrame::Refused { tags: vec![7, 300] }),
        ("announce", announce(vec![(None, r#"{ "tools": [1.0] }"#), (Some("researcher"), "null")])),
        ("announce_nothing", announce(vec![])),
        ("hosts", ask_hosts(false, vec![])),
        ("hosts_watch", ask_hosts(true, vec![("desktop".into(), 7), ("näme ☃".into(), u64::MAX)])),
    ]
}

fn cancel(request_id: Option<&'static str>) -> ClientFrame {
    let request_id = request_id.map(Into::into);
    ClientFrame::Cancel { to: "desktop#mcp".into(), correlation_id: CALL.into(), request_id }
}

fn inspect() -> ClientFrame {
    let message = |to: &'static str, id: &'static str| MessageRef { to: to.into(), id: id.into() };
    ClientFrame::Inspect(Inspect {
        request_id: "l-1".into(),
        peers: vec!["worker-7#mcp".into(), "näme ☃".into()],
        messages: vec![message("desktop", CALL), message("worker-7#mcp", REPLY)],
        rows_of: Some("desktop".into()),
    })
}

fn follow() -> ClientFrame {
    ClientFrame::Follow(Follow {
        request_id: "f-1".into(),
        peers: vec!["worker-7#mcp".into(), "näme ☃".into()],
        messages: vec![MessageRef { to: "worker-7#mcp".into(), id: REPLY.into() }],
    })
}

fn announce(manifests: Vec<(Option<&'static str>, &str)>) -> ClientFrame {
    let manifest =
        |(role, text): (Option<&'static str>, &str)| RoleManifest { role: role.map(Into::into), manifest: body(text) };
    ClientFrame::Announce(Announce {
        request_id: "a-1".into(),
        manifests: manifests.into_iter().map(manifest).collect(),
    })
}

fn ask_hosts(watch: bool, known: Vec<(ByteString, u64)>) -> ClientFrame {
    ClientFrame::Hosts(AskHosts { request_id: "h-1".into(), watch, known })
}

fn delivers() -> Vec<(&'static str, ClientFrame)> {
    let manifest = message(CALL, "mcp_request", r#"{"op":"manifest"}"#);
    let reply = message("reply-1", "reply", r#"{"answer":"done"}"#).correlated_to("ask-1".into());
    let click = r#"{"op":"call","tool":"nova_click","arguments":"{\"mark\":7}"}"#;
    let mut call = message(CALL, "mcp_request", click);
    call.trace = Some(TRACE.into());
    let mut early = message("t1", "task", "0");
    early.created_at = Timestamp(-1);
    let mut again = deliver("desktop#mcp", message("a1", "task", "null"), Some(30_000), None);
    if let ClientFrame::Deliver(deliver) = &mut again {
        deliver.age_ms = Some(1_500);
    }
    vec![
        ("deliver", deliver("desktop#mcp", manifest, None, None)),
        ("deliver_reply", deliver("parent", reply, None, None)),
        ("deliver_deadline", deliver("desktop#mcp", call, Some(30_000), None)),
        ("deliver_zero_deadline", deliver("desktop#mcp", message("d0", "task", "null"), Some(0), Some(u64::MAX))),
        ("deliver_message_of_unknown_kind", deliver("worker-8", message("k1", "session_envelope", "[]"), None, None)),
        ("deliver_nanoseconds", deliver("n", early, None, None)),
        ("deliver_again", again),
    ]
}

/// Bodies that parsing and re-encoding would change.
fn bodies() -> Vec<(&'static str, ClientFrame)> {
    let of = |name, id: &str, text: &str| (name, deliver("n", message(id, "task", text), None, None));
    vec![
        of(
            "deliver_body_numbers",
            "b1",
            "[9007199254740993,123456789012345678901234567890,1.0,-0,-0.0,0.1000000000000000055511151231257827,1E+2]",
        ),
        of(
            "deliver_body_escapes",
            "b2",
            r#"{"plain":"A","escaped":"\u0041\/\b\f\n\r\t\\\"","pair":"\ud83e\udd80","nul":"\u0000"}"#,
        ),
        of("deliver_body_whitespace", "b4", "{ \"a\" :\t[ 1 ,\n  2 ] , \"b\":{ } }"),
        of("deliver_body_repeated_keys", "b5", r#"{"a":1,"a":2,"kind":"ack","message":{"id":"inner"}}"#),
        of("deliver_body_null", "b6", "null"),
        of("deliver_body_string", "b7", r#""}]},\"ack\":1""#),
        of("deliver_body_deepest", "b8", &format!("{}{}", "[".repeat(100), "]".repeat(100))),
    ]
}

pub fn broker() -> Vec<(&'static str, BrokerFrame)> {
    let mut samples = handshake_and_errors();
    samples.extend(pushes());
    samples.extend(answers());
    samples
}

fn handshake_and_errors() -> Vec<(&'static str, BrokerFrame)> {
    let limits = Limits { max_frame_bytes: 16 << 20, window_messages: 1024, window_bytes: 2 << 20 };
    let compact = Some(Framing::Compact);
    let (version, heartbeat_ms) = (Some(2), Some(15_000));
    let welcome = Welcome { version, framing: compact, limits: Some(limits), heartbeat_ms, agent: None };
    let plain = Welcome { version, framing: Some(Framing::Json), ..Welcome::default() };
    let named = Welcome { agent: Some(AgentRef::new("worker-7#mcp").with_role("researcher")), ..welcome.clone() };
    let nameless = Welcome { agent: Some(AgentRef::new("worker-7")), ..plain.clone() };
    let error = |reason: &str, id: Option<&'static str>, code| {
        BrokerFrame::Error(Refusal { reason: reason.to_owned(), id: id.map(ByteString::from_static), code })
    };
    let full = "mailbox 'desktop#mcp' is full (2 pending messages)";
    vec![
        ("welcome", BrokerFrame::Welcome(Welcome::default())),
        ("welcome_version_2", BrokerFrame::Welcome(welcome)),
        ("welcome_json", BrokerFrame::Welcome(plain)),
        ("welcome_agent", BrokerFrame::Welcome(named)),
        ("welcome_agent_without_role", BrokerFrame::Welcome(nameless)),
        ("broker_identity", BrokerFrame::BrokerIdentity { id: "0c8a3a54-7b0f-4f9f-9d0b-0a8f5b1c2d3e".into() }),
        ("error", error("invalid token", None, None)),
        ("error_for_a_message", error(full, Some(CALL), None)),
        ("error_with_code", error("the token is not valid here", None, Some(ErrorCode::BadCredentials))),
        ("error_for_a_message_with_code", error("id 'x' was already used", Some(CALL), Some(ErrorCode::IdConflict))),
    ]
}

fn pushes() -> Vec<(&'static str, BrokerFrame)> {
    let push = |from, tag, attempt, deadline_ms, envelope| {
        BrokerFrame::Message(Push { tag, attempt, from, deadline_ms, envelope })
    };
    let manifest = message(CALL, "mcp_request", r#"{"op":"manifest"}"#).seal();
    let denial = r#"{ "error": "tool 'x' is not allowed for role 'researcher'" }"#;
    let mut reply = message(REPLY, "mcp_reply", denial).correlated_to(CALL.into());
    reply.trace = Some(TRACE.into());
    let unknown: Envelope = message("k1", "session_envelope", "1.0").seal();
    vec![
        ("message", push(worker(), None, 1, None, manifest.clone())),
        ("message_tagged", push(AgentRef::new("worker-7#mcp"), Some(1), 1, None, manifest)),
        ("message_again", push(host(), Some(300), 3, Some(29_875), reply.seal())),
        ("message_of_unknown_kind", push(worker(), None, 1, None, unknown)),
    ]
}

fn answers() -> Vec<(&'static str, BrokerFrame)> {
    let ack_result = |accepted, reason: Option<&str>| {
        let (id, request_id) = (CALL.into(), "ack-9".into());
        BrokerFrame::AckResult(AckResult { id, request_id, accepted, reason: reason.map(str::to_owned) })
    };
    let progress = body(r#"{ "progress": 0.50, "total": 1.0 }"#);
    let event = Event { peer: "desktop#mcp".into(), correlation_id: CALL.into(), body: progress };
    let idle = Status { request_id: "ps-1".into(), ..Status::default() };
    vec![
        ("delivered", BrokerFrame::Delivered { id: CALL.into() }),
        ("receipts", BrokerFrame::Receipts { ranges: vec![(1, 1), (3, 200), (5_000_000_000, 5_000_000_001)] }),
        ("receipts_none", BrokerFrame::Receipts { ranges: vec![] }),
        ("receipts_out_of_order", BrokerFrame::Receipts { ranges: vec![(7, 9), (2, 2), (1, u64::MAX)] }),
        ("ack_result", ack_result(true, None)),
        ("ack_result_refused", ack_result(false, Some("no such message"))),
        ("cancel", BrokerFrame::Cancel { correlation_id: CALL.into(), from: Some("worker-7#mcp".into()) }),
        ("cancel_without_sender", BrokerFrame::Cancel { correlation_id: CALL.into(), from: None }),
        ("cancel_result", cancel_result(CancelOutcome::Withdrawn)),
        ("cancel_result_running", cancel_result(CancelOutcome::Running)),
        ("cancel_result_finished", cancel_result(CancelOutcome::Finished)),
        ("cancel_result_unknown", cancel_result(CancelOutcome::Unknown)),
        ("connected", BrokerFrame::Connected { ids: vec!["worker-7#mcp".into(), "worker-8".into()] }),
        ("connected_nobody", BrokerFrame::Connected { ids: vec![] }),
        ("live_event", BrokerFrame::Event(event)),
        ("event_batch", BrokerFrame::EventBatch { correlation_id: CALL.into(), batch: body(BATCH) }),
        ("status", BrokerFrame::Status(busy_status())),
        ("status_empty", BrokerFrame::Status(idle)),
        ("inspected", BrokerFrame::Inspected(inspected())),
        ("inspected_nothing", BrokerFrame::Inspected(Inspected { request_id: "l-1".into(), ..Inspected::default() })),
        ("followed", followed(vec![true, false], vec![true])),
        ("followed_nothing", followed(vec![], vec![])),
        ("announced", announced(None, None)),
        ("announced_refused", announced(Some("a manifest of 9000000 bytes"), Some(ErrorCode::ManifestRefused))),
        ("hosts", BrokerFrame::Hosts(hosts())),
        ("hosts_none", BrokerFrame::Hosts(Hosts { request_id: "h-1".into(), hosts: vec![] })),
        ("hosts_changed", BrokerFrame::HostsChanged),
        ("unsure", BrokerFrame::Unsure { id: "7c0e1d3a".into() }),
        ("agents_ended", BrokerFrame::AgentsEnded { agents: vec![agent_end(false)] }),
        ("agents_ended_expired", BrokerFrame::AgentsEnded { agents: vec![agent_end(true), agent_end(false)] }),
    ]
}

fn agent_end(expired: bool) -> AgentEnd {
    AgentEnd { name: "worker-7".into(), generation: 2, expired }
}

fn cancel_result(outcome: CancelOutcome) -> BrokerFrame {
    BrokerFrame::CancelResult(CancelResult { request_id: "cancel-3".into(), correlation_id: CALL.into(), outcome })
}

fn followed(peers: Vec<bool>, uncollected: Vec<bool>) -> BrokerFrame {
    BrokerFrame::Followed(Followed { request_id: "f-1".into(), peers, uncollected })
}

fn announced(reason: Option<&str>, code: Option<ErrorCode>) -> BrokerFrame {
    BrokerFrame::Announced(Announced { request_id: "a-1".into(), reason: reason.map(str::to_owned), code })
}

fn inspected() -> Inspected {
    let row = |id: &'static str, age_ms, attempt, in_flight, deadline_ms| MessageRow {
        id: id.into(),
        from: "worker-7#mcp".into(),
        age_ms,
        attempt,
        in_flight,
        deadline_ms,
    };
    Inspected {
        request_id: "l-1".into(),
        peers: vec![true, false],
        unknown: vec![false, true],
        messages: vec![Some(2), None],
        settled: vec![false, true],
        remembered_ms: 3_600_000,
        rows: vec![row(CALL, 1500, 3, true, Some(28_500)), row("q-2", 0, 0, false, None)],
        more: true,
    }
}

fn hosts() -> Hosts {
    let host = |id: &'static str, online, since_ms, version, manifest: Option<&str>| HostEntry {
        id: id.into(),
        online,
        since_ms,
        version,
        manifest: manifest.map(body),
    };
    Hosts {
        request_id: "h-1".into(),
        hosts: vec![
            host("desktop", true, 61_000, 9, Some(r#"{ "tools": [1.0] }"#)),
            host("laptop", false, 0, u64::MAX, None),
            host("shed", false, 7, 0, Some("null")),
        ],
    }
}

fn busy_status() -> Status {
    let mailbox = |name: &'static str, messages, bytes, in_flight, oldest_ms| MailboxStatus {
        name: name.into(),
        messages,
        bytes,
        in_flight,
        oldest_ms,
    };
    Status {
        request_id: "ps-1".into(),
        connections: vec![
            Connection { agent: host(), subscribed: true, connected_ms: 61_000 },
            Connection { agent: AgentRef::new("cli"), subscribed: false, connected_ms: 3 },
        ],
        mailboxes: vec![mailbox("desktop#mcp", 3, 4096, 2, Some(1500)), mailbox("worker-8", 0, 0, 0, None)],
        more_mailboxes: 12,
        set_aside: 1,
    }
}

fn deliver(to: &'static str, message: InboxMessage, deadline_ms: Option<u64>, ack: Option<u64>) -> ClientFrame {
    ClientFrame::Deliver(Deliver { to: to.into(), envelope: message.seal(), deadline_ms, ack, age_ms: None })
}

pub fn message(id: &str, kind: &str, text: &str) -> InboxMessage {
    InboxMessage {
        id: MsgId::from(id),
        from: worker(),
        kind: InboxKind::from(kind),
        body: body(text),
        created_at: SENT_AT,
        correlation_id: None,
        trace: None,
    }
}

fn body(text: &str) -> Body {
    Body::parse(text.to_owned()).expect("the samples' bodies are JSON")
}

fn claim(ancestors: Vec<ByteString>) -> ClientFrame {
    ClientFrame::Claim(JournalClaim {
        journal: "0c8a3a54-7b0f-4f9f-9d0b-0a8f5b1c2d3e".into(),
        epoch: 7,
        instance: "5b1c2d3e-9d0b-4f9f-7b0f-0c8a3a540a8f".into(),
        ancestors,
    })
}
