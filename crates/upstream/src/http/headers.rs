//! The HTTP headers of the modern era, which repeat parts of a request for gateways that don't parse the body.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use std::collections::HashMap;
use toolbus_mcp::{MODERN_VERSION, Members, NameKey, Raw, Request, meta, routed_name};

pub(super) const PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
pub(super) const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
const METHOD: HeaderName = HeaderName::from_static("mcp-method");
const NAME: HeaderName = HeaderName::from_static("mcp-name");

/// Limits the memory for a server's annotations; further tools get no headers.
const MAX_TOOLS: usize = 10_000;
const MAX_SCHEMA_DEPTH: usize = 16;

/// The tool arguments that are repeated as headers.
#[derive(Default)]
pub(super) struct ToolHeaders(HashMap<String, Vec<ParamHeader>>);

struct ParamHeader {
    name: HeaderName,
    path: Vec<String>,
}

impl ToolHeaders {
    /// Reads the annotations in a result of `tools/list`.
    pub fn learn(&mut self, list: &Raw) {
        // Fast path: annotations are rare, and lists may be long.
        if !list.get().contains("x-mcp-header") {
            return;
        }
        let Ok(list) = Members::parse(list.text()) else { return };
        let tools = list.get("tools").and_then(|tools| serde_json::from_str::<Vec<Raw>>(tools.get()).ok());
        for tool in tools.into_iter().flatten() {
            let Ok(tool) = Members::parse(tool.text()) else { continue };
            let Some(name) = tool.text("name") else { continue };
            let mut found = Vec::new();
            collect(tool.get("inputSchema"), &mut Vec::new(), &mut found);
            if found.is_empty() {
                self.0.remove(&name);
            } else if self.0.len() < MAX_TOOLS {
                self.0.insert(name, found);
            }
        }
    }

    fn of_call(&self, request: &Request, headers: &mut HeaderMap) -> Option<()> {
        let params = Members::of(request.params.as_ref()).ok()?;
        for header in self.0.get(&params.text("name")?)? {
            let value =
                header.path.iter().try_fold(params.get("arguments")?, |object, key| object.members().ok()?.get(key));
            if let Some(value) = value.and_then(as_header) {
                headers.insert(header.name.clone(), value);
            }
        }
        Some(())
    }
}

/// Adds the headers of a modern request.
pub(super) fn of_request(request: &Request, tools: &ToolHeaders, headers: &mut HeaderMap) {
    let version = meta::get(request.params.as_ref(), meta::PROTOCOL_VERSION);
    let version = version.and_then(|version| serde_json::from_str::<String>(version.get()).ok());
    let version = version.and_then(|version| HeaderValue::try_from(version).ok());
    headers.insert(PROTOCOL_VERSION, version.unwrap_or(HeaderValue::from_static(MODERN_VERSION)));
    if let Ok(method) = HeaderValue::try_from(&request.method) {
        headers.insert(METHOD, method);
    }
    if let Some(name) = name_of(request).map(|name| encoded(&name)) {
        headers.insert(NAME, name);
    }
    if request.method == "tools/call" {
        tools.of_call(request, headers);
    }
}

fn name_of(request: &Request) -> Option<String> {
    let named = ["tools/call", "prompts/get", "resources/read", "tasks/get", "tasks/update", "tasks/cancel"];
    named.contains(&request.method.as_str()).then_some(())?;
    match routed_name(&request.method, request.params.as_ref())? {
        NameKey::Tool(name) | NameKey::Prompt(name) | NameKey::Uri(name) | NameKey::Task(name) => Some(name),
    }
}

/// All properties with `x-mcp-header` that are reachable through nested `properties` only.
fn collect(schema: Option<&Raw>, path: &mut Vec<String>, found: &mut Vec<ParamHeader>) -> Option<()> {
    if path.len() > MAX_SCHEMA_DEPTH {
        return None;
    }
    let schema = Members::of(schema).ok()?;
    let properties = Members::of(schema.get("properties")).ok()?;
    for (key, property) in properties.iter() {
        path.push(key.to_owned());
        let name = property.members().ok().and_then(|members| members.text("x-mcp-header"));
        let name = name.and_then(|name| HeaderName::try_from(format!("mcp-param-{name}")).ok());
        found.extend(name.map(|name| ParamHeader { name, path: path.clone() }));
        collect(Some(property), path, found);
        path.pop();
    }
    Some(())
}

/// `None` unless the value is a string, a number or a boolean.
fn as_header(value: &Raw) -> Option<HeaderValue> {
    let text = value.get();
    match text.as_bytes().first()? {
        b'"' => serde_json::from_str::<String>(text).ok().map(|text| encoded(&text)),
        b'{' | b'[' | b'n' => None,
        _ => HeaderValue::from_str(text).ok(),
    }
}

/// Plain if a header can hold the text, otherwise in base64.
fn encoded(text: &str) -> HeaderValue {
    let is_plain = text.bytes().all(|byte| (0x20..=0x7e).contains(&byte));
    let has_edges = text.starts_with(' ') || text.ends_with(' ');
    let looks_encoded = text.starts_with("=?base64?") && text.ends_with("?=");
    let plain = (is_plain && !has_edges && !looks_encoded).then(|| HeaderValue::from_str(text).ok()).flatten();
    plain.unwrap_or_else(|| {
        let text = format!("=?base64?{}?=", STANDARD.encode(text));
        HeaderValue::try_from(text).expect("base64 is visible ASCII")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use toolbus_mcp::{Id, raw};

    #[test]
    fn names_and_annotated_arguments_are_sent_as_headers() {
        let mut tools = ToolHeaders::default();
        tools.learn(&raw(
            &serde_json::json!({"tools": [{"name": "t", "inputSchema": {"type": "object", "properties": {
                "region": {"type": "string", "x-mcp-header": "Region"},
                "deep": {"type": "object", "properties": {"n": {"type": "integer", "x-mcp-header": "N"}}},
                "absent": {"type": "string", "x-mcp-header": "Absent"}
            }}}]}),
        ));
        let params = r#"{"name":"t","arguments":{"region":"Zürich","deep":{"n":9007199254740993},"absent":null}}"#;
        let params = Raw::parse(params).expect("valid JSON");
        let request = Request { id: Id::number(1), method: "tools/call".into(), params: Some(params) };
        let mut headers = HeaderMap::new();
        of_request(&request, &tools, &mut headers);
        let get = |name: &str| headers.get(name).map(|value| value.to_str().expect("ASCII").to_owned());
        assert_eq!(get("mcp-protocol-version").as_deref(), Some("2026-07-28"));
        assert_eq!(get("mcp-method").as_deref(), Some("tools/call"));
        assert_eq!(get("mcp-name").as_deref(), Some("t"));
        assert_eq!(get("mcp-param-region").as_deref(), Some("=?base64?WsO8cmljaA==?="));
        assert_eq!(get("mcp-param-n").as_deref(), Some("9007199254740993"));
        assert_eq!(get("mcp-param-absent"), None);
    }

    #[test]
    fn values_that_a_header_cannot_hold_are_encoded() {
        for (text, header) in
            [("a b", "a b"), (" a", "=?base64?IGE=?="), ("=?base64?x?=", "=?base64?PT9iYXNlNjQ/eD89?=")]
        {
            assert_eq!(encoded(text).to_str().ok(), Some(header));
        }
    }
}
