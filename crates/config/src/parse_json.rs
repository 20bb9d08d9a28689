//! Parses JSON into settings with their positions. The parser gives no positions, but it can leave values unparsed as
//! slices of the text, and their offsets are the positions.

use crate::document::{Entry, Table, join};
use crate::error::{ConfigError, Problem};
use crate::position::{Lines, Position};
use crate::setting::{Setting, Value};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use std::fmt;

/// No setting is nested as deeply, and every level is scanned once more.
const MAX_DEPTH: usize = 16;

pub fn parse(text: &str, lines: &Lines<'_>) -> Result<Setting, ConfigError> {
    let raw: &RawValue = serde_json::from_str(text).map_err(syntax)?;
    let parser = Parser { text, lines };
    parser.setting(String::new(), raw, 0).map_err(syntax)
}

fn syntax(error: serde_json::Error) -> ConfigError {
    let message = error.to_string();
    // The position is reported separately.
    let reason = message.split(" at line ").next().unwrap_or(&message).to_owned();
    let position = Position { line: error.line(), column: error.column() };
    ConfigError { position, key: String::new(), problem: Problem::Syntax(reason) }
}

struct Parser<'a> {
    text: &'a str,
    lines: &'a Lines<'a>,
}

impl<'a> Parser<'a> {
    fn setting(&self, path: String, raw: &'a RawValue, depth: usize) -> serde_json::Result<Setting> {
        let json = raw.get();
        let offset = self.offset(json);
        let position = self.lines.position(offset);
        let value = match json.as_bytes().first() {
            _ if depth == MAX_DEPTH => Value::Other,
            Some(b'{') => {
                let (mut entries, mut end) = (Vec::new(), offset);
                for (name, raw) in serde_json::from_str::<Members<'_>>(json)?.0 {
                    let key = end + self.text[end..].find('"').unwrap_or_default();
                    let setting = self.setting(join(&path, &name), raw, depth + 1)?;
                    entries.push(Entry { name, position: self.lines.position(key), setting });
                    end = self.offset(raw.get()) + raw.get().len();
                }
                Value::Table(Table { path: path.clone(), position, entries })
            }
            Some(b'[') => {
                let items = serde_json::from_str::<Vec<&RawValue>>(json)?.into_iter().enumerate();
                let item = |(at, item)| self.setting(format!("{path}[{at}]"), item, depth + 1);
                Value::List(items.map(item).collect::<Result<_, _>>()?)
            }
            Some(b'"') => Value::Text(serde_json::from_str(json)?),
            Some(b't' | b'f') => Value::Flag(serde_json::from_str(json)?),
            Some(b'n') => Value::Other,
            _ => match (json.parse(), json.parse::<f64>()) {
                (Ok(whole), _) => Value::Whole(whole),
                (_, Ok(float)) if float.is_finite() => Value::Float(float),
                _ => Value::Other,
            },
        };
        Ok(Setting { path, position, value })
    }

    /// The offset of a slice of the text.
    fn offset(&self, slice: &str) -> usize {
        slice.as_ptr().addr() - self.text.as_ptr().addr()
    }
}

/// The members of an object in file order. Duplicate keys are kept.
struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MembersVisitor;

        impl<'de> Visitor<'de> for MembersVisitor {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(MembersVisitor)
    }
}

#[cfg(test)]
mod tests {
    use crate::{Document, Setting, Table};

    fn table<'a>(table: &'a Table, key: &str) -> &'a Table {
        table.read(key, |value| value.table("a table")).expect("a table").expect("present")
    }

    #[test]
    fn keys_and_values_have_their_positions() {
        let text = "{\"ä\": {\"x\": [1, \"}\\\"\"],\n  \"a\\u0062\": {\"c\" : true, \"d\":2.0}}}";
        let file = Document::parse_json(text).expect("valid JSON");
        let outer = table(file.root(), "ä");
        let at = |table: &Table| -> Vec<_> {
            table.entries().map(|(name, key, value)| (name.to_owned(), key.column, value.position.column)).collect()
        };
        assert_eq!(at(outer), [("x".into(), 8, 13), ("ab".into(), 3, 14)]);
        assert_eq!(at(table(outer, "ab")), [("c".into(), 15, 21), ("d".into(), 27, 31)]);
        assert_eq!(table(outer, "ab").read("d", Setting::count::<u32>), Ok(Some(2)));
        let error = table(outer, "ab").read("c", Setting::text).expect_err("a flag");
        assert_eq!(error.to_string(), "line 2, column 21: \"ä\".ab.c has to be a string");
        assert_eq!(outer.get("x").expect("present").list("a list").expect("a list")[1].path, "\"ä\".x[1]");
    }

    #[test]
    fn no_text_panics_or_overflows_the_stack() {
        let text = "{\"mcpServers\": {\"a\": {\"env\": {\"K\": \"\\u00e4\"}, \"n\": [1e999, -1, null, true]}}}";
        for end in (0..text.len()).filter(|end| text.is_char_boundary(*end)) {
            drop(Document::parse_json(&text[..end]));
        }
        for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
            let deep = format!("{}1{}", open.repeat(100_000), close.repeat(100_000));
            drop(Document::parse_json(&deep));
        }
        assert!(Document::parse_json("5").expect("valid JSON").root().entries().next().is_none());
    }
}
