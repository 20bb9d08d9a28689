//! The members of one JSON object with raw values, for changing one field without touching the others. Duplicate
//! members are rejected: toolbus might check one and the server use the other.

use crate::Raw;
use crate::json_text::{push_text, read_text};
use crate::opened::{Opened, Part};
use bytestring::ByteString;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::HashSet;
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
        Ok(parse_with(&text.into(), Wanted::Members)?.0)
    }

    /// Parses a JSON object, and those of its members that are named and objects, in one pass.
    pub(crate) fn parse_opening(text: &ByteString, names: &[&str]) -> Result<Self, MembersError> {
        let opened = parse_with(text, Wanted::Opened(names));
        opened.map(|(members, _)| members).or_else(|_| Self::parse(text.clone()))
    }

    /// The members of a raw object, as [`Raw::members`]. `None` counts as an empty object.
    pub fn of(object: Option<&Raw>) -> Result<&Self, MembersError> {
        object.map_or(Ok(Default::default()), Raw::members)
    }

    /// Parses an object and the items of its array member `list` in one pass. In the returned members, the array is
    /// empty.
    pub fn with_items(object: &Raw, list: &str) -> Result<(Self, Option<Vec<Raw>>), MembersError> {
        parse_with(&object.text(), Wanted::Items(list))
    }

    /// `None` if a name occurs twice.
    pub(crate) fn unique(members: impl IntoIterator<Item = (ByteString, Raw)>) -> Option<Self> {
        let mut unique = Unique::default();
        members.into_iter().all(|(key, value)| unique.add(key, value)).then_some(Self(unique.members))
    }

    /// The raw value of a member.
    pub fn get(&self, name: &str) -> Option<&Raw> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value)
    }

    /// The value of a member, if it is a string.
    pub fn text(&self, name: &str) -> Option<String> {
        read_text(self.get(name)?.get())
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
            push_text(out, key);
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

fn parse_with(text: &ByteString, wanted: Wanted<'_>) -> Result<(Members, Option<Vec<Raw>>), MembersError> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let parsed = deserializer.deserialize_map(MembersVisitor { text, wanted })?;
    deserializer.end()?;
    Ok(parsed)
}

struct MembersVisitor<'v> {
    text: &'v ByteString,
    wanted: Wanted<'v>,
}

/// What is wanted in addition to the members.
enum Wanted<'v> {
    Members,
    /// The items of this array.
    Items(&'v str),
    /// The members of these objects.
    Opened(&'v [&'v str]),
}

impl<'de> Visitor<'de> for MembersVisitor<'_> {
    type Value = (Members, Option<Vec<Raw>>);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        use serde::de::Error;
        let (mut unique, mut items) = (Unique::default(), None);
        while let Some(Key(key)) = map.next_key()? {
            let key = match key {
                Cow::Borrowed(key) => self.text.slice_ref(key),
                Cow::Owned(key) => key.into(),
            };
            if unique.contains(&key) {
                return Err(A::Error::custom(format_args!("duplicate member {:?}", &*key)));
            }
            let value = match self.wanted {
                Wanted::Items(list) if key == list => {
                    let found: Vec<&RawValue> = map.next_value()?;
                    items = Some(found.into_iter().map(|item| Raw::part_of(self.text, item)).collect());
                    crate::raw(&[(); 0])
                }
                Wanted::Opened(names) if names.contains(&&*key) => {
                    let opened: Opened<'_> = map.next_value()?;
                    opened.into_raw(self.text).ok_or_else(|| A::Error::custom("an unusual object"))?
                }
                _ => Raw::part_of(self.text, map.next_value()?),
            };
            unique.add(key, value);
        }
        Ok((Members(unique.members), items))
    }
}

/// Members with different names.
#[derive(Default)]
struct Unique {
    members: Vec<(ByteString, Raw)>,
    /// Pays off only for objects with many members.
    names: HashSet<ByteString>,
}

impl Unique {
    const MANY: usize = 16;

    fn contains(&self, key: &ByteString) -> bool {
        match self.members.len() > Self::MANY {
            true => self.names.contains(key),
            false => self.members.iter().any(|(earlier, _)| earlier == key),
        }
    }

    /// Returns false if there is a member of this name.
    fn add(&mut self, key: ByteString, value: Raw) -> bool {
        let is_new = !self.contains(&key);
        self.members.push((key, value));
        match self.members.len().cmp(&(Self::MANY + 1)) {
            Ordering::Less => {}
            Ordering::Equal => self.names.extend(self.members.iter().map(|(name, _)| name.clone())),
            Ordering::Greater => self.names.extend(self.members.last().map(|(name, _)| name.clone())),
        }
        is_new
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
pub(crate) struct Key<'a>(pub Cow<'a, str>);

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
