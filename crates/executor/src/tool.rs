//! The vocabulary of tools: what a tool looks like, what a call asks, what comes back. The JSON of these types is what
//! model APIs call function tools, and travels on the bus as it is.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A tool as it is shown to a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolSchema {
    /// Always `function` so far.
    #[serde(rename = "type")]
    pub schema_type: String,
    pub function: FunctionSchema,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FunctionSchema {
    pub name: String,
    // One tool without a description must not make a whole manifest unreadable.
    #[serde(default)]
    pub description: String,
    /// JSON Schema of the arguments.
    #[serde(default)]
    pub parameters: Value,
}

/// A model's wish to have a tool called.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolCall {
    pub id: String,
    #[serde(rename = "type")]
    pub tool_type: String,
    pub function: FunctionCall,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FunctionCall {
    pub name: String,
    /// JSON text, as the model wrote it.
    pub arguments: String,
}

/// What a tool answered. `success: false` is the tool's own verdict; that it could not be run at all is a [`ToolError`].
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ToolResult {
    pub success: bool,
    pub result: String,
    /// How the result would like to be shown to people.
    pub display_preference: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<ToolResultImage>,
}

impl ToolResult {
    /// A result of text only.
    pub fn text(success: bool, result: impl Into<String>) -> Self {
        Self { success, result: result.into(), ..Self::default() }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ToolResultImage {
    pub mime_type: String,
    /// Base64, without a `data:` prefix.
    pub data: String,
}

/// Why a tool did not run, or did not finish. The sentences cross the bus as part of the protocol.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ToolError {
    #[error("Tool not found: {0}")]
    NotFound(String),
    #[error("Execution failed: {0}")]
    Execution(String),
    #[error("Invalid arguments: {0}")]
    InvalidArguments(String),
}
