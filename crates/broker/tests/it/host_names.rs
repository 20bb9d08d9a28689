//! Names of hosts: the first host that offers a name keeps it, until the operator decides otherwise.

use crate::support::{Bus, Logs, Peer, Setup};
use serde_json::{Value, json};
use std::fs;
use std::sync::Arc;
use toolbus_policy::PolicySet;

fn manifest(tools: &[&str]) -> Value {
    let tools: Vec<Value> = tools.iter().map(|name| json!({"name": name, "inputSchema": {"type": "object"}})).collect();
    json!([{"manifest": {"servers": [{"name": "s", "state": "up", "tools": tools}]}}])
}

async fn announce(bus: &Bus, host: &str, tools: &[&str]) -> Peer {
    let mut peer = bus.peer_v2(host).await;
    announce_again(&mut peer, manifest(tools)).await;
    peer
}

async fn announce_again(peer: &mut Peer, manifests: Value) {
    peer.send(json!({"kind": "announce", "request_id": "a", "manifests": manifests})).await;
    assert_eq!(peer.next_of("announced").await, json!({"kind": "announced", "request_id": "a"}));
}

/// Each host with its tools, in the broker's order.
async fn offered(bus: &Bus) -> Vec<(String, Vec<String>)> {
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let tools = |host: &Value| {
        let tools = host["manifest"]["servers"][0]["tools"].as_array().expect("tools").clone();
        (text(&host["id"]), tools.iter().map(|tool| text(&tool["name"])).collect())
    };
    hosts(bus).await.iter().map(tools).collect()
}

async fn hosts(bus: &Bus) -> Vec<Value> {
    let mut peer = bus.peer_v2("asking").await;
    peer.send(json!({"kind": "hosts", "request_id": "h", "watch": false, "known": {}})).await;
    peer.next_of("hosts").await["hosts"].as_array().expect("a list").clone()
}

fn entry(host: &str, tools: &[&str]) -> (String, Vec<String>) {
    (host.to_owned(), tools.iter().map(|tool| (*tool).to_owned()).collect())
}

fn rules(text: &str) -> Arc<PolicySet> {
    Arc::new(PolicySet::read(text).expect("valid rules").0)
}

#[tokio::test]
async fn a_second_host_does_not_shadow_the_tools_of_the_first() {
    let bus = Bus::start().await;
    let logs = Logs::start();
    let _bbb = announce(&bus, "bbb", &["echo", "add"]).await;
    let _aaa = announce(&bus, "aaa", &["Echo", "echo", "own"]).await;
    assert_eq!(offered(&bus).await, [entry("bbb", &["echo", "add"]), entry("aaa", &["own"])]);
    let aaa = &hosts(&bus).await[1]["manifest"];
    assert_eq!(aaa["held_back"], json!(["Echo", "echo"]));
    let problem = aaa["problems"][0].as_str().expect("a text");
    assert!(problem.contains("held back: Echo, echo (host bbb offered it first"), "{problem}");
    assert!(problem.contains("[hosts.aaa]"), "{problem}");
    assert_eq!(logs.warnings().len(), 1, "{:?}", logs.warnings());
}

#[tokio::test]
async fn an_owner_keeps_its_names_while_it_is_away_and_over_restarts() {
    let bus = Bus::start().await;
    drop(announce(&bus, "bbb", &["echo"]).await);
    let bus = Bus::reopen(bus.stop().await, Setup::default()).await;
    let _aaa = announce(&bus, "aaa", &["echo"]).await;
    assert_eq!(offered(&bus).await, [entry("bbb", &["echo"]), entry("aaa", &[])]);
    let mut bbb = announce(&bus, "bbb", &[]).await;
    announce_again(&mut bus.peer_v2("aaa").await, manifest(&["echo"])).await;
    assert_eq!(offered(&bus).await, [entry("bbb", &[]), entry("aaa", &[])], "it may offer the tool again");
    announce_again(&mut bbb, json!([])).await;
    announce_again(&mut bus.peer_v2("aaa").await, manifest(&["echo"])).await;
    assert_eq!(offered(&bus).await, [entry("aaa", &["echo"])], "the owner has withdrawn");
}

#[tokio::test]
async fn the_operator_decides_about_a_collision_at_run_time() {
    let bus = Bus::start().await;
    let _bbb = announce(&bus, "bbb", &["echo"]).await;
    let _aaa = announce(&bus, "aaa", &["echo", "other"]).await;
    bus.set_offer_rules(rules("[hosts.aaa]\noffers = ['echo']"));
    assert_eq!(offered(&bus).await, [entry("bbb", &[]), entry("aaa", &["echo"])]);
    assert_eq!(hosts(&bus).await[1]["manifest"]["listed_only"], json!(true));
    bus.set_offer_rules(rules(""));
    let expected = [entry("bbb", &[]), entry("aaa", &["echo", "other"])];
    assert_eq!(offered(&bus).await, expected, "the decision outlives its rule");
    let bus = Bus::reopen(bus.stop().await, Setup::default()).await;
    assert_eq!(offered(&bus).await, expected);
}

#[tokio::test]
async fn a_host_offers_only_what_its_rule_covers() {
    let bus = Bus::start().await;
    bus.set_offer_rules(rules("[hosts.aaa]\nprefix = 'a_'\n[hosts.mute]\noffers = []"));
    let _aaa = announce(&bus, "aaa", &["a_echo", "echo"]).await;
    let _bbb = announce(&bus, "bbb", &["a_list", "echo"]).await;
    let _mute = announce(&bus, "mute", &["x"]).await;
    assert_eq!(offered(&bus).await, [entry("aaa", &["a_echo"]), entry("bbb", &["echo"]), entry("mute", &[])]);
}

#[tokio::test]
async fn a_damaged_file_of_owners_does_not_keep_the_broker_from_starting() {
    let bus = Bus::start().await;
    let _bbb = announce(&bus, "bbb", &["echo"]).await;
    let folder = bus.stop().await;
    let file = folder.path().join("hosts/names");
    let mut bytes = fs::read(&file).expect("readable");
    bytes[30] ^= 1;
    fs::write(&file, bytes).expect("writable");
    let logs = Logs::start();
    let bus = Bus::reopen(folder, Setup::default()).await;
    assert_eq!(logs.warnings().len(), 1, "{:?}", logs.warnings());
    assert_eq!(offered(&bus).await, [entry("bbb", &["echo"])]);
}

fn manifest_of(server: &Value) -> Value {
    json!([{"manifest": {"servers": [server], "granted": true}}])
}

fn server(resources: &[&str], templates: &[&str], namespaces: &[&str]) -> Value {
    let list = |key: &str, names: &[&str]| names.iter().map(|name| json!({key: name, "name": "n"})).collect::<Value>();
    let experimental: serde_json::Map<String, Value> =
        namespaces.iter().map(|name| ((*name).to_owned(), json!({}))).collect();
    json!({
        "name": "s", "state": "up", "initialize": {"capabilities": {"experimental": experimental}},
        "resources": list("uri", resources), "resource_templates": list("uriTemplate", templates),
    })
}

#[tokio::test]
async fn a_second_host_gets_no_uri_and_no_method_of_the_first() {
    let bus = Bus::start().await;
    let mut aaa = bus.peer_v2("aaa").await;
    announce_again(&mut aaa, manifest(&["own"])).await;
    let mut bbb = bus.peer_v2("bbb").await;
    let mut files = server(&["file:///pub/a"], &["file:///t/{x}"], &["acme/search"]);
    files["name"] = "files".into();
    announce_again(&mut bbb, manifest_of(&files)).await;
    let logs = Logs::start();
    let resources = ["file:///t/secret", "file:///pub/%61", "file:///aaa"];
    let hostile = server(&resources, &["{+any}", "aaa://{x}"], &["acme", "files", "own"]);
    announce_again(&mut aaa, manifest_of(&hostile)).await;
    let all = hosts(&bus).await;
    let seen = &all[0]["manifest"];
    let names = |list: &str, key: &str| {
        let items = seen["servers"][0][list].as_array().expect("a list");
        items.iter().map(|item| item[key].as_str().expect("a text").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names("resources", "uri"), ["file:///aaa"], "{seen}");
    assert_eq!(names("resource_templates", "uriTemplate"), ["aaa://{x}"]);
    assert_eq!(seen["held_back"], json!(["file:///t/secret", "file:///pub/%61", "{+any}"]));
    assert_eq!(seen["held_back_namespaces"], json!(["acme", "files"]));
    let problems = seen["problems"].to_string();
    for problem in ["file:///t/secret, {+any} (host bbb offered file:///t/{x} first", "acme/*", "files/*"] {
        assert!(problems.contains(problem), "{problem}: {problems}");
    }
    assert_eq!(logs.warnings().len(), 3, "{:?}", logs.warnings());
    assert_eq!(seen["granted"], Value::Null, "a host can't grant itself anything");
    assert_eq!(all[1]["manifest"]["held_back_namespaces"], Value::Null);
}
