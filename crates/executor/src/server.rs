//! An executor as the server of a host: its tools as MCP definitions, its results as MCP content.

use crate::async_trait;
use crate::executor::{ToolExecutionContext, ToolExecutor};
use crate::tool::{FunctionCall, FunctionSchema, ToolCall, ToolError, ToolResult, ToolSchema};
use serde_json::{Value, json};
use std::sync::Arc;
use toolbus_mcp::{Outcome, Raw, RpcError, codes, meta, raw};
use toolbus_upstream::{Caller, InProcessServer};

pub struct ExecutorServer(pub Arc<dyn ToolExecutor>);

#[async_trait]
impl InProcessServer for ExecutorServer {
    fn list_tools(&self) -> Vec<Raw> {
        self.0.list_tools().into_iter().map(definition).collect()
    }

    async fn call(&self, caller: Caller<'_>, tool: &str, arguments: &Raw) -> Outcome {
        let function = FunctionCall { name: tool.to_owned(), arguments: arguments.get().to_owned() };
        let call = ToolCall { id: format!("mcp-{}", caller.request), tool_type: "function".into(), function };
        let context =
            ToolExecutionContext { tool_call_id: &call.id, session_id: Some(caller.mailbox), role: caller.role };
        match self.0.execute_with_context(&call, context).await {
            Ok(result) => Outcome::Result(content(result)),
            Err(error) => rpc_error(&error).into(),
        }
    }
}

fn definition(ToolSchema { function, .. }: ToolSchema) -> Raw {
    let FunctionSchema { name, description, parameters } = function;
    // MCP requires a schema.
    let schema = if parameters.is_null() { json!({"type": "object"}) } else { parameters };
    raw(&json!({"name": name, "description": description, "inputSchema": schema}))
}

/// `original::proxied` of the host restores the fields for workers that don't speak MCP.
fn content(ToolResult { success, result, display_preference, images }: ToolResult) -> Raw {
    let images =
        images.into_iter().map(|image| json!({"type": "image", "data": image.data, "mimeType": image.mime_type}));
    let content: Vec<Value> = std::iter::once(json!({"type": "text", "text": result})).chain(images).collect();
    let mut complete = json!({"resultType": "complete", "content": content, "isError": !success});
    if let Some(preference) = display_preference {
        complete[meta::META] = json!({meta::DISPLAY_PREFERENCE: preference});
    }
    raw(&complete)
}

fn rpc_error(error: &ToolError) -> RpcError {
    let code = match error {
        ToolError::NotFound(_) | ToolError::InvalidArguments(_) => codes::INVALID_PARAMS,
        ToolError::Execution(_) => codes::INTERNAL_ERROR,
    };
    RpcError::new(code, error.to_string())
}
