//! The types of tools, calls and results. Their JSON is the "function tool" format of model APIs, which is also the
//! wire format.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The definition of a tool as presented to a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolSchema {
    /// The kind of tool; currently always `function`.
    #[serde(rename = "type")]
    pub schema_type: String,
    /// The function.
    pub function: FunctionSchema,
}

/// The name, description and parameters of a tool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FunctionSchema {
    /// The name by which the tool is called.
    pub name: String,
    /// The description for the model.
    // Optional, so that one tool without a description does not make the whole manifest unparsable.
    #[serde(default)]
    pub description: String,
    /// The JSON Schema of the arguments.
    #[serde(default)]
    pub parameters: Value,
}

/// A tool call of a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolCall {
    /// The id of the call.
    pub id: String,
    /// The kind of tool; currently always `function`.
    #[serde(rename = "type")]
    pub tool_type: String,
    /// The called function and its arguments.
    pub function: FunctionCall,
}

/// The name and arguments of a tool call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FunctionCall {
    /// The name of the tool.
    pub name: String,
    /// The arguments as JSON text, exactly as the model wrote it.
    pub arguments: String,
}

/// The result of a tool that ran. A tool that could not run or did not finish is a [`ToolError`] instead.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ToolResult {
    /// Whether the tool itself reports success.
    pub success: bool,
    /// The output of the tool.
    pub result: String,
    /// A hint for user interfaces on how to display the result.
    pub display_preference: Option<String>,
    /// Images in the result.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<ToolResultImage>,
}

impl ToolResult {
    /// A result without images.
    pub fn text(success: bool, result: impl Into<String>) -> Self {
        Self { success, result: result.into(), ..Self::default() }
    }
}

/// An image in the result of a tool.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ToolResultImage {
    /// The MIME type of the image.
    pub mime_type: String,
    /// The image in Base64, without a `data:` prefix.
    pub data: String,
}

/// Why a tool did not run or did not finish. The messages are part of the wire protocol.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ToolError {
    /// No tool has this name.
    #[error("Tool not found: {0}")]
    NotFound(String),
    /// The tool failed for this reason, or its result could not be delivered.
    #[error("Execution failed: {0}")]
    Execution(String),
    /// The tool rejected its arguments for this reason.
    #[error("Invalid arguments: {0}")]
    InvalidArguments(String),
}
