//! A tool's schema as text for people: one row per field.

use crate::schema;
use serde_json::Value;
use toolbus_base::or_list;
use toolbus_mcp::{Members, Raw};

/// Levels of nested objects and lists that are shown.
const MAX_DEPTH: usize = 4;
/// Maximum number of alternatives that are listed.
const MAX_ALTERNATIVES: usize = 12;

/// The names of an object's properties, in the order of the schema's text.
pub fn property_names(schema: &Raw) -> Vec<String> {
    let properties = || Members::of(schema.members().ok()?.get("properties")).ok();
    properties().map(|members| members.iter().map(|(name, _)| name.to_owned()).collect()).unwrap_or_default()
}

pub fn is_required(schema: &Value, name: &str) -> bool {
    schema["required"].as_array().is_some_and(|required| required.iter().any(|one| one == name))
}

/// Rows of name, type and description for all fields, nested ones as `a.b` and `a[].b`.
pub fn rows(schema: &Value, order: &[String]) -> Vec<[String; 3]> {
    let mut rows = Vec::new();
    for name in order {
        add_rows(schema, schema, name, name, 0, &mut rows);
    }
    rows
}

fn add_rows(root: &Value, object: &Value, name: &str, path: &str, depth: usize, rows: &mut Vec<[String; 3]>) {
    let field = schema::resolve(root, &object["properties"][name]);
    let mut about: Vec<String> = Vec::new();
    about.extend(is_required(object, name).then(|| "required".to_owned()));
    about.extend(notes(root, field));
    let description = object["properties"][name]["description"].as_str().or_else(|| field["description"].as_str());
    let description = description.unwrap_or_default().trim();
    let about = match (about.join("; "), description) {
        (about, "") => about,
        (about, description) if about.is_empty() => description.to_owned(),
        (about, description) => format!("{description} ({about})"),
    };
    rows.push([path.to_owned(), type_text(root, field), about]);
    if depth == MAX_DEPTH {
        return;
    }
    let (inner, path) = match field["items"].is_object() {
        true => (schema::resolve(root, &field["items"]), format!("{path}[]")),
        false => (field, path.to_owned()),
    };
    for (name, _) in schema::properties(inner) {
        add_rows(root, inner, name, &format!("{path}.{name}"), depth + 1, rows);
    }
}

/// The type in words, such as "list of number" or "string or null".
pub fn type_text(root: &Value, field: &Value) -> String {
    let field = schema::resolve(root, field);
    let word = |name: &&str| match *name {
        "array" => match schema::types(root, &field["items"])[..] {
            [] => "list".to_owned(),
            ref items => format!("list of {}", or_list(items)),
        },
        name => name.to_owned(),
    };
    let words: Vec<String> = schema::types(root, field).iter().map(word).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    if words.is_empty() { "any".to_owned() } else { or_list(&words) }
}

/// The constraints and the default of a field, in words.
pub fn notes(root: &Value, field: &Value) -> Vec<String> {
    let field = schema::resolve(root, field);
    let mut notes = Vec::new();
    if let Some(values) = field["enum"].as_array() {
        let shown: Vec<String> = values.iter().take(MAX_ALTERNATIVES).map(plain).collect();
        let more = if values.len() > MAX_ALTERNATIVES { ", …" } else { "" };
        notes.push(format!("one of {}{more}", shown.join(", ")));
    }
    let ranges =
        [("minimum", "maximum", ""), ("minLength", "maxLength", " characters"), ("minItems", "maxItems", " items")];
    for (least, most, unit) in ranges {
        match (&field[least], &field[most]) {
            (Value::Null, Value::Null) => {}
            (least, Value::Null) => notes.push(format!("at least {least}{unit}")),
            (Value::Null, most) => notes.push(format!("at most {most}{unit}")),
            (least, most) => notes.push(format!("{least} to {most}{unit}")),
        }
    }
    notes.extend(field["pattern"].as_str().map(|pattern| format!("pattern {pattern}")));
    notes.extend((!field["default"].is_null()).then(|| format!("default {}", plain(&field["default"]))));
    notes
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use toolbus_mcp::raw;

    #[test]
    fn fields_are_rows_with_types_and_constraints() {
        let schema = json!({
            "type": "object", "required": ["values"],
            "properties": {
                "values": {"type": "array", "items": {"type": "number"}, "minItems": 1, "maxItems": 64,
                    "description": "One bar per number."},
                "colour": {"type": ["string", "null"], "pattern": "^#", "default": "#fff"},
                "size": {"enum": ["small", "large"]},
                "points": {"type": "array", "items": {"$ref": "#/$defs/Point"}},
                "any": {},
            },
            "$defs": {"Point": {"type": "object", "required": ["x"], "properties": {"x": {"type": "integer", "minimum": 0}}}},
        });
        let rows = rows(&schema, &["values", "colour", "size", "points", "any"].map(str::to_owned));
        let expected = [
            ["values", "list of number", "One bar per number. (required; 1 to 64 items)"],
            ["colour", "string or null", "pattern ^#; default #fff"],
            ["size", "string", "one of small, large"],
            ["points", "list of object", ""],
            ["points[].x", "integer", "required; at least 0"],
            ["any", "any", ""],
        ];
        assert_eq!(rows, expected.map(|row| row.map(str::to_owned)));
    }

    #[test]
    fn names_keep_the_order_of_the_text() {
        let schema: Raw = serde_json::from_str(r#"{"properties":{"b":{},"a":{}}}"#).expect("JSON");
        assert_eq!(property_names(&schema), ["b", "a"]);
        assert_eq!(property_names(&raw(&7)), Vec::<String>::new());
    }

    #[test]
    fn a_schema_that_contains_itself_is_shown_to_a_limited_depth() {
        let schema = json!({"properties": {"child": {"$ref": "#"}}});
        assert_eq!(rows(&schema, &["child".to_owned()]).len(), MAX_DEPTH + 1);
    }
}
