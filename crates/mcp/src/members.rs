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

    /// The members of an object, and the items of one of them that is a list, in one go. The list's own place is kept by
    /// an empty one.
    pub fn with_items(text: &'a str, list: &str) -> Result<(Self, Option<Vec<&'a RawValue>>), MembersError> {
        let mut items = None;
        let mut deserializer = serde_json::Deserializer::from_str(text);
        let members = deserializer.deserialize_map(MembersVisitor { list: Some((list, &mut items)) })?;
        deserializer.end()?;
        Ok((members, items))
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
        deserializer.deserialize_map(MembersVisitor { list: None })
    }
}

struct MembersVisitor<'v, 'de> {
    /// The member whose items are wanted, and where they go.
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

/// One member's text, for those who want nothing else of the object. None where it is not there, no text, or there twice.
pub fn member_text<'a>(object: &'a RawValue, name: &str) -> Option<Cow<'a, str>> {
    struct OneText<'n>(&'n str);
    impl<'de> Visitor<'de> for OneText<'_> {
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
                    return Err(serde::de::Error::custom("a member stands there twice"));
                }
            }
            Ok(found)
        }
    }
    serde_json::Deserializer::from_str(object.get()).deserialize_map(OneText(name)).ok().flatten()
}

/// A text that is borrowed unless it has escapes.
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
    fn the_items_of_a_list_are_found_beside_the_other_members() {
        let text = r#"{"a":1,"tools":[{"n":1.0}, 2],"b":[3]}"#;
        let (members, items) = Members::with_items(text, "tools").expect("an object");
        let items: Vec<&str> = items.expect("a list").into_iter().map(RawValue::get).collect();
        assert_eq!(items, [r#"{"n":1.0}"#, "2"]);
        assert_eq!(members.to_raw().get(), r#"{"a":1,"tools":[],"b":[3]}"#);
        assert!(Members::with_items(r#"{"a":1}"#, "tools").expect("an object").1.is_none());
        for bad in [r#"{"tools":5}"#, r#"{"tools":[],"tools":[1]}"#, "[]", r#"{"tools":[]} x"#] {
            assert!(Members::with_items(bad, "tools").is_err(), "{bad}");
        }
    }

    #[test]
    fn one_text_is_found_unless_it_is_there_twice() {
        let text = |json: &str| {
            let raw = RawValue::from_string(json.to_owned()).expect("JSON");
            member_text(&raw, "name").map(Cow::into_owned)
        };
        assert_eq!(text(r#"{"x":{"name":"b"},"n\u0061me":"\u0061"}"#).as_deref(), Some("a"));
        assert_eq!(text(r#"{"name":"a","name":"b"}"#), None);
        assert_eq!(text(r#"{"name":5}"#), None);
        assert_eq!(text(r#"{"x":1}"#), None);
        assert_eq!(text("[]"), None);
    }
}
