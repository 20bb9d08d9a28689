//! JSON as its tokens, and other texts with the same meaning.

use serde_json::value::RawValue;

/// Deeper documents are not rewritten, because the functions here are recursive.
const MAX_DEPTH: usize = 64;

/// A document with the original text of its keys and scalars.
pub enum Json<'a> {
    Object(Vec<(&'a str, Json<'a>)>),
    Array(Vec<Json<'a>>),
    Scalar(&'a str),
}

impl<'a> Json<'a> {
    /// `None` for a text that is not JSON or is nested too deeply.
    pub fn parse(text: &'a str) -> Option<Self> {
        serde_json::from_str::<&RawValue>(text).ok()?;
        let mut scan = Scan { text, at: 0 };
        scan.value(0)
    }

    /// The same document: all members in reverse order, every character of a string escaped, spaces between tokens.
    pub fn rewritten(&self) -> String {
        let mut out = String::new();
        self.write(&mut out);
        out
    }

    fn write(&self, out: &mut String) {
        match self {
            Self::Scalar(token) => out.push_str(&escaped(token)),
            Self::Array(items) => {
                out.push('[');
                for (index, item) in items.iter().enumerate() {
                    out.push_str(if index > 0 { " ,\n" } else { "\t" });
                    item.write(out);
                }
                out.push_str(" ]");
            }
            Self::Object(members) => {
                out.push('{');
                for (index, (key, value)) in members.iter().rev().enumerate() {
                    out.push_str(if index > 0 { "\r," } else { " " });
                    out.push_str(&escaped(key));
                    out.push_str(" : ");
                    value.write(out);
                }
                out.push_str(" }");
            }
        }
    }

    /// Every string of the document, keys included.
    pub fn strings(&self, each: &mut dyn FnMut(&str)) {
        let mut decoded = |token: &str| {
            if let Ok(text) = serde_json::from_str::<String>(token) {
                each(&text);
            }
        };
        match self {
            Self::Scalar(token) => decoded(token),
            Self::Array(items) => items.iter().for_each(|item| item.strings(each)),
            Self::Object(members) => {
                members.iter().for_each(|(key, _)| decoded(key));
                members.iter().for_each(|(_, value)| value.strings(each));
            }
        }
    }
}

/// A string token with all its characters escaped. Other tokens, and strings with lone surrogates, stay as they are.
fn escaped(token: &str) -> String {
    match serde_json::from_str::<String>(token) {
        Ok(text) => format!("\"{}\"", text.encode_utf16().map(|unit| format!("\\u{unit:04X}")).collect::<String>()),
        Err(_) => token.to_owned(),
    }
}

/// A position in a valid document.
struct Scan<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Scan<'a> {
    fn value(&mut self, depth: usize) -> Option<Json<'a>> {
        if depth > MAX_DEPTH {
            return None;
        }
        match self.peek()? {
            b'{' => {
                let mut members = Vec::new();
                self.at += 1;
                while self.peek()? != b'}' {
                    let key = self.string()?;
                    self.peek()?;
                    self.at += 1;
                    members.push((key, self.value(depth + 1)?));
                    if self.peek()? == b',' {
                        self.at += 1;
                    }
                }
                self.at += 1;
                Some(Json::Object(members))
            }
            b'[' => {
                let mut items = Vec::new();
                self.at += 1;
                while self.peek()? != b']' {
                    items.push(self.value(depth + 1)?);
                    if self.peek()? == b',' {
                        self.at += 1;
                    }
                }
                self.at += 1;
                Some(Json::Array(items))
            }
            b'"' => Some(Json::Scalar(self.string()?)),
            _ => {
                let rest = &self.text[self.at..];
                let end = rest.find([',', ']', '}', ' ', '\t', '\r', '\n']).unwrap_or(rest.len());
                self.at += end;
                Some(Json::Scalar(&rest[..end]))
            }
        }
    }

    /// The next byte that is not white space.
    fn peek(&mut self) -> Option<u8> {
        let rest = &self.text[self.at..];
        self.at += rest.len() - rest.trim_start_matches([' ', '\t', '\r', '\n']).len();
        self.text.as_bytes().get(self.at).copied()
    }

    fn string(&mut self) -> Option<&'a str> {
        self.peek()?;
        let rest = &self.text[self.at..];
        let mut end = 1;
        while rest.as_bytes().get(end)? != &b'"' {
            end += if rest.as_bytes()[end] == b'\\' { 2 } else { 1 };
        }
        self.at += end + 1;
        rest.get(..=end)
    }
}
