//! The MCP server of all paths: one tool, `echo`, over stdio, in both eras. It does as little as possible, so that the
//! measurement shows the cost of the path.

use std::io::{BufRead, Write};

use serde_json::{Value, json};

const TOOL: &str = "echo";

/// Serves requests from stdin until EOF.
pub fn serve() -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let request: Value = serde_json::from_str(&line?)?;
        let Some(id) = request.get("id") else { continue };
        let modern = request["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"].is_string();
        let answer = match answer(request["method"].as_str().unwrap_or_default(), &request["params"]) {
            Some(mut result) => {
                if modern {
                    result["resultType"] = json!("complete");
                }
                json!({"jsonrpc": "2.0", "id": id, "result": result})
            }
            None => {
                let error = json!({"code": -32601, "message": "Method not found"});
                json!({"jsonrpc": "2.0", "id": id, "error": error})
            }
        };
        let mut line = serde_json::to_vec(&answer)?;
        line.push(b'\n');
        out.write_all(&line)?;
        out.flush()?;
    }
    Ok(())
}

fn answer(method: &str, params: &Value) -> Option<Value> {
    let info = json!({"name": "bench-echo", "version": "1.0.0"});
    let capabilities = json!({"tools": {}});
    Some(match method {
        "initialize" => {
            let version = &params["protocolVersion"];
            json!({"protocolVersion": version, "capabilities": capabilities, "serverInfo": info})
        }
        "server/discover" => json!({
            "supportedVersions": ["2026-07-28", "2025-11-25", "2025-06-18"],
            "capabilities": capabilities, "serverInfo": info, "ttlMs": 0, "cacheScope": "private",
        }),
        "ping" => json!({}),
        "tools/list" => {
            let schema = json!({"type": "object", "properties": {"text": {"type": "string"}}});
            let tool = json!({"name": TOOL, "description": "returns the text", "inputSchema": schema});
            json!({"tools": [tool], "ttlMs": 0, "cacheScope": "private"})
        }
        "tools/call" => json!({"content": [{"type": "text", "text": params["arguments"]["text"]}]}),
        _ => return None,
    })
}
