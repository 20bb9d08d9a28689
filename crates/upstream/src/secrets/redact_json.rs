//! Redacts secrets in a JSON-RPC message string by string. Replacing them in the whole text could break its syntax or
//! the protocol's own names: a password may be `result`.

use super::redactor::REDACTED;

/// Members of the outermost object whose values belong to the protocol.
const ENVELOPE: &[&str] = &["\"jsonrpc\"", "\"id\"", "\"method\""];

/// `redacted` returns a part without its secrets, or `None` if it has none.
pub(super) fn redact(text: &str, redacted: impl Fn(&str) -> Option<String>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut depth = 0_usize;
    let mut member = "";
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let token = match first {
            '"' => string(rest),
            _ if is_plain(first) => &rest[..rest.find(|c| !is_plain(c)).unwrap_or(rest.len())],
            _ => &rest[..first.len_utf8()],
        };
        rest = &rest[token.len()..];
        match first {
            '{' | '[' => depth += 1,
            '}' | ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        let is_name = first == '"' && rest.trim_start().starts_with(':');
        if is_name && depth == 1 {
            member = token;
        }
        let is_envelope = depth == 1 && (is_name || ENVELOPE.contains(&member));
        let cleaned = match first {
            _ if is_envelope => None,
            '"' => redact_string(token, &redacted),
            _ if is_plain(first) => redacted(token).map(|_| format!("\"{REDACTED}\"")),
            _ => None,
        };
        out.push_str(cleaned.as_deref().unwrap_or(token));
    }
    out
}

/// The string token at the start of the text, including its quotes.
fn string(text: &str) -> &str {
    let bytes = text.as_bytes();
    let mut at = 1;
    while at < bytes.len() && bytes[at] != b'"' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    text.get(..at + 1).unwrap_or(text)
}

/// Characters of numbers and literals.
fn is_plain(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '-' | '+' | '.' | '_')
}

fn redact_string(token: &str, redacted: &impl Fn(&str) -> Option<String>) -> Option<String> {
    let decoded: Result<String, _> = serde_json::from_str(token);
    match decoded {
        Ok(text) => serde_json::to_string(&redacted(&text)?).ok(),
        // A lone surrogate can't be decoded; the rest of the string is still searched.
        Err(_) => redacted(token),
    }
}
