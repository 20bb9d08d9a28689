//! The original's MCP host as a process of its own, with the tool whose effects are counted: it appends the id from its
//! arguments to a file, waits briefly before and after, and returns the id.

use std::{
    fs::{File, OpenOptions},
    io::Write,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use anyhow::Context;
use async_trait::async_trait;
use bamboo_agent_core::tools::{FunctionSchema, ToolCall, ToolError, ToolExecutor, ToolResult, ToolSchema};
use bamboo_broker::{RoleToolAllowlist, serve_mcp_proxy_supervised};
use bamboo_subagent::AgentRef;
use clap::Parser;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

/// The mailbox of the host.
const NAME: &str = "desktop#mcp";

#[derive(Parser)]
struct Options {
    #[arg(long)]
    broker: String,
    #[arg(long)]
    token: String,
    /// Name of the tool.
    #[arg(long)]
    tool: String,
    /// File to which each effect appends a line.
    #[arg(long)]
    effects: PathBuf,
    /// Maximum wait before and after the effect, in milliseconds.
    #[arg(long, default_value_t = 10)]
    wait_ms: u64,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let Options { broker, token, tool, effects, wait_ms } = Options::parse();
    let effects = OpenOptions::new().append(true).create(true).open(effects).context("open the effects")?;
    let backend = Arc::new(Effect { tool, effects, wait_ms });
    let me = AgentRef { session_id: NAME.into(), role: None };
    let allowlist = Arc::new(RoleToolAllowlist::unrestricted());
    serve_mcp_proxy_supervised(&broker, me, &token, backend, allowlist, CancellationToken::new()).await;
    Ok(())
}

struct Effect {
    tool: String,
    effects: File,
    wait_ms: u64,
}

#[async_trait]
impl ToolExecutor for Effect {
    async fn execute(&self, call: &ToolCall) -> Result<ToolResult, ToolError> {
        let failed = |error: &dyn std::fmt::Display| ToolError::Execution(error.to_string());
        let arguments: Value = serde_json::from_str(&call.function.arguments).map_err(|error| failed(&error))?;
        let id = arguments["id"].as_str().ok_or_else(|| failed(&"no id"))?;
        let (before, after) = waits(id, self.wait_ms);
        tokio::time::sleep(before).await;
        let line = format!("{id} {}\n", std::process::id());
        (&self.effects).write_all(line.as_bytes()).map_err(|error| failed(&error))?;
        tokio::time::sleep(after).await;
        Ok(ToolResult::text(true, id.to_owned()))
    }

    fn list_tools(&self) -> Vec<ToolSchema> {
        let function = FunctionSchema {
            name: self.tool.clone(),
            description: "appends the id to a file".into(),
            parameters: json!({"type": "object", "properties": {"id": {"type": "string"}}}),
        };
        vec![ToolSchema { schema_type: "function".into(), function }]
    }
}

/// Derived from the id, as in the tool of our system.
fn waits(id: &str, longest_ms: u64) -> (Duration, Duration) {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    let hash = id.bytes().fold(0xcbf2_9ce4_8422_2325_u64, step);
    let wait = |part: u64| Duration::from_millis(part % (longest_ms + 1));
    (wait(hash >> 40), wait((hash >> 20) & 0xf_ffff))
}
