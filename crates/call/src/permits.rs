//! Permits of concurrency limits, granted all at once and in the order of arrival, and the rate limits.

use crate::event::{CallNo, Millis, ServerNo};
use crate::request::Limit;
use bytestring::ByteString;
use std::collections::{HashMap, VecDeque};
use std::time::Duration;
use toolbus_policy::{Bucket, LimitKind, Rate};

/// Something of which only so many calls may hold a permit.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Resource {
    /// A limit of the policy.
    Limit(LimitKind),
    /// The concurrency limit of a server.
    Server(ServerNo),
    /// The tasks' share of it.
    Tasks(ServerNo),
    /// One agent's share of that.
    AgentTasks(ServerNo, ByteString),
    /// Used by one call at a time.
    Exclusive(ServerNo, ByteString),
}

#[derive(Debug, Default)]
struct Slots {
    taken: usize,
    /// Calls that wait, each with the limit it applies. The limit of a policy may change between two calls.
    waiting: VecDeque<(CallNo, usize)>,
}

/// All permits of a host.
#[derive(Debug, Default)]
pub(crate) struct Permits {
    slots: HashMap<Resource, Slots>,
    held: HashMap<CallNo, Vec<Resource>>,
    /// What each waiting call wants. It is in the queues of all these resources, and enters them at the same time, so the
    /// call that waits longest is the first in each of its queues: waiting calls can't block each other forever.
    wanted: HashMap<CallNo, Vec<Resource>>,
}

impl Permits {
    /// Takes a permit of each resource at once, or queues the call for all of them. Returns whether it was granted.
    pub fn acquire(&mut self, call: CallNo, wanted: Vec<(Resource, usize)>) -> bool {
        for (resource, max) in &wanted {
            self.slots.entry(resource.clone()).or_default().waiting.push_back((call, *max));
        }
        self.wanted.insert(call, wanted.into_iter().map(|(resource, _)| resource).collect());
        self.grant(call)
    }

    /// Grants the call its permits if it is the first in all its queues and each has room.
    fn grant(&mut self, call: CallNo) -> bool {
        let Some(wanted) = self.wanted.get(&call) else { return false };
        let is_free = |resource: &Resource| {
            let slots = self.slots.get(resource);
            slots.is_some_and(|slots| {
                slots.waiting.front().is_some_and(|(first, max)| *first == call && slots.taken < *max)
            })
        };
        if !wanted.iter().all(is_free) {
            return false;
        }
        let granted = self.wanted.remove(&call).unwrap_or_default();
        for resource in &granted {
            if let Some(slots) = self.slots.get_mut(resource) {
                slots.waiting.pop_front();
                slots.taken += 1;
            }
        }
        self.held.entry(call).or_default().extend(granted);
        true
    }

    /// Returns all permits of a call and takes it out of all queues. Returns the calls that were granted theirs instead.
    pub fn release(&mut self, call: CallNo) -> Vec<CallNo> {
        let held = self.held.remove(&call).unwrap_or_default();
        for resource in &held {
            if let Some(slots) = self.slots.get_mut(resource) {
                slots.taken -= 1;
            }
        }
        let wanted = self.wanted.remove(&call).unwrap_or_default();
        for resource in &wanted {
            if let Some(slots) = self.slots.get_mut(resource) {
                slots.waiting.retain(|(waiting, _)| *waiting != call);
            }
        }
        let freed: Vec<Resource> = held.into_iter().chain(wanted).collect();
        let granted = self.grant_first(&freed);
        for resource in &freed {
            if self.slots.get(resource).is_some_and(|slots| slots.taken == 0 && slots.waiting.is_empty()) {
                self.slots.remove(resource);
            }
        }
        granted
    }

    /// A granted call leaves other queues too, whose next call may have room then.
    fn grant_first(&mut self, freed: &[Resource]) -> Vec<CallNo> {
        let mut granted = Vec::new();
        let mut to_check: VecDeque<Resource> = freed.iter().cloned().collect();
        while let Some(resource) = to_check.pop_front() {
            let first = self.slots.get(&resource).and_then(|slots| slots.waiting.front()).map(|(call, _)| *call);
            if let Some(call) = first
                && self.grant(call)
            {
                to_check.extend(self.held.get(&call).into_iter().flatten().cloned());
                granted.push(call);
            }
        }
        granted
    }

    /// Whether the call waits for permits.
    pub fn is_waiting(&self, call: CallNo) -> bool {
        self.wanted.contains_key(&call)
    }

    /// Whether no permit is held or wanted.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty() && self.wanted.is_empty()
    }
}

/// The state of all rate limits.
#[derive(Debug, Default)]
pub(crate) struct Rates(HashMap<LimitKind, (Bucket, Duration)>);

/// A rate limit that a call exceeds.
#[derive(Debug, PartialEq)]
pub(crate) struct RateExceeded {
    pub kind: LimitKind,
    pub rate: Rate,
    pub wait: Duration,
}

/// Buckets that were not used for twice their period are empty and need not be kept.
const MAX_BUCKETS: usize = 1024;

impl Rates {
    /// Counts the call against every rate limit, or against none if one of them is exceeded.
    pub fn count(&mut self, limits: &[Limit], now: Millis) -> Result<(), RateExceeded> {
        let now = Duration::from_millis(now);
        let (mut filled, mut exceeded): (Vec<(LimitKind, Bucket, Rate)>, Option<RateExceeded>) = (Vec::new(), None);
        for (limit, rate) in limits.iter().filter_map(|limit| Some((limit, limit.rate?))) {
            let bucket = self.0.get(&limit.kind).map(|(bucket, _)| *bucket).unwrap_or_default();
            match bucket.with_one_more(rate, now) {
                Ok(bucket) => filled.push((limit.kind.clone(), bucket, rate)),
                Err(wait) if exceeded.as_ref().is_none_or(|known| known.wait < wait) => {
                    exceeded = Some(RateExceeded { kind: limit.kind.clone(), rate, wait });
                }
                Err(_) => {}
            }
        }
        if let Some(exceeded) = exceeded {
            return Err(exceeded);
        }
        if self.0.len() > MAX_BUCKETS {
            self.0.retain(|_, (_, used_until)| *used_until > now);
        }
        for (kind, bucket, rate) in filled {
            self.0.insert(kind, (bucket, now + rate.per * 2));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroU32;

    fn server(number: usize, max: usize) -> (Resource, usize) {
        (Resource::Server(number), max)
    }

    #[test]
    fn permits_are_granted_in_order_and_all_at_once() {
        let mut permits = Permits::default();
        let [a, b, c, d] = [1, 2, 3, 4].map(CallNo);
        assert!(permits.acquire(a, vec![server(0, 1)]));
        assert!(!permits.acquire(b, vec![server(0, 1), server(1, 1)]));
        assert!(!permits.acquire(c, vec![server(1, 1)]), "server 1 is free, but b waits for it");
        assert!(permits.acquire(d, vec![server(2, 1)]));
        assert_eq!(permits.release(a), [b]);
        assert_eq!(permits.release(b), [c]);
        assert_eq!(permits.release(c), []);
        assert_eq!(permits.release(d), []);
        assert!(permits.is_empty() && permits.slots.is_empty());
    }

    #[test]
    fn a_call_that_stops_waiting_lets_the_next_one_go_on() {
        let mut permits = Permits::default();
        let [a, b, c] = [1, 2, 3].map(CallNo);
        assert!(permits.acquire(a, vec![server(0, 1)]));
        assert!(!permits.acquire(b, vec![server(0, 1), server(1, 1)]));
        assert!(!permits.acquire(c, vec![server(1, 1)]));
        assert_eq!(permits.release(b), [c]);
        assert_eq!(permits.release(a), []);
        assert_eq!(permits.release(c), []);
        assert!(permits.is_empty() && permits.slots.is_empty());
    }

    #[test]
    fn one_release_can_let_several_calls_go_on() {
        let mut permits = Permits::default();
        let [a, b, c, d] = [1, 2, 3, 4].map(CallNo);
        assert!(permits.acquire(a, vec![server(0, 1), server(1, 1)]));
        assert!(!permits.acquire(b, vec![server(0, 1)]));
        assert!(!permits.acquire(c, vec![server(1, 1)]));
        assert!(!permits.acquire(d, vec![server(1, 2)]), "behind c");
        assert_eq!(permits.release(a), [b, c, d]);
    }

    #[test]
    fn the_state_of_limits_that_are_no_longer_used_is_forgotten() {
        let rate = Some(Rate { count: NonZeroU32::MIN, per: Duration::from_secs(1) });
        let mut rates = Rates::default();
        let limit = |name: &str| Limit { kind: LimitKind::Role(name.into()), rate, concurrency: None };
        let daily = Some(Rate { count: NonZeroU32::MIN, per: Duration::from_secs(86_400) });
        let in_use = [Limit { rate: daily, ..limit("daily") }];
        assert!(rates.count(&in_use, 0).is_ok());
        for second in 0..MAX_BUCKETS as u64 {
            let pair = |name: &str| [limit(&format!("{name}{second}")), limit(&format!("{name}{second}'"))];
            let now = second * 1000;
            assert!(rates.count(&pair("a"), now).is_ok() && rates.count(&pair("b"), now).is_ok());
            assert!(rates.count(&in_use, now).is_err());
        }
        assert!(rates.0.len() <= MAX_BUCKETS + 2);
    }

    #[test]
    fn a_refused_call_is_not_counted_against_other_limits_and_gets_the_time_to_wait() {
        let rate = |count, seconds| {
            Some(Rate { count: NonZeroU32::new(count).expect("not 0"), per: Duration::from_secs(seconds) })
        };
        let role = Limit { kind: LimitKind::Role("r".into()), rate: rate(2, 60), concurrency: None };
        let tool = Limit { kind: LimitKind::Pattern("t".into()), rate: rate(3, 1), concurrency: None };
        let mut rates = Rates::default();
        let limits = [role.clone(), tool.clone()];
        assert!(rates.count(&limits, 0).is_ok() && rates.count(&limits, 0).is_ok());
        for _ in 0..20 {
            let exceeded = rates.count(&limits, 0).expect_err("used up");
            assert_eq!((exceeded.kind, exceeded.wait.as_secs()), (role.kind.clone(), 30));
        }
        assert!(rates.count(std::slice::from_ref(&tool), 0).is_ok(), "refused calls did not use up the tool's limit");
        assert!(rates.count(&[tool], 0).is_err());
        assert!(rates.count(&limits, 30_000).is_ok());
    }
}
