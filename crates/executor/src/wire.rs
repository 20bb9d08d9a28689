//! The bodies of `mcp_request` and `mcp_reply`: the two operations of the original protocol. Peers ignore unknown
//! fields, so results may have more fields than the original's.

use crate::tool::{ToolResult, ToolResultImage, ToolSchema};
use serde::{Deserialize, Serialize};

/// A request of a worker to a host. An unknown operation fails to parse and is answered with an error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum McpRequest {
    /// Lists the tools that the worker's role may use.
    Manifest,
    /// Runs a tool.
    Call {
        /// The name of the tool.
        tool: String,
        /// The arguments as JSON text.
        arguments: String,
    },
}

/// The reply of a host. Exactly one field is set; the others are omitted.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct McpReply {
    /// The answer to [`McpRequest::Manifest`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manifest: Option<Vec<ToolSchema>>,
    /// The result of a tool that ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<ProxiedResult>,
    /// Why the request failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl McpReply {
    /// A reply with a manifest.
    pub fn manifest(tools: Vec<ToolSchema>) -> Self {
        Self { manifest: Some(tools), ..Self::default() }
    }

    /// A reply with the result of a tool.
    pub fn result(result: impl Into<ProxiedResult>) -> Self {
        Self { result: Some(result.into()), ..Self::default() }
    }

    /// A reply with an error.
    pub fn error(reason: impl Into<String>) -> Self {
        Self { error: Some(reason.into()), ..Self::default() }
    }
}

/// The wire format of a tool's result. Peers of the original know only the first two fields.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ProxiedResult {
    /// Whether the tool itself reports success.
    pub success: bool,
    /// The output of the tool.
    pub result: String,
    /// A hint for user interfaces on how to display the result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display_preference: Option<String>,
    /// Images in the result.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<ToolResultImage>,
}

impl From<ToolResult> for ProxiedResult {
    fn from(ToolResult { success, result, display_preference, images }: ToolResult) -> Self {
        Self { success, result, display_preference, images }
    }
}

impl From<ProxiedResult> for ToolResult {
    fn from(ProxiedResult { success, result, display_preference, images }: ProxiedResult) -> Self {
        Self { success, result, display_preference, images }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tool::FunctionSchema;
    use serde_json::json;

    #[test]
    fn the_json_is_that_of_the_original() {
        let check = |body: serde_json::Value, expected| assert_eq!(body, expected);
        let to = |reply: McpReply| serde_json::to_value(reply).expect("it serialises");
        check(serde_json::to_value(McpRequest::Manifest).expect("it serialises"), json!({"op": "manifest"}));
        let call = McpRequest::Call { tool: "nova_click".into(), arguments: "{\"mark\":7}".into() };
        check(
            serde_json::to_value(call).expect("it serialises"),
            json!({"op": "call", "tool": "nova_click", "arguments": "{\"mark\":7}"}),
        );
        let function =
            FunctionSchema { name: "t".into(), description: "d".into(), parameters: json!({"type": "object"}) };
        check(
            to(McpReply::manifest(vec![ToolSchema { schema_type: "function".into(), function }])),
            json!({"manifest": [{"type": "function", "function":
                {"name": "t", "description": "d", "parameters": {"type": "object"}}}]}),
        );
        check(to(McpReply::result(ToolResult::text(true, "ok"))), json!({"result": {"success": true, "result": "ok"}}));
        check(to(McpReply::error("no")), json!({"error": "no"}));
    }

    #[test]
    fn unknown_fields_are_ignored_and_unknown_operations_are_not() {
        let reply: McpReply =
            serde_json::from_value(json!({"result": {"success": true, "result": "ok", "_meta": {}}, "later": 1}))
                .expect("readable");
        assert_eq!(reply, McpReply::result(ToolResult::text(true, "ok")));
        let request: McpRequest = serde_json::from_value(json!({"op": "manifest", "later": 1})).expect("readable");
        assert_eq!(request, McpRequest::Manifest);
        assert!(serde_json::from_value::<McpRequest>(json!({"op": "rpc", "method": "ping"})).is_err());
    }

    #[test]
    fn a_result_with_an_image_survives_a_round_trip() {
        let image = ToolResultImage { mime_type: "image/png".into(), data: "iVBORw0=".into() };
        let sent = ToolResult { images: vec![image], ..ToolResult::text(true, "a screenshot") };
        let text = serde_json::to_string(&McpReply::result(sent.clone())).expect("it serialises");
        let reply: McpReply = serde_json::from_str(&text).expect("readable");
        assert_eq!(reply.result.map(ToolResult::from), Some(sent));
    }
}
