//! The members of one JSON object, each value as raw text: the tool for changing one field and leaving every other
//! byte alone. Two members of the same name are refused, because the one we check might not be the one that counts.

use crate::Raw;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;

#[derive(Debug, Clone, Default)]
pub struct Members<'a>(Vec<(Cow<'a, str>, Cow<'a, RawValue>)>);

#[derive(Debug, thiserror::Error)]
#[error("not a JSON object that can be read: {0}")]
pub struct MembersError(#[from] serde_json::Error);

impl<'a> Members<'a> {
    pub fn parse(text: &'a str) -> Result<Self, MembersError> {
        Ok(serde_json::from_str(text)?)
    }

    /// The members of a raw object. Nothing at all counts as an empty object.
    pub fn of(object: Option<&'a RawValue>) -> Result<Self, MembersError> {
        object.map_or(Ok(Self::default()), |object| Self::parse(object.get()))
    }

    pub fn get(&self, name: &str) -> Option<&RawValue> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| &**value)
    }

    /// The member's text, if it is a string.
    pub fn text(&self, name: &str) -> Option<String> {
        serde_json::from_str(self.get(name)?.get()).ok()
    }

    pub fn contains(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// Replaces the member where it stands, or appends it.
    pub fn set(&mut self, name: impl Into<Cow<'a, str>>, value: Raw) {
        let name = name.into();
        match self.0.iter_mut().find(|(key, _)| *key == name) {
            Some((_, old)) => *old = Cow::Owned(value),
            None => self.0.push((name, Cow::Owned(value))),
        }
    }

    pub fn remove(&mut self, name: &str) -> Option<Raw> {
        let at = self.0.iter().position(|(key, _)| key == name)?;
        Some(self.0.remove(at).1.into_owned())
    }

    /// Changes the object that is this member's value; it is made if it isn't there.
    pub fn edit(&mut self, name: &'static str, change: impl FnOnce(&mut Members<'_>)) -> Result<(), MembersError> {
        let mut inner = Members::of(self.get(name))?;
        change(&mut inner);
        let inner = inner.to_raw();
        self.set(name, inner);
        Ok(())
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &RawValue)> {
        self.0.iter().map(|(key, value)| (&**key, &**value))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

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
        RawValue::from_string(text).expect("members joined by commas are an object")
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(MembersVisitor)
    }
}

struct MembersVisitor;

impl<'de> Visitor<'de> for MembersVisitor {
    type Value = Members<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut members: Vec<(Cow<'de, str>, Cow<'de, RawValue>)> = Vec::new();
        let mut seen = std::collections::HashSet::new();
        while let Some(Key(key)) = map.next_key()? {
            // A set pays off only for objects with many members.
            let repeated = match members.len() {
                0..=16 => members.iter().any(|(earlier, _)| *earlier == key),
                17 => {
                    seen.extend(members.iter().map(|(earlier, _)| earlier.to_string()));
                    !seen.insert(key.to_string())
                }
                _ => !seen.insert(key.to_string()),
            };
            if repeated {
                return Err(serde::de::Error::custom(format_args!("the member {key:?} stands there twice")));
            }
            let value: &'de RawValue = map.next_value()?;
            members.push((key, Cow::Borrowed(value)));
        }
        Ok(Members(members))
    }
}

/// A key that is borrowed from the text unless it has escapes.
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
