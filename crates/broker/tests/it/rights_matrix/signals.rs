//! Cancels and live events of every kind of peer.

use super::{Attacker, CORRELATIONS, OPEN, RECIPIENTS, fixture, join, oracle};
use crate::support::Framing;
use serde_json::{Value, json};
use toolbus_identity::principal_of;

/// Checks the outcomes of cancels, and the frames that the recipients of cancels and events get.
pub async fn attack_with_signals(
    name: &'static str,
    claimed: &'static str,
    mailbox: &'static str,
    framing: Framing,
) -> usize {
    let mut fixture = fixture().await;
    let mut peer = join(&fixture.bus, name, claimed, framing).await;
    let mut cases = 0;
    for to in RECIPIENTS {
        for correlation in CORRELATIONS.into_iter().filter(|correlation| !correlation.is_empty()) {
            cases += 2;
            let cancel = json!({
                "kind": "cancel", "to": to, "correlation_id": correlation, "request_id": correlation, "from": "w1",
            });
            peer.send(cancel).await;
            peer.send(json!({"kind": "live_event", "to": to, "correlation_id": correlation, "from": "h1", "body": 1}))
                .await;
            let responses = peer.drain().await;
            let free = name == "free";
            let is_open = OPEN.iter().any(|open| open.0 == correlation && open.2 == to && correlation != "done");
            // From any mailbox of the agent.
            let is_own = |from: &str| principal_of(from) == principal_of(mailbox);
            let own = OPEN.iter().any(|open| open.0 == correlation && open.2 == to && is_own(open.1));
            let may_cancel = free || (is_open && (own || name == "op"));
            let may_send = oracle(Attacker { name, mailbox }, "mcp_event", to, correlation).is_none();
            let result = responses.iter().find(|frame| frame["kind"] == "cancel_result").expect("an answer");
            let outcome = cancel_outcome(Attacker { name, mailbox }, to, correlation);
            assert_eq!(result["outcome"], outcome, "{mailbox} cancels {correlation} at {to}");
            assert_eq!((&result["request_id"], &result["correlation_id"]), (&json!(correlation), &json!(correlation)));
            let codes: Vec<&str> = responses.iter().filter_map(|frame| frame["code"].as_str()).collect();
            assert_eq!(codes, if may_send { vec![] } else { vec!["TB0216"] }, "{name} to {to}: {responses:?}");
            for (subscriber, peer) in &mut fixture.subscribers {
                let frames = peer.drain().await;
                let count = |kind: &str| frames.iter().filter(|frame| frame["kind"] == kind).count();
                let cancels = usize::from(may_cancel && *subscriber == to);
                assert_eq!(count("cancel"), cancels, "{mailbox} cancels {correlation} at {to}");
                let events = usize::from(may_send && *subscriber == to && *subscriber != "absent");
                assert_eq!(count("live_event"), events, "{mailbox} sends to {to}: {frames:?}");
                let forged = |frame: &&Value| frame["kind"] == "live_event" && frame["from"] != mailbox;
                assert!(!frames.iter().any(|frame| forged(&frame)), "{frames:?}");
            }
        }
    }
    cases
}

/// The expected outcome of a cancel. All pending messages are in flight; `done` is settled, which is known only by its
/// sender's mailbox.
fn cancel_outcome(attacker: Attacker, to: &str, id: &str) -> &'static str {
    let Some((_, from, _)) = OPEN.into_iter().find(|open| open.0 == id && open.2 == to) else { return "unknown" };
    let by_operator = attacker.name == "op";
    let is_own = principal_of(from) == principal_of(attacker.mailbox);
    match id {
        "done" if from == attacker.mailbox || by_operator => "finished",
        "done" => "unknown",
        _ if is_own || by_operator => "running",
        _ => "unknown",
    }
}
