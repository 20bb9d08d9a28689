//! Arguments of a tool that a modern HTTP client mirrors as `Mcp-Param-*` headers, so that intermediaries can route by
//! them. A request whose header contradicts the argument is rejected before either is used.

use serde_json::{Map, Value};

/// The annotation in a tool's input schema.
pub const ANNOTATION: &str = "x-mcp-header";

/// An argument of a tool that is mirrored in a header.
#[derive(Debug, PartialEq, Eq)]
pub struct ParamHeader {
    /// The name of the header without the prefix `Mcp-Param-`, in lower case.
    pub name: String,
    /// The path to the argument through nested objects.
    pub path: Vec<String>,
}

/// The annotated arguments. One invalid annotation voids all of them, because clients drop such a tool.
pub fn of_tool(tool: &str) -> Vec<ParamHeader> {
    let Ok(tool) = serde_json::from_str::<Value>(tool) else { return Vec::new() };
    let mut found = Vec::new();
    let Some(schema) = tool.get("inputSchema").and_then(Value::as_object) else { return found };
    let mut reachable = 0;
    let valid = collect(schema, &mut Vec::new(), &mut found, &mut reachable).is_some();
    // An annotation that is not reachable through `properties` alone is invalid too.
    if !valid || reachable != count(&Value::Object(schema.clone())) {
        found.clear();
    }
    found
}

fn collect(
    schema: &Map<String, Value>,
    path: &mut Vec<String>,
    found: &mut Vec<ParamHeader>,
    reachable: &mut usize,
) -> Option<()> {
    if let Some(name) = schema.get(ANNOTATION) {
        *reachable += 1;
        let name = name.as_str().filter(|name| is_token(name))?.to_ascii_lowercase();
        let typed = matches!(schema.get("type").and_then(Value::as_str), Some("string" | "integer" | "boolean"));
        if path.is_empty() || !typed || found.iter().any(|other| other.name == name) {
            return None;
        }
        found.push(ParamHeader { name, path: path.clone() });
    }
    let properties = schema.get("properties").and_then(Value::as_object);
    for (name, property) in properties.into_iter().flatten() {
        let Some(property) = property.as_object() else { continue };
        path.push(name.clone());
        collect(property, path, found, reachable)?;
        path.pop();
    }
    Some(())
}

/// Counts the annotations anywhere in the schema. A property that happens to have the annotation's name does not count.
fn count(schema: &Value) -> usize {
    match schema {
        Value::Object(members) => {
            let here = usize::from(members.contains_key(ANNOTATION));
            let inner = members.iter().map(|(name, value)| match value {
                Value::Object(properties) if name == "properties" => properties.values().map(count).sum(),
                other => count(other),
            });
            here + inner.sum::<usize>()
        }
        Value::Array(values) => values.iter().map(count).sum(),
        _ => 0,
    }
}

fn is_token(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}

/// The argument at the path; `null` counts as absent.
pub fn argument<'a>(arguments: Option<&'a Value>, path: &[String]) -> Option<&'a Value> {
    let found = path.iter().try_fold(arguments?, |value, name| value.get(name))?;
    (!found.is_null()).then_some(found)
}

/// Whether the decoded header has the same value as the argument.
pub fn agrees(header: &str, argument: &Value) -> bool {
    match argument {
        Value::String(text) => text == header,
        Value::Bool(truth) => header == if *truth { "true" } else { "false" },
        Value::Number(number) => match (parse_integer(&number.to_string()), parse_integer(header)) {
            (Some(argument), Some(header)) => argument == header,
            _ => false,
        },
        _ => false,
    }
}

/// Parses an integer, also in the form `42.0`.
fn parse_integer(text: &str) -> Option<i128> {
    let (digits, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let zeros = !fraction.is_empty() && fraction.bytes().all(|digit| digit == b'0');
    if zeros { digits.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn annotated_arguments_are_found_at_any_depth() {
        let tool = json!({"inputSchema": {"type": "object", "properties": {
            "region": {"type": "string", "x-mcp-header": "Region"},
            "deep": {"type": "object", "properties": {"n": {"type": "integer", "x-mcp-header": "N"}}}}}});
        let names: Vec<_> =
            of_tool(&tool.to_string()).into_iter().map(|found| (found.name, found.path.join("."))).collect();
        assert_eq!(names.len(), 2);
        assert!(names.contains(&("region".into(), "region".into())) && names.contains(&("n".into(), "deep.n".into())));
    }

    #[test]
    fn one_invalid_annotation_voids_all() {
        let good = json!({"type": "string", "x-mcp-header": "A"});
        for bad in [
            json!({"type": "number", "x-mcp-header": "B"}),
            json!({"type": "string", "x-mcp-header": "a"}),
            json!({"type": "string", "x-mcp-header": "not a token"}),
            json!({"type": "array", "items": {"type": "string", "x-mcp-header": "C"}}),
        ] {
            let tool = json!({"inputSchema": {"properties": {"good": good, "bad": bad}}});
            assert_eq!(of_tool(&tool.to_string()), []);
        }
    }

    #[test]
    fn headers_are_compared_by_value() {
        let check = |header, argument: Value, expected| assert_eq!(agrees(header, &argument), expected, "{header}");
        check("42", json!(42), true);
        check("42.0", json!(42), true);
        check("9007199254740993", json!(9007199254740993u64), true);
        check("9007199254740992", json!(9007199254740993u64), false);
        check("4e1", json!(40), false);
        check("true", json!(true), true);
        check("us", json!("us"), true);
        check("US", json!("us"), false);
    }
}
