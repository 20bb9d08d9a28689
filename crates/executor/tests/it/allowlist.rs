//! The tools that each role can list and call.

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
async fn the_manifest_lists_only_the_tools_of_the_role() {
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

/// With a raw worker, which does not check its manifest before a call.
#[tokio::test]
async fn a_call_outside_of_the_allowlist_is_denied() {
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
async fn deny_unlisted_denies_callers_without_a_role() {
    let bus = Bus::start().await;
    let toolbox = Toolbox::echoing(&["nova_click"]);
    let _host = Host::start_with_list(&bus.url(), &toolbox, list().deny_unlisted());
    let without_role = worker(&bus.url(), "worker-7#mcp", None).await;
    assert_eq!(names(&without_role.list_tools()), [""; 0]);
    let denied = soon("answer", without_role.execute(&call("nova_click", "{}"))).await;
    assert_eq!(denied, Err(ToolError::NotFound("nova_click".into())));
    let raw = RawWorker::connect(&bus, AgentRef::new("raw#mcp")).await;
    let reply = raw.request(json!({ "op": "call", "tool": "nova_click", "arguments": "{}" })).await;
    assert_eq!(reply["error"], "tool 'nova_click' is not allowed for clients without a role");
    assert_eq!(toolbox.started(), 0);
}
