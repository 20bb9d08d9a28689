//! What each kind of peer may see with `inspect` and `follow`.

use super::{AGENTS, OPEN};
use crate::support::Peer;
use serde_json::{Value, json};
use toolbus_identity::principal_of;

/// Follows peers and messages; returns the number of checks.
pub async fn check_follow(peer: &mut Peer, name: &str, mailbox: &str) -> usize {
    let trusted = matches!(name, "h1" | "h2" | "op" | "free");
    let mut cases = 0;
    for other in ["w1", "w2", "h1", "h2", "op", "free", "w1#sub", "h1#sub", "absent", "w"] {
        peer.send(json!({"kind": "follow", "request_id": "f", "peers": [other], "from": "op"})).await;
        let agent = principal_of(other);
        if trusted || agent == name || matches!(agent, "h1" | "h2" | "free") {
            let connected = AGENTS.iter().any(|agent| agent.0 == other) || other == mailbox;
            assert_eq!(peer.next_of("followed").await["peers"], json!([connected]), "{mailbox} follows {other}");
        } else {
            assert_eq!(peer.expect_error("TB0218").await["id"], "f", "{mailbox} follows {other}");
        }
        cases += 1;
    }
    for (id, from, to) in OPEN {
        peer.send(json!({"kind": "follow", "request_id": "f", "messages": [{"to": to, "id": id}], "from": from})).await;
        let expected = principal_of(from) == principal_of(mailbox) && id != "done";
        assert_eq!(peer.next_of("followed").await["uncollected"], json!([expected]), "{mailbox} follows {id}");
        cases += 1;
    }
    peer.send(json!({"kind": "unfollow", "request_id": "f"})).await;
    cases
}

/// Inspects peers, messages and mailboxes; returns the number of checks.
pub async fn check_inspect(peer: &mut Peer, name: &str, mailbox: &str) -> usize {
    let trusted = matches!(name, "h1" | "h2" | "op" | "free");
    let mut cases = 0;
    for other in ["w1", "w2", "h1", "h2", "op", "free", "w1#sub", "w2#sub", "h1#sub", "absent", "w"] {
        peer.send(json!({"kind": "inspect", "request_id": "l", "peers": [other], "from": "op"})).await;
        let agent = principal_of(other);
        // A peer with a shared token may be a host.
        if trusted || agent == name || matches!(agent, "h1" | "h2" | "free") {
            let connected = AGENTS.iter().any(|agent| agent.0 == other) || other == mailbox || other == "w2#sub";
            let response = peer.next_of("inspected").await;
            // The connection of `w2#sub` may have ended already.
            if other != "w2#sub" {
                assert_eq!(response["peers"], json!([connected]), "{mailbox} inspects {other}");
            }
        } else {
            assert_eq!(peer.expect_error("TB0218").await["id"], "l", "{mailbox} inspects {other}");
        }
        cases += 1;
    }
    for (id, from, to) in OPEN {
        peer.send(json!({"kind": "inspect", "request_id": "l", "messages": [{"to": to, "id": id}], "from": from}))
            .await;
        let expected =
            if principal_of(from) == principal_of(mailbox) && id != "done" { json!([0]) } else { json!([null]) };
        let response = peer.next_of("inspected").await;
        assert_eq!(response["messages"], expected, "{mailbox} inspects {id}");
        let is_settled = from == mailbox && id == "done";
        assert_eq!(response["settled"], json!([is_settled]), "{mailbox} inspects {id}");
        cases += 1;
    }
    for of in ["w1", "w2", "h1", "h2", "op", "h1#sub", "absent"] {
        peer.send(json!({"kind": "inspect", "request_id": "l", "rows_of": of, "agent": {"session_id": "op"}})).await;
        let own = principal_of(mailbox);
        let sees_all = matches!(name, "op" | "free") || principal_of(of) == own;
        let visible =
            |open: &&(&str, &str, &str)| open.0 != "done" && open.2 == of && (sees_all || principal_of(open.1) == own);
        let expected: Vec<Value> = OPEN.iter().filter(visible).map(|open| json!([open.0, open.1])).collect();
        let response = peer.next_of("inspected").await;
        let row = |row: &Value| json!([row["id"], row["from"]]);
        let rows: Vec<Value> = response["rows"].as_array().expect("rows").iter().map(row).collect();
        assert_eq!(rows, expected, "{mailbox} inspects {of}");
        assert_eq!(response["more"], false, "{mailbox} inspects {of}");
        cases += 1;
    }
    cases
}
