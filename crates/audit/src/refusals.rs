//! Refused connections, counted by code: a flood of them is one line a second, not one each.

use crate::record::Record;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

#[derive(Debug, Default)]
pub struct Refusals(Mutex<BTreeMap<&'static str, u64>>);

impl Refusals {
    /// The code is one of ours, so there are not many.
    pub fn count(&self, code: &'static str) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(code).or_default() += 1;
    }

    /// What came together since the last time.
    pub fn take(&self) -> impl Iterator<Item = Record> {
        let counted = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        counted.into_iter().map(|(code, count)| Record::ConnectionsRefused { code: code.to_owned(), count })
    }
}
