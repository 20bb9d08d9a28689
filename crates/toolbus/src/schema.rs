//! A tool's input schema: validation errors of arguments as text, and the types that a field accepts.

use boon::{
    Compiler, ErrorKind, InstanceLocation, InstanceToken, SchemaIndex, Schemas, SchemeUrlLoader, ValidationError,
};
use serde_json::Value;
use toolbus_base::{nearest, or_list};

/// Maximum number of reported errors.
const MAX_ERRORS: usize = 8;
/// Maximum length of a quoted value, in characters.
const MAX_VALUE: usize = 80;
/// Where the schema is, for its relative references. No host has this name, and no loader exists.
const LOCATION: &str = "http://tool.invalid/schema";

/// The validation errors, one sentence each. A schema that is invalid, or that refers to the network, reports none: the
/// server then decides about the arguments.
pub fn problems(schema: &Value, arguments: &Value) -> Vec<String> {
    let mut schemas = Schemas::new();
    let Some(index) = compile(schema, &mut schemas) else { return Vec::new() };
    let mut found = Vec::new();
    if let Err(error) = schemas.validate(arguments, index) {
        collect(&error, schema, arguments, &mut found);
    }
    found.dedup();
    found.truncate(MAX_ERRORS);
    found
}

fn compile(schema: &Value, schemas: &mut Schemas) -> Option<SchemaIndex> {
    let mut compiler = Compiler::new();
    compiler.use_loader(Box::new(SchemeUrlLoader::new()));
    compiler.add_resource(LOCATION, schema.clone()).ok()?;
    compiler.compile(LOCATION, schemas).ok()
}

/// Errors form a tree. Those of alternatives are reported as one: each of them would be misleading.
fn collect(error: &ValidationError<'_, '_>, schema: &Value, arguments: &Value, found: &mut Vec<String>) {
    let path = field_path(&error.instance_location);
    let at = |text: String| if path.is_empty() { text } else { format!("{path}: {text}") };
    let value = || quoted(value_at(arguments, &error.instance_location));
    match &error.kind {
        ErrorKind::Required { want } => found.extend(want.iter().map(|name| {
            let about = description(schema, name).map_or(String::new(), |text| format!(" ({text})"));
            let name = if path.is_empty() { (*name).to_owned() } else { format!("{path}.{name}") };
            format!("{name} is missing{about}")
        })),
        ErrorKind::AdditionalProperties { got } => {
            let known: Vec<&str> = properties(schema).map(|(name, _)| name).collect();
            let guess = got.first().map(|name| nearest(name, known.iter().copied())).unwrap_or_default();
            let hint = if guess.is_empty() { String::new() } else { format!("; did you mean {}?", or_list(&guess)) };
            found.push(format!("unknown: {}{hint}", got.join(", ")));
        }
        ErrorKind::Type { want, .. } => {
            let types: Vec<String> = want.iter().map(|one| one.to_string()).collect();
            found.push(at(format!("{} is not of type {}", value(), types.join(" or "))));
        }
        ErrorKind::AnyOf | ErrorKind::OneOf(None) => {
            found.push(at(format!("{} matches none of the allowed alternatives", value())));
        }
        _ if !error.causes.is_empty() => {
            for cause in &error.causes {
                collect(cause, schema, arguments, found);
            }
        }
        kind => found.push(at(shortened(&kind.to_string()))),
    }
}

/// `/a/0/b` as `a[0].b`.
fn field_path(location: &InstanceLocation<'_>) -> String {
    let mut path = String::new();
    for token in &location.tokens {
        match token {
            InstanceToken::Item(index) => path.push_str(&format!("[{index}]")),
            InstanceToken::Prop(name) if path.is_empty() => path.push_str(name),
            InstanceToken::Prop(name) => path.push_str(&format!(".{name}")),
        }
    }
    path
}

fn value_at<'a>(arguments: &'a Value, location: &InstanceLocation<'_>) -> &'a Value {
    location.tokens.iter().fold(arguments, |value, token| match token {
        InstanceToken::Item(index) => &value[*index],
        InstanceToken::Prop(name) => &value[&**name],
    })
}

fn quoted(value: &Value) -> String {
    shortened(&value.to_string())
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(MAX_VALUE) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
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
                "mode": {"enum": ["a", "b"]},
                "either": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
                "deep": {"allOf": [{"$ref": "#/$defs/deep"}]},
            },
            "$defs": {"deep": {"type": "object", "required": ["x"]}},
        });
        let check = |arguments: Value, expected: &[&str]| assert_eq!(problems(&schema, &arguments), expected);
        check(json!({"text": "a", "count": 10}), &[]);
        check(json!({}), &["text is missing (The text to look at)"]);
        check(json!({"text": 5}), &["text: 5 is not of type string"]);
        check(json!({"text": "a", "count": 11}), &["count: must be <=10, but got 11"]);
        check(json!({"text": "a", "cuont": 1}), &["unknown: cuont; did you mean count?"]);
        check(json!({"text": "a", "points": [{"x": 1}, {"x": "y"}]}), &["points[1].x: \"y\" is not of type number"]);
        check(json!([1]), &["[1] is not of type object"]);
        check(json!({"text": "a", "mode": "c"}), &["mode: value must be one of 'a', 'b'"]);
        check(json!({"text": "a", "either": []}), &["either: [] matches none of the allowed alternatives"]);
        check(json!({"text": "a", "deep": {}}), &["deep.x is missing"]);
        let long = "é".repeat(100);
        check(json!({"text": "a", "count": long}), &[&format!("count: \"{}… is not of type integer", "é".repeat(79))]);
    }

    #[test]
    fn an_unusable_schema_reports_no_errors() {
        let file = json!({"$ref": "file:///etc/hostname"});
        for schema in [json!({"$ref": "http://127.0.0.1:1/x.json"}), file, json!({"type": "nonsense"}), json!(7)] {
            assert_eq!(problems(&schema, &json!({"a": 1})), Vec::<String>::new(), "{schema}");
        }
    }
}
