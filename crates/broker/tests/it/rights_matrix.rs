//! Every kind of peer, every frame, every field that can be forged, every kind of connection, both framings. What should
//! happen is said by an oracle that knows nothing of the engine; what happens is read off the wire, at both ends.

mod looks;

use crate::support::{Bus, Credentials, Framing, HOST, OPERATOR, Peer, Seen, Setup, WORKER, greeting, within};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use toolbus_broker::{CoreOptions, Rights, SendRules};
use toolbus_engine::EngineOptions;
use toolbus_identity::principal_of;
use toolbus_protocol::{AgentRef, Body, ClientFrame, Deliver, InboxMessage};

/// All agents with their roles. `free` has the shared secret of the original.
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
const RECIPIENTS: [&str; 8] = ["w1", "w2", "h1", "h2", "op", "w1#sub", "h1#sub", "nobody"];
const CORRELATIONS: [&str; 6] = ["", "q1", "q2", "a1", "done", "unknown"];
/// What is open when an attack begins: id, sender, mailbox. `done` was acknowledged.
const OPEN: [(&str, &str, &str); 4] =
    [("q1", "w1", "h1"), ("q2", "w2#sub", "h2"), ("a1", "op", "w1"), ("done", "w1", "h1")];

struct Rules;

/// Of all workers only `w1` may write, and only to `w2`.
impl SendRules for Rules {
    fn may_message(&self, from_role: Option<&str>, from_name: &str, to: &str) -> bool {
        from_role == Some("worker") && principal_of(from_name) == "w1" && to == "w2"
    }
}

/// Who attacks, from which of its mailboxes.
#[derive(Clone, Copy)]
struct Attacker {
    name: &'static str,
    mailbox: &'static str,
}

/// The code of the refusal that a message must get, if any. Written from the protocol's rules, not from the engine.
fn oracle(attacker: Attacker, kind: &str, to: &str, correlation: &str) -> Option<&'static str> {
    if attacker.name == "free" {
        return None;
    }
    let to_host = matches!(to, "h1" | "h2");
    let operator = attacker.name == "op";
    let host = attacker.name == "h1" || attacker.name == "h2";
    let written_rule = attacker.name == "w1" && to == "w2";
    let holds = |id: &str| OPEN.contains(&(id, to, attacker.mailbox));
    let allowed = match kind {
        "mcp_request" => to_host,
        "mcp_reply" => holds(correlation) && correlation != "done",
        "reply" => holds(correlation),
        "mcp_event" => host || operator || written_rule,
        _ => operator || written_rule,
    };
    match (allowed, kind) {
        (true, _) => None,
        (false, "mcp_reply" | "reply") => Some("TB0215"),
        (false, _) => Some("TB0216"),
    }
}

struct Town {
    bus: Bus,
    /// Everybody's first connection, which is subscribed.
    homes: BTreeMap<&'static str, Peer>,
}

async fn town() -> Town {
    let credentials =
        AGENTS.into_iter().fold(Credentials::default(), |all, (name, role, rights)| all.add(name, role, rights));
    let wide = EngineOptions {
        window_messages: 1 << 20,
        window_bytes: 1 << 30,
        host_window_messages: 1 << 20,
        ..EngineOptions::default()
    };
    let setup = Setup { core: CoreOptions { engine: wide, ..CoreOptions::default() }, ..Setup::default() };
    let bus = Bus::with_credentials(setup, &credentials).await;
    bus.server().set_send_rules(Arc::new(Rules));
    let mut homes = BTreeMap::new();
    for (name, _, _) in AGENTS {
        let mut home = join(&bus, name, name, Framing::Json).await;
        home.subscribe().await;
        homes.insert(name, home);
    }
    let mut sub = join(&bus, "w2", "~#sub", Framing::Json).await;
    for (id, from, to) in OPEN {
        let kind = if id == "a1" { "ask" } else { "mcp_request" };
        let mut frame = message(id, kind, to, "", None);
        frame["deadline_ms"] = 600_000.into();
        let sender = if from == "w2#sub" { &mut sub } else { homes.get_mut(from).expect("an agent") };
        sender.send(frame).await;
        sender.next_of("delivered").await;
        homes.get_mut(to).expect("an agent").expect_message(id).await;
    }
    homes.get_mut("h1").expect("a host").ack_confirmed("done").await;
    Town { bus, homes }
}

async fn join(bus: &Bus, agent: &str, claimed: &str, framing: Framing) -> Peer {
    Peer::join(bus.address, greeting(agent, claimed, None, framing)).await
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
    ClientFrame::Deliver(Deliver { to: to.to_owned().into(), envelope: message.seal(), deadline_ms: None, ack: None })
}

struct Case {
    id: String,
    to: &'static str,
    refusal: Option<&'static str>,
}

/// Sends every message that there is, and returns what should become of each, in order.
async fn send_all(attacker: Attacker, peer: &mut Peer, framing: Framing) -> Vec<Case> {
    let lies = [
        None,
        Some(json!({"session_id": "h1", "role": "host"})),
        Some(json!({"session_id": "op", "role": "operator"})),
    ];
    let mut cases = Vec::new();
    for kind in KINDS {
        for to in RECIPIENTS {
            for correlation in CORRELATIONS {
                for lie in &lies {
                    let id = format!("case-{}", cases.len());
                    match (framing, lie) {
                        (Framing::Compact, None) => {
                            peer.send_compact(&[compact_message(&id, kind, to, correlation)]).await
                        }
                        // The compact framing has no place for a sender, but text is still read.
                        _ => peer.send(message(&id, kind, to, correlation, lie.as_ref())).await,
                    }
                    cases.push(Case { id, to, refusal: oracle(attacker, kind, to, correlation) });
                }
            }
            // An id that is taken: no way around the rules, and none to another's message.
            if to == "h1" {
                peer.send(message("q1", kind, to, "q1", None)).await;
                let refusal = oracle(attacker, kind, to, "q1").or(Some("TB0203"));
                cases.push(Case { id: "q1".to_owned(), to, refusal });
            }
        }
    }
    cases
}

/// The code of each refusal in the order of the cases, from receipts and errors.
async fn outcomes(peer: &mut Peer, cases: &[Case]) -> Vec<Option<String>> {
    let numbers: BTreeMap<&str, usize> = cases.iter().enumerate().map(|(n, case)| (&*case.id, n)).collect();
    let mut taken: std::collections::VecDeque<usize> =
        cases.iter().enumerate().filter(|(_, case)| case.id == "q1").map(|(n, _)| n).collect();
    let mut found: BTreeMap<usize, Option<String>> = BTreeMap::new();
    within("an answer to every message", async {
        while found.len() < cases.len() {
            let frame = peer.frame().await;
            match frame["kind"].as_str().unwrap_or_default() {
                "error" => {
                    let id = frame["id"].as_str().unwrap_or_else(|| panic!("{frame}"));
                    let number = if id == "q1" { taken.pop_front().expect("so many") } else { numbers[id] };
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

/// Messages, cancels and events in somebody's hands, without those that were there before.
async fn received(home: &mut Peer, kind: &str) -> Vec<Value> {
    let frames = home.drain().await;
    frames.into_iter().filter(|frame| frame["kind"] == kind).collect()
}

async fn attack_with_messages(
    name: &'static str,
    claimed: &'static str,
    mailbox: &'static str,
    framing: Framing,
) -> usize {
    let attacker = Attacker { name, mailbox };
    let mut town = town().await;
    let mut peer = join(&town.bus, name, claimed, framing).await;
    let cases = send_all(attacker, &mut peer, framing).await;
    let outcomes = outcomes(&mut peer, &cases).await;
    let mut taken_in: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (case, outcome) in cases.iter().zip(&outcomes) {
        assert_eq!(outcome.as_deref(), case.refusal, "{} to {} from {mailbox}, {framing:?}", case.id, case.to);
        if outcome.is_none() {
            taken_in.entry(case.to).or_default().insert(&case.id);
        }
    }
    for (to, home) in &mut town.homes {
        let mut arrived = BTreeSet::new();
        for frame in received(home, "message").await {
            let from = &frame["message"]["from"];
            assert_eq!(from["session_id"], mailbox, "the sender is who it is: {frame}");
            let role = AGENTS.iter().find(|agent| agent.0 == name).expect("an agent").1;
            let stamped = if name == "free" { Value::Null } else { role.into() };
            assert_eq!(from["role"], stamped, "{frame}");
            arrived.insert(frame["message"]["id"].as_str().expect("an id").to_owned());
        }
        let expected = taken_in.remove(to).unwrap_or_default();
        assert_eq!(arrived.iter().map(String::as_str).collect::<BTreeSet<_>>(), expected, "at {to}");
    }
    cases.len()
}

/// Cancels and live events, which are not answered: what counts is who hears of them.
async fn attack_with_signals(
    name: &'static str,
    claimed: &'static str,
    mailbox: &'static str,
    framing: Framing,
) -> usize {
    let mut town = town().await;
    let mut peer = join(&town.bus, name, claimed, framing).await;
    let mut cases = 0;
    for to in RECIPIENTS {
        for correlation in CORRELATIONS.into_iter().filter(|correlation| !correlation.is_empty()) {
            cases += 2;
            peer.send(json!({"kind": "cancel", "to": to, "correlation_id": correlation, "from": "w1"})).await;
            peer.send(json!({"kind": "live_event", "to": to, "correlation_id": correlation, "from": "h1", "body": 1}))
                .await;
            let answers = peer.drain().await;
            let free = name == "free";
            let is_open = OPEN.iter().any(|open| open.0 == correlation && open.2 == to && correlation != "done");
            // Whichever mailbox of the agent sent it.
            let is_own = |from: &str| principal_of(from) == principal_of(mailbox);
            let own = OPEN.iter().any(|open| open.0 == correlation && open.2 == to && is_own(open.1));
            let may_cancel = free || (is_open && (own || name == "op"));
            let may_tell = oracle(Attacker { name, mailbox }, "mcp_event", to, correlation).is_none();
            let codes: Vec<&str> = answers.iter().filter_map(|frame| frame["code"].as_str()).collect();
            assert_eq!(codes, if may_tell { vec![] } else { vec!["TB0216"] }, "{name} to {to}: {answers:?}");
            for (home, peer) in &mut town.homes {
                let frames = peer.drain().await;
                let count = |kind: &str| frames.iter().filter(|frame| frame["kind"] == kind).count();
                assert_eq!(
                    count("cancel"),
                    usize::from(may_cancel && *home == to),
                    "{mailbox} cancels {correlation} at {to}"
                );
                let heard = usize::from(may_tell && *home == to && *home != "nobody");
                assert_eq!(count("live_event"), heard, "{mailbox} tells {to}: {frames:?}");
                let honest = |frame: &&Value| frame["kind"] == "live_event" && frame["from"] != mailbox;
                assert!(!frames.iter().any(|frame| honest(&frame)), "{frames:?}");
            }
        }
    }
    cases
}

/// What is asked of the broker itself, and what is said about messages of others.
async fn attack_with_questions(name: &'static str, claimed: &'static str, mailbox: &str, framing: Framing) -> usize {
    let town = town().await;
    let mut peer = join(&town.bus, name, claimed, framing).await;
    let all = ["w1", "w2", "h1", "h2", "op", "free"];
    let may_see = |other: &str| {
        matches!(name, "h1" | "h2" | "op" | "free") || matches!(other, "h1" | "h2") || (name == "w1" && other == "w2")
    };
    let mut cases = 0;
    for (_, role, _) in AGENTS.into_iter().filter(|agent| agent.0 != "free") {
        peer.send(json!({"kind": "list_connected", "role": role, "from": "op"})).await;
        let answer = peer.next_of("connected").await;
        let of_role = |other: &&str| AGENTS.iter().any(|agent| agent.0 == *other && agent.1 == role);
        let mut expected: Vec<&str> = all.into_iter().filter(of_role).filter(|other| may_see(other)).collect();
        expected.sort_unstable();
        assert_eq!(answer["ids"], json!(expected), "{name} asks for {role}");
        cases += 1;
    }
    peer.send(json!({"kind": "status", "request_id": "s", "agent": {"session_id": "op", "role": "operator"}})).await;
    match name {
        "op" | "free" => assert_eq!(peer.next_of("status").await["request_id"], "s"),
        _ => assert_eq!(peer.expect_error("TB0218").await["id"], "s"),
    }
    cases += looks::look_around(&mut peer, name, mailbox).await;
    for id in ["q1", "q2", "a1"] {
        let (_, _, holder) = OPEN.into_iter().find(|open| open.0 == id).expect("it is open");
        if holder != mailbox {
            peer.ack(id).await;
            peer.expect_error("TB0205").await;
            assert_eq!(peer.ack_confirmed(id).await["accepted"], false);
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

/// Whom a `hello` may call itself.
async fn attack_with_greetings(bus: &Bus, framing: Framing) -> usize {
    let mut cases = 0;
    let suffixes = ["", "#sub", "#a#b"];
    let names = ["w1", "w2", "h1", "h2", "op", "free", "~", "~~", "W1", "w1 ", "w", "#w1", "w1~"];
    for (agent, own_role, rights) in AGENTS {
        for name in names {
            for suffix in suffixes {
                for role in [None, Some("worker"), Some("host"), Some("operator"), Some("Worker")] {
                    let claimed = format!("{name}{suffix}");
                    let mut peer = Peer::connect(bus.address).await;
                    peer.send(greeting(agent, &claimed, role, framing)).await;
                    let first = peer.frame().await;
                    let may = rights.unrestricted || name == agent || name == "~";
                    let code = match (may, role.is_none_or(|role| role == own_role || rights.unrestricted)) {
                        (false, _) => Some("TB0114"),
                        (true, false) => Some("TB0115"),
                        (true, true) => None,
                    };
                    assert_eq!(first["code"].as_str(), code, "{agent} as {claimed} in {role:?}: {first}");
                    if code.is_none() {
                        let known_as = if rights.unrestricted { claimed } else { format!("{agent}{suffix}") };
                        assert_eq!(first["agent"]["session_id"], known_as, "{first}");
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

/// Each kind of peer, on its own mailbox and on a mailbox of its own beside it.
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
        ("free", "somebody", "somebody"),
        ("free", "h1", "h1"),
    ]
}

#[tokio::test]
async fn no_peer_sends_what_it_may_not_in_any_framing_with_any_forged_field() {
    let mut cases = 0;
    for framing in [Framing::Json, Framing::Compact] {
        for (name, claimed, mailbox) in attackers() {
            cases += attack_with_messages(name, claimed, mailbox, framing).await;
        }
    }
    println!("{cases} messages, each as it should be");
    assert!(cases > 20_000, "{cases}");
}

#[tokio::test]
async fn no_peer_cancels_or_tells_what_it_may_not() {
    let mut cases = 0;
    for framing in [Framing::Json, Framing::Compact] {
        for (name, claimed, mailbox) in attackers() {
            cases += attack_with_signals(name, claimed, mailbox, framing).await;
        }
    }
    println!("{cases} signals, each as it should be");
}

#[tokio::test]
async fn no_peer_asks_or_acknowledges_or_becomes_what_it_may_not() {
    let mut cases = 0;
    for framing in [Framing::Json, Framing::Compact] {
        for (name, claimed, mailbox) in attackers() {
            cases += attack_with_questions(name, claimed, mailbox, framing).await;
        }
        cases += attack_with_greetings(&town().await.bus, framing).await;
    }
    println!("{cases} questions and greetings, each as it should be");
}
