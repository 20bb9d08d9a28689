//! Tools with configurable behaviour that count their calls.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use tokio::sync::{Barrier, Semaphore};
use toolbus_executor::{
    FunctionCall, FunctionSchema, ToolCall, ToolError, ToolExecutionContext, ToolExecutor, ToolResult, ToolResultImage,
    ToolSchema, async_trait,
};

/// The behaviour of a tool.
#[derive(Clone)]
pub enum Behaviour {
    /// Returns its name and arguments.
    Echo,
    /// Returns its caller and role.
    WhoAmI,
    Image,
    Fail,
    Panic,
    /// Returns once as many calls are running as the barrier needs.
    Meet(Arc<Barrier>),
    /// Returns once it gets a permit.
    Gate(Arc<Semaphore>),
    /// Returns a result of this many bytes.
    Big(usize),
}

#[derive(Default)]
pub struct Toolbox {
    tools: Mutex<BTreeMap<String, Behaviour>>,
    pub started: AtomicU32,
    pub running: AtomicU32,
    pub most_running: AtomicU32,
}

impl Toolbox {
    pub fn echoing(names: &[&str]) -> Arc<Self> {
        let toolbox = Self::default();
        names.iter().for_each(|name| toolbox.put(name, Behaviour::Echo));
        Arc::new(toolbox)
    }

    pub fn with(name: &str, behaviour: Behaviour) -> Arc<Self> {
        let toolbox = Self::default();
        toolbox.put(name, behaviour);
        Arc::new(toolbox)
    }

    pub fn put(&self, name: &str, behaviour: Behaviour) {
        self.tools.lock().expect("no panic").insert(name.to_owned(), behaviour);
    }

    pub fn started(&self) -> u32 {
        self.started.load(Ordering::SeqCst)
    }

    pub fn running(&self) -> u32 {
        self.running.load(Ordering::SeqCst)
    }
}

#[async_trait]
impl ToolExecutor for Toolbox {
    async fn execute(&self, call: &ToolCall) -> Result<ToolResult, ToolError> {
        self.execute_with_context(call, ToolExecutionContext::none(&call.id)).await
    }

    async fn execute_with_context(
        &self,
        call: &ToolCall,
        context: ToolExecutionContext<'_>,
    ) -> Result<ToolResult, ToolError> {
        let FunctionCall { name, arguments } = &call.function;
        let behaviour = self.tools.lock().expect("no panic").get(name).cloned();
        let behaviour = behaviour.ok_or_else(|| ToolError::NotFound(name.clone()))?;
        let _running = Running::new(self);
        match behaviour {
            Behaviour::Echo => {}
            Behaviour::WhoAmI => {
                let text = format!("{:?} as {:?}", context.session_id, context.role);
                return Ok(ToolResult::text(true, text));
            }
            Behaviour::Image => return Ok(image()),
            Behaviour::Fail => return Err(ToolError::Execution("out of order".into())),
            Behaviour::Panic => panic!("the tool is configured to panic"),
            Behaviour::Meet(barrier) => {
                barrier.wait().await;
            }
            Behaviour::Gate(gate) => gate.acquire().await.expect("the semaphore is never closed").forget(),
            Behaviour::Big(size) => return Ok(ToolResult::text(true, "x".repeat(size))),
        }
        Ok(ToolResult::text(true, echo(name, arguments)))
    }

    fn list_tools(&self) -> Vec<ToolSchema> {
        self.tools.lock().expect("no panic").keys().map(|name| schema(name)).collect()
    }
}

/// Counts a running call, also if it is aborted.
struct Running<'a>(&'a Toolbox);

impl<'a> Running<'a> {
    fn new(toolbox: &'a Toolbox) -> Self {
        toolbox.started.fetch_add(1, Ordering::SeqCst);
        let now = toolbox.running.fetch_add(1, Ordering::SeqCst) + 1;
        toolbox.most_running.fetch_max(now, Ordering::SeqCst);
        Self(toolbox)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The result of an echoing tool.
pub fn echo(tool: &str, arguments: &str) -> String {
    format!("ran {tool} args={arguments}")
}

pub fn image() -> ToolResult {
    ToolResult {
        success: false,
        result: "a screenshot".into(),
        display_preference: Some("wide".into()),
        images: vec![ToolResultImage { mime_type: "image/png".into(), data: "iVBORw0KGgo=".into() }],
    }
}

pub fn schema(name: &str) -> ToolSchema {
    let parameters = serde_json::json!({ "type": "object", "properties": { "mark": { "maximum": u64::MAX } } });
    let function = FunctionSchema { name: name.to_owned(), description: format!("the tool {name}"), parameters };
    ToolSchema { schema_type: "function".into(), function }
}

pub fn call(tool: &str, arguments: &str) -> ToolCall {
    let function = FunctionCall { name: tool.into(), arguments: arguments.into() };
    ToolCall { id: format!("call-{tool}"), tool_type: "function".into(), function }
}

pub fn names(tools: &[ToolSchema]) -> Vec<&str> {
    tools.iter().map(|tool| tool.function.name.as_str()).collect()
}
