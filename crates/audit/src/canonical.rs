//! Canonical JSON: object members sorted by name, no white space, one escaping of strings. Numbers keep their spelling:
//! `1` and `1.0` may mean different things to a reader, so they stay different.

use ring::digest::{SHA256, digest};
use std::borrow::Cow;
use toolbus_base::hex;

/// Deeper documents are left unchanged.
const MAX_DEPTH: usize = 128;

/// SHA-256 as 64 hexadecimal digits.
pub fn sha256_hex(bytes: &[u8]) -> String {
    hex(digest(&SHA256, bytes).as_ref())
}

/// The hash that represents the arguments of a call in the audit log. Missing arguments hash like an empty object.
pub fn argument_hash(arguments: Option<&str>) -> String {
    sha256_hex(arguments.map_or(Cow::Borrowed("{}"), canonical).as_bytes())
}

/// Returns the canonical text of a JSON document.
pub fn canonical(document: &str) -> Cow<'_, str> {
    let mut out = String::with_capacity(document.len());
    match (Cursor { text: document, at: 0 }).value(&mut out, 0) {
        Some(()) => Cow::Owned(out),
        None => Cow::Borrowed(document),
    }
}

/// A cursor over text that is known to be valid JSON.
struct Cursor<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Cursor<'a> {
    fn value(&mut self, out: &mut String, depth: usize) -> Option<()> {
        if depth > MAX_DEPTH {
            return None;
        }
        match self.peek()? {
            b'{' => self.object(out, depth),
            b'[' => self.array(out, depth),
            b'"' => {
                let token = self.string()?;
                out.push_str(&normalised(token));
                Some(())
            }
            _ => {
                let rest = &self.text[self.at..];
                let end = rest.find(|c: char| c == ',' || c == ']' || c == '}' || c.is_ascii_whitespace());
                let token = &rest[..end.unwrap_or(rest.len())];
                self.at += token.len();
                out.push_str(token);
                Some(())
            }
        }
    }

    fn object(&mut self, out: &mut String, depth: usize) -> Option<()> {
        self.at += 1;
        let mut members: Vec<(Cow<'a, str>, String)> = Vec::new();
        while self.peek()? != b'}' {
            let name = normalised(self.string()?);
            self.skip(b':')?;
            let mut value = String::new();
            self.value(&mut value, depth + 1)?;
            members.push((name, value));
            if self.peek()? == b',' {
                self.at += 1;
            }
        }
        self.at += 1;
        // The sort is stable: members with the same name keep their order.
        members.sort_by(|a, b| a.0.cmp(&b.0));
        out.push('{');
        for (index, (name, value)) in members.iter().enumerate() {
            if index > 0 {
                out.push(',');
            }
            out.push_str(name);
            out.push(':');
            out.push_str(value);
        }
        out.push('}');
        Some(())
    }

    fn array(&mut self, out: &mut String, depth: usize) -> Option<()> {
        self.at += 1;
        out.push('[');
        let mut first = true;
        while self.peek()? != b']' {
            if !std::mem::take(&mut first) {
                out.push(',');
            }
            self.value(out, depth + 1)?;
            if self.peek()? == b',' {
                self.at += 1;
            }
        }
        self.at += 1;
        out.push(']');
        Some(())
    }

    /// The string token at the cursor, with its quotes.
    fn string(&mut self) -> Option<&'a str> {
        self.peek()?;
        let bytes = self.text.as_bytes();
        let start = self.at;
        let mut at = start + 1;
        while *bytes.get(at)? != b'"' {
            at += if bytes[at] == b'\\' { 2 } else { 1 };
        }
        self.at = at + 1;
        self.text.get(start..self.at)
    }

    fn skip(&mut self, byte: u8) -> Option<()> {
        (self.peek()? == byte).then(|| self.at += 1)
    }

    /// The next byte that is not white space.
    fn peek(&mut self) -> Option<u8> {
        let bytes = self.text.as_bytes();
        while bytes.get(self.at)?.is_ascii_whitespace() {
            self.at += 1;
        }
        bytes.get(self.at).copied()
    }
}

/// A string token with normalised escapes. A lone surrogate has no other spelling and is left unchanged.
fn normalised(token: &str) -> Cow<'_, str> {
    if !token.contains('\\') {
        return Cow::Borrowed(token);
    }
    let decoded: Result<String, _> = serde_json::from_str(token);
    match decoded.ok().and_then(|text| serde_json::to_string(&text).ok()) {
        Some(text) => Cow::Owned(text),
        None => Cow::Borrowed(token),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &str) {
        assert_eq!(canonical(text.trim()), expected, "{text}");
    }

    #[test]
    fn member_order_white_space_and_escapes_are_normalised() {
        check(" { \"b\" : [ 1 , 2.0 , true , null ] ,\n \"a\" : { } }", r#"{"a":{},"b":[1,2.0,true,null]}"#);
        check(r#"{"\u0061b":"\u00e9\/\n"}"#, "{\"ab\":\"é/\\n\"}");
        check(r#"["", "\\", "\""]"#, r#"["","\\","\""]"#);
        check("  -1e3 ", "-1e3");
    }

    #[test]
    fn content_is_preserved() {
        check(r#"{"a":1,"a":2}"#, r#"{"a":1,"a":2}"#);
        check(r#"{"a":2,"a":1}"#, r#"{"a":2,"a":1}"#);
        check(r#""\ud800""#, r#""\ud800""#);
        check("[[1],2]", "[[1],2]");
    }

    #[test]
    fn a_document_that_is_too_deep_is_left_unchanged() {
        let deep = format!("{}{}", "[ ".repeat(5000), "]".repeat(5000));
        check(&deep, &deep);
    }

    #[test]
    fn the_hash_is_sha_256() {
        assert_eq!(sha256_hex(b"abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(argument_hash(None), sha256_hex(b"{}"));
    }
}
