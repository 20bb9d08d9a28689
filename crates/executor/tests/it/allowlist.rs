//! Which role sees and calls which tools.

use crate::bus::Bus;
use crate::peers::{Host, RawWorker, worker};
use crate::soon;
use crate::tools::{Toolbox, call, echo, names};
use serde_json::json;
use toolbus_client::AgentRef;
use toolbus_executor::{RoleToolAllowlist, ToolError, ToolExecutor};

fn list() -> RoleToolAllowlist {
    RoleToolAllowlist::from_entries([("researcher", vec!["nova_click"]), ("locked", vec![])])
}

#[tokio::test]
async fn the_manifest_shows_a_role_what_its_entry_names() {
    let bus = Bus::start().await;
    let toolbox = Toolbox::echoing(&["nova_click", "nova_screenshot"]);
    let _host = Host::start_with_list(&bus.url(), &toolbox, list());
    let check = async |role, expected: &[&str]| {
        let worker = worker(&bus.url(), "worker-7#mcp", role).await;
        assert_eq!(names(&worker.list_tools()), expected, "{role:?}");
        assert_eq!(worker.tool_count(), expected.len());
    };
    check(Some("researcher"), &["nova_click"]).await;
    check(Some("locked"), &[]).await;
    check(Some("operator"), &["nova_click", "nova_screenshot"]).await;
    check(None, &["nova_click", "nova_screenshot"]).await;
}

/// A worker that calls what it was not shown.
#[tokio::test]
async fn a_call_past_the_manifest_is_denied_by_tool_and_role() {
    let bus = Bus::start().await;
    let toolbox = Toolbox::echoing(&["nova_click", "nova_screenshot"]);
    let _host = Host::start_with_list(&bus.url(), &toolbox, list());
    let check = async |role: &'static str, tool: &str, expected| {
        let worker = RawWorker::connect(&bus, AgentRef::new("sneaky#mcp").with_role(role)).await;
        let reply = soon("reply", worker.request(json!({ "op": "call", "tool": tool, "arguments": "{}" }))).await;
        assert_eq!(reply, expected);
    };
    check(
        "researcher",
        "nova_screenshot",
        json!({ "error": "tool 'nova_screenshot' is not allowed for role 'researcher'" }),
    )
    .await;
    check("locked", "nova_click", json!({ "error": "tool 'nova_click' is not allowed for role 'locked'" })).await;
    assert_eq!(toolbox.started(), 0);
    let ran = json!({ "result": { "success": true, "result": echo("nova_click", "{}") } });
    check("researcher", "nova_click", ran.clone()).await;
    check("operator", "nova_click", ran).await;
}

#[tokio::test]
async fn a_list_that_denies_the_unlisted_locks_out_whoever_has_no_role() {
    let bus = Bus::start().await;
    let toolbox = Toolbox::echoing(&["nova_click"]);
    let _host = Host::start_with_list(&bus.url(), &toolbox, list().deny_unlisted());
    let nobody = worker(&bus.url(), "nobody#mcp", None).await;
    assert_eq!(names(&nobody.list_tools()), [""; 0]);
    let refused = soon("answer", nobody.execute(&call("nova_click", "{}"))).await;
    assert_eq!(refused, Err(ToolError::NotFound("nova_click".into())));
    let raw = RawWorker::connect(&bus, AgentRef::new("raw#mcp")).await;
    let reply = raw.request(json!({ "op": "call", "tool": "nova_click", "arguments": "{}" })).await;
    assert_eq!(reply["error"], "tool 'nova_click' is not allowed for role '<none>'");
    assert_eq!(toolbox.started(), 0);
}
