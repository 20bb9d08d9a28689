//! Blanks out what JSONC has beyond JSON: comments and trailing commas. The result has the length of the text, so offsets
//! and lines in it are those of the text.

use std::borrow::Cow;

/// The text as plain JSON. An unterminated block comment is left as it is, and is a syntax error at its position.
pub fn to_json(text: &str) -> Cow<'_, str> {
    let bytes = text.as_bytes();
    let mut blanked: Option<Vec<u8>> = None;
    let mut blank = |from: usize, to: usize| {
        let json = blanked.get_or_insert_with(|| bytes.to_vec());
        json[from..to].iter_mut().filter(|byte| !matches!(byte, b'\n' | b'\r')).for_each(|byte| *byte = b' ');
    };
    // The position of a comma that only white space and comments have followed so far.
    let mut comma = None;
    // Whether a comma at this place would follow a value.
    let mut after_value = false;
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let end = match byte {
            b'"' => end_of_string(bytes, at),
            b'/' => match end_of_comment(bytes, at) {
                Some(end) => {
                    blank(at, end);
                    at = end;
                    continue;
                }
                None => at + 1,
            },
            _ => at + 1,
        };
        match byte {
            b' ' | b'\t' | b'\r' | b'\n' => {}
            b',' => comma = after_value.then_some(at),
            b'}' | b']' => {
                if let Some(comma) = comma.take() {
                    blank(comma, comma + 1);
                }
            }
            _ => comma = None,
        }
        if !byte.is_ascii_whitespace() {
            after_value = !matches!(byte, b',' | b'{' | b'[' | b':');
        }
        at = end;
    }
    match blanked {
        // Whole comments and ASCII characters were replaced by ASCII, so it is still UTF-8.
        Some(json) => String::from_utf8(json).map_or(Cow::Borrowed(text), Cow::Owned),
        None => Cow::Borrowed(text),
    }
}

fn end_of_string(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    bytes.len()
}

fn end_of_comment(bytes: &[u8], start: usize) -> Option<usize> {
    let second = bytes.get(start + 1)?;
    let rest = &bytes[start + 2..];
    match second {
        b'/' => Some(start + 2 + memchr::memchr(b'\n', rest).unwrap_or(rest.len())),
        b'*' => memchr::memmem::find(rest, b"*/").map(|at| start + 2 + at + 2),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::to_json;
    use crate::Document;

    #[test]
    fn comments_and_trailing_commas_become_spaces() {
        let check = |text: &str, json: &str| assert_eq!(to_json(text), json, "{text}");
        check(r#"{"a": "// /* , ]"}"#, r#"{"a": "// /* , ]"}"#);
        check("{\"a\": 1, // ü\n}", "{\"a\": 1       \n}");
        check("[1, /* a\nb */ 2, ]", "[1,     \n     2  ]");
        check(r#"{"a\"": [{},],}"#, r#"{"a\"": [{} ] }"#);
        // Only one comma after a value is tolerated.
        for wrong in ["{,}", "[,]", "[1,,]", "{\"a\":,}", "/* open", "\"open", "\"\\", "/", "{/}"] {
            assert!(Document::parse_json(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn positions_are_those_of_the_file() {
        let text = "// ä\n{ /* öö */ \"a\": {\"b\": 1,}, }";
        let file = Document::parse_json(text).expect("valid JSONC");
        let (name, key, value) = file.root().entries().next().expect("an entry");
        assert_eq!((name, key.line, key.column, value.position.column), ("a", 2, 12, 17));
        let error = Document::parse_json("{ // x\n  \"a\" 1}").map(|_| ()).expect_err("a colon is missing");
        assert_eq!(error.to_string(), "line 2, column 7: expected `:`");
    }
}
