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

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(who: String) -> Caller {
        Caller { who, role: Some("reader".to_owned()) }
    }

    /// The records and their total count.
    fn taken(refusals: &Refusals) -> (Vec<Record>, u64) {
        let records: Vec<Record> = refusals.take().collect();
        let count = |record: &Record| match record {
            Record::SendRefused { count, .. } | Record::RequestsRefused { count, .. } => *count,
            other => panic!("{other:?}"),
        };
        let total = records.iter().map(count).sum();
        (records, total)
    }

    #[test]
    fn refused_messages_of_many_agents_become_a_bounded_number_of_records() {
        let refusals = Refusals::default();
        for number in 0..2000 {
            refusals.send(&caller(format!("w{number}")), "host", "TB0216");
        }
        refusals.send(&caller("w0".to_owned()), "host", "TB0216");
        let (records, total) = taken(&refusals);
        assert_eq!((records.len(), total), (MAX_SENDERS + 1, 2001));
        let others = records.iter().find(|record| {
            matches!(record, Record::SendRefused { caller, .. } if caller.who == OTHERS && caller.role.is_none())
        });
        assert!(matches!(others, Some(Record::SendRefused { count: 1744, .. })), "{others:?}");
        assert_eq!(taken(&refusals).0.len(), 0, "the counts start again");
    }

    #[test]
    fn refused_requests_of_many_agents_become_a_bounded_number_of_lines_and_records() {
        let refusals = Refusals::default();
        let mut lines = 0;
        for number in 0..2000 {
            for _ in 0..=MAX_LINES_PER_AGENT {
                lines += u64::from(refusals.request(&caller(format!("w{number}")), "TB0501"));
            }
        }
        let (records, total) = taken(&refusals);
        assert_eq!((records.len(), lines), (MAX_SENDERS + 1, (MAX_SENDERS as u64 + 1) * MAX_LINES_PER_AGENT));
        assert_eq!(lines + total, 2000 * (MAX_LINES_PER_AGENT + 1), "every refusal is a line or is counted");
    }

    #[test]
    fn the_mailboxes_of_an_agent_share_its_lines() {
        let refusals = Refusals::default();
        let worth_a_line = |suffix| refusals.request(&caller(format!("w#{suffix}")), "TB0501");
        assert_eq!((0..50).filter(|suffix| worth_a_line(*suffix)).count() as u64, MAX_LINES_PER_AGENT);
        assert!(refusals.request(&caller("v".to_owned()), "TB0501"), "another agent has its own");
        refusals.take().for_each(drop);
        assert!(worth_a_line(0), "until the next second");
    }
}
