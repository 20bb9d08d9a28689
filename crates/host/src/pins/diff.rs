//! The differences between two definitions, for an approver: field by field, texts line by line, with invisible
//! characters escaped.

use serde_json::{Map, Value};
use similar::{ChangeTag, TextDiff};
use toolbus_base::escaped;

/// One field that differs.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Change {
    /// JSON pointer of the field.
    pub path: String,
    /// The previous value; `None` if the field was added.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub old: Option<Value>,
    /// The new value; `None` if the field was removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub new: Option<Value>,
}

/// The differences between two definitions.
pub fn changes(old: &Value, new: &Value) -> Vec<Change> {
    let mut changes = Vec::new();
    compare("", Some(old), Some(new), &mut changes);
    changes
}

fn compare(path: &str, old: Option<&Value>, new: Option<&Value>, changes: &mut Vec<Change>) {
    if old == new {
        return;
    }
    match (old, new) {
        (Some(Value::Object(old)), Some(Value::Object(new))) => {
            for key in keys(old, new) {
                let path = format!("{path}/{}", key.replace('~', "~0").replace('/', "~1"));
                compare(&path, old.get(key), new.get(key), changes);
            }
        }
        (Some(Value::Array(old)), Some(Value::Array(new))) => {
            for index in 0..old.len().max(new.len()) {
                compare(&format!("{path}/{index}"), old.get(index), new.get(index), changes);
            }
        }
        _ => changes.push(Change { path: path.to_owned(), old: old.cloned(), new: new.cloned() }),
    }
}

/// The sorted union of both key sets.
fn keys<'a>(old: &'a Map<String, Value>, new: &'a Map<String, Value>) -> Vec<&'a String> {
    let mut keys: Vec<&String> = old.keys().chain(new.keys()).collect();
    keys.sort();
    keys.dedup();
    keys
}

/// The change as lines for a terminal.
pub fn lines(change: &Change) -> Vec<String> {
    let path = if change.path.is_empty() { "(whole definition)".to_owned() } else { escaped(&change.path) };
    match (&change.old, &change.new) {
        (Some(Value::String(old)), Some(Value::String(new))) if old.contains('\n') || new.contains('\n') => {
            [format!("  {path}:")].into_iter().chain(text_lines(old, new)).collect()
        }
        (old, new) => {
            let mut lines = vec![format!("  {path}:")];
            lines.extend(old.iter().map(|old| format!("    - {}", shown(old))));
            lines.extend(new.iter().map(|new| format!("    + {}", shown(new))));
            lines
        }
    }
}

fn text_lines(old: &str, new: &str) -> Vec<String> {
    let diff = TextDiff::from_lines(old, new);
    let line = |change: similar::Change<&str>| {
        let sign = match change.tag() {
            ChangeTag::Delete => '-',
            ChangeTag::Insert => '+',
            ChangeTag::Equal => ' ',
        };
        format!("    {sign} {}", escaped(change.value().trim_end_matches('\n')))
    };
    diff.iter_all_changes().map(line).collect()
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => format!("\"{}\"", escaped(text)),
        other => escaped(&other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn fields_are_listed_by_path_and_texts_by_line() {
        let old = json!({"name": "t", "description": "one\ntwo\nthree", "inputSchema": {"properties": {"a/b": 1}}});
        let new = json!({"name": "t", "description": "one\nTWO\nthree", "inputSchema": {"properties": {}}, "x": [1]});
        let changes = changes(&old, &new);
        let shown: Vec<String> = changes.iter().flat_map(lines).collect();
        assert_eq!(
            shown,
            [
                "  /description:",
                "      one",
                "    - two",
                "    + TWO",
                "      three",
                "  /inputSchema/properties/a~1b:",
                "    - 1",
                "  /x:",
                "    + [1]",
            ]
        );
    }

    #[test]
    fn invisible_characters_are_escaped() {
        assert_eq!(escaped("a\u{200b}b\u{202e}c\u{1b}[31m\u{e0041}ü"), "a\\u{200b}b\\u{202e}c\\u{001b}[31m\\u{e0041}ü");
    }
}
