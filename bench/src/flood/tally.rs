//! Counts what hostile agents sent and what they got: by error code, or by the kind of the answer.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

/// The key under which requests and connections of hostile agents are counted.
pub const SENT: &str = "sent";

#[derive(Default)]
pub struct Tally(Mutex<BTreeMap<String, u64>>);

impl Tally {
    pub fn sent(&self) {
        self.count(SENT);
    }

    pub fn count(&self, what: &str) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match counts.get_mut(what) {
            Some(count) => *count += 1,
            None => drop(counts.insert(what.to_owned(), 1)),
        }
    }

    /// Counts an answer of the broker or the endpoint.
    pub fn answer(&self, text: &[u8]) {
        self.count(code_in(text).or_else(|| kind_of(text)).unwrap_or("other"));
    }

    pub fn error(&self, error: &anyhow::Error) {
        let text = format!("{error:#}");
        let short = || text.chars().take(60).collect::<String>();
        self.count(&code_in(text.as_bytes()).map_or_else(short, str::to_owned));
    }

    pub fn counts(&self) -> BTreeMap<String, u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The first error code in a text: `TB` and four digits.
fn code_in(text: &[u8]) -> Option<&str> {
    let is_code = |word: &&[u8]| word.starts_with(b"TB") && word[2..].iter().all(u8::is_ascii_digit);
    text.windows(6).find(is_code).and_then(|code| std::str::from_utf8(code).ok())
}

/// The kind of a frame in JSON. It precedes a message in the frame, which has a kind of its own.
pub fn kind_of(text: &[u8]) -> Option<&str> {
    const FIELD: &[u8] = br#""kind":""#;
    let begin = text.windows(FIELD.len()).position(|window| window == FIELD)? + FIELD.len();
    let length = text[begin..].iter().position(|byte| *byte == b'"')?;
    std::str::from_utf8(&text[begin..begin + length]).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_counted_by_code_or_else_by_kind() {
        let tally = Tally::default();
        tally.answer(br#"{"kind":"error","reason":"no","id":null,"code":"TB0216"}"#);
        tally.answer(br#"{"kind":"error","reason":"TBD","id":null,"code":"TB0216"}"#);
        tally.answer(br#"{"kind":"receipts","ranges":[[1,1]]}"#);
        tally.answer(b"?");
        let expected = [("TB0216", 2), ("other", 1), ("receipts", 1)];
        assert_eq!(tally.counts(), expected.map(|(key, count)| (key.to_owned(), count)).into());
    }
}
