//! JSON strings, read and written without the general parser where they have no escapes, as most have not.

/// The value of a JSON string. `None` if the text is another JSON value.
pub(crate) fn read_text(json: &str) -> Option<String> {
    match json.strip_prefix('"').and_then(|text| text.strip_suffix('"')) {
        Some(text) if !text.as_bytes().contains(&b'\\') => Some(text.to_owned()),
        _ => serde_json::from_str(json).ok(),
    }
}

/// Appends the text as a JSON string.
pub(crate) fn push_text(out: &mut String, text: &str) {
    let is_plain = text.bytes().all(|byte| byte >= 0x20 && byte != b'"' && byte != b'\\');
    if is_plain {
        out.push('"');
        out.push_str(text);
        out.push('"');
    } else {
        out.push_str(crate::raw(text).get());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_written_and_read_as_the_general_parser_does() {
        for text in ["", "plain", "ü 🙂", "\u{7f}", "a\"b", "a\\b", "line\nbreak", "\0", "\u{1f}", "\u{2028}", "\""]
        {
            let mut written = String::from("x");
            push_text(&mut written, text);
            let expected = serde_json::to_string(text).expect("a string");
            assert_eq!(written, format!("x{expected}"));
            assert_eq!(read_text(&expected).as_deref(), Some(text));
        }
        for (json, expected) in [(r#""\u0061""#, Some("a")), ("5", None), ("null", None), (r#"["a"]"#, None)] {
            assert_eq!(read_text(json).as_deref(), expected, "{json}");
        }
    }
}
