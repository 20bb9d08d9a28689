//! A tool's input schema: validation errors of arguments as text, and the types that a field accepts.

use jsonschema::ValidationError;
use jsonschema::error::ValidationErrorKind;
use serde_json::Value;
use toolbus_base::{nearest, or_list};

/// Maximum number of reported errors.
const MAX_ERRORS: usize = 8;

/// The validation errors, one sentence each. A schema that is invalid, or that refers to the network, reports none: the
/// server then decides about the arguments.
pub fn problems(schema: &Value, arguments: &Value) -> Vec<String> {
    let Ok(validator) = jsonschema::validator_for(schema) else { return Vec::new() };
    let mut found: Vec<String> =
        validator.iter_errors(arguments).take(MAX_ERRORS).map(|error| describe(&error, schema)).collect();
    found.dedup();
    found
}

fn describe(error: &ValidationError<'_>, schema: &Value) -> String {
    let path = field_path(error.instance_path().as_str());
    match error.kind() {
        ValidationErrorKind::Required { property } => {
            let name = property.as_str().map_or_else(|| property.to_string(), str::to_owned);
            let name = if path.is_empty() { name } else { format!("{path}.{name}") };
            let about = description(schema, &name).map_or(String::new(), |text| format!(" ({text})"));
            format!("{name} is missing{about}")
        }
        ValidationErrorKind::AdditionalProperties { unexpected } => {
            let known: Vec<&str> = properties(schema).map(|(name, _)| name).collect();
            let guess = unexpected.first().map(|name| nearest(name, known.iter().copied())).unwrap_or_default();
            let hint = if guess.is_empty() { String::new() } else { format!("; did you mean {}?", or_list(&guess)) };
            format!("unknown: {}{hint}", unexpected.join(", "))
        }
        // The library quotes the value, which is useful unless the value is long.
        _ => {
            let text = error.to_string();
            let text = if text.chars().count() > 200 { error.masked().to_string() } else { text };
            if path.is_empty() { text } else { format!("{path}: {text}") }
        }
    }
}

/// `/a/0/b` as `a[0].b`.
fn field_path(pointer: &str) -> String {
    let mut path = String::new();
    for part in pointer.split('/').skip(1) {
        let part = part.replace("~1", "/").replace("~0", "~");
        if part.bytes().all(|byte| byte.is_ascii_digit()) {
            path.push_str(&format!("[{part}]"));
        } else {
            if !path.is_empty() {
                path.push('.');
            }
            path.push_str(&part);
        }
    }
    path
}

pub fn properties(schema: &Value) -> impl Iterator<Item = (&str, &Value)> {
    schema["properties"].as_object().into_iter().flatten().map(|(name, value)| (name.as_str(), value))
}

fn description<'a>(schema: &'a Value, name: &str) -> Option<&'a str> {
    let text = schema["properties"][name]["description"].as_str()?;
    text.lines().next().map(|line| line.trim_end_matches('.'))
}

/// The types that a field accepts, following local references and alternatives. Empty: any type.
pub fn types<'a>(root: &'a Value, part: &'a Value) -> Vec<&'a str> {
    let mut types = Vec::new();
    collect_types(root, part, 0, &mut types);
    types.dedup();
    types
}

fn collect_types<'a>(root: &'a Value, part: &'a Value, depth: usize, types: &mut Vec<&'a str>) {
    const MAX_DEPTH: usize = 8;
    if depth > MAX_DEPTH {
        return;
    }
    let part = resolve(root, part);
    match &part["type"] {
        Value::String(one) => types.push(one),
        Value::Array(several) => types.extend(several.iter().filter_map(Value::as_str)),
        _ => {}
    }
    for key in ["anyOf", "oneOf", "allOf"] {
        for alternative in part[key].as_array().into_iter().flatten() {
            collect_types(root, alternative, depth + 1, types);
        }
    }
    if types.is_empty() {
        for value in part["enum"].as_array().into_iter().flatten() {
            types.push(type_of(value));
        }
    }
}

/// Resolves a local `$ref`; returns anything else unchanged.
pub fn resolve<'a>(root: &'a Value, part: &'a Value) -> &'a Value {
    let pointer = part["$ref"].as_str().and_then(|reference| reference.strip_prefix('#'));
    pointer.and_then(|pointer| root.pointer(pointer)).unwrap_or(part)
}

pub fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn validation_errors_name_the_field() {
        let schema = json!({
            "type": "object", "required": ["text"], "additionalProperties": false,
            "properties": {
                "text": {"type": "string", "description": "The text to look at."},
                "count": {"type": "integer", "maximum": 10},
                "points": {"type": "array", "items": {"type": "object", "properties": {"x": {"type": "number"}}}},
            },
        });
        let check = |arguments: Value, expected: &[&str]| assert_eq!(problems(&schema, &arguments), expected);
        check(json!({"text": "a", "count": 10}), &[]);
        check(json!({}), &["text is missing (The text to look at)"]);
        check(json!({"text": 5}), &["text: 5 is not of type \"string\""]);
        check(json!({"text": "a", "count": 11}), &["count: 11 is greater than the maximum of 10"]);
        check(json!({"text": "a", "cuont": 1}), &["unknown: cuont; did you mean count?"]);
        check(
            json!({"text": "a", "points": [{"x": 1}, {"x": "y"}]}),
            &["points[1].x: \"y\" is not of type \"number\""],
        );
        check(json!([1]), &["[1] is not of type \"object\""]);
    }

    #[test]
    fn an_unusable_schema_reports_no_errors() {
        for schema in [json!({"$ref": "http://127.0.0.1:1/x.json"}), json!({"type": "nonsense"}), json!(7)] {
            assert_eq!(problems(&schema, &json!({"a": 1})), Vec::<String>::new(), "{schema}");
        }
    }
}
