//! The bodies of `mcp_request` and `mcp_reply`: the two operations of the original protocol. Fields that a peer doesn't
//! know are ignored by it, so results can carry more than the original's do.

use crate::tool::{ToolResult, ToolResultImage, ToolSchema};
use serde::{Deserialize, Serialize};

/// What a worker asks of a host. An operation that is not listed here doesn't parse, and is answered with an error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum McpRequest {
    /// Which tools may I use?
    Manifest,
    /// Run a tool; `arguments` is JSON text.
    Call { tool: String, arguments: String },
}

/// A host's answer: one of the three, the others are left out.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct McpReply {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manifest: Option<Vec<ToolSchema>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<ProxiedResult>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl McpReply {
    pub fn manifest(tools: Vec<ToolSchema>) -> Self {
        Self { manifest: Some(tools), ..Self::default() }
    }

    pub fn result(result: impl Into<ProxiedResult>) -> Self {
        Self { result: Some(result.into()), ..Self::default() }
    }

    pub fn error(reason: impl Into<String>) -> Self {
        Self { error: Some(reason.into()), ..Self::default() }
    }
}

/// A tool's result on its way. The original's peers read and write the first two fields.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ProxiedResult {
    pub success: bool,
    pub result: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display_preference: Option<String>,
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
    fn bodies_are_those_of_the_original() {
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
    fn a_result_with_an_image_is_whole_at_the_other_end() {
        let image = ToolResultImage { mime_type: "image/png".into(), data: "iVBORw0=".into() };
        let sent = ToolResult { images: vec![image], ..ToolResult::text(true, "a screenshot") };
        let text = serde_json::to_string(&McpReply::result(sent.clone())).expect("it serialises");
        let reply: McpReply = serde_json::from_str(&text).expect("readable");
        assert_eq!(reply.result.map(ToolResult::from), Some(sent));
    }
}
