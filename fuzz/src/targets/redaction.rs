//! Redaction: whatever a server writes around its secrets and however it escapes them, the redacted text has none of
//! them. The input is a program: each byte below the number of forms inserts a secret, any other byte is a character.

use crate::input::Input;
use crate::json::Json;
use serde_json::value::RawValue;
use std::fmt::Write;
use std::sync::LazyLock;
use toolbus_upstream::Redactor;

/// Secrets with the characters that have several forms in JSON.
const SECRETS: [&str; 5] = ["sk-canary/1/x", "päss\"wort", "back\\slash\ttab", "sk-canary/1", "x😀yÿz-end"];
/// Ways to write a secret.
const FORMS: u8 = 6;
/// Secrets are found in JSON that is nested in strings up to this depth.
const NESTING: u8 = 3;

static REDACTOR: LazyLock<Redactor> = LazyLock::new(|| {
    let redactor = Redactor::default();
    redactor.learn(SECRETS.map(str::to_owned));
    redactor
});

pub fn redaction(data: &[u8]) {
    let redactor = &*REDACTOR;
    let mut input = Input(data);
    let nesting = input.byte() % (NESTING + 1);
    let cut = input.below(512);
    let (text, content) = written(input);
    plain(redactor, &text, cut);
    in_message(redactor, &content, nesting);
    // Text that is not a message, such as a garbled line in the log.
    if let Ok(garbage) = std::str::from_utf8(data) {
        check(&redactor.redact(garbage), "garbage");
        redactor.redact_message(garbage);
    }
}

/// The text with plain secrets, and the content of a JSON string with escaped ones.
fn written(mut input: Input<'_>) -> (String, String) {
    let (mut text, mut content) = (String::new(), String::new());
    while !input.is_empty() {
        let byte = input.byte();
        if byte < FORMS {
            let secret = input.choose(&SECRETS);
            text.push_str(secret);
            escape(secret, byte, input.byte(), &mut content);
        } else {
            text.push(char::from(byte));
            escape(char::from(byte).encode_utf8(&mut [0; 2]), 0, 0, &mut content);
        }
    }
    (text, content)
}

/// Appends one form of a text in a JSON string. `pattern` selects the characters that are escaped without need.
fn escape(text: &str, form: u8, pattern: u8, content: &mut String) {
    for (index, c) in text.chars().enumerate() {
        let is_chosen = pattern >> (index % 8) & 1 == 1;
        match form {
            1 if c == '/' => content.push_str("\\/"),
            5 if c == '/' && is_chosen => content.push_str("\\/"),
            2 if !c.is_ascii() => push_units(c, content, |unit, content| write!(content, "\\u{unit:04x}")),
            3 if is_chosen => push_units(c, content, |unit, content| write!(content, "\\u{unit:04X}")),
            4 if is_chosen => push_units(c, content, |unit, content| write!(content, "\\u{unit:04x}")),
            _ => match c {
                '"' | '\\' => content.extend(['\\', c]),
                '\t' => content.push_str("\\t"),
                '\0'..='\x1f' => push_units(c, content, |unit, content| write!(content, "\\u{unit:04x}")),
                _ => content.push(c),
            },
        }
    }
}

fn push_units(c: char, content: &mut String, push: impl Fn(u16, &mut String) -> std::fmt::Result) {
    for unit in c.encode_utf16(&mut [0; 2]) {
        push(*unit, content).expect("a String takes everything");
    }
}

fn plain(redactor: &Redactor, text: &str, cut: usize) {
    check(&redactor.redact(text), "text");
    // A line that is cut in the middle of a secret, perhaps of a character.
    let bytes = text.as_bytes();
    let line = String::from_utf8_lossy(&bytes[..cut.min(bytes.len())]);
    let redacted = redactor.redact_cut(&line);
    check(&redacted, "cut text");
    let remnant =
        |secret: &&str| redacted.trim_end_matches('\u{fffd}').ends_with(&secret[..secret.floor_char_boundary(8)]);
    assert!(!SECRETS.iter().any(remnant), "{redacted:?} ends with a part of a secret");
}

fn in_message(redactor: &Redactor, content: &str, nesting: u8) {
    let mut value = format!("\"{content}\"");
    for _ in 0..nesting {
        value = serde_json::to_string(&format!("{{\"inner\":{value}}}")).expect("a string");
    }
    let message = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{{"text":{value},"n":1.50}}}}"#);
    serde_json::from_str::<&RawValue>(&message).expect("a valid message");
    let redacted = redactor.redact_message(&message);
    check(&redacted, "message");
    check_strings(&redacted, nesting + 1);
    let value: serde_json::Value = serde_json::from_str(&redacted).expect("a redacted message is valid");
    assert_eq!((&value["id"], &value["jsonrpc"]), (&1.into(), &"2.0".into()));
}

/// Checks all strings of a document, and the documents in its strings.
fn check_strings(text: &str, depth: u8) {
    let Some(json) = Json::parse(text).filter(|_| depth > 0) else { return };
    json.strings(&mut |string| {
        check(string, "string");
        check_strings(string, depth - 1);
    });
}

fn check(text: &str, what: &str) {
    let found = SECRETS.iter().find(|secret| text.contains(**secret));
    assert_eq!(found, None, "the {what} {text:?} has a secret");
}
