//! The trait of everything that runs tools: the tools of a host, and a worker's proxy for them.

use crate::tool::{ToolCall, ToolError, ToolResult, ToolSchema};
use async_trait::async_trait;

/// A set of tools that can be listed and called.
#[async_trait]
pub trait ToolExecutor: Send + Sync {
    /// Runs a tool and returns its result.
    async fn execute(&self, call: &ToolCall) -> Result<ToolResult, ToolError>;

    /// Like `execute`, for tools that need to know their caller. Dropping the future cancels the call.
    async fn execute_with_context(
        &self,
        call: &ToolCall,
        context: ToolExecutionContext<'_>,
    ) -> Result<ToolResult, ToolError> {
        let _ = context;
        self.execute(call).await
    }

    /// All tools that can be called now.
    fn list_tools(&self) -> Vec<ToolSchema>;

    /// Whether a tool with exactly this name exists. Override it if listing the tools is expensive.
    fn owns_exact_tool(&self, tool_name: &str) -> bool {
        self.list_tools().iter().any(|tool| tool.function.name == tool_name)
    }
}

/// The caller of a tool. Informational only: the call has already been authorised.
#[derive(Debug, Clone, Copy)]
pub struct ToolExecutionContext<'a> {
    /// The id of the call, which stays the same when the call is redelivered.
    pub tool_call_id: &'a str,
    /// The caller's mailbox.
    pub session_id: Option<&'a str>,
    /// The caller's role as stamped by the broker.
    pub role: Option<&'a str>,
}

impl<'a> ToolExecutionContext<'a> {
    /// The context of a call without a known caller.
    pub fn none(tool_call_id: &'a str) -> Self {
        Self { tool_call_id, session_id: None, role: None }
    }
}
