//! The MCP server of all paths: one tool, which returns its text, over stdio, in both eras. It does as little as
//! possible, so that the measurement shows the cost of the path.

use std::{
    io::{BufRead, Write},
    thread,
    time::Duration,
};

use clap::Args;
use serde_json::{Value, json};

#[derive(Args)]
pub struct McpServerOptions {
    /// Name of the tool.
    #[arg(long, default_value = "echo")]
    tool: String,
    /// Serve the legacy era only.
    #[arg(long)]
    legacy: bool,
}

/// Serves requests from stdin until EOF.
pub fn serve(options: &McpServerOptions) -> anyhow::Result<()> {
    for line in std::io::stdin().lock().lines() {
        let request: Value = serde_json::from_str(&line?)?;
        let Some(id) = request.get("id") else { continue };
        let modern = request["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"].is_string();
        let answer = match answer(options, request["method"].as_str().unwrap_or_default(), &request["params"]) {
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
        match request["params"]["arguments"]["delay_ms"].as_u64() {
            None => write(&line)?,
            // A slow call must not delay the others.
            Some(delay) => drop(thread::spawn(move || {
                thread::sleep(Duration::from_millis(delay));
                write(&line)
            })),
        }
    }
    Ok(())
}

fn write(line: &[u8]) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(line)?;
    out.flush()
}

fn answer(options: &McpServerOptions, method: &str, params: &Value) -> Option<Value> {
    let info = json!({"name": "bench-echo", "version": "1.0.0"});
    let capabilities = json!({"tools": {}});
    Some(match method {
        "initialize" => {
            let version = &params["protocolVersion"];
            json!({"protocolVersion": version, "capabilities": capabilities, "serverInfo": info})
        }
        "server/discover" if !options.legacy => json!({
            "supportedVersions": ["2026-07-28", "2025-11-25", "2025-06-18"],
            "capabilities": capabilities, "serverInfo": info, "ttlMs": 0, "cacheScope": "private",
        }),
        "ping" => json!({}),
        "tools/list" => {
            let schema = json!({"type": "object", "properties": {"text": {"type": "string"}}});
            let tool = json!({"name": options.tool, "description": "returns the text", "inputSchema": schema});
            json!({"tools": [tool], "ttlMs": 0, "cacheScope": "private"})
        }
        "tools/call" => json!({"content": [{"type": "text", "text": params["arguments"]["text"]}]}),
        _ => return None,
    })
}
