//! The trait that everything with tools implements: a host's real tools, and a worker's view of them across the bus.

use crate::tool::{ToolCall, ToolError, ToolResult, ToolSchema};
use async_trait::async_trait;

#[async_trait]
pub trait ToolExecutor: Send + Sync {
    async fn execute(&self, call: &ToolCall) -> Result<ToolResult, ToolError>;

    /// Like `execute`, for tools that want to know on whose behalf they run. Dropping the future abandons the call.
    async fn execute_with_context(
        &self,
        call: &ToolCall,
        context: ToolExecutionContext<'_>,
    ) -> Result<ToolResult, ToolError> {
        let _ = context;
        self.execute(call).await
    }

    /// Every tool that can be called right now.
    fn list_tools(&self) -> Vec<ToolSchema>;

    /// Whether there is a tool of exactly this name. Worth overriding where listing is costly.
    fn owns_exact_tool(&self, tool_name: &str) -> bool {
        self.list_tools().iter().any(|tool| tool.function.name == tool_name)
    }
}

/// On whose behalf a call runs. It informs and grants nothing: what a role may do was decided before.
#[derive(Debug, Clone, Copy)]
pub struct ToolExecutionContext<'a> {
    /// Identifies the call, also when it is sent again.
    pub tool_call_id: &'a str,
    /// The mailbox of the caller.
    pub session_id: Option<&'a str>,
    /// The caller's role as the broker knows it.
    pub role: Option<&'a str>,
}

impl<'a> ToolExecutionContext<'a> {
    /// A call of which nothing is known but its id.
    pub fn none(tool_call_id: &'a str) -> Self {
        Self { tool_call_id, session_id: None, role: None }
    }
}
