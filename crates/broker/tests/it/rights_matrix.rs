//! Rights of every kind of peer, for every frame, forgeable field and framing. An oracle that does not use the engine
//! gives the expected outcome; the actual one is observed on the wire at both ends.

mod inspection;
mod shares;
mod signals;

use crate::support::{Bus, Credentials, Framing, HOST, OPERATOR, Peer, Seen, Setup, WORKER, hello_as, within};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use toolbus_broker::{CoreOptions, Rights, SendRules, ServerOptions};
use toolbus_engine::EngineOptions;
use toolbus_identity::principal_of;
use toolbus_protocol::{AgentRef, Body, ClientFrame, Deliver, InboxMessage};

/// All agents with their roles and rights. `free` uses a shared token.
const AGENTS: [(&str, &str, Rights); 6] = [
    ("w1", "worker", WORKER),
    ("w2", "worker", WORKER),
    ("h1", "host", HOST),
    ("h2", "host", HOST),
    ("op", "operator", OPERATOR),
    ("free", "any", Rights::UNRESTRICTED),
];
const KINDS: [&str; 8] =
    ["mcp_request", "mcp_reply", "reply", "mcp_event", "task", "ask", "approval_reply", "MCP_reply"];
const RECIPIENTS: [&str; 8] = ["w1", "w2", "h1", "h2", "op", "w1#sub", "h1#sub", "absent"];
const CORRELATIONS: [&str; 6] = ["", "q1", "q2", "a1", "done", "unknown"];
/// Messages that are pending when an attack begins: id, sender, mailbox. `done` is acknowledged already.
const OPEN: [(&str, &str, &str); 4] =
    [("q1", "w1", "h1"), ("q2", "w2#sub", "h2"), ("a1", "op", "w1"), ("done", "w1", "h1")];

struct Rules;

/// Only `w1` may send unsolicited messages, and only to `w2`.
impl SendRules for Rules {
    fn may_message(&self, from_role: Option<&str>, from_name: &str, to: &str) -> bool {
        from_role == Some("worker") && principal_of(from_name) == "w1" && to == "w2"
    }
}

/// The attacking agent and the mailbox that it connects as.
#[derive(Clone, Copy)]
struct Attacker {
    name: &'static str,
    mailbox: &'static str,
}

/// The expected refusal code of a message, if any. Derived from the protocol's rules, not from the engine.
fn oracle(attacker: Attacker, kind: &str, to: &str, correlation: &str) -> Option<&'static str> {
    if attacker.name == "free" {
        return None;
    }
    let to_host = matches!(to, "h1" | "h2");
    let operator = attacker.name == "op";
    let host = attacker.name == "h1" || attacker.name == "h2";
    let send_rule = attacker.name == "w1" && to == "w2";
    let holds = |id: &str| OPEN.contains(&(id, to, attacker.mailbox));
    let allowed = match kind {
        "mcp_request" => to_host,
        "mcp_reply" => holds(correlation) && correlation != "done",
        "reply" => holds(correlation),
        "mcp_event" => host || operator || send_rule,
        _ => operator || send_rule,
    };
    match (allowed, kind) {
        (true, _) => None,
        (false, "mcp_reply" | "reply") => Some("TB0215"),
        (false, _) => Some("TB0216"),
    }
}

struct Fixture {
    bus: Bus,
    /// One subscribed connection per agent.
    subscribers: BTreeMap<&'static str, Peer>,
}

async fn fixture() -> Fixture {
    let credentials =
        AGENTS.into_iter().fold(Credentials::default(), |all, (name, role, rights)| all.add(name, role, rights));
    let wide = EngineOptions {
        window_messages: 1 << 20,
        window_bytes: 1 << 30,
        host_window_messages: 1 << 20,
        ..EngineOptions::default()
    };
    // An agent that is refused so often would be slowed down.
    let server = ServerOptions { max_requests: 1 << 40, ..ServerOptions::default() };
    let setup = Setup { core: CoreOptions { engine: wide, ..CoreOptions::default() }, server };
    let bus = Bus::with_credentials(setup, &credentials).await;
    bus.server().set_send_rules(Arc::new(Rules));
    let mut subscribers = BTreeMap::new();
    for (name, _, _) in AGENTS {
        let mut subscriber = join(&bus, name, name, Framing::Json).await;
        subscriber.subscribe().await;
        subscribers.insert(name, subscriber);
    }
    let mut sub = join(&bus, "w2", "~#sub", Framing::Json).await;
    for (id, from, to) in OPEN {
        let kind = if id == "a1" { "ask" } else { "mcp_request" };
        let mut frame = message(id, kind, to, "", None);
        frame["deadline_ms"] = 600_000.into();
        let sender = if from == "w2#sub" { &mut sub } else { subscribers.get_mut(from).expect("an agent") };
        sender.send(frame).await;
        sender.next_of("delivered").await;
        subscribers.get_mut(to).expect("an agent").expect_message(id).await;
    }
    subscribers.get_mut("h1").expect("a host").ack_confirmed("done").await;
    Fixture { bus, subscribers }
}

async fn join(bus: &Bus, agent: &str, claimed: &str, framing: Framing) -> Peer {
    Peer::join(bus.address, hello_as(agent, claimed, None, framing)).await
}

fn message(id: &str, kind: &str, to: &str, correlation: &str, from: Option<&Value>) -> Value {
    let mut message = json!({"id": id, "kind": kind, "body": id, "created_at": "2026-11-15T19:34:13Z"});
    if !correlation.is_empty() {
        message["correlation_id"] = correlation.into();
    }
    if let Some(from) = from {
        message["from"] = from.clone();
    }
    json!({"kind": "deliver", "to": to, "message": message})
}

fn compact_message(id: &str, kind: &str, to: &str, correlation: &str) -> ClientFrame {
    let body = Body::of(&id).expect("a text");
    let mut message = InboxMessage::new(AgentRef::new("boss"), kind.to_owned(), body);
    message.id = id.to_owned().into();
    message.correlation_id = (!correlation.is_empty()).then(|| correlation.to_owned().into());
    ClientFrame::Deliver(Deliver {
        to: to.to_owned().into(),
        envelope: message.seal(),
        deadline_ms: None,
        ack: None,
        age_ms: None,
    })
}

struct Case {
    id: String,
    to: &'static str,
    refusal: Option<&'static str>,
}

/// Sends every combination of kind, recipient, correlation id and forged sender; returns the cases in order.
async fn send_all(attacker: Attacker, peer: &mut Peer, framing: Framing) -> Vec<Case> {
    let forged_senders = [
        None,
        Some(json!({"session_id": "h1", "role": "host"})),
        Some(json!({"session_id": "op", "role": "operator"})),
    ];
    let mut cases = Vec::new();
    for kind in KINDS {
        for to in RECIPIENTS {
            for correlation in CORRELATIONS {
                for forged in &forged_senders {
                    let id = format!("case-{}", cases.len());
                    match (framing, forged) {
                        (Framing::Compact, None) => {
                            peer.send_compact(&[compact_message(&id, kind, to, correlation)]).await
                        }
                        // Compact framing has no sender field, but JSON text is accepted as well.
                        _ => peer.send(message(&id, kind, to, correlation, forged.as_ref())).await,
                    }
                    cases.push(Case { id, to, refusal: oracle(attacker, kind, to, correlation) });
                }
            }
            // An id that is already in use must not bypass the rules or reveal the other message.
            if to == "h1" {
                peer.send(message("q1", kind, to, "q1", None)).await;
                let refusal = oracle(attacker, kind, to, "q1").or(Some("TB0203"));
                cases.push(Case { id: "q1".to_owned(), to, refusal });
            }
        }
    }
    cases
}

/// The refusal code of each case in order, from receipts and errors.
async fn outcomes(peer: &mut Peer, cases: &[Case]) -> Vec<Option<String>> {
    let numbers: BTreeMap<&str, usize> = cases.iter().enumerate().map(|(n, case)| (&*case.id, n)).collect();
    let mut reused_ids: std::collections::VecDeque<usize> =
        cases.iter().enumerate().filter(|(_, case)| case.id == "q1").map(|(n, _)| n).collect();
    let mut found: BTreeMap<usize, Option<String>> = BTreeMap::new();
    within("a response to every message", async {
        while found.len() < cases.len() {
            let frame = peer.frame().await;
            match frame["kind"].as_str().unwrap_or_default() {
                "error" => {
                    let id = frame["id"].as_str().unwrap_or_else(|| panic!("{frame}"));
                    let number = if id == "q1" { reused_ids.pop_front().expect("a reused id") } else { numbers[id] };
                    found.insert(number, frame["code"].as_str().map(str::to_owned));
                }
                "delivered" => {
                    found.insert(numbers[frame["id"].as_str().unwrap_or_default()], None);
                }
                "receipts" => {
                    for range in frame["ranges"].as_array().expect("ranges") {
                        let number = |n: usize| range[n].as_u64().expect("a number") as usize - 1;
                        found.extend((number(0)..=number(1)).map(|number| (number, None)));
                    }
                }
                _ => {}
            }
        }
    })
    .await;
    found.into_values().collect()
}

/// Frames of that kind that a subscriber has received since the last call.
async fn received(subscriber: &mut Peer, kind: &str) -> Vec<Value> {
    let frames = subscriber.drain().await;
    frames.into_iter().filter(|frame| frame["kind"] == kind).collect()
}

async fn attack_with_messages(
    name: &'static str,
    claimed: &'static str,
    mailbox: &'static str,
    framing: Framing,
) -> usize {
    let attacker = Attacker { name, mailbox };
    let mut fixture = fixture().await;
    let mut peer = join(&fixture.bus, name, claimed, framing).await;
    let cases = send_all(attacker, &mut peer, framing).await;
    let outcomes = outcomes(&mut peer, &cases).await;
    let mut accepted: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (case, outcome) in cases.iter().zip(&outcomes) {
        assert_eq!(outcome.as_deref(), case.refusal, "{} to {} from {mailbox}, {framing:?}", case.id, case.to);
        if outcome.is_none() {
            accepted.entry(case.to).or_default().insert(&case.id);
        }
    }
    for (to, subscriber) in &mut fixture.subscribers {
        let mut arrived = BTreeSet::new();
        for frame in received(subscriber, "message").await {
            let from = &frame["message"]["from"];
            assert_eq!(from["session_id"], mailbox, "the sender is stamped: {frame}");
            let role = AGENTS.iter().find(|agent| agent.0 == name).expect("an agent").1;
            let stamped = if name == "free" { Value::Null } else { role.into() };
            assert_eq!(from["role"], stamped, "{frame}");
            arrived.insert(frame["message"]["id"].as_str().expect("an id").to_owned());
        }
        let expected = accepted.remove(to).unwrap_or_default();
        assert_eq!(arrived.iter().map(String::as_str).collect::<BTreeSet<_>>(), expected, "at {to}");
    }
    cases.len()
}

/// Requests to the broker, and acknowledgements of other agents' messages.
async fn attack_with_requests(name: &'static str, claimed: &'static str, mailbox: &str, framing: Framing) -> usize {
    let fixture = fixture().await;
    let mut peer = join(&fixture.bus, name, claimed, framing).await;
    let all = ["w1", "w2", "h1", "h2", "op", "free"];
    let may_see = |other: &str| {
        matches!(name, "h1" | "h2" | "op" | "free") || matches!(other, "h1" | "h2") || (name == "w1" && other == "w2")
    };
    let mut cases = 0;
    for (_, role, _) in AGENTS.into_iter().filter(|agent| agent.0 != "free") {
        peer.send(json!({"kind": "list_connected", "role": role, "from": "op"})).await;
        let response = peer.next_of("connected").await;
        let of_role = |other: &&str| AGENTS.iter().any(|agent| agent.0 == *other && agent.1 == role);
        let mut expected: Vec<&str> = all.into_iter().filter(of_role).filter(|other| may_see(other)).collect();
        expected.sort_unstable();
        assert_eq!(response["ids"], json!(expected), "{name} lists {role}");
        cases += 1;
    }
    peer.send(json!({"kind": "status", "request_id": "s", "agent": {"session_id": "op", "role": "operator"}})).await;
    match name {
        "op" | "free" => assert_eq!(peer.next_of("status").await["request_id"], "s"),
        _ => assert_eq!(peer.expect_error("TB0218").await["id"], "s"),
    }
    cases += inspection::check_inspect(&mut peer, name, mailbox).await;
    cases += inspection::check_follow(&mut peer, name, mailbox).await;
    for id in ["q1", "q2", "a1"] {
        let (_, _, holder) = OPEN.into_iter().find(|open| open.0 == id).expect("a pending message");
        if holder != mailbox {
            peer.ack(id).await;
            peer.expect_error("TB0205").await;
            assert!(peer.ack_confirmed(id).await["reason"].is_string(), "it has no effect");
            peer.send(json!({"kind": "ack_tags", "tags": [1, 2, 3, 4]})).await;
            cases += 3;
        }
    }
    if framing == Framing::Compact {
        for manifests in [json!([{"manifest": 1}]), json!([])] {
            peer.send(
                json!({"kind": "announce", "request_id": "a", "manifests": manifests, "agent": {"session_id": "h1"}}),
            )
            .await;
            let refused = (name == "w1" || name == "w2" || name == "op").then_some("TB0217");
            assert_eq!(peer.next_of("announced").await["code"].as_str(), refused, "{name}");
            cases += 1;
        }
    }
    cases + 1
}

/// Names and roles that a `hello` may claim.
async fn attack_with_hellos(bus: &Bus, framing: Framing) -> usize {
    let mut cases = 0;
    let suffixes = ["", "#sub", "#a#b"];
    let names = ["w1", "w2", "h1", "h2", "op", "free", "~", "~~", "W1", "w1 ", "w", "#w1", "w1~"];
    for (agent, own_role, rights) in AGENTS {
        for name in names {
            for suffix in suffixes {
                for role in [None, Some("worker"), Some("host"), Some("operator"), Some("Worker")] {
                    let claimed = format!("{name}{suffix}");
                    let mut peer = Peer::connect(bus.address).await;
                    peer.send(hello_as(agent, &claimed, role, framing)).await;
                    let first = peer.frame().await;
                    let may_claim = rights.unrestricted || name == agent || name == "~";
                    let code = match (may_claim, role.is_none_or(|role| role == own_role || rights.unrestricted)) {
                        (false, _) => Some("TB0114"),
                        (true, false) => Some("TB0115"),
                        (true, true) => None,
                    };
                    assert_eq!(first["code"].as_str(), code, "{agent} as {claimed} in {role:?}: {first}");
                    if code.is_none() {
                        let expected = if rights.unrestricted { claimed } else { format!("{agent}{suffix}") };
                        assert_eq!(first["agent"]["session_id"], expected, "{first}");
                    } else {
                        assert!(matches!(peer.see().await, Seen::Close { .. }));
                    }
                    cases += 1;
                }
            }
        }
    }
    cases
}

/// Each kind of peer, on its main mailbox and on one with a suffix: agent, claimed name, mailbox.
fn attackers() -> Vec<(&'static str, &'static str, &'static str)> {
    vec![
        ("w1", "w1", "w1"),
        ("w1", "~#sub", "w1#sub"),
        ("w2", "~", "w2"),
        ("w2", "w2#sub", "w2#sub"),
        ("h1", "h1", "h1"),
        ("h1", "~#sub", "h1#sub"),
        ("h2", "~", "h2"),
        ("op", "op", "op"),
        ("op", "op#dead", "op#dead"),
        ("free", "guest", "guest"),
        ("free", "h1", "h1"),
    ]
}

#[tokio::test]
async fn messages_are_accepted_exactly_as_the_rules_allow() {
    let mut cases = 0;
    for framing in [Framing::Json, Framing::Compact] {
        for (name, claimed, mailbox) in attackers() {
            cases += attack_with_messages(name, claimed, mailbox, framing).await;
        }
    }
    println!("{cases} messages checked");
    assert!(cases > 20_000, "{cases}");
}

#[tokio::test]
async fn cancels_and_events_are_forwarded_exactly_as_the_rules_allow() {
    let mut cases = 0;
    for framing in [Framing::Json, Framing::Compact] {
        for (name, claimed, mailbox) in attackers() {
            cases += signals::attack_with_signals(name, claimed, mailbox, framing).await;
        }
    }
    println!("{cases} signals checked");
}

#[tokio::test]
async fn requests_acks_and_hellos_are_accepted_exactly_as_the_rules_allow() {
    let mut cases = 0;
    for framing in [Framing::Json, Framing::Compact] {
        for (name, claimed, mailbox) in attackers() {
            cases += attack_with_requests(name, claimed, mailbox, framing).await;
        }
        cases += attack_with_hellos(&fixture().await.bus, framing).await;
    }
    println!("{cases} requests and hellos checked");
}
