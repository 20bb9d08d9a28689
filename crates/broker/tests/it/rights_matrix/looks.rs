//! What each kind of peer may see by a look.

use super::{AGENTS, OPEN};
use crate::support::Peer;
use serde_json::{Value, json};
use toolbus_identity::principal_of;

/// What a look shows of peers, of messages and of mailboxes.
pub async fn look_around(peer: &mut Peer, name: &str, mailbox: &str) -> usize {
    let trusted = matches!(name, "h1" | "h2" | "op" | "free");
    let mut cases = 0;
    for other in ["w1", "w2", "h1", "h2", "op", "free", "w1#sub", "w2#sub", "h1#sub", "nobody", "w"] {
        peer.send(json!({"kind": "inspect", "request_id": "l", "peers": [other], "from": "op"})).await;
        let agent = principal_of(other);
        // Who has the shared secret may also be a host.
        if trusted || agent == name || matches!(agent, "h1" | "h2" | "free") {
            let there = AGENTS.iter().any(|agent| agent.0 == other) || other == mailbox || other == "w2#sub";
            let answer = peer.next_of("inspected").await;
            // The second mailbox of `w2` asked once and may be gone.
            if other != "w2#sub" {
                assert_eq!(answer["peers"], json!([there]), "{mailbox} looks for {other}");
            }
        } else {
            assert_eq!(peer.expect_error("TB0218").await["id"], "l", "{mailbox} looks for {other}");
        }
        cases += 1;
    }
    for (id, from, to) in OPEN {
        peer.send(json!({"kind": "inspect", "request_id": "l", "messages": [{"to": to, "id": id}], "from": from}))
            .await;
        let expected =
            if principal_of(from) == principal_of(mailbox) && id != "done" { json!([0]) } else { json!([null]) };
        assert_eq!(peer.next_of("inspected").await["messages"], expected, "{mailbox} looks for {id}");
        cases += 1;
    }
    for of in ["w1", "w2", "h1", "h2", "op", "h1#sub", "nobody"] {
        peer.send(json!({"kind": "inspect", "request_id": "l", "rows_of": of, "agent": {"session_id": "op"}})).await;
        let own = principal_of(mailbox);
        let sees_all = matches!(name, "op" | "free") || principal_of(of) == own;
        let visible =
            |open: &&(&str, &str, &str)| open.0 != "done" && open.2 == of && (sees_all || principal_of(open.1) == own);
        let expected: Vec<Value> = OPEN.iter().filter(visible).map(|open| json!([open.0, open.1])).collect();
        let answer = peer.next_of("inspected").await;
        let row = |row: &Value| json!([row["id"], row["from"]]);
        let rows: Vec<Value> = answer["rows"].as_array().expect("rows").iter().map(row).collect();
        assert_eq!(rows, expected, "{mailbox} looks into {of}");
        assert_eq!(answer["more"], false, "{mailbox} looks into {of}");
        cases += 1;
    }
    cases
}
