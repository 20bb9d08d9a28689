//! A host's tools as an implementation of the original's `ToolExecutor`.

use crate::TOKEN;
use crate::original::agent;
use async_trait::async_trait;
use bamboo_agent_core::tools::{
    FunctionCall, FunctionSchema, ToolCall, ToolError, ToolExecutor, ToolResult, ToolSchema,
};
use bamboo_broker::{McpProxyExecutor, RoleToolAllowlist};
use serde_json::json;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{Barrier, mpsc};

/// The mailbox of every host here.
pub const HOST: &str = "desktop#mcp";
/// How long a worker waits for the answer of its host.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

type Invocation = Box<dyn Fn() -> Behaviour + Send + Sync>;

/// What a tool does when it is called.
pub enum Behaviour {
    /// Returns its name and arguments.
    Echo,
    Fail(String),
    /// Returns when enough calls wait at the barrier.
    Meet(Arc<Barrier>),
    /// Never returns.
    Hang,
}

/// Tools that can be replaced while they are served.
#[derive(Default)]
pub struct Toolbox {
    tools: Mutex<HashMap<String, Arc<Invocation>>>,
    called: Mutex<Option<mpsc::UnboundedSender<String>>>,
}

impl Toolbox {
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// A toolbox with tools that echo.
    pub fn echoing(names: &[&str]) -> Arc<Self> {
        let toolbox = Self::new();
        names.iter().for_each(|name| toolbox.put(name, || Behaviour::Echo));
        toolbox
    }

    pub fn put(&self, name: &str, invocation: impl Fn() -> Behaviour + Send + Sync + 'static) {
        self.tools.lock().expect("no panic").insert(name.to_owned(), Arc::new(Box::new(invocation)));
    }

    /// Receives the name of each tool that is called.
    pub fn watch_calls(&self) -> mpsc::UnboundedReceiver<String> {
        let (sender, receiver) = mpsc::unbounded_channel();
        *self.called.lock().expect("no panic") = Some(sender);
        receiver
    }
}

#[async_trait]
impl ToolExecutor for Toolbox {
    async fn execute(&self, call: &ToolCall) -> Result<ToolResult, ToolError> {
        let name = &call.function.name;
        if let Some(called) = &*self.called.lock().expect("no panic") {
            called.send(name.clone()).ok();
        }
        let tool = self.tools.lock().expect("no panic").get(name).cloned();
        match tool.ok_or_else(|| ToolError::NotFound(name.clone()))?() {
            Behaviour::Echo => {}
            Behaviour::Fail(reason) => return Err(ToolError::Execution(reason)),
            Behaviour::Meet(barrier) => {
                barrier.wait().await;
            }
            Behaviour::Hang => std::future::pending().await,
        }
        Ok(ToolResult::text(true, echo(name, &call.function.arguments)))
    }

    fn list_tools(&self) -> Vec<ToolSchema> {
        let mut names: Vec<String> = self.tools.lock().expect("no panic").keys().cloned().collect();
        names.sort();
        names.iter().map(|name| schema(name)).collect()
    }
}

/// The result of an echoing tool.
pub fn echo(tool: &str, arguments: &str) -> String {
    format!("ran {tool} args={arguments}")
}

pub fn schema(name: &str) -> ToolSchema {
    let function = FunctionSchema {
        name: name.to_owned(),
        description: format!("the tool {name}"),
        parameters: json!({ "type": "object", "properties": { "mark": { "type": "integer" } } }),
    };
    ToolSchema { schema_type: "function".into(), function }
}

pub fn call(tool: &str, arguments: &str) -> ToolCall {
    ToolCall {
        id: format!("call-{tool}"),
        tool_type: "function".into(),
        function: FunctionCall { name: tool.into(), arguments: arguments.into() },
    }
}

pub fn names(tools: &[ToolSchema]) -> Vec<&str> {
    tools.iter().map(|tool| tool.function.name.as_str()).collect()
}

/// The original's host, serving in the background.
pub fn spawn_host(endpoint: &str, toolbox: Arc<Toolbox>, allowlist: RoleToolAllowlist) {
    let endpoint = endpoint.to_owned();
    tokio::spawn(async move {
        bamboo_broker::serve_mcp_proxy(&endpoint, agent(HOST), TOKEN, toolbox, Arc::new(allowlist)).await
    });
}

/// The original's worker side.
pub async fn worker(endpoint: &str, name: &str, role: Option<&str>) -> McpProxyExecutor {
    let role = role.map(str::to_owned);
    let connecting = McpProxyExecutor::connect(endpoint, name, role, TOKEN, HOST, CALL_TIMEOUT);
    connecting.await.expect("a manifest")
}
