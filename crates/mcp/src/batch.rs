//! JSON-RPC batches: arrays of messages, which only version 2025-03-26 of the protocol has.

use crate::{Message, MessageError, Raw};
use bytestring::ByteString;
use serde::de::{Deserializer, SeqAccess, Visitor};
use serde_json::value::RawValue;
use std::fmt;

/// The only protocol version with batches.
pub const BATCH_VERSION: &str = "2025-03-26";
/// Maximum number of messages in a batch.
pub const MAX_BATCH: usize = 256;

/// The messages of a batch, each with its own error. An empty batch, and one of more than [`MAX_BATCH`] messages, is an
/// error as a whole.
pub fn parse_batch(text: &ByteString) -> Result<Vec<Result<Message, MessageError>>, MessageError> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let parsed = deserializer.deserialize_seq(BatchVisitor(text)).and_then(|items| {
        deserializer.end()?;
        Ok(items)
    });
    let items = parsed.map_err(|error| MessageError::Syntax(error.into()))?;
    match items.len() {
        1..=MAX_BATCH => Ok(items.into_iter().map(|item| Message::parse(item.text())).collect()),
        _ => Err(MessageError::BatchSize),
    }
}

/// Keeps one item more than a batch may have, and skips the others.
struct BatchVisitor<'t>(&'t ByteString);

impl<'de> Visitor<'de> for BatchVisitor<'_> {
    type Value = Vec<Raw>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element::<&RawValue>()? {
            if items.len() <= MAX_BATCH {
                items.push(Raw::part_of(self.0, item));
            }
        }
        Ok(items)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Vec<Result<Message, MessageError>>, MessageError> {
        parse_batch(&ByteString::from(text))
    }

    #[test]
    fn each_message_is_parsed_on_its_own() {
        let batch =
            parse(r#"[{"jsonrpc":"2.0","id":1,"method":"a","params":{"n":1.0}}, 7, {"jsonrpc":"2.0","method":"b"}]"#);
        let batch = batch.expect("a batch");
        assert_eq!(
            batch[0].as_ref().expect("a request").to_json(),
            r#"{"jsonrpc":"2.0","id":1,"method":"a","params":{"n":1.0}}"#
        );
        assert!(batch[1].is_err() && matches!(batch[2], Ok(Message::Notification(_))));
        assert!(matches!(parse("[[]]").expect("a batch")[0], Err(MessageError::Batch)));
    }

    #[test]
    fn the_number_of_messages_is_limited() {
        let of = |count: usize| format!("[{}]", vec!["{}"; count].join(","));
        assert_eq!(parse(&of(MAX_BATCH)).expect("a batch").len(), MAX_BATCH);
        for count in [0, MAX_BATCH + 1, 100_000] {
            assert!(matches!(parse(&of(count)), Err(MessageError::BatchSize)), "{count}");
        }
        for text in ["[", "[1", "[{}]x", "[,]"] {
            assert!(matches!(parse(text), Err(MessageError::Syntax(_))), "{text}");
        }
    }
}
