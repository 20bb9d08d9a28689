//! The members of one JSON object with raw values, for changing one field without touching the others. Duplicate
//! members are rejected: toolbus might check one and the server use the other.

use crate::Raw;
use bytestring::ByteString;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;

/// The members of a JSON object, in order. Names and values are slices of its text.
#[derive(Debug, Clone, Default)]
pub struct Members(Vec<(ByteString, Raw)>);

/// The text is not a JSON object, or has a duplicate member.
#[derive(Debug, Clone, thiserror::Error)]
#[error("not a valid JSON object: {0}")]
pub struct MembersError(ByteString);

impl From<serde_json::Error> for MembersError {
    fn from(error: serde_json::Error) -> Self {
        Self(error.to_string().into())
    }
}

impl Members {
    /// Parses a JSON object.
    pub fn parse(text: impl Into<ByteString>) -> Result<Self, MembersError> {
        Ok(Self::parse_with(&text.into(), None)?.0)
    }

    /// The members of a raw object, as [`Raw::members`]. `None` counts as an empty object.
    pub fn of(object: Option<&Raw>) -> Result<&Self, MembersError> {
        object.map_or(Ok(Default::default()), Raw::members)
    }

    /// Parses an object and the items of its array member `list` in one pass. In the returned members, the array is
    /// empty.
    pub fn with_items(object: &Raw, list: &str) -> Result<(Self, Option<Vec<Raw>>), MembersError> {
        Self::parse_with(&object.text(), Some(list))
    }

    fn parse_with(text: &ByteString, list: Option<&str>) -> Result<(Self, Option<Vec<Raw>>), MembersError> {
        let mut deserializer = serde_json::Deserializer::from_str(text);
        let parsed = deserializer.deserialize_map(MembersVisitor { text, list })?;
        deserializer.end()?;
        Ok(parsed)
    }

    /// The raw value of a member.
    pub fn get(&self, name: &str) -> Option<&Raw> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value)
    }

    /// The value of a member, if it is a string.
    pub fn text(&self, name: &str) -> Option<String> {
        serde_json::from_str(self.get(name)?.get()).ok()
    }

    /// Whether there is such a member.
    pub fn contains(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// Whether the member is `true`.
    pub fn is_true(&self, name: &str) -> bool {
        self.get(name).is_some_and(|value| value.get() == "true")
    }

    /// Replaces the member in place, or appends it.
    pub fn set(&mut self, name: impl Into<ByteString>, value: Raw) {
        let name = name.into();
        match self.0.iter_mut().find(|(key, _)| *key == name) {
            Some((_, old)) => *old = value,
            None => self.0.push((name, value)),
        }
    }

    /// Removes a member and returns its value.
    pub fn remove(&mut self, name: &str) -> Option<Raw> {
        let at = self.0.iter().position(|(key, _)| key == name)?;
        Some(self.0.remove(at).1)
    }

    /// Edits the object that is the value of this member. A missing member is created.
    pub fn edit(&mut self, name: &'static str, change: impl FnOnce(&mut Members)) -> Result<(), MembersError> {
        let mut inner = Members::of(self.get(name))?.clone();
        change(&mut inner);
        self.set(name, inner.into_raw());
        Ok(())
    }

    /// The members in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Raw)> {
        self.0.iter().map(|(key, value)| (&**key, value))
    }

    /// Whether there are no members.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The object as a value, which is written when its text is needed.
    pub fn into_raw(self) -> Raw {
        Raw::of_members(self)
    }

    pub(crate) fn write(&self, out: &mut String, push: fn(&mut String, &str)) {
        out.push('{');
        for (index, (key, value)) in self.0.iter().enumerate() {
            if index > 0 {
                out.push(',');
            }
            out.push_str(crate::raw(&**key).get());
            out.push(':');
            value.write(out, push);
        }
        out.push('}');
    }
}

impl Default for &Members {
    fn default() -> Self {
        static EMPTY: Members = Members(Vec::new());
        &EMPTY
    }
}

struct MembersVisitor<'v> {
    text: &'v ByteString,
    /// The array member whose items are wanted.
    list: Option<&'v str>,
}

impl<'de> Visitor<'de> for MembersVisitor<'_> {
    type Value = (Members, Option<Vec<Raw>>);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut members: Vec<(ByteString, Raw)> = Vec::new();
        let mut items = None;
        let mut seen = std::collections::HashSet::new();
        while let Some(Key(key)) = map.next_key()? {
            let key = match key {
                Cow::Borrowed(key) => self.text.slice_ref(key),
                Cow::Owned(key) => key.into(),
            };
            // A hash set pays off only for objects with many members.
            let repeated = match members.len() {
                0..=16 => members.iter().any(|(earlier, _)| *earlier == key),
                17 => {
                    seen.extend(members.iter().map(|(earlier, _)| earlier.clone()));
                    !seen.insert(key.clone())
                }
                _ => !seen.insert(key.clone()),
            };
            if repeated {
                return Err(serde::de::Error::custom(format_args!("duplicate member {:?}", &*key)));
            }
            let value = if self.list.is_some_and(|list| key == list) {
                let found: Vec<&RawValue> = map.next_value()?;
                items = Some(found.into_iter().map(|item| Raw::part_of(self.text, item)).collect());
                crate::raw(&[(); 0])
            } else {
                Raw::part_of(self.text, map.next_value()?)
            };
            members.push((key, value));
        }
        Ok((Members(members), items))
    }
}

/// The value of one string member, without parsing the rest. `None` if it is missing, not a string, or duplicated.
pub fn member_text<'a>(object: &'a Raw, name: &str) -> Option<Cow<'a, str>> {
    struct TextVisitor<'n>(&'n str);
    impl<'de> Visitor<'de> for TextVisitor<'_> {
        type Value = Option<Cow<'de, str>>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut found = None;
            while let Some(Key(key)) = map.next_key()? {
                if key != self.0 {
                    map.next_value::<serde::de::IgnoredAny>()?;
                } else if found.is_none() {
                    let Key(text) = map.next_value()?;
                    found = Some(text);
                } else {
                    return Err(serde::de::Error::custom("duplicate member"));
                }
            }
            Ok(found)
        }
    }
    serde_json::Deserializer::from_str(object.get()).deserialize_map(TextVisitor(name)).ok().flatten()
}

/// A string that is borrowed unless it has escapes.
struct Key<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for Key<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct KeyVisitor;
        impl<'de> Visitor<'de> for KeyVisitor {
            type Value = Key<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Key(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Key(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(KeyVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn array_items_are_returned_next_to_the_other_members() {
        let text = r#"{"a":1,"tools":[{"n":1.0}, 2],"b":[3]}"#;
        let with_items = |text: &str| Members::with_items(&Raw::parse(text).expect("valid JSON"), "tools");
        let (members, items) = with_items(text).expect("valid object");
        let items = items.expect("items are found");
        let items: Vec<&str> = items.iter().map(Raw::get).collect();
        assert_eq!(items, [r#"{"n":1.0}"#, "2"]);
        assert_eq!(members.into_raw().get(), r#"{"a":1,"tools":[],"b":[3]}"#);
        assert!(with_items(r#"{"a":1}"#).expect("valid object").1.is_none());
        for bad in [r#"{"tools":5}"#, r#"{"tools":[],"tools":[1]}"#, "[]"] {
            assert!(with_items(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_duplicate_text_member_is_not_returned() {
        let text = |json: &str| {
            let raw = Raw::parse(json).expect("valid JSON");
            member_text(&raw, "name").map(Cow::into_owned)
        };
        assert_eq!(text(r#"{"x":{"name":"b"},"n\u0061me":"\u0061"}"#).as_deref(), Some("a"));
        assert_eq!(text(r#"{"name":"a","name":"b"}"#), None);
        assert_eq!(text(r#"{"name":5}"#), None);
        assert_eq!(text(r#"{"x":1}"#), None);
        assert_eq!(text("[]"), None);
    }
}
