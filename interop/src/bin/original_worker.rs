//! The original's worker side behind a minimal MCP server over stdio, so that the same client can drive it:
//! `initialize`, and `tools/call` through the original's executor with its own reconnects and repetitions.

use std::{path::PathBuf, sync::Arc, time::Duration};

use anyhow::Context;
use bamboo_agent_core::tools::{FunctionCall, ToolCall, ToolExecutor};
use bamboo_broker::McpProxyExecutor;
use clap::Parser;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Stdout},
    sync::{Mutex, watch},
};

const HOST: &str = "desktop#mcp";
/// Pause between attempts to connect: the executor's constructor needs broker and host, and doesn't retry.
const RETRY_PAUSE: Duration = Duration::from_millis(200);
/// How long one attempt waits for the host's list of tools.
const MANIFEST_LIMIT: Duration = Duration::from_secs(5);

#[derive(Parser)]
struct Options {
    #[arg(long)]
    broker: String,
    #[arg(long)]
    token: String,
    #[arg(long)]
    name: String,
    /// Deadline of a call, such as 60s.
    #[arg(long)]
    deadline: String,
    /// Unused; marks this process in the process list as part of a run.
    #[arg(long)]
    folder: Option<PathBuf>,
}

type Executor = watch::Receiver<Option<Arc<McpProxyExecutor>>>;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let seconds = options.deadline.trim_end_matches('s').parse().context("read the deadline")?;
    let (sender, executor) = watch::channel(None);
    tokio::spawn(connect(options, Duration::from_secs(seconds), sender));
    let out = Arc::new(Mutex::new(tokio::io::stdout()));
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await.context("read a request")? {
        let request: Value = serde_json::from_str(&line).context("read a request")?;
        if request.get("id").is_some() {
            tokio::spawn(answer(request, executor.clone(), Arc::clone(&out)));
        }
    }
    Ok(())
}

async fn connect(options: Options, deadline: Duration, sender: watch::Sender<Option<Arc<McpProxyExecutor>>>) {
    // A new name for each process, as a redeployed worker has.
    let name = format!("{}-{}#mcp", options.name, std::process::id());
    loop {
        let connecting = McpProxyExecutor::connect(&options.broker, &name, None, &options.token, HOST, deadline);
        match tokio::time::timeout(MANIFEST_LIMIT, connecting).await {
            Ok(Ok(executor)) => {
                sender.send_replace(Some(Arc::new(executor)));
                return sender.closed().await;
            }
            Ok(Err(error)) => eprintln!("not connected yet: {error}"),
            Err(_) => eprintln!("not connected yet: no list of tools"),
        }
        tokio::time::sleep(RETRY_PAUSE).await;
    }
}

async fn answer(request: Value, executor: Executor, out: Arc<Mutex<Stdout>>) {
    let mut reply = json!({"jsonrpc": "2.0", "id": request["id"]});
    match request["method"].as_str() {
        Some("initialize") => {
            let version = &request["params"]["protocolVersion"];
            let info = json!({"name": "original", "version": "1.0.0"});
            reply["result"] = json!({"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info});
        }
        Some("tools/call") => match call(&request["params"], executor).await {
            Ok(text) => reply["result"] = json!({"content": [{"type": "text", "text": text}]}),
            Err(error) => reply["error"] = json!({"code": -32603, "message": format!("{error:#}")}),
        },
        _ => reply["error"] = json!({"code": -32601, "message": "Method not found"}),
    }
    let line = format!("{reply}\n");
    let mut out = out.lock().await;
    if out.write_all(line.as_bytes()).await.is_err() || out.flush().await.is_err() {
        std::process::exit(0);
    }
}

async fn call(params: &Value, mut executor: Executor) -> anyhow::Result<String> {
    let executor = executor.wait_for(Option::is_some).await.context("connect")?.clone().context("connected")?;
    let name = params["name"].as_str().context("a call without a tool name")?.to_owned();
    let function = FunctionCall { name, arguments: params["arguments"].to_string() };
    let call = ToolCall { id: "call".into(), tool_type: "function".into(), function };
    Ok(executor.execute(&call).await?.result)
}
