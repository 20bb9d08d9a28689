//! Misbehaving clients, end to end: each invalid request gets a precise error, and the next valid request is served.

use crate::mcp_client::{HttpClient, McpClient, StdioClient};
use crate::mcp_process::{UpProcess, python};
use crate::support::soon;
use serde_json::{Value, json};
use std::path::PathBuf;

const INITIALIZE: &str =
    r#"{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"careless","version":"1"}}"#;
const GOOD_CALL: &str = r#"{"name":"good_0","arguments":{"text":"x"}}"#;

/// With one server, toolbus forwards methods that it does not know; with two, it must answer them itself.
async fn hosting(count: usize) -> UpProcess {
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/hostile.py").display().to_string();
    let server = |mode: &str| json!({"command": python(), "args": [script, mode]});
    let servers = [("good", server("good")), ("other", server("twice"))];
    let servers: serde_json::Map<String, Value> =
        servers.into_iter().take(count).map(|(name, server)| (name.to_owned(), server)).collect();
    UpProcess::hosting(|_| json!({ "mcpServers": servers })).await
}

/// Invalid requests, each with the error codes that are accepted. Several are listed if the server may answer itself.
fn bad_lines() -> [(Value, &'static [i64]); 9] {
    let request =
        |method: Value, params: Value| json!({"jsonrpc": "2.0", "id": "bad", "method": method, "params": params});
    [
        (request(json!("no/such/method"), json!({})), &[-32601]),
        (request(json!(7), json!({})), &[-32600]),
        (request(json!("tools/call"), json!([1, 2])), &[-32600, -32602]),
        (request(json!("tools/call"), json!("text")), &[-32600, -32602]),
        (request(json!("tools/call"), json!({})), &[-32602, -32050]),
        (request(json!("tools/call"), json!({"name": 7})), &[-32602, -32050]),
        (request(json!("tools/call"), json!({"name": "no-such-tool"})), &[-32602, -32050]),
        (request(json!("resources/read"), json!({"uri": {"a": 1}})), &[-32601, -32602, -32050]),
        (json!({"jsonrpc": "1.0", "id": "bad", "method": "tools/list"}), &[-32600]),
    ]
}

fn check_refused(answer: &Value, codes: &[i64], line: &Value) {
    assert_eq!(answer["id"], "bad", "{line} got {answer}");
    let code = answer["error"]["code"].as_i64().unwrap_or_else(|| panic!("{line} got {answer}"));
    assert!(codes.contains(&code), "{line} got {answer}");
}

async fn check_good(client: &mut impl McpClient) {
    let answered = soon("a good call", client.request("tools/call", GOOD_CALL)).await;
    assert!(answered.response.contains("ok good"), "{}", answered.response);
}

#[tokio::test]
async fn invalid_lines_are_answered_with_errors() {
    for servers in [1, 2] {
        let up = hosting(servers).await;
        let mut client = StdioClient::start(&up).await;
        soon("initialize", client.request("initialize", INITIALIZE)).await;
        client.notify("notifications/initialized", "{}").await;
        for (line, codes) in bad_lines() {
            client.send(&line.to_string()).await;
            let answer = serde_json::from_str(&soon("an answer", client.next_line()).await).expect("JSON");
            check_refused(&answer, codes, &line);
        }
        for (line, code) in [("nonsense", -32700), (r#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#, -32600)] {
            client.send(line).await;
            let answer: Value = serde_json::from_str(&soon("an answer", client.next_line()).await).expect("JSON");
            assert_eq!((&answer["id"], &answer["error"]["code"]), (&Value::Null, &json!(code)), "{line} got {answer}");
        }
        check_good(&mut client).await;
    }
}

#[tokio::test]
async fn invalid_posts_are_answered_with_errors() {
    for servers in [1, 2] {
        let up = hosting(servers).await;
        let mut client = HttpClient::new(&up);
        soon("initialize", client.request("initialize", INITIALIZE)).await;
        client.notify("notifications/initialized", "{}").await;
        let session = client.session().to_owned();
        for (line, codes) in bad_lines() {
            let (_, text) = soon("an answer", client.send(&[("mcp-session-id", &session)], line.to_string())).await;
            let data = text.lines().filter_map(|line| line.strip_prefix("data:")).next_back();
            let answer = serde_json::from_str(data.unwrap_or(&text)).unwrap_or_else(|_| panic!("{line} got {text}"));
            check_refused(&answer, codes, &line);
        }
        let batch = format!("[{}]", json!({"jsonrpc": "2.0", "id": 1, "method": "ping"}));
        assert_eq!(client.send(&[("mcp-session-id", &session)], batch).await.0, 400);
        let list = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}).to_string();
        assert_eq!(client.send(&[], list.clone()).await.0, 400);
        let (status, stale) = client.send(&[("mcp-session-id", "stale")], list).await;
        assert_eq!(status, 404);
        assert!(stale.contains("TB0413"), "{stale}");
        check_good(&mut client).await;
    }
}

#[tokio::test]
async fn headers_that_contradict_the_body_are_refused() {
    let up = hosting(1).await;
    let client = HttpClient::new(&up);
    let meta = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {}});
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": "good_0", "arguments": {"text": "x"}, "_meta": meta}});
    let check = async |version: &str, method: &str, name: &str, status: u16, expected: &str| {
        let headers = [("mcp-protocol-version", version), ("mcp-method", method), ("mcp-name", name)];
        let (seen, text) = soon("an answer", client.send(&headers, call.to_string())).await;
        assert_eq!(seen, status, "{headers:?}: {text}");
        assert!(text.contains(expected), "{headers:?}: {text}");
    };
    check("2026-07-28", "tools/call", "good_0", 200, "ok good").await;
    check("2026-07-28", "tools/list", "good_0", 400, "-32020").await;
    check("2026-07-28", "tools/call", "other", 400, "-32020").await;
    check("2025-11-25", "tools/call", "good_0", 400, "-32020").await;
    check("2026-07-28", "tools/call", "good_0", 200, "ok good").await;
}
