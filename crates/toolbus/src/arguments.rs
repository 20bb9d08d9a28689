//! Tool arguments from the command line: one JSON object, or `--arg name=value` with the value's type taken from the
//! tool's schema. They stay raw JSON, so that numbers are sent as they were typed.

use crate::schema;
use serde_json::Value;
use toolbus_base::{nearest, or_list};
use toolbus_mcp::{Members, Raw, empty_object, raw};

#[derive(Debug, thiserror::Error)]
pub enum ArgumentsError {
    #[error("the arguments are not JSON: {0}")]
    NotJson(serde_json::Error),
    #[error("the arguments must be a JSON object, such as '{{\"name\": \"value\"}}'")]
    NotAnObject,
    #[error("--arg needs name=value, but {0:?} has no =")]
    NoValue(String),
    #[error("{tool} has no argument {name}{}", guess(.nearest))]
    UnknownName { tool: String, name: String, nearest: Vec<String> },
    #[error("{name} must be of type {expected}, but {value:?} is not")]
    WrongType { name: String, expected: String, value: String },
    #[error("{name} is given {times} times, but it is not a list")]
    Repeated { name: String, times: usize },
    #[error("the arguments don't match the schema of {tool}:\n  {}", problems.join("\n  "))]
    Refused { tool: String, problems: Vec<String> },
}

/// Parses one JSON object. Blank text is an empty object.
pub fn from_json(text: &str) -> Result<Raw, ArgumentsError> {
    let text = text.trim();
    if text.is_empty() {
        return Ok(empty_object());
    }
    let value: Raw = serde_json::from_str(text).map_err(ArgumentsError::NotJson)?;
    // Also rejects duplicate keys.
    match value.members() {
        Ok(_) => Ok(value),
        Err(_) if !value.get().starts_with('{') => Err(ArgumentsError::NotAnObject),
        Err(error) => Err(ArgumentsError::NotJson(serde::de::Error::custom(error))),
    }
}

/// Builds the object from `name=value` pairs. The values of a repeated name become an array.
pub fn from_pairs(tool: &str, pairs: &[String], schema: &Value) -> Result<Raw, ArgumentsError> {
    let mut groups: Vec<(&str, Vec<&str>)> = Vec::new();
    for pair in pairs {
        let (name, value) = pair.split_once('=').ok_or_else(|| ArgumentsError::NoValue(pair.clone()))?;
        match groups.iter_mut().find(|(known, _)| *known == name) {
            Some((_, values)) => values.push(value),
            None => groups.push((name, vec![value])),
        }
    }
    let mut members = Members::default();
    for (name, values) in groups {
        let field = field(tool, name, schema)?;
        let value = match &values[..] {
            [value] => typed(name, value, schema, field)?,
            values => {
                let types = schema::types(schema, field);
                if !types.is_empty() && !types.contains(&"array") {
                    return Err(ArgumentsError::Repeated { name: name.to_owned(), times: values.len() });
                }
                typed_list(name, values, schema, field)?
            }
        };
        members.set(name.to_owned(), value);
    }
    Ok(members.into_raw())
}

/// Validates the arguments against the tool's schema.
pub fn check(tool: &str, arguments: &Raw, schema: &Value) -> Result<(), ArgumentsError> {
    let value: Value = serde_json::from_str(arguments.get()).map_err(ArgumentsError::NotJson)?;
    let problems = schema::problems(schema, &value);
    if problems.is_empty() { Ok(()) } else { Err(ArgumentsError::Refused { tool: tool.to_owned(), problems }) }
}

/// The field's schema. An unknown name is accepted if the schema allows additional properties and no known name is
/// similar to it.
fn field<'a>(tool: &str, name: &str, schema: &'a Value) -> Result<&'a Value, ArgumentsError> {
    let closed = schema["additionalProperties"] == Value::Bool(false);
    let known: Vec<&str> = schema::properties(schema).map(|(name, _)| name).collect();
    let similar = nearest(name, known.iter().copied());
    match schema["properties"].get(name) {
        Some(field) => Ok(field),
        None if closed || !similar.is_empty() => Err(ArgumentsError::UnknownName {
            tool: tool.to_owned(),
            name: name.to_owned(),
            nearest: similar.into_iter().map(str::to_owned).collect(),
        }),
        None => Ok(&Value::Null),
    }
}

fn typed(name: &str, text: &str, root: &Value, field: &Value) -> Result<Raw, ArgumentsError> {
    let types = schema::types(root, field);
    if types == ["string"] {
        return Ok(raw(text));
    }
    if let Ok(value) = serde_json::from_str::<Value>(text)
        && (types.is_empty() || fits(&value, &types))
    {
        return serde_json::from_str(text).map_err(ArgumentsError::NotJson);
    }
    if types.is_empty() || types.contains(&"string") {
        return Ok(raw(text));
    }
    if types.contains(&"array") {
        if let Some(items) = json_items(text, root, field) {
            return Ok(raw(&items));
        }
        let parts: Vec<&str> = text.split(',').map(str::trim).filter(|part| !part.is_empty()).collect();
        return typed_list(name, &parts, root, field);
    }
    let expected = or_list(&types);
    Err(ArgumentsError::WrongType { name: name.to_owned(), expected, value: text.to_owned() })
}

/// The items of a list that is given as JSON values, separated by commas, if all of them have the type of items.
fn json_items(text: &str, root: &Value, field: &Value) -> Option<Vec<Raw>> {
    let items: Vec<Raw> = serde_json::from_str(&format!("[{text}]")).ok()?;
    let types = schema::types(root, &schema::resolve(root, field)["items"]);
    let fit = |item: &Raw| {
        let value: Option<Value> = serde_json::from_str(item.get()).ok();
        value.is_some_and(|value| types.is_empty() || fits(&value, &types))
    };
    items.iter().all(fit).then_some(items)
}

fn typed_list(name: &str, values: &[&str], root: &Value, field: &Value) -> Result<Raw, ArgumentsError> {
    let items = &schema::resolve(root, field)["items"];
    let item = |(index, value): (usize, &&str)| typed(&format!("{name}[{index}]"), value, root, items);
    let items: Vec<Raw> = values.iter().enumerate().map(item).collect::<Result<_, _>>()?;
    Ok(raw(&items))
}

fn fits(value: &Value, types: &[&str]) -> bool {
    let own = schema::type_of(value);
    types.contains(&own) || (own == "integer" && types.contains(&"number"))
}

fn guess(nearest: &[String]) -> String {
    let names: Vec<&str> = nearest.iter().map(String::as_str).collect();
    if names.is_empty() { String::new() } else { format!("; did you mean {}?", or_list(&names)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn tool() -> Value {
        json!({
            "type": "object",
            "properties": {
                "text": {"type": "string"},
                "count": {"type": ["integer", "null"]},
                "ratio": {"$ref": "#/$defs/Ratio"},
                "on": {"type": "boolean"},
                "values": {"type": "array", "items": {"type": "number"}},
                "points": {"type": "array", "items": {"type": "object"}},
                "words": {"type": "array", "items": {"type": "string"}},
                "either": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
                "any": {},
            },
            "$defs": {"Ratio": {"type": "number"}},
        })
    }

    #[track_caller]
    fn check_pairs(pairs: &[&str], expected: &str) {
        let pairs: Vec<String> = pairs.iter().map(ToString::to_string).collect();
        let got = from_pairs("t", &pairs, &tool());
        assert_eq!(got.map_or_else(|error| error.to_string(), |raw| raw.get().to_owned()), expected);
    }

    #[test]
    fn values_get_the_type_of_the_schema() {
        check_pairs(&["text=5"], r#"{"text":"5"}"#);
        check_pairs(&["text=a=b"], r#"{"text":"a=b"}"#);
        check_pairs(&["count=9007199254740993"], r#"{"count":9007199254740993}"#);
        check_pairs(&["count=null"], r#"{"count":null}"#);
        check_pairs(&["ratio=1.0"], r#"{"ratio":1.0}"#);
        check_pairs(&["ratio=1"], r#"{"ratio":1}"#);
        check_pairs(&["on=true"], r#"{"on":true}"#);
        check_pairs(&["values=[1,2]"], r#"{"values":[1,2]}"#);
        check_pairs(&["values=1, 2.50"], r#"{"values":[1,2.50]}"#);
        check_pairs(&["values=1", "values=2"], r#"{"values":[1,2]}"#);
        check_pairs(&[r#"points={"x":1,"y":2}"#], r#"{"points":[{"x":1,"y":2}]}"#);
        check_pairs(&[r#"points={"x":1,"y":2}, {"x":3}"#], r#"{"points":[{"x":1,"y":2},{"x":3}]}"#);
        check_pairs(
            &[r#"points={"x":1,"y":2}"#, r#"points={"x":3,"y":4}"#],
            r#"{"points":[{"x":1,"y":2},{"x":3,"y":4}]}"#,
        );
        check_pairs(&[r#"words="a, b","c""#], r#"{"words":["a, b","c"]}"#);
        check_pairs(&["words=1,two"], r#"{"words":["1","two"]}"#);
        check_pairs(&["either=5", "any=x", "new=1"], r#"{"either":5,"any":"x","new":1}"#);
        check_pairs(&["either=five"], r#"{"either":"five"}"#);
    }

    #[test]
    fn errors_name_the_argument() {
        check_pairs(&["count=many"], "count must be of type integer or null, but \"many\" is not");
        check_pairs(&["values=1,x"], "values[1] must be of type number, but \"x\" is not");
        check_pairs(&["on=true", "on=false"], "on is given 2 times, but it is not a list");
        check_pairs(&["count"], "--arg needs name=value, but \"count\" has no =");
        check_pairs(&["txet=a"], "t has no argument txet; did you mean text?");
    }

    #[test]
    fn json_must_be_one_object_without_duplicate_keys() {
        assert_eq!(from_json(" ").expect("blank text is an empty object").get(), "{}");
        assert_eq!(from_json(r#"{"a": 1.0}"#).expect("an object").get(), r#"{"a": 1.0}"#);
        assert!(matches!(from_json("[1]"), Err(ArgumentsError::NotAnObject)));
        assert!(matches!(from_json("{a}"), Err(ArgumentsError::NotJson(_))));
        assert!(from_json(r#"{"a":1,"a":2}"#).expect_err("duplicate").to_string().contains("duplicate member"));
    }
}
