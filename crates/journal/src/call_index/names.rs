//! Texts in compact form: names that many calls share are kept once, and ids that are UUIDs as 16 bytes.

use super::arena::{Arena, Slot};
use bytestring::ByteString;
use hashbrown::{DefaultHashBuilder, HashTable};
use std::hash::BuildHasher;
use uuid::Uuid;

/// A text in [`Names`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Name(Slot);

/// Names of mailboxes, servers and tools, each for as long as it is in use.
#[derive(Debug, Default)]
pub struct Names {
    named: Arena<Named>,
    by_text: HashTable<Slot>,
    hasher: DefaultHashBuilder,
}

#[derive(Debug)]
struct Named {
    text: Box<str>,
    uses: u32,
}

impl Names {
    pub fn find(&self, text: &str) -> Option<Name> {
        let slot = self.by_text.find(self.hasher.hash_one(text), |slot| self.text(Name(*slot)) == text)?;
        Some(Name(*slot))
    }

    pub fn text(&self, name: Name) -> &str {
        self.named.get(name.0).map_or("", |named| &named.text)
    }

    pub fn owned(&self, name: Name) -> ByteString {
        ByteString::from(self.text(name))
    }

    /// Counts one more use of the name, until [`Names::release`].
    pub fn acquire(&mut self, text: &str) -> Name {
        if let Some(name) = self.find(text) {
            self.named.get_mut(name.0).into_iter().for_each(|named| named.uses += 1);
            return name;
        }
        let slot = self.named.insert(Named { text: text.into(), uses: 1 });
        let (named, hasher) = (&self.named, &self.hasher);
        let rehash = |slot: &Slot| hasher.hash_one(named.get(*slot).map_or("", |named| &*named.text));
        self.by_text.insert_unique(hasher.hash_one(text), slot, rehash);
        Name(slot)
    }

    pub fn release(&mut self, name: Name) {
        let Some(named) = self.named.get_mut(name.0) else { return };
        named.uses -= 1;
        if named.uses == 0 {
            let hash = self.hasher.hash_one(&*named.text);
            if let Ok(found) = self.by_text.find_entry(hash, |slot| *slot == name.0) {
                found.remove();
            }
            self.named.remove(name.0);
        }
    }
}

/// The id of a message.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Id {
    /// An id in the canonical form of a UUID.
    Uuid([u8; 16]),
    /// Any other id.
    Text(Box<str>),
}

impl Id {
    pub fn new(text: &str) -> Self {
        canonical_uuid(text).map_or_else(|| Self::Text(text.into()), Self::Uuid)
    }

    pub fn text(&self) -> ByteString {
        match self {
            Self::Uuid(bytes) => ByteString::from(uuid_text(bytes, &mut Uuid::encode_buffer())),
            Self::Text(text) => ByteString::from(&**text),
        }
    }
}

/// The name of a mailbox. Mailboxes of an agent's processes mostly end in a UUID, so that few calls share a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mailbox {
    /// The name without the UUID. It contains the agent.
    pub prefix: Name,
    uuid: Option<[u8; 16]>,
}

impl Mailbox {
    pub fn find(text: &str, names: &Names) -> Option<Self> {
        let (prefix, uuid) = split_mailbox(text);
        Some(Self { prefix: names.find(prefix)?, uuid })
    }

    /// Counts a use of the prefix, which the caller has to release.
    pub fn acquire(text: &str, names: &mut Names) -> Self {
        let (prefix, uuid) = split_mailbox(text);
        Self { prefix: names.acquire(prefix), uuid }
    }

    pub fn text(&self, names: &Names) -> ByteString {
        let prefix = names.text(self.prefix);
        let with = |uuid: &[u8; 16]| format!("{prefix}{}", uuid_text(uuid, &mut Uuid::encode_buffer()));
        self.uuid.as_ref().map_or_else(|| ByteString::from(prefix), |uuid| ByteString::from(with(uuid)))
    }
}

/// Splits a UUID off the part of a mailbox that distinguishes processes. The agent stays whole.
fn split_mailbox(text: &str) -> (&str, Option<[u8; 16]>) {
    let split = text.len().checked_sub(UUID_LENGTH).and_then(|at| text.split_at_checked(at));
    let split = split.filter(|(prefix, _)| prefix.contains('#'));
    let split = split.and_then(|(prefix, rest)| Some((prefix, canonical_uuid(rest)?)));
    split.map_or((text, None), |(prefix, uuid)| (prefix, Some(uuid)))
}

const UUID_LENGTH: usize = uuid::fmt::Hyphenated::LENGTH;

/// The bytes of a UUID, if the text is its canonical form.
fn canonical_uuid(text: &str) -> Option<[u8; 16]> {
    let uuid = Uuid::try_parse(text).ok()?.into_bytes();
    (uuid_text(&uuid, &mut Uuid::encode_buffer()) == text).then_some(uuid)
}

fn uuid_text<'a>(uuid: &[u8; 16], buffer: &'a mut [u8; 45]) -> &'a str {
    Uuid::from_bytes(*uuid).hyphenated().encode_lower(buffer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_keeps_its_text() {
        let ids = ["", "7", "67e55044-10b1-426f-9247-bb680e5fe0c8", "67E55044-10b1-426f-9247-bb680e5fe0c8"];
        let more = ["67e5504410b1426f9247bb680e5fe0c8", "{67e55044-10b1-426f-9247-bb680e5fe0c8}", "ä"];
        for text in ids.into_iter().chain(more) {
            assert_eq!(Id::new(text).text(), text);
        }
        assert!(matches!(Id::new(ids[2]), Id::Uuid(_)));
    }

    #[test]
    fn a_mailbox_keeps_its_text_and_its_agent() {
        const UUID: &str = "67e55044-10b1-426f-9247-bb680e5fe0c8";
        let mut names = Names::default();
        let agents = ["w".to_owned(), UUID.to_owned(), format!("w-{UUID}"), "ä".to_owned(), String::new()];
        let suffixes = ["".to_owned(), "#".to_owned(), "#mcp".to_owned(), format!("#{UUID}"), format!("#mcp-{UUID}")];
        for (agent, suffix) in agents.iter().flat_map(|agent| suffixes.iter().map(move |suffix| (agent, suffix))) {
            let text = format!("{agent}{suffix}");
            let mailbox = Mailbox::acquire(&text, &mut names);
            assert_eq!(mailbox.text(&names), text);
            assert_eq!(Mailbox::find(&text, &names), Some(mailbox));
            assert_eq!(crate::entry::agent(names.text(mailbox.prefix)), agent);
            assert_eq!(mailbox.uuid.is_some(), suffix.len() > UUID_LENGTH);
        }
    }

    #[test]
    fn a_name_is_kept_once_and_only_while_it_is_used() {
        let mut names = Names::default();
        let (first, second) = (names.acquire("a"), names.acquire("a"));
        assert_eq!(first, second);
        let other = names.acquire("b");
        assert_ne!(other, first);
        names.release(first);
        assert_eq!((names.find("a"), names.text(second)), (Some(second), "a"));
        names.release(second);
        assert_eq!((names.find("a"), names.text(other)), (None, "b"));
    }
}
