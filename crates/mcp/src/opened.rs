//! An object inside a message, whose members are found in the same pass as the message itself. The parser doesn't say where
//! the object is, so that is derived from the positions of its first name and last value.

use crate::Raw;
use crate::members::{Key, Members};
use bytestring::ByteString;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;

/// A part of a message. Parsing a message with [`Opened`] parts fails if one of them is not an object with members, or is
/// unusual in another way; then it is parsed again with parts as plain text.
pub(crate) trait Part<'de>: Deserialize<'de> {
    fn into_raw(self, whole: &ByteString) -> Option<Raw>;
}

impl<'de> Part<'de> for &'de RawValue {
    fn into_raw(self, whole: &ByteString) -> Option<Raw> {
        Some(Raw::part_of(whole, self))
    }
}

/// The members of an object.
pub(crate) struct Opened<'de>(Vec<(Cow<'de, str>, &'de RawValue)>);

impl<'de> Part<'de> for Opened<'de> {
    fn into_raw(self, whole: &ByteString) -> Option<Raw> {
        let (Cow::Borrowed(first), _) = self.0.first()? else { return None };
        let is_token = |byte: &u8| !byte.is_ascii_whitespace();
        let before = whole.as_bytes().get(..offset(whole, first).checked_sub(1)?)?;
        let start = before.iter().rposition(is_token)?;
        let (_, last) = self.0.last()?;
        let end = offset(whole, last.get()) + last.get().len();
        let end = end + whole.as_bytes().get(end..)?.iter().position(is_token)?;
        let text = whole.get(start..=end).filter(|text| text.starts_with('{') && text.ends_with('}'))?;
        let members = self.0.into_iter().map(|(key, value)| {
            let key = match key {
                Cow::Borrowed(key) => whole.slice_ref(key),
                Cow::Owned(key) => key.into(),
            };
            (key, Raw::part_of(whole, value))
        });
        Some(Raw::opened(whole.slice_ref(text), Members::unique(members)?))
    }
}

fn offset(whole: &str, part: &str) -> usize {
    part.as_ptr() as usize - whole.as_ptr() as usize
}

impl<'de> Deserialize<'de> for Opened<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OpenedVisitor;
        impl<'de> Visitor<'de> for OpenedVisitor {
            type Value = Opened<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(Key(key)) = map.next_key()? {
                    members.push((key, map.next_value()?));
                }
                Ok(Opened(members))
            }
        }
        deserializer.deserialize_map(OpenedVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(text: &str) -> Option<Raw> {
        let text = ByteString::from(text);
        serde_json::from_str::<Vec<Opened<'_>>>(&text).ok()?.pop()?.into_raw(&text)
    }

    #[test]
    fn an_object_is_found_with_its_members_in_one_pass() {
        for object in [r#"{"a":1}"#, "{ \"a\" :\n[{}], \"\\u0062\":{ } \t}", r#"{"{":"}","c":[]}"#] {
            let found = opened(&format!(" [ {object} ] ")).expect("an object");
            assert_eq!(found.get(), object);
            let again = Members::parse(object).expect("an object");
            assert_eq!(format!("{:?}", found.members().expect("an object")), format!("{again:?}"));
        }
    }

    #[test]
    fn an_unusual_object_is_left_to_the_plain_parser() {
        for object in
            ["{}", "5", r#"{"\u0061":1}"#, r#"{"a":1,"a":2}"#, r#"{"a":1,"\u0061":2}"#, r#"{"a":1,"\ud800":2}"#]
        {
            assert!(opened(&format!("[{object}]")).is_none(), "{object}");
        }
    }
}
