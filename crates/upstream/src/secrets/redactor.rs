//! Removes secrets from text. Searching costs about one pass over the text; only matches cost more.

use super::redact_json;
use super::unescape::Unescaped;
use aho_corasick::{AhoCorasick, MatchKind};
use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};

/// Replaces a secret.
pub(super) const REDACTED: &str = "[redacted]";

/// Shorter secrets would match too much harmless text.
const MIN_BYTES: usize = 6;
/// Superseded secrets are remembered too, up to this many in total.
const MAX_SECRETS: usize = 512;
/// Nesting depth of JSON in JSON strings up to which secrets with quotes and backslashes are found.
const MAX_JSON_NESTING: usize = 4;
/// Truncation may leave the beginning of a secret; shorter remnants reveal nothing.
const MIN_REMNANT: usize = 4;

/// A cheap handle. All handles of one server share their secrets.
#[derive(Clone, Default)]
pub struct Redactor(Arc<Shared>);

#[derive(Default)]
struct Shared {
    known: RwLock<Known>,
    /// Serializes learners, so that readers are not blocked while the matcher is built.
    learning: Mutex<()>,
}

#[derive(Default, Clone)]
struct Known {
    secrets: Vec<String>,
    matcher: Option<Arc<AhoCorasick>>,
}

impl Redactor {
    /// Adds the secrets that are in use now. Beyond the limit, the least recently used ones are forgotten.
    pub fn learn(&self, secrets: impl IntoIterator<Item = String>) {
        let mut current: Vec<String> = secrets.into_iter().filter(|secret| secret.len() >= MIN_BYTES).collect();
        current.sort();
        current.dedup();
        let _learning = self.0.learning.lock().unwrap_or_else(PoisonError::into_inner);
        let mut secrets = self.known().secrets.clone();
        let is_new = current.iter().any(|secret| !secrets.contains(secret));
        secrets.retain(|secret| !current.contains(secret));
        let surplus = (secrets.len() + current.len()).saturating_sub(MAX_SECRETS).min(secrets.len());
        secrets.drain(..surplus);
        secrets.extend(current);
        let built = is_new.then(|| {
            let patterns: Vec<String> = secrets.iter().flat_map(|secret| encodings(secret)).collect();
            AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(patterns)
        });
        let mut known = self.0.known.write().unwrap_or_else(PoisonError::into_inner);
        known.secrets = secrets;
        match built {
            Some(Ok(matcher)) => known.matcher = Some(Arc::new(matcher)),
            Some(Err(error)) => {
                tracing::error!(%error, "building the secret matcher failed; new secrets are not redacted")
            }
            None => {}
        }
    }

    /// Replaces secrets in a text.
    pub fn redact<'a>(&self, text: &'a str) -> Cow<'a, str> {
        match self.matcher().and_then(|matcher| without_secrets(&matcher, text)) {
            Some(redacted) => Cow::Owned(redacted),
            None => Cow::Borrowed(text),
        }
    }

    /// Like [`Self::redact`], for text that may be truncated inside a secret.
    pub fn redact_cut(&self, text: &str) -> String {
        let mut text = self.redact(text).into_owned();
        let known = self.known();
        // Truncation inside a character leaves a replacement character.
        let end = text.trim_end_matches(char::REPLACEMENT_CHARACTER).len();
        let remnant = known.secrets.iter().filter_map(|secret| remnant(&text[..end], secret)).max();
        if let Some(bytes) = remnant {
            text.truncate(end - bytes);
            text.push_str(REDACTED);
        }
        text
    }

    /// Like [`Self::redact`], for a JSON-RPC message, which stays valid.
    pub fn redact_message<'a>(&self, text: &'a str) -> Cow<'a, str> {
        match self.matcher() {
            Some(matcher) if matcher.is_match(text) || may_have_escapes(text) => {
                Cow::Owned(redact_json::redact(text, |part| without_secrets(&matcher, part)))
            }
            _ => Cow::Borrowed(text),
        }
    }

    fn matcher(&self) -> Option<Arc<AhoCorasick>> {
        self.known().matcher.clone()
    }

    fn known(&self) -> RwLockReadGuard<'_, Known> {
        self.0.known.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns `None` if the text has no secrets.
fn without_secrets(matcher: &AhoCorasick, text: &str) -> Option<String> {
    let mut ranges: Vec<Range<usize>> = matcher.find_iter(text).map(|found| found.range()).collect();
    if may_have_escapes(text) {
        let levels = std::iter::successors(Some(Unescaped::of(text)), Unescaped::again);
        for read in levels.take(MAX_JSON_NESTING) {
            ranges.extend(matcher.find_iter(&read.text).map(|found| read.source_range(found.range())));
        }
        ranges.sort_by_key(|range| range.start);
    }
    if ranges.is_empty() {
        return None;
    }
    let mut out = String::with_capacity(text.len());
    let mut end = 0;
    for range in ranges {
        if range.start >= end {
            out.push_str(&text[end..range.start]);
            out.push_str(REDACTED);
        }
        end = end.max(range.end);
    }
    out.push_str(&text[end..]);
    Some(out)
}

/// Whether characters may be escaped that need not be. The usual escapes are among the [`encodings`].
fn may_have_escapes(text: &str) -> bool {
    text.contains("\\u") || text.contains("\\/")
}

/// The secret itself and its JSON encodings: escaped, and with all non-ASCII characters escaped. The same for JSON
/// nested in JSON strings.
fn encodings(secret: &str) -> Vec<String> {
    let mut encodings = vec![secret.to_owned()];
    let mut text = secret.to_owned();
    for _ in 0..MAX_JSON_NESTING {
        let json = serde_json::to_string(&text).unwrap_or_default();
        let json = json.get(1..json.len().saturating_sub(1)).unwrap_or_default().to_owned();
        let ascii: String = json.chars().map(|c| if c.is_ascii() { c.to_string() } else { escaped(c) }).collect();
        for encoding in [json.replace('/', "\\/"), json.clone(), ascii] {
            if !encodings.contains(&encoding) {
                encodings.push(encoding);
            }
        }
        text = json;
    }
    encodings
}

fn escaped(c: char) -> String {
    let mut units = [0; 2];
    c.encode_utf16(&mut units).iter().map(|unit| format!("\\u{unit:04x}")).collect()
}

/// How many bytes at the end of the text are the beginning of the secret.
fn remnant(text: &str, secret: &str) -> Option<usize> {
    let longest = text.len().min(secret.len().saturating_sub(1));
    let ends = |bytes: &usize| text.as_bytes().ends_with(&secret.as_bytes()[..*bytes]);
    let found = (MIN_REMNANT..=longest).rev().find(ends)?;
    text.is_char_boundary(text.len() - found).then_some(found)
}

impl fmt::Debug for Redactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Redactor(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redactor() -> Redactor {
        let redactor = Redactor::default();
        redactor.learn(["sk-canary/1", "päss\"wort", "result", "123456", "short"].map(str::to_owned));
        redactor
    }

    #[test]
    fn secrets_are_redacted_in_every_encoding() {
        let check = |text: &str, expected: &str| assert_eq!(redactor().redact(text), expected);
        check("a sk-canary/1b", "a [redacted]b");
        check(r#"sk-canary\/1 p\u00e4ss\"wort"#, "[redacted] [redacted]");
        check("short and harmless", "short and harmless");
        assert_eq!(redactor().redact_cut("x sk-can"), "x [redacted]");
        assert_eq!(redactor().redact_cut("x sk-"), "x sk-");
    }

    #[test]
    fn secrets_with_unusual_combinations_of_escapes_are_redacted() {
        let redactor = Redactor::default();
        redactor.learn(["/path/to/key", "back\\slash\ttab"].map(str::to_owned));
        let check = |text: &str| {
            let message = format!(r#"{{"params":{{"x":{text}}}}}"#);
            assert_eq!(redactor.redact_message(&message), r#"{"params":{"x":"[redacted]"}}"#, "{text}");
        };
        check(r#""\/path/to\/key""#);
        check(r#""back\\slash\u0009tab""#);
        for form in [r"back\\\\slash\\u0009tab", r"back\\\\\\u0073lash\\ttab", r"back\\u005cslash\\u0009tab"] {
            let nested = format!(r#"{{"params":{{"x":"{{\"y\":\"{form}\"}}"}}}}"#);
            assert_eq!(redactor.redact_message(&nested), r#"{"params":{"x":"{\"y\":\"[redacted]\"}"}}"#, "{form}");
        }
    }

    #[test]
    fn a_secret_that_is_cut_inside_a_character_is_redacted() {
        let redactor = Redactor::default();
        redactor.learn(["geheim-ß-1".to_owned()]);
        let cut = String::from_utf8_lossy(b"x geheim-\xc3").into_owned();
        assert_eq!(redactor.redact_cut(&cut), "x [redacted]");
    }

    #[test]
    fn a_redacted_message_stays_valid() {
        let check = |text: &str, expected: &str| {
            let redacted = redactor().redact_message(text).into_owned();
            assert_eq!(redacted, expected);
            serde_json::from_str::<serde_json::Value>(&redacted).expect("valid JSON");
        };
        check(
            r#"{"jsonrpc":"2.0","id":123456,"result":{"a":["sk-canary\/1"],"result":123456,"n":0.5}}"#,
            r#"{"jsonrpc":"2.0","id":123456,"result":{"a":["[redacted]"],"[redacted]":"[redacted]","n":0.5}}"#,
        );
        check(
            r#"{"method":"result","params":{"x":"\u0073k-canary/1 result"}}"#,
            r#"{"method":"result","params":{"x":"[redacted] [redacted]"}}"#,
        );
        check(r#"{"params": "p\u00e4ss\"wort\n"}"#, r#"{"params": "[redacted]\n"}"#);
        check(r#"{"result":{"ok":true}}"#, r#"{"result":{"ok":true}}"#);
        // Only escaped characters give no other hint.
        check(r#"{"params":{"x":"\u0073k-\u0063anary/1"}}"#, r#"{"params":{"x":"[redacted]"}}"#);
        check(r#"{"params":{"x":"\u00fcber"}}"#, r#"{"params":{"x":"\u00fcber"}}"#);
    }

    #[test]
    fn secrets_are_found_in_json_nested_in_strings() {
        let mut text = r#"{"a":"päss\"wort","b":"\u0073k-canary\/1"}"#.to_owned();
        for level in 1..=3 {
            let message = format!(r#"{{"params":{{"text":{}}}}}"#, serde_json::to_string(&text).expect("valid JSON"));
            let redacted = redactor().redact_message(&message).into_owned();
            let read: serde_json::Value = serde_json::from_str(&redacted).expect("valid JSON");
            let mut inner = read["params"]["text"].as_str().expect("a string").to_owned();
            for _ in 1..level {
                inner = serde_json::from_str(&inner).expect("valid JSON in JSON");
            }
            assert_eq!(inner, r#"{"a":"[redacted]","b":"[redacted]"}"#, "level {level}");
            text = serde_json::to_string(&text).expect("valid JSON");
        }
    }

    #[test]
    fn a_secret_in_use_is_not_evicted_by_newer_ones() {
        let redactor = Redactor::default();
        let used = || "static-secret".to_owned();
        for round in 0..3 {
            let rotated = (0..MAX_SECRETS / 2).map(|n| format!("rotated-{round}-{n}"));
            redactor.learn([used()].into_iter().chain(rotated));
            assert_eq!(redactor.redact("static-secret"), REDACTED, "round {round}");
        }
        assert_eq!(redactor.redact("rotated-0-0"), "rotated-0-0", "the number is bounded");
        assert_eq!(redactor.redact("rotated-2-9"), REDACTED);
    }
}
