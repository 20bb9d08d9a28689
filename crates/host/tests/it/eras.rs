//! Modern clients and servers, and translation between the eras.

use crate::support::{Rig, Worker, fake, finish, next_event, parts, within};
use serde_json::{Value, json};
use toolbus_mcp::{HostEvent, HostReply};

const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";

async fn check_listen(worker: &Worker, server: &str) {
    let wanted = json!({"toolsListChanged": true, "resourceSubscriptions": [format!("test://{server}")]});
    let mut call = worker.start(server, "subscriptions/listen", json!({"notifications": wanted})).await;
    let id = call.id();
    let (method, params) = parts(&next_event(&mut call).await);
    assert_eq!(method, "notifications/subscriptions/acknowledged");
    assert_eq!(params["notifications"], wanted);
    assert_eq!(params["_meta"][SUBSCRIPTION], id.as_str());

    worker.tool(server, "update", json!({"uri": "test://other"})).await.result();
    worker.tool(server, "update", json!({"uri": format!("test://{server}")})).await.result();
    let (method, params) = parts(&next_event(&mut call).await);
    assert_eq!(method, "notifications/resources/updated");
    assert_eq!(params["uri"], format!("test://{server}"));
    assert_eq!(params["_meta"][SUBSCRIPTION], id.as_str());
    worker.tool(server, "change", json!({"name": "brand_new"})).await.result();
    assert_eq!(parts(&next_event(&mut call).await).0, "notifications/tools/list_changed");
    worker.cancel(server, &id).await;
    assert!(matches!(finish(call).await.end, HostReply::Cancelled));
}

#[tokio::test]
async fn modern_on_modern_passes_through_on_one_connection() {
    let rig = Rig::start(vec![fake("one", "modern")]).await;
    let (a, b) = (rig.modern("a").await, rig.modern("b").await);
    let (first, other) = (a.tool("one", "whoami", json!({})).await, b.tool("one", "whoami", json!({})).await);
    assert_eq!(first.json()["pid"], other.json()["pid"]);
    assert_eq!(first.json()["hello"]["clientInfo"]["name"], "modern");
    assert_eq!(first.result()["resultType"], "complete");
    let list = a.rpc("one", "tools/list", json!({})).await.result();
    assert_eq!((&list["ttlMs"], &list["cacheScope"], &list["nextCursor"]), (&json!(5), &json!("public"), &json!("6")));
    let asked = a.tool("one", "ask", json!({})).await.result();
    assert_eq!((&asked["resultType"], &asked["requestState"]), (&json!("input_required"), &json!("st=")));
}

#[tokio::test]
async fn a_modern_client_listens_to_a_modern_server() {
    let rig = Rig::start(vec![fake("one", "modern")]).await;
    check_listen(&rig.modern("w").await, "one").await;
}

#[tokio::test]
async fn a_modern_client_listens_to_a_legacy_server() {
    let rig = Rig::start(vec![fake("one", "legacy")]).await;
    check_listen(&rig.modern("w").await, "one").await;
}

#[tokio::test]
async fn a_server_of_both_eras_is_used_in_the_clients_era() {
    let rig = Rig::start(vec![fake("one", "both")]).await;
    let legacy = rig.legacy("a").await.tool("one", "whoami", json!({})).await;
    assert_eq!(legacy.json()["hello"]["protocolVersion"], "2025-06-18");
    assert!(legacy.result().get("resultType").is_none());
    let modern = rig.modern("b").await.tool("one", "whoami", json!({})).await;
    assert_eq!(modern.json()["hello"]["protocolVersion"], "2026-07-28");
}

#[tokio::test]
async fn a_legacy_server_looks_modern_to_a_modern_client() {
    let rig = Rig::start(vec![fake("one", "legacy")]).await;
    let worker = rig.modern("w").await;
    let discovered = worker.rpc("one", "server/discover", json!({})).await.result();
    assert_eq!(discovered["supportedVersions"], json!(["2026-07-28"]));
    assert_eq!(discovered["_meta"]["io.modelcontextprotocol/serverInfo"]["name"], "one");
    let hello = worker.tool("one", "whoami", json!({})).await.json()["hello"].clone();
    assert_eq!(hello["clientInfo"], json!({"name": "modern", "version": "9"}));
    assert_eq!(hello["capabilities"], json!({"elicitation": {}}));
    let list = worker.rpc("one", "tools/list", json!({})).await.result();
    assert_eq!((&list["resultType"], &list["cacheScope"]), (&json!("complete"), &json!("private")));
    assert_eq!(worker.rpc("one", "ping", json!({})).await.error()["code"], -32601);
    assert_eq!(worker.rpc("one", "resources/read", json!({"uri": "x://y"})).await.error()["code"], -32602);
    let echo = worker.tool("one", "echo", json!({"a": 1})).await.result();
    assert_eq!(echo["_meta"], json!({"got": {}}));
}

#[tokio::test]
async fn a_legacy_servers_elicitation_becomes_input_required_and_the_call_resumes() {
    let rig = Rig::start(vec![fake("one", "legacy")]).await;
    let (worker, other) = (rig.modern("w").await, rig.modern("other").await);
    let asked = worker.tool("one", "ask", json!({})).await.result();
    assert_eq!(asked["resultType"], "input_required");
    let (key, request) = asked["inputRequests"].as_object().expect("requests").iter().next().expect("one");
    assert_eq!(request["method"], "elicitation/create");
    let again = |responses: Value| json!({"name": "ask", "arguments": {}, "requestState": asked["requestState"], "inputResponses": responses});
    let answer = json!({key: {"action": "accept", "content": {"name": "Al"}}});
    // `requestState` is valid only in its own session.
    let stolen = other.rpc("one", "tools/call", again(answer.clone())).await.error();
    assert_eq!((&stolen["code"], &stolen["data"]["code"]), (&json!(-32602), &json!("TB0413")));
    // An input request without a response is sent again.
    let asked_again = worker.rpc("one", "tools/call", again(json!({}))).await.result();
    assert_eq!(asked_again["inputRequests"], asked["inputRequests"]);
    let last = json!({"name": "ask", "arguments": {}, "requestState": asked_again["requestState"],
        "inputResponses": answer});
    let reply = worker.rpc("one", "tools/call", last.clone()).await;
    assert_eq!(reply.json()["result"]["content"]["name"], "Al");
    assert_eq!(reply.result()["resultType"], "complete");
    assert_eq!(worker.rpc("one", "tools/call", last).await.error()["data"]["code"], "TB0413");
}

#[tokio::test]
async fn two_concurrent_elicitations_are_both_answered() {
    let rig = Rig::start(vec![fake("one", "legacy")]).await;
    let worker = rig.modern("w").await;
    let call = || worker.tool("one", "ask", json!({}));
    let (first, second) = tokio::join!(call(), call());
    let mut open = [first.result(), second.result()].to_vec();
    let mut answers = 0;
    while let Some(asked) = open.pop() {
        if asked["resultType"] == "complete" {
            answers += 1;
            continue;
        }
        let requests = asked["inputRequests"].as_object().expect("requests");
        let responses: Value = requests.keys().map(|key| (key.clone(), json!({"action": "decline"}))).collect();
        let again = json!({"name": "ask", "arguments": {}, "requestState": asked["requestState"],
            "inputResponses": responses});
        open.insert(0, worker.rpc("one", "tools/call", again).await.result());
    }
    assert_eq!(answers, 2);
}

/// Two users of one agent may share a session, as over HTTP. Each must see only the question that its own call caused.
#[tokio::test]
async fn an_elicitation_reaches_the_call_that_caused_it() {
    let rig = Rig::start(vec![fake("one", "legacy")]).await;
    let worker = rig.modern("w").await;
    let questions: Vec<String> = (0..10).map(|number| format!("question {number}?")).collect();
    let asked = questions.iter().map(|question| worker.tool("one", "ask", json!({"question": question})));
    let asked = futures_util::future::join_all(asked).await;
    for (question, reply) in questions.iter().zip(asked) {
        let asked = reply.result();
        let requests = asked["inputRequests"].as_object().expect("requests");
        assert_eq!(requests.len(), 1, "{asked}");
        let (key, request) = requests.iter().next().expect("one");
        assert_eq!(request["params"]["message"], json!(question));
        let answer = json!({"action": "accept", "content": {"to": question}});
        let again = json!({"name": "ask", "arguments": {"question": question}, "requestState": asked["requestState"],
            "inputResponses": {key: answer}});
        let answered = worker.rpc("one", "tools/call", again).await;
        assert!(answered.text().contains(question), "{}", answered.text());
    }
}

#[tokio::test]
async fn concurrent_questions_share_the_processes_that_a_server_may_have() {
    let mut server = fake("one", "legacy");
    server.max_sessions = 2;
    let rig = Rig::start(vec![server]).await;
    let worker = rig.modern("w").await;
    let ask = |number: usize| {
        let worker = &worker;
        async move {
            let arguments = json!({"question": format!("{number}?")});
            let asked = worker.tool("one", "ask", arguments.clone()).await.result();
            let (key, request) = asked["inputRequests"].as_object().expect("requests").iter().next().expect("one");
            assert_eq!(request["params"]["message"], json!(format!("{number}?")));
            let again = json!({"name": "ask", "arguments": arguments, "requestState": asked["requestState"],
                "inputResponses": {key: {"action": "decline"}}});
            worker.rpc("one", "tools/call", again).await.text()
        }
    };
    let answers = futures_util::future::join_all((0..6).map(ask)).await;
    assert!(answers.iter().all(|answer| answer.contains("decline")), "{answers:?}");
}

#[tokio::test]
async fn a_modern_servers_log_reaches_the_call_that_requested_it() {
    let rig = Rig::start(vec![fake("one", "modern")]).await;
    let (worker, other) = (rig.modern("w").await, rig.modern("other").await);
    let busy = other.start("one", "tools/call", json!({"name": "slow", "arguments": {}})).await;
    let meta = json!({"io.modelcontextprotocol/logLevel": "info"});
    let reply = worker.rpc("one", "tools/call", json!({"name": "log", "_meta": meta})).await;
    assert_eq!(reply.events.len(), 3);
    drop(busy);
}

/// The server's process serves both calls and does not say which one a message belongs to, but both are the same client's.
#[tokio::test]
async fn logs_of_a_legacy_server_arrive_while_another_call_of_the_client_runs() {
    let rig = Rig::start(vec![fake("one", "legacy")]).await;
    let worker = rig.modern("w").await;
    let capabilities = "io.modelcontextprotocol/clientCapabilities";
    let slow = json!({"name": "slow", "arguments": {}, "_meta": {capabilities: {}, "progressToken": 1}});
    let mut busy = worker.start("one", "tools/call", slow).await;
    next_event(&mut busy).await;
    let meta = json!({capabilities: {}, "io.modelcontextprotocol/logLevel": "info"});
    let reply = worker.rpc("one", "tools/call", json!({"name": "log", "_meta": meta})).await;
    assert_eq!(reply.events.len(), 2, "info and error: {:?}", reply.events);
    drop(busy);
}

#[tokio::test]
async fn logs_of_a_legacy_server_reach_only_the_modern_call_that_requested_them() {
    let rig = Rig::start(vec![fake("one", "legacy")]).await;
    let worker = rig.modern("w").await;
    assert!(worker.tool("one", "log", json!({})).await.events.is_empty());
    let meta = json!({"io.modelcontextprotocol/logLevel": "info"});
    let reply = worker.rpc("one", "tools/call", json!({"name": "log", "_meta": meta})).await;
    let levels: Vec<_> = reply.events.iter().map(|event| parts(event).1["level"].clone()).collect();
    assert_eq!(levels, [json!("info"), json!("error")]);
}

#[tokio::test]
async fn a_modern_server_looks_legacy_to_a_legacy_client() {
    let rig = Rig::start(vec![fake("one", "modern")]).await;
    let worker = rig.legacy("w").await;
    let hello = json!({"protocolVersion": "2025-06-18", "capabilities": {}});
    let result = worker.rpc("one", "initialize", hello).await.result();
    assert_eq!((&result["protocolVersion"], &result["serverInfo"]["name"]), (&json!("2025-06-18"), &json!("one")));
    worker.notify("one", "notifications/initialized", json!({})).await;
    assert_eq!(worker.rpc("one", "ping", json!({})).await.result(), json!({}));
    let who = worker.tool("one", "whoami", json!({})).await;
    assert_eq!(who.json()["hello"]["clientInfo"]["name"], "w");
    assert_eq!(who.json()["hello"]["clientCapabilities"], json!({"elicitation": {}}));
    assert!(who.result().get("resultType").is_none());
    let list = worker.rpc("one", "tools/list", json!({})).await.result();
    assert!(list.get("ttlMs").is_none() && list.get("cacheScope").is_none() && list.get("nextCursor").is_some());
    assert_eq!(worker.rpc("one", "logging/setLevel", json!({"level": "error"})).await.result(), json!({}));
    assert_eq!(worker.tool("one", "whoami", json!({})).await.json()["hello"]["logLevel"], "error");
}

#[tokio::test]
async fn a_modern_servers_elicitation_is_sent_to_the_legacy_client() {
    let rig = Rig::start(vec![fake("one", "modern")]).await;
    let worker = rig.legacy("w").await;
    let mut call = worker.start("one", "tools/call", json!({"name": "ask"})).await;
    let HostEvent::Request { id, method, .. } = next_event(&mut call).await else {
        panic!("expected a client request")
    };
    assert_eq!(method, "elicitation/create");
    worker.answer("one", id, json!({"action": "accept", "content": {"name": "Al"}})).await;
    let answer = finish(call).await.json();
    assert_eq!((&answer["result"]["content"]["name"], &answer["state"]), (&json!("Al"), &json!("st=")));
}

#[tokio::test]
async fn a_legacy_client_is_notified_of_a_modern_servers_resources_and_lists() {
    let rig = Rig::start(vec![fake("one", "modern")]).await;
    let worker = rig.legacy("w").await;
    worker.notify("one", "notifications/initialized", json!({})).await;
    worker.rpc("one", "resources/subscribe", json!({"uri": "test://one"})).await.result();
    worker.tool("one", "update", json!({"uri": "test://one"})).await.result();
    let (method, params) = parts(&worker.next_session_event().await);
    assert_eq!((method.as_str(), params), ("notifications/resources/updated", json!({"uri": "test://one"})));
    worker.tool("one", "change", json!({"name": "brand_new"})).await.result();
    let (method, params) = parts(&worker.next_session_event().await);
    assert_eq!((method.as_str(), params), ("notifications/tools/list_changed", Value::Null));
}

#[tokio::test]
async fn a_crashed_modern_server_is_restarted_for_the_next_call() {
    let rig = Rig::start(vec![fake("one", "modern")]).await;
    let worker = rig.modern("w").await;
    assert_eq!(worker.tool("one", "die", json!({})).await.error()["data"]["code"], "TB0408");
    let call = worker.tool("one", "add", json!({"a": 1, "b": 2}));
    assert_eq!(within("the next call", call).await.text(), "3");
}
