//! Parses YAML into settings with their positions. Plain scalars have the types of YAML's core schema; of several documents
//! only the first is read.

use crate::document::{Entry, Table, join};
use crate::error::{ConfigError, Problem};
use crate::position::Position;
use crate::setting::{Setting, Value};
use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Span, StrInput};
use std::collections::HashMap;

/// No setting is nested as deeply.
const MAX_DEPTH: usize = 32;
/// Limits what aliases of aliases can expand to.
const MAX_NODES: usize = 100_000;

pub fn parse(text: &str) -> Result<Setting, ConfigError> {
    let mut reader = Reader { parser: Parser::new_from_str(text), anchors: HashMap::new(), nodes: 0 };
    loop {
        match reader.next()? {
            (Event::StreamStart | Event::DocumentStart(_) | Event::Nothing, _) => {}
            (Event::StreamEnd | Event::DocumentEnd, span) => {
                return Ok(Setting { path: String::new(), position: position(span), value: Value::Other });
            }
            (event, span) => return reader.setting(String::new(), event, span, 0),
        }
    }
}

struct Reader<'a> {
    parser: Parser<'a, StrInput<'a>>,
    /// The values that aliases refer to.
    anchors: HashMap<usize, Setting>,
    nodes: usize,
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Result<(Event<'a>, Span), ConfigError> {
        match self.parser.next_event() {
            Some(Ok(event)) => Ok(event),
            Some(Err(error)) => Err(scan_error(&error)),
            None => Err(syntax(Position { line: 1, column: 1 }, "the file ends too early")),
        }
    }

    fn setting(&mut self, path: String, event: Event<'a>, span: Span, depth: usize) -> Result<Setting, ConfigError> {
        let position = position(span);
        if depth > MAX_DEPTH {
            return Err(syntax(position, "values are nested too deeply"));
        }
        self.count(1, position)?;
        let (anchor, value) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                let is_text = tag.is_some_and(|tag| tag.suffix == "str") || style != ScalarStyle::Plain;
                (anchor, if is_text { Value::Text(text.into_owned()) } else { plain(&text) })
            }
            Event::SequenceStart(anchor, _) => (anchor, self.list(&path, depth)?),
            Event::MappingStart(anchor, _) => (anchor, self.table(&path, position, depth)?),
            Event::Alias(anchor) => {
                let Some(target) = self.anchors.get(&anchor) else {
                    return Err(syntax(position, "the alias refers to a value that contains it"));
                };
                let value = target.value.clone();
                self.count(nodes(&value), position)?;
                (0, value)
            }
            _ => return Err(syntax(position, "a value is missing")),
        };
        let setting = Setting { path, position, value };
        if anchor != 0 {
            self.count(nodes(&setting.value), position)?;
            self.anchors.insert(anchor, setting.clone());
        }
        Ok(setting)
    }

    fn list(&mut self, path: &str, depth: usize) -> Result<Value, ConfigError> {
        let mut items = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd, _) => return Ok(Value::List(items)),
                (event, span) => {
                    items.push(self.setting(format!("{path}[{}]", items.len()), event, span, depth + 1)?);
                }
            }
        }
    }

    fn table(&mut self, path: &str, position: Position, depth: usize) -> Result<Value, ConfigError> {
        let (mut entries, mut defaults): (Vec<Entry>, Vec<Entry>) = (Vec::new(), Vec::new());
        loop {
            let (event, key_span) = self.next()?;
            let key = self::position(key_span);
            let name = match event {
                Event::MappingEnd => {
                    defaults.retain(|entry| entries.iter().all(|own| own.name != entry.name));
                    entries.extend(defaults);
                    return Ok(Value::Table(Table { path: path.to_owned(), position, entries }));
                }
                Event::Scalar(text, ..) => text.into_owned(),
                _ => return Err(syntax(key, "a key has to be a string")),
            };
            let (event, span) = self.next()?;
            let setting = self.setting(join(path, &name), event, span, depth + 1)?;
            match setting.value {
                // A merge key: its entries are defaults.
                Value::Table(merged) if name == "<<" => defaults.extend(merged.entries),
                value => entries.push(Entry { name, position: key, setting: Setting { value, ..setting } }),
            }
        }
    }

    fn count(&mut self, nodes: usize, position: Position) -> Result<(), ConfigError> {
        self.nodes = self.nodes.saturating_add(nodes);
        if self.nodes > MAX_NODES { Err(syntax(position, "the file has too many values")) } else { Ok(()) }
    }
}

/// How many values it consists of.
fn nodes(value: &Value) -> usize {
    match value {
        Value::List(items) => 1 + items.iter().map(|item| nodes(&item.value)).sum::<usize>(),
        Value::Table(table) => 1 + table.entries.iter().map(|entry| nodes(&entry.setting.value)).sum::<usize>(),
        _ => 1,
    }
}

/// The value of a scalar without quotes.
fn plain(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Other,
        "true" | "True" | "TRUE" => return Value::Flag(true),
        "false" | "False" | "FALSE" => return Value::Flag(false),
        _ => {}
    }
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    // Words such as `inf` and `nan` are numbers to the parser, but strings in YAML.
    if !digits.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return Value::Text(text.to_owned());
    }
    match (text.parse(), text.parse::<f64>()) {
        (Ok(whole), _) => Value::Whole(whole),
        (_, Ok(float)) if float.is_finite() => Value::Float(float),
        _ => Value::Text(text.to_owned()),
    }
}

fn position(span: Span) -> Position {
    Position { line: span.start.line().max(1), column: span.start.col() + 1 }
}

fn scan_error(error: &ScanError) -> ConfigError {
    let marker = error.marker();
    syntax(Position { line: marker.line().max(1), column: marker.col() + 1 }, error.info())
}

fn syntax(position: Position, reason: &str) -> ConfigError {
    ConfigError { position, key: String::new(), problem: Problem::Syntax(reason.to_owned()) }
}

#[cfg(test)]
mod tests {
    use crate::{Document, Setting, Value};

    fn root(text: &str) -> Document {
        Document::parse_yaml(text).expect("valid YAML")
    }

    #[test]
    fn keys_and_values_have_their_positions_and_types() {
        let file = root("# c\nä:\n  b: yes\n  port: 8080\n  list: [a, '1', 2.5]\n  none: ~\n  on: true\n");
        let table = file.root().get("ä").expect("present").table("a table").expect("a table");
        let at: Vec<_> = table.entries().map(|(name, key, value)| (name, key.line, value.position.column)).collect();
        assert_eq!(at, [("b", 3, 6), ("port", 4, 9), ("list", 5, 9), ("none", 6, 9), ("on", 7, 7)]);
        assert_eq!(table.read("b", Setting::text), Ok(Some("yes")));
        assert_eq!(table.read("port", Setting::count::<u16>), Ok(Some(8080)));
        assert_eq!(table.read("on", Setting::flag), Ok(Some(true)));
        assert!(matches!(table.get("none").expect("present").value, Value::Other));
        let list = table.get("list").expect("present").list("a list").expect("a list");
        assert_eq!((list[1].text(), list[2].path.as_str()), (Ok("1"), "\"ä\".list[2]"));
        let error = table.read("port", Setting::text).expect_err("a number");
        assert_eq!(error.to_string(), "line 4, column 9: \"ä\".port has to be a string");
    }

    #[test]
    fn aliases_and_merge_keys_are_expanded_within_a_limit() {
        let file = root("base: &b {x: 1, y: 2}\nown:\n  <<: *b\n  y: 3\n");
        let own = file.root().get("own").expect("present").table("a table").expect("a table");
        assert_eq!(own.names().collect::<Vec<_>>(), ["y", "x"]);
        assert_eq!(own.read("y", Setting::count::<u8>), Ok(Some(3)));
        let mut bomb = "a0: &a0 [1]\n".to_owned();
        for level in 1..12 {
            let last = format!("*a{}", level - 1);
            bomb.push_str(&format!("a{level}: &a{level} [{}]\n", [last.as_str(); 10].join(", ")));
        }
        let error = Document::parse_yaml(&bomb).map(|_| ()).expect_err("too many values");
        assert!(error.to_string().contains("too many values"), "{error}");
    }

    #[test]
    fn no_text_panics_or_overflows_the_stack() {
        let text = "a: &x [1, {b: 'c'}]\nd: *x\ne: |\n  f\n? g\n: - h\n";
        for end in 0..text.len() {
            drop(Document::parse_yaml(&text[..end]));
        }
        for open in ["[", "{a: ", "- ", "? "] {
            assert!(Document::parse_yaml(&open.repeat(10_000)).is_err(), "{open}");
        }
        assert!(root("").root().entries().next().is_none());
        assert!(Document::parse_yaml("a: &a [*a]").is_err());
        let error = Document::parse_yaml("a: 1\n b: 2").map(|_| ()).expect_err("wrong indentation");
        assert_eq!(error.position.line, 2, "{error}");
    }
}
