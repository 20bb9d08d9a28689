//! Permits of concurrency limits, granted in the order of arrival among the calls whose agents have not used up their
//! share, and the rate limits.

use crate::event::{CallNo, Millis, ServerNo};
use crate::request::Limit;
use bytestring::ByteString;
use hashbrown::HashMap;
use std::collections::VecDeque;
use std::time::Duration;
use toolbus_base::Share;
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

/// Who holds or wants a permit. Of a limit that others share, an agent may only use its share.
#[derive(Debug, Clone)]
pub(crate) struct Holder {
    pub agent: ByteString,
    pub share: Share,
}

#[derive(Debug, Default)]
struct Slots {
    taken: usize,
    by_agent: HashMap<ByteString, usize>,
    /// Calls that wait, each with the limit it applies. The limit of a policy may change between two calls.
    waiting: VecDeque<(CallNo, usize)>,
}

/// All permits of a host.
///
/// A call takes its permits one after the other, in an order that is the same for all calls, and keeps those it has: so
/// calls can't block each other in a circle, and a call waits only behind others that want the same permit next.
#[derive(Debug, Default)]
pub(crate) struct Permits {
    slots: HashMap<Resource, Slots>,
    holders: HashMap<CallNo, Holder>,
    held: HashMap<CallNo, Vec<Resource>>,
    /// What each waiting call still wants, each with the limit it applies. It is in the queue of the first one.
    wanted: HashMap<CallNo, VecDeque<(Resource, usize)>>,
}

impl Permits {
    /// Takes a permit of each resource, or queues the call. Returns whether it has all of them. A later request of the same
    /// call must be for resources that come later in the order.
    pub fn acquire(&mut self, call: CallNo, holder: Holder, mut wanted: Vec<(Resource, usize)>) -> bool {
        self.holders.insert(call, holder);
        wanted.sort_by_cached_key(|(resource, _)| resource.rank());
        self.wanted.insert(call, wanted.into());
        self.take_next(call)
    }

    /// Takes permits until one is not free. Returns whether the call has all of them.
    fn take_next(&mut self, call: CallNo) -> bool {
        let (Some(wanted), Some(holder)) = (self.wanted.get_mut(&call), self.holders.get(&call)) else { return true };
        while let Some((resource, max)) = wanted.front() {
            let slots = self.slots.entry(resource.clone()).or_default();
            // Calls that wait for a shared permit can't take it now, because they would have it otherwise.
            let is_next = slots.waiting.is_empty() || resource.is_shared();
            if !is_next || !slots.admit(resource, holder, *max) {
                slots.waiting.push_back((call, *max));
                return false;
            }
            slots.take(&holder.agent);
            self.held.entry(call).or_default().extend(wanted.pop_front().map(|(resource, _)| resource));
        }
        self.wanted.remove(&call);
        true
    }

    /// Returns all permits of a call and takes it out of its queue. Returns the calls that have all theirs now.
    pub fn release(&mut self, call: CallNo) -> Vec<CallNo> {
        self.release_if(call, |_| true)
    }

    /// The same for some of its permits.
    pub fn release_if(&mut self, call: CallNo, is_released: impl Fn(&Resource) -> bool) -> Vec<CallNo> {
        let held = self.held.remove(&call).unwrap_or_default();
        let (mut freed, kept): (Vec<_>, Vec<_>) = held.into_iter().partition(is_released);
        if !kept.is_empty() {
            self.held.insert(call, kept);
        }
        let holder =
            if self.held.contains_key(&call) { self.holders.get(&call).cloned() } else { self.holders.remove(&call) };
        for resource in &freed {
            if let (Some(slots), Some(holder)) = (self.slots.get_mut(resource), &holder) {
                slots.give_back(&holder.agent);
            }
        }
        if let Some((awaited, _)) = self.wanted.remove(&call).and_then(|mut wanted| wanted.pop_front()) {
            if let Some(slots) = self.slots.get_mut(&awaited) {
                slots.waiting.retain(|(waiting, _)| *waiting != call);
            }
            freed.push(awaited);
        }
        let granted = freed.iter().flat_map(|resource| self.grant_waiting(resource)).collect();
        for resource in &freed {
            if self.slots.get(resource).is_some_and(|slots| slots.taken == 0 && slots.waiting.is_empty()) {
                self.slots.remove(resource);
            }
        }
        granted
    }

    /// Gives free permits of a resource to the calls that wait for it.
    fn grant_waiting(&mut self, resource: &Resource) -> Vec<CallNo> {
        let mut granted = Vec::new();
        while let Some(slots) = self.slots.get_mut(resource) {
            let may_take = |(call, max): &(CallNo, usize)| {
                self.holders.get(call).is_some_and(|holder| slots.admit(resource, holder, *max))
            };
            let position = match resource.is_shared() {
                true => slots.waiting.iter().position(may_take),
                false => slots.waiting.front().is_some_and(may_take).then_some(0),
            };
            let Some((call, _)) = position.and_then(|position| slots.waiting.remove(position)) else { break };
            if let Some(holder) = self.holders.get(&call) {
                slots.take(&holder.agent);
            }
            self.held.entry(call).or_default().push(resource.clone());
            if let Some(wanted) = self.wanted.get_mut(&call) {
                wanted.pop_front();
            }
            if self.take_next(call) {
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

impl Slots {
    fn admit(&self, resource: &Resource, holder: &Holder, max: usize) -> bool {
        let free = max.saturating_sub(self.taken);
        let own = self.by_agent.get(&holder.agent).copied().unwrap_or_default();
        if resource.is_shared() { holder.share.admits(own as u64, free as u64) } else { free > 0 }
    }

    fn take(&mut self, agent: &ByteString) {
        self.taken += 1;
        *self.by_agent.entry(agent.clone()).or_default() += 1;
    }

    fn give_back(&mut self, agent: &ByteString) {
        self.taken -= 1;
        if let Some(own) = self.by_agent.get_mut(agent) {
            *own -= 1;
            if *own == 0 {
                self.by_agent.remove(agent);
            }
        }
    }
}

impl Resource {
    /// Whether agents compete for it. The others have shares or users of their own.
    fn is_shared(&self) -> bool {
        matches!(self, Self::Limit(_) | Self::Server(_))
    }

    pub fn is_share_of_tasks(&self) -> bool {
        matches!(self, Self::AgentTasks(..) | Self::Tasks(_))
    }

    /// The order in which permits are taken: those that a call may hold for long while it waits come first.
    fn rank(&self) -> (u8, String) {
        match self {
            Self::AgentTasks(server, agent) => (0, format!("{server} {agent}")),
            Self::Tasks(server) => (1, server.to_string()),
            Self::Limit(kind) => (2, kind.to_string()),
            Self::Exclusive(server, name) => (3, format!("{server} {name}")),
            Self::Server(server) => (4, server.to_string()),
        }
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

    fn of(agent: &'static str, percentage: u8) -> Holder {
        Holder { agent: ByteString::from_static(agent), share: Share::percent(percentage).expect("a percentage") }
    }

    fn any() -> Holder {
        of("a", 100)
    }

    #[test]
    fn an_agent_that_used_up_its_share_waits_and_others_overtake_it() {
        let mut permits = Permits::default();
        let calls: Vec<_> = (0..10).map(CallNo).collect();
        let started = calls.iter().filter(|call| permits.acquire(**call, of("greedy", 50), vec![server(0, 8)])).count();
        assert_eq!(started, 4, "half of all");
        assert!(permits.acquire(CallNo(20), of("other", 50), vec![server(0, 8)]));
        assert!(permits.acquire(CallNo(21), of("other", 50), vec![server(0, 8)]));
        assert!(!permits.acquire(CallNo(22), of("other", 50), vec![server(0, 8)]), "two are left for a third agent");
        assert!(permits.acquire(CallNo(30), of("third", 50), vec![server(0, 8)]));
        assert_eq!(
            permits.release(CallNo(20)),
            [CallNo(22)],
            "it overtakes the greedy agent, which has more than is free"
        );
        assert_eq!(permits.release(CallNo(30)), []);
        assert_eq!(permits.release(CallNo(0)), []);
        assert_eq!(permits.release(CallNo(1)), [CallNo(4)]);
    }

    #[test]
    fn permits_are_granted_in_the_order_of_arrival() {
        let mut permits = Permits::default();
        let [a, b, c] = [1, 2, 3].map(CallNo);
        assert!(permits.acquire(a, any(), vec![server(0, 1)]));
        assert!(!permits.acquire(b, any(), vec![server(0, 1)]));
        assert!(!permits.acquire(c, any(), vec![server(0, 1)]));
        assert_eq!(permits.release(a), [b]);
        assert!(permits.is_waiting(c) && !permits.is_waiting(b));
        let [d, e, f, g] = [4, 5, 6, 7].map(CallNo);
        assert!(permits.acquire(d, any(), vec![server(1, 2)]) && permits.acquire(e, any(), vec![server(1, 2)]));
        assert_eq!(permits.release(d), []);
        assert!(permits.acquire(f, any(), vec![server(1, 2)]) && !permits.acquire(g, any(), vec![server(1, 2)]));
        assert_eq!([permits.release(e), permits.release(f), permits.release(g)], [vec![g], vec![], vec![]]);
        assert_eq!(permits.release(b), [c]);
        assert!(!permits.is_empty());
        assert_eq!(permits.release(c), []);
        assert!(permits.is_empty() && permits.slots.is_empty());
    }

    #[test]
    fn a_call_that_waits_for_one_permit_holds_up_no_call_that_wants_another() {
        let mut permits = Permits::default();
        let [a, b, c] = [1, 2, 3].map(CallNo);
        assert!(permits.acquire(a, any(), vec![server(0, 1)]));
        assert!(!permits.acquire(b, any(), vec![server(1, 1), server(0, 1)]), "waits for server 0");
        assert!(permits.acquire(c, any(), vec![server(1, 1)]));
        assert_eq!(permits.release(a), [], "b has server 0 now, and waits for server 1");
        assert_eq!(permits.release(c), [b]);
        assert_eq!(permits.release(b), []);
        assert!(permits.is_empty() && permits.slots.is_empty());
    }

    #[test]
    fn a_call_that_stops_waiting_lets_the_next_one_go_on() {
        let mut permits = Permits::default();
        let [a, b, c] = [1, 2, 3].map(CallNo);
        assert!(permits.acquire(a, any(), vec![server(1, 1)]));
        assert!(!permits.acquire(b, any(), vec![server(0, 1), server(1, 1)]), "holds server 0 and waits for server 1");
        assert!(!permits.acquire(c, any(), vec![server(0, 1)]));
        assert_eq!(permits.release(b), [c]);
        assert_eq!(permits.release(a), []);
        assert_eq!(permits.release(c), []);
        assert!(permits.is_empty() && permits.slots.is_empty());
    }

    #[test]
    fn one_release_can_let_several_calls_go_on() {
        let mut permits = Permits::default();
        let [a, b, c, d] = [1, 2, 3, 4].map(CallNo);
        assert!(permits.acquire(a, any(), vec![server(0, 1), server(1, 1), (Resource::Tasks(0), 1)]));
        assert!(!permits.acquire(b, any(), vec![server(0, 1)]));
        assert!(!permits.acquire(c, any(), vec![(Resource::Tasks(0), 1)]));
        assert!(!permits.acquire(d, any(), vec![(Resource::Tasks(0), 2)]), "behind c");
        assert_eq!(permits.release(a), [c, d, b]);
    }

    #[test]
    fn the_state_of_limits_that_are_no_longer_used_is_forgotten() {
        let rate = Some(Rate { count: NonZeroU32::MIN, per: Duration::from_secs(1) });
        let mut rates = Rates::default();
        let limit = |name: &str| Limit { kind: LimitKind::Role(name.into()), rate, concurrency: None };
        let long = Some(Rate { count: NonZeroU32::MIN, per: Duration::from_secs(1_500) });
        let in_use = [Limit { rate: long, ..limit("long") }];
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
        for both in [[role.clone(), tool.clone()], [tool.clone(), role.clone()]] {
            assert_eq!(rates.count(&both, 0).expect_err("both are used up").kind, role.kind, "the longest wait");
        }
        assert!(rates.count(&[tool], 0).is_err());
        assert!(rates.count(&limits, 30_000).is_ok());
    }
}
