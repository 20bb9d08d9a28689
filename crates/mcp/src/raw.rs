//! A JSON value in its original text.

use crate::members::{Members, MembersError};
use bytestring::ByteString;
use serde::{Deserialize, Deserializer, Serialize, Serializer, ser};
use serde_json::value::RawValue;
use std::fmt;
use std::sync::{Arc, OnceLock};

/// A value that is known, or is made when it is first needed. A [`OnceLock`] alone would take its lock to be filled, also
/// for a value that is known from the start.
enum Lazy<T> {
    Known(T),
    Once(OnceLock<T>),
}

impl<T> Lazy<T> {
    const fn new() -> Self {
        Self::Once(OnceLock::new())
    }

    fn get(&self) -> Option<&T> {
        match self {
            Self::Known(value) => Some(value),
            Self::Once(value) => value.get(),
        }
    }

    fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        match self {
            Self::Known(value) => value,
            Self::Once(value) => value.get_or_init(make),
        }
    }
}

impl<T: Clone> Clone for Lazy<T> {
    fn clone(&self) -> Self {
        self.get().cloned().map_or(Self::new(), Self::Known)
    }
}

/// A JSON value in its original text: a slice of the message that it arrived in. Clones share the text, so a value is
/// passed on without a copy; the message stays in memory as long as one of its values.
///
/// An object is parsed once, when its members are first asked for, and an edited object is written once, when its text is.
#[derive(Clone)]
pub struct Raw {
    /// Empty only for an edited object, whose members are known.
    text: Lazy<ByteString>,
    members: Lazy<Arc<Result<Members, MembersError>>>,
}

impl Raw {
    /// Parses one JSON value. White space around it is removed.
    pub fn parse(text: impl Into<ByteString>) -> Result<Self, serde_json::Error> {
        let text = text.into();
        let value: &RawValue = serde_json::from_str(&text)?;
        Ok(Self::part_of(&text, value))
    }

    /// A value that a parser found in the text.
    pub(crate) fn part_of(whole: &ByteString, part: &RawValue) -> Self {
        Self::trusted(whole.slice_ref(part.get()))
    }

    /// The text is known to be one JSON value.
    pub(crate) fn trusted(text: ByteString) -> Self {
        Self { text: Lazy::Known(text), members: Lazy::new() }
    }

    /// An object whose members are known.
    pub(crate) fn opened(text: ByteString, members: Members) -> Self {
        Self { text: Lazy::Known(text), members: Lazy::Known(Arc::new(Ok(members))) }
    }

    pub(crate) fn of_members(members: Members) -> Self {
        Self { text: Lazy::new(), members: Lazy::Known(Arc::new(Ok(members))) }
    }

    /// The text.
    pub fn get(&self) -> &str {
        self.text_ref()
    }

    /// The text, which is shared.
    pub fn text(&self) -> ByteString {
        self.text_ref().clone()
    }

    fn text_ref(&self) -> &ByteString {
        self.text.get_or_init(|| {
            let mut text = String::with_capacity(self.size_hint());
            self.write(&mut text, String::push_str);
            text.into()
        })
    }

    /// About the size of the text.
    pub(crate) fn size_hint(&self) -> usize {
        match (self.text.get(), self.members.get().map(|members| &**members)) {
            (None, Some(Ok(members))) => members.iter().map(|(key, value)| key.len() + value.size_hint() + 4).sum(),
            (text, _) => text.map_or(0, |text| text.len()),
        }
    }

    /// Appends the text. Strings of the original text go through `push`.
    pub(crate) fn write(&self, out: &mut String, push: fn(&mut String, &str)) {
        match (self.text.get(), self.members.get().map(|members| &**members)) {
            (None, Some(Ok(members))) => members.write(out, push),
            (text, _) => push(out, text.map_or("null", |text| text)),
        }
    }

    /// The members of an object. They are parsed once and kept; clones made afterwards have them too.
    pub fn members(&self) -> Result<&Members, MembersError> {
        let parsed = self.members.get_or_init(|| Arc::new(Members::parse(self.text())));
        (**parsed).as_ref().map_err(Clone::clone)
    }

    /// An array of these values.
    pub fn array<'a>(items: impl IntoIterator<Item = &'a Self>) -> Self {
        let mut text = String::from("[");
        for item in items {
            if text.len() > 1 {
                text.push(',');
            }
            item.write(&mut text, String::push_str);
        }
        text.push(']');
        Self::trusted(text.into())
    }

    /// A copy with a text of its own, for a small value that outlives its message.
    pub fn detached(&self) -> Self {
        Self::trusted(ByteString::from(self.get()))
    }
}

impl From<Box<RawValue>> for Raw {
    fn from(value: Box<RawValue>) -> Self {
        Self::trusted(String::from(Box::<str>::from(value)).into())
    }
}

impl fmt::Debug for Raw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.get())
    }
}

impl fmt::Display for Raw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.get())
    }
}

impl Serialize for Raw {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serde_json::from_str::<&RawValue>(self.get()).map_err(ser::Error::custom)?.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Box::<RawValue>::deserialize(deserializer).map(Self::from)
    }
}
