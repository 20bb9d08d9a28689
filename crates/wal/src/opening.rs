//! The `epoch` file of a folder: how often the folder was opened for writing, and by whom.
//!
//! ```text
//! <epoch> <checksum of the number>
//! <instance> <earlier instance> …
//! <checksum of the lines above>
//! ```
//!
//! Every opening has a random name. A folder that was opened after another one is its descendant and has its name among
//! the earlier ones; an older copy of the folder has not, however often the copy was opened since.

use crate::Identity;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Number of earlier openings that are remembered.
pub const MAX_ANCESTORS: usize = 64;

/// An opening of a folder.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Opening {
    /// Counts the openings from 1.
    pub epoch: u64,
    /// A random name.
    pub instance: String,
    /// The names of the last openings before, latest first. Incomplete if an earlier version opened the folder, which
    /// gave no names.
    pub ancestors: Vec<String>,
}

impl Opening {
    pub(crate) fn next(self) -> Self {
        let named = Some(self.instance).filter(|name| !name.is_empty());
        let ancestors = named.into_iter().chain(self.ancestors).take(MAX_ANCESTORS).collect();
        Self { epoch: self.epoch + 1, instance: uuid::Uuid::new_v4().to_string(), ancestors }
    }

    pub(crate) fn to_text(&self, identity: &Identity) -> String {
        let names: Vec<_> = std::iter::once(&self.instance).chain(&self.ancestors).map(String::as_str).collect();
        let lines = format!("{}{}\n", self.first_line(identity), names.join(" "));
        format!("{lines}{:016x}\n", xxh3_64_with_seed(lines.as_bytes(), identity.seed))
    }

    /// All that earlier versions wrote.
    fn first_line(&self, identity: &Identity) -> String {
        format!("{} {:016x}\n", self.epoch, xxh3_64_with_seed(&self.epoch.to_le_bytes(), identity.seed))
    }

    pub(crate) fn parse(text: &str, identity: &Identity) -> Option<Self> {
        let mut lines = text.lines();
        let epoch = lines.next()?.split_once(' ')?.0.parse().ok()?;
        let mut names = lines.next().unwrap_or_default().split(' ').map(str::to_owned);
        let opening = Self { epoch, instance: names.next().unwrap_or_default(), ancestors: names.collect() };
        let is_whole = [opening.to_text(identity), opening.first_line(identity)].iter().any(|whole| whole == text);
        is_whole.then_some(opening)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity() -> Identity {
        Identity { id: "x".into(), seed: 7 }
    }

    #[test]
    fn each_opening_names_its_predecessors() {
        let (identity, mut opening) = (identity(), Opening::default());
        let mut names = Vec::new();
        for epoch in 1..200 {
            opening = opening.next();
            assert_eq!((opening.epoch, &opening.ancestors[..]), (epoch, &names[..names.len().min(MAX_ANCESTORS)]));
            names.insert(0, opening.instance.clone());
            opening = Opening::parse(&opening.to_text(&identity), &identity).expect("it was written");
        }
    }

    #[test]
    fn a_changed_or_cut_record_is_unreadable() {
        let identity = identity();
        let text = Opening::default().next().next().to_text(&identity);
        for at in 0..text.len() {
            let mut changed = text.clone().into_bytes();
            changed[at] ^= 1;
            let changed = String::from_utf8(changed).expect("still ASCII");
            assert_eq!(Opening::parse(&changed, &identity), None, "changed at {at}");
            let cut = Opening::parse(&text[..at], &identity);
            assert!(cut.is_none_or(|cut| cut.instance.is_empty()), "cut at {at}");
        }
        let other = Identity { seed: 8, ..identity };
        assert_eq!(Opening::parse(&text, &other), None);
    }

    #[test]
    fn the_record_of_an_earlier_version_has_no_names() {
        let first_line = Opening { epoch: 5, ..Opening::default() }.first_line(&identity());
        let read = Opening::parse(&first_line, &identity()).expect("readable");
        assert_eq!(read, Opening { epoch: 5, ..Opening::default() });
        assert_eq!((read.clone().next().epoch, read.next().ancestors), (6, vec![]));
    }
}
