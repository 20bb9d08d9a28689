//! The tool whose effects are counted: an MCP server over stdio, in both eras, whose one tool appends the id from its
//! arguments to a file and returns the id. It waits before and after the effect, so that a kill can fall on either
//! side.

use std::{
    collections::HashMap,
    fs::{File, OpenOptions},
    io::{BufRead, Write},
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use anyhow::Context;
use clap::Args;
use serde_json::{Value, json};

use super::{RunFolder, Tool};

#[derive(Args)]
pub struct EffectOptions {
    /// File to which each effect appends a line.
    #[arg(long)]
    effects: PathBuf,
    /// Name of the tool.
    #[arg(long)]
    tool: String,
    /// Maximum wait before and after the effect, in milliseconds.
    #[arg(long, default_value_t = 10)]
    wait_ms: u64,
}

/// Serves requests from stdin until EOF; calls run concurrently.
pub fn serve(options: &EffectOptions) -> anyhow::Result<()> {
    let effects = OpenOptions::new().append(true).create(true).open(&options.effects).context("open the effects")?;
    let effects = Arc::new(effects);
    let out = Arc::new(Mutex::new(std::io::stdout()));
    for line in std::io::stdin().lock().lines() {
        let request: Value = serde_json::from_str(&line?)?;
        if request.get("id").is_none() {
            continue;
        }
        if request["method"] == "tools/call" {
            let (effects, out, wait_ms) = (Arc::clone(&effects), Arc::clone(&out), options.wait_ms);
            thread::spawn(move || {
                let result = apply_effect(&request["params"]["arguments"]["id"], &effects, wait_ms);
                respond(&out, &request, result);
            });
        } else {
            respond(&out, &request, handle(&request, &options.tool));
        }
    }
    Ok(())
}

/// Appends with one write, so that a kill leaves a complete line or none.
fn apply_effect(id: &Value, mut effects: &File, wait_ms: u64) -> Option<Value> {
    let id = id.as_str()?;
    let (before, after) = waits(id, wait_ms);
    thread::sleep(before);
    effects.write_all(format!("{id} {}\n", std::process::id()).as_bytes()).ok()?;
    thread::sleep(after);
    Some(json!({"content": [{"type": "text", "text": id}]}))
}

/// Derived from the id, so that the same seed gives the same waits.
fn waits(id: &str, longest_ms: u64) -> (Duration, Duration) {
    let hash =
        id.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    let wait = |part: u64| Duration::from_millis(part % (longest_ms + 1));
    (wait(hash >> 40), wait(hash >> 20 & 0xf_ffff))
}

fn respond(out: &Mutex<std::io::Stdout>, request: &Value, result: Option<Value>) {
    let modern = request["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"].is_string();
    let mut answer = json!({"jsonrpc": "2.0", "id": request["id"]});
    match result {
        Some(mut result) => {
            if modern {
                result["resultType"] = json!("complete");
            }
            answer["result"] = result;
        }
        None => answer["error"] = json!({"code": -32601, "message": "Method not found"}),
    }
    let mut line = answer.to_string();
    line.push('\n');
    let mut out = out.lock().expect("no panic while writing");
    if out.write_all(line.as_bytes()).and_then(|()| out.flush()).is_err() {
        std::process::exit(0);
    }
}

/// The result of a request other than a call.
fn handle(request: &Value, tool: &str) -> Option<Value> {
    let info = json!({"name": "effect", "version": "1.0.0"});
    let capabilities = json!({"tools": {}});
    Some(match request["method"].as_str()? {
        "initialize" => {
            let version = &request["params"]["protocolVersion"];
            json!({"protocolVersion": version, "capabilities": capabilities, "serverInfo": info})
        }
        "server/discover" => json!({
            "supportedVersions": ["2026-07-28", "2025-11-25", "2025-06-18"],
            "capabilities": capabilities, "serverInfo": info, "ttlMs": 0, "cacheScope": "private",
        }),
        "ping" => json!({}),
        "tools/list" => {
            let schema = json!({"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]});
            let tool = json!({"name": tool, "description": "appends the id to a file", "inputSchema": schema});
            json!({"tools": [tool], "ttlMs": 0, "cacheScope": "private"})
        }
        _ => return None,
    })
}

/// The number of effects of each id, of all these tools. Each id belongs to one of them.
pub fn count_all(folder: &RunFolder, tools: &[Tool]) -> anyhow::Result<HashMap<String, u32>> {
    let mut counts = HashMap::new();
    for tool in tools {
        counts.extend(count(&folder.effects(*tool))?);
    }
    Ok(counts)
}

fn count(file: &Path) -> anyhow::Result<HashMap<String, u32>> {
    let mut counts = HashMap::new();
    let text = match std::fs::read_to_string(file) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(counts),
        text => text.with_context(|| format!("read {}", file.display()))?,
    };
    for line in text.lines() {
        let id = line.split(' ').next().unwrap_or_default();
        *counts.entry(id.to_owned()).or_default() += 1;
    }
    Ok(counts)
}
