//! `toolbus send` and the recipient's state, and mailboxes of clients that are gone.

use crate::support::soon;
use crate::up::UpInstance;
use toolbus::{AgentRef, BrokerClient};

#[tokio::test]
async fn send_says_whether_the_recipient_is_connected_and_exists() {
    let instance = UpInstance::start(&[]).await;
    instance.run(&["agent", "add", "bob", "--role", "local", "--token-file", "bob.token"]).await.check(0, &[], &[]);
    let send = async |to: &str| instance.run(&["send", "--to", to, "--body", "1"]).await;
    // The broker polls the file of agents.
    let sent = soon("the new agent", async {
        loop {
            let sent = send("bob").await;
            if sent.err.is_empty() {
                break sent;
            }
        }
    });
    sent.await.check(0, &["stored ", "for bob, which is not connected"], &[]);
    send("bbo").await.check(0, &["stored "], &["warning: no agent has the name \"bbo\""]);
    let token = std::fs::read_to_string(instance.folder.path().join("bob.token")).expect("a token");
    let bob = BrokerClient::connect(instance.url(), AgentRef::new("~"), token.trim()).await.expect("a connection");
    bob.subscribe().await.expect("a mailbox");
    let sent = send("bob").await;
    sent.check(0, &["delivered ", "to bob"], &[]);
    assert_eq!(sent.err, "");
}

#[tokio::test]
async fn mailboxes_of_commands_and_clients_that_are_gone_do_not_stay() {
    let instance = UpInstance::start(&[]).await.settled().await;
    for _ in 0..3 {
        instance.run(&["call", "now"]).await.check(0, &[], &[]);
        instance.run(&["ask", "bob", "there?", "--timeout", "50ms"]).await;
    }
    let ps = instance.run(&["ps", "--json"]).await;
    let status: serde_json::Value = serde_json::from_str(&ps.out).expect("JSON");
    let names = status["mailboxes"].as_array().into_iter().flatten().filter_map(|mailbox| mailbox["name"].as_str());
    let gone: Vec<&str> = names.filter(|name| name.contains('#')).collect();
    assert_eq!(gone, Vec::<&str>::new(), "{}", ps.out);
}
