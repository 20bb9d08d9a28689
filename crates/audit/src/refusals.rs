//! Refused connections and messages, counted: a flood of them is one line a second, not one each.

use crate::record::{Caller, Record};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Agents whose refused messages are counted apart within a second; the rest are counted together.
const MAX_SENDERS: usize = 256;

#[derive(Debug, Default)]
pub struct Refusals(Mutex<Counted>);

#[derive(Debug, Default)]
struct Counted {
    connections: BTreeMap<&'static str, u64>,
    sends: BTreeMap<(String, &'static str), Sends>,
}

#[derive(Debug)]
struct Sends {
    caller: Caller,
    /// Of the first one.
    to: String,
    count: u64,
}

impl Refusals {
    /// The code is one of ours, so there are not many.
    pub fn connection(&self, code: &'static str) {
        *self.lock().connections.entry(code).or_default() += 1;
    }

    pub fn send(&self, caller: &Caller, to: &str, code: &'static str) {
        let mut counted = self.lock();
        let is_one_more =
            counted.sends.len() >= MAX_SENDERS && !counted.sends.contains_key(&(caller.who.clone(), code));
        let caller = if is_one_more { Caller { who: "others".to_owned(), role: None } } else { caller.clone() };
        let new = || Sends { caller: caller.clone(), to: to.to_owned(), count: 0 };
        counted.sends.entry((caller.who.clone(), code)).or_insert_with(new).count += 1;
    }

    /// What came together since the last time.
    pub fn take(&self) -> impl Iterator<Item = Record> {
        let Counted { connections, sends } = std::mem::take(&mut *self.lock());
        let connections =
            connections.into_iter().map(|(code, count)| Record::ConnectionsRefused { code: code.to_owned(), count });
        let sends = sends.into_iter().map(|((_, code), Sends { caller, to, count })| Record::SendRefused {
            caller,
            to,
            code: code.to_owned(),
            count,
        });
        connections.chain(sends)
    }

    fn lock(&self) -> MutexGuard<'_, Counted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
