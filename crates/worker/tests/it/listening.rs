//! `subscriptions/listen` of modern clients, with one server and with several.

use crate::support::bus::FakeBus;
use crate::support::stdio::StdioClient;
use crate::support::{away, host, modern, server, with};
use serde_json::json;
use toolbus_mcp::ListKind;

const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";
const ACKNOWLEDGED: &str = "notifications/subscriptions/acknowledged";

#[tokio::test]
async fn notifications_carry_the_clients_subscription_id() {
    let bus = FakeBus::new(vec![host("h", vec![server("files", &["read"])])]);
    let mut client = StdioClient::start(&bus);
    client.send(&modern("L", "subscriptions/listen", json!({"notifications": {"toolsListChanged": true}}))).await;
    let call = bus.next_call().await;
    for _ in 0..2 {
        // A restarted host acknowledges again.
        call.notify(ACKNOWLEDGED, json!({"notifications": {"toolsListChanged": true}, "_meta": {SUBSCRIPTION: 77}}))
            .await;
    }
    call.notify("notifications/tools/list_changed", json!({"_meta": {SUBSCRIPTION: 77}})).await;
    call.reply(json!({"resultType": "complete", "_meta": {SUBSCRIPTION: 77}})).await;
    let acknowledged = client.next().await;
    assert_eq!(acknowledged["method"], ACKNOWLEDGED);
    assert_eq!(acknowledged["params"]["_meta"][SUBSCRIPTION], "L");
    let changed = client.next().await;
    assert_eq!(
        (&changed["method"], &changed["params"]["_meta"][SUBSCRIPTION]),
        (&json!("notifications/tools/list_changed"), &json!("L"))
    );
    assert_eq!(client.next().await["result"]["_meta"][SUBSCRIPTION], "L");
}

#[tokio::test]
async fn several_servers_are_subscribed_and_manifest_changes_are_notified_once() {
    let notes = with(server("notes", &["note"]), ListKind::Resources, &[json!({"uri": "note://1"})]);
    let files = server("files", &["read"]);
    let bus = FakeBus::new(vec![host("a", vec![files.clone()]), host("b", vec![notes.clone()])]);
    let mut client = StdioClient::start(&bus);
    let filter = json!({"toolsListChanged": true, "resourceSubscriptions": ["note://1", "none://x"]});
    client.send(&modern(5, "subscriptions/listen", json!({"notifications": filter}))).await;
    let (first, call) = (bus.next_call().await, bus.next_call().await);
    let own_filter = json!({"toolsListChanged": true, "resourceSubscriptions": ["note://1"]});
    assert_eq!((first.server(), &first.params()["notifications"]), ("files", &json!({"toolsListChanged": true})));
    assert_eq!((call.server(), &call.params()["notifications"]), ("notes", &own_filter));
    first.notify(ACKNOWLEDGED, json!({"notifications": {"toolsListChanged": true}})).await;
    call.notify(ACKNOWLEDGED, json!({"notifications": own_filter})).await;
    let acknowledged = client.next().await;
    assert_eq!(
        acknowledged["params"],
        json!({"_meta": {SUBSCRIPTION: 5},
        "notifications": {"toolsListChanged": true, "resourceSubscriptions": ["note://1"]}})
    );
    call.notify("notifications/resources/updated", json!({"uri": "note://1"})).await;
    assert_eq!(client.next().await["params"], json!({"uri": "note://1", "_meta": {SUBSCRIPTION: 5}}));
    // A change that the server notified itself is not notified again for its manifest; a manifest-only change is.
    first.notify("notifications/tools/list_changed", json!({"_meta": {SUBSCRIPTION: 77}})).await;
    check_changed(&client.next().await);
    bus.set_hosts(vec![host("a", vec![server("files", &["read", "write"])]), host("b", vec![notes])]);
    call.notify("notifications/resources/updated", json!({"uri": "note://1"})).await;
    assert_eq!(client.next().await["method"], "notifications/resources/updated");
    bus.set_hosts(vec![host("a", vec![files]), host("b", vec![server("notes", &["note", "more"])])]);
    check_changed(&client.next().await);
    client.send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 5}})).await;
    call.cancelled().await;
}

fn check_changed(message: &serde_json::Value) {
    assert_eq!(message["method"], "notifications/tools/list_changed");
    assert_eq!(message["params"], json!({"_meta": {SUBSCRIPTION: 5}}));
}

#[tokio::test]
async fn listening_to_an_absent_host_is_acknowledged_immediately() {
    let bus = FakeBus::new(vec![away(host("h", vec![server("files", &["read"])]))]);
    let mut client = StdioClient::start(&bus);
    client.send(&modern(1, "subscriptions/listen", json!({"notifications": {"toolsListChanged": true}}))).await;
    assert_eq!(client.next().await["params"]["notifications"], json!({"toolsListChanged": true}));
    bus.set_hosts(vec![host("h", vec![server("files", &["read", "write"])])]);
    assert_eq!(client.next().await["method"], "notifications/tools/list_changed");
}
