//! MCP workers, which find a host of the library in the directory and call its tools as those of any MCP server.

use crate::bus::Bus;
use crate::peers::{HOST, Host};
use crate::tools::{Behaviour, Toolbox};
use crate::{eventually, soon};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;
use toolbus_client::{AgentRef, Body, InboxKind, MultiplexedClient};
use toolbus_executor::RoleToolAllowlist;
use toolbus_mcp::{ClientHello, HostManifest, HostReply, HostRequest, Outcome, Rpc, raw};

/// The tools of the host's announcement, as the worker's role sees it.
async fn announced(worker: &MultiplexedClient) -> Vec<String> {
    let hosts = soon("the directory", worker.client().hosts(&BTreeMap::new())).await.expect("a directory");
    let manifest = hosts.iter().find_map(|host| host.manifest.as_ref());
    let manifest: Option<HostManifest> = manifest.map(|manifest| manifest.to().expect("a manifest"));
    let tools = manifest.into_iter().flat_map(|manifest| manifest.servers).flat_map(|server| server.tools);
    let name = |tool: toolbus_mcp::Raw| toolbus_mcp::member_text(&tool, "name").expect("a name").into_owned();
    tools.map(name).collect()
}

async fn call(worker: &MultiplexedClient, tool: &str, arguments: Value) -> Result<Value, Value> {
    let rpc = Rpc {
        server: "desktop".to_owned(),
        session: "s1".to_owned(),
        client: ClientHello::modern(),
        method: "tools/call".to_owned(),
        params: Some(raw(&json!({"name": tool, "arguments": arguments}))),
        task: None,
        hand_back: false,
    };
    let body = Body::parse(HostRequest::Rpc(rpc).to_json().into_bytes()).expect("JSON");
    let reply = worker.request(HOST, InboxKind::McpRequest, body, Duration::from_secs(20)).await.expect("a reply");
    let value = |text: &str| serde_json::from_str(text).expect("JSON");
    match HostReply::parse(std::str::from_utf8(reply.body.as_bytes()).expect("UTF-8")).expect("a reply of a host") {
        HostReply::Rpc(Outcome::Result(result)) => Ok(value(result.get())),
        HostReply::Rpc(Outcome::Error(error)) => Err(value(error.get())),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn mcp_workers_see_and_call_the_tools_that_their_role_may_use() {
    let bus = Bus::start().await;
    let toolbox = Toolbox::with("camera", Behaviour::Image);
    toolbox.put("broken", Behaviour::Fail);
    let list = RoleToolAllowlist::from_entries([("researcher", vec!["camera", "broken"])]);
    let _host = Host::start_with_list(&bus.url(), &toolbox, list);
    let worker = bus.client(AgentRef::new("w").with_role("researcher")).await.into_multiplexed();
    eventually("the announcement", async || announced(&worker).await == ["broken", "camera"]).await;
    let image = call(&worker, "camera", json!({})).await.expect("a result");
    let content = json!([{"type": "text", "text": "a screenshot"},
        {"type": "image", "data": "iVBORw0KGgo=", "mimeType": "image/png"}]);
    assert_eq!((&image["content"], &image["isError"]), (&content, &json!(true)));
    let error = call(&worker, "broken", json!({})).await.expect_err("a failing tool");
    assert_eq!(error["message"], "Execution failed: out of order");

    toolbox.put("fly", Behaviour::Echo);
    let denied = call(&worker, "fly", json!({})).await.expect_err("it is not in the allowlist");
    assert_eq!(denied["message"], "tool 'fly' is not allowed for role 'researcher'");
    let other = bus.client(AgentRef::new("o")).await.into_multiplexed();
    eventually("the changed tools", async || announced(&other).await == ["broken", "camera", "fly"]).await;
    assert_eq!(announced(&worker).await, ["broken", "camera"]);
}
