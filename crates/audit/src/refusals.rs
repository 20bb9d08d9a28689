//! Counters of refused connections, messages and requests: a flood becomes a few lines per second instead of one each.

use crate::record::{Caller, Record};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use toolbus_base::principal_of;

/// Maximum number of agents counted separately within a second; further ones are counted together.
const MAX_SENDERS: usize = 256;
/// Refused requests of one agent per second that get a line each.
const MAX_LINES_PER_AGENT: u64 = 10;

const OTHERS: &str = "others";

#[derive(Debug, Default)]
pub struct Refusals(Mutex<Counted>);

#[derive(Debug, Default)]
struct Counted {
    connections: BTreeMap<&'static str, u64>,
    sends: BTreeMap<(String, &'static str), Sends>,
    /// By agent: the number of lines, and the refusals that were only counted.
    requests: BTreeMap<String, Requests>,
}

#[derive(Debug, Default)]
struct Requests {
    lines: u64,
    role: Option<String>,
    counts: BTreeMap<String, u64>,
}

#[derive(Debug)]
struct Sends {
    caller: Caller,
    /// Recipient of the first refused message.
    to: String,
    count: u64,
}

impl Refusals {
    /// Codes are static, so their number is bounded.
    pub fn connection(&self, code: &'static str) {
        *self.lock().connections.entry(code).or_default() += 1;
    }

    pub fn send(&self, caller: &Caller, to: &str, code: &'static str) {
        let mut counted = self.lock();
        let is_overflow =
            counted.sends.len() >= MAX_SENDERS && !counted.sends.contains_key(&(caller.who.clone(), code));
        let caller = if is_overflow { Caller { who: OTHERS.to_owned(), role: None } } else { caller.clone() };
        let new = || Sends { caller: caller.clone(), to: to.to_owned(), count: 0 };
        counted.sends.entry((caller.who.clone(), code)).or_insert_with(new).count += 1;
    }

    /// Returns `false` if the refusal was only counted. All mailboxes of an agent are counted together.
    pub fn request(&self, caller: &Caller, code: &str) -> bool {
        let mut counted = self.lock();
        let agent = principal_of(&caller.who);
        let is_overflow = counted.requests.len() >= MAX_SENDERS && !counted.requests.contains_key(agent);
        let agent = if is_overflow { OTHERS } else { agent };
        let requests = counted.requests.entry(agent.to_owned()).or_default();
        if requests.lines < MAX_LINES_PER_AGENT {
            requests.lines += 1;
            return true;
        }
        requests.role = caller.role.clone().filter(|_| !is_overflow);
        *requests.counts.entry(code.to_owned()).or_default() += 1;
        false
    }

    /// Takes the counts since the last call, as records.
    pub fn take(&self) -> impl Iterator<Item = Record> {
        let Counted { connections, sends, requests } = std::mem::take(&mut *self.lock());
        let connections =
            connections.into_iter().map(|(code, count)| Record::ConnectionsRefused { code: code.to_owned(), count });
        let sends = sends.into_iter().map(|((_, code), Sends { caller, to, count })| Record::SendRefused {
            caller,
            to,
            code: code.to_owned(),
            count,
        });
        let requests = requests.into_iter().flat_map(|(who, Requests { role, counts, .. })| {
            let caller = Caller { who, role };
            counts.into_iter().map(move |(code, count)| Record::RequestsRefused { caller: caller.clone(), code, count })
        });
        connections.chain(sends).chain(requests)
    }

    fn lock(&self) -> MutexGuard<'_, Counted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
