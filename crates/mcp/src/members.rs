//! The members of one JSON object with raw values, for changing one field without touching the others. Duplicate
//! members are rejected: toolbus might check one and the server use the other.

use crate::Raw;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;

/// The members of a JSON object, in order.
#[derive(Debug, Clone, Default)]
pub struct Members<'a>(Vec<(Cow<'a, str>, Cow<'a, RawValue>)>);

/// The text is not a JSON object, or has a duplicate member.
#[derive(Debug, thiserror::Error)]
#[error("not a valid JSON object: {0}")]
pub struct MembersError(#[from] serde_json::Error);

impl<'a> Members<'a> {
    /// Parses a JSON object.
    pub fn parse(text: &'a str) -> Result<Self, MembersError> {
        Ok(serde_json::from_str(text)?)
    }

    /// The members of a raw object. `None` counts as an empty object.
    pub fn of(object: Option<&'a RawValue>) -> Result<Self, MembersError> {
        object.map_or(Ok(Self::default()), |object| Self::parse(object.get()))
    }

    /// Parses an object and the items of its array member `list` in one pass. In the returned members, the array is
    /// empty.
    pub fn with_items(text: &'a str, list: &str) -> Result<(Self, Option<Vec<&'a RawValue>>), MembersError> {
        let mut items = None;
        let mut deserializer = serde_json::Deserializer::from_str(text);
        let members = deserializer.deserialize_map(MembersVisitor { list: Some((list, &mut items)) })?;
        deserializer.end()?;
        Ok((members, items))
    }

    /// The raw value of a member.
    pub fn get(&self, name: &str) -> Option<&RawValue> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| &**value)
    }

    /// The value of a member, if it is a string.
    pub fn text(&self, name: &str) -> Option<String> {
        serde_json::from_str(self.get(name)?.get()).ok()
    }

    /// Whether there is such a member.
    pub fn contains(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// Replaces the member in place, or appends it.
    pub fn set(&mut self, name: impl Into<Cow<'a, str>>, value: Raw) {
        let name = name.into();
        match self.0.iter_mut().find(|(key, _)| *key == name) {
            Some((_, old)) => *old = Cow::Owned(value),
            None => self.0.push((name, Cow::Owned(value))),
        }
    }

    /// Removes a member and returns its value.
    pub fn remove(&mut self, name: &str) -> Option<Raw> {
        let at = self.0.iter().position(|(key, _)| key == name)?;
        Some(self.0.remove(at).1.into_owned())
    }

    /// Edits the object that is the value of this member. A missing member is created.
    pub fn edit(&mut self, name: &'static str, change: impl FnOnce(&mut Members<'_>)) -> Result<(), MembersError> {
        let mut inner = Members::of(self.get(name))?;
        change(&mut inner);
        let inner = inner.to_raw();
        self.set(name, inner);
        Ok(())
    }

    /// The members in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &RawValue)> {
        self.0.iter().map(|(key, value)| (&**key, &**value))
    }

    /// Whether there are no members.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Serializes the object.
    pub fn to_raw(&self) -> Raw {
        let size: usize = self.0.iter().map(|(key, value)| key.len() + value.get().len() + 4).sum();
        let mut text = String::with_capacity(size + 2);
        text.push('{');
        for (key, value) in &self.0 {
            if text.len() > 1 {
                text.push(',');
            }
            text.push_str(crate::raw(&**key).get());
            text.push(':');
            text.push_str(value.get());
        }
        text.push('}');
        RawValue::from_string(text).expect("members joined by commas form an object")
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(MembersVisitor { list: None })
    }
}

struct MembersVisitor<'v, 'de> {
    /// The array member whose items are wanted, and where they are stored.
    list: Option<(&'v str, &'v mut Option<Vec<&'de RawValue>>)>,
}

impl<'de> Visitor<'de> for MembersVisitor<'_, 'de> {
    type Value = Members<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut members: Vec<(Cow<'de, str>, Cow<'de, RawValue>)> = Vec::new();
        let mut seen = std::collections::HashSet::new();
        while let Some(Key(key)) = map.next_key()? {
            // A hash set pays off only for objects with many members.
            let repeated = match members.len() {
                0..=16 => members.iter().any(|(earlier, _)| *earlier == key),
                17 => {
                    seen.extend(members.iter().map(|(earlier, _)| earlier.to_string()));
                    !seen.insert(key.to_string())
                }
                _ => !seen.insert(key.to_string()),
            };
            if repeated {
                return Err(serde::de::Error::custom(format_args!("duplicate member {key:?}")));
            }
            let value = match &mut self.list {
                Some((list, items)) if key == *list => {
                    **items = Some(map.next_value()?);
                    Cow::Owned(crate::raw(&[(); 0]))
                }
                _ => Cow::Borrowed(map.next_value::<&'de RawValue>()?),
            };
            members.push((key, value));
        }
        Ok(Members(members))
    }
}

/// The value of one string member, without parsing the rest. `None` if it is missing, not a string, or duplicated.
pub fn member_text<'a>(object: &'a RawValue, name: &str) -> Option<Cow<'a, str>> {
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
        let (members, items) = Members::with_items(text, "tools").expect("valid object");
        let items: Vec<&str> = items.expect("items are found").into_iter().map(RawValue::get).collect();
        assert_eq!(items, [r#"{"n":1.0}"#, "2"]);
        assert_eq!(members.to_raw().get(), r#"{"a":1,"tools":[],"b":[3]}"#);
        assert!(Members::with_items(r#"{"a":1}"#, "tools").expect("valid object").1.is_none());
        for bad in [r#"{"tools":5}"#, r#"{"tools":[],"tools":[1]}"#, "[]", r#"{"tools":[]} x"#] {
            assert!(Members::with_items(bad, "tools").is_err(), "{bad}");
        }
    }

    #[test]
    fn a_duplicate_text_member_is_not_returned() {
        let text = |json: &str| {
            let raw = RawValue::from_string(json.to_owned()).expect("valid JSON");
            member_text(&raw, "name").map(Cow::into_owned)
        };
        assert_eq!(text(r#"{"x":{"name":"b"},"n\u0061me":"\u0061"}"#).as_deref(), Some("a"));
        assert_eq!(text(r#"{"name":"a","name":"b"}"#), None);
        assert_eq!(text(r#"{"name":5}"#), None);
        assert_eq!(text(r#"{"x":1}"#), None);
        assert_eq!(text("[]"), None);
    }
}
