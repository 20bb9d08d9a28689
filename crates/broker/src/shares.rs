//! What each agent uses of the broker: connections, memory for input that has not arrived completely, and work per second.
//! Other agents are not affected by an agent that uses up its share.

use crate::budget::REQUEST_COST;
use hashbrown::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::time::Instant;
use toolbus_engine::{Names, Share};
use toolbus_identity::{Identity, Rights};

/// Input of a connection up to this size is not counted: it is about what an idle connection takes.
const FREE_INPUT: u64 = 64 << 10;

/// Cost of a request that is refused, in requests. An agent without rights can only make the others wait for refusals, and
/// one that is often refused is faulty or hostile.
const REFUSAL: u64 = 100;
/// How much work an agent may do at once after it was idle.
const BURST: Duration = Duration::from_secs(1);
/// Work that is remembered at most, so that an agent is served normally soon after it behaves again.
const MAX_DEBT: Duration = Duration::from_secs(10);
/// Work of all agents that is remembered at most, so that contention ends a second after its cause.
const MAX_CONTENTION: Duration = Duration::from_secs(2);
/// Agents whose recent work is remembered before the idle ones are forgotten.
const MAX_IDLE: usize = 1024;

/// The connections, the input and the recent work of all agents.
pub struct Shares {
    limits: ShareLimits,
    names: Arc<dyn Names>,
    usage: Mutex<Usage>,
}

/// The whole of which agents have shares.
#[derive(Debug, Clone, Copy)]
pub struct ShareLimits {
    pub connections: u64,
    pub input_bytes: u64,
    /// Requests per second.
    pub requests: u64,
}

#[derive(Default)]
struct Usage {
    all: Amounts,
    agents: HashMap<String, Amounts>,
    work: HashMap<String, Work>,
    all_work: Option<Work>,
}

/// Recent work, in units of [`crate::budget`]: a leaky bucket.
#[derive(Clone, Copy)]
struct Work {
    units: f64,
    at: Instant,
}

impl Work {
    fn none(now: Instant) -> Self {
        Self { units: 0.0, at: now }
    }

    /// Adds work to what is left of the earlier work if `rate` units are done per second, up to `most`. Earlier work stays.
    fn add(&mut self, units: f64, rate: f64, most: f64, now: Instant) {
        let left = (self.units - now.duration_since(self.at).as_secs_f64() * rate).max(0.0);
        *self = Self { units: (left + units).min(most).max(left), at: now };
    }
}

#[derive(Default, Clone, Copy, PartialEq, Eq)]
struct Amounts {
    connections: u64,
    input: u64,
}

/// A connection of an agent, which counts until it is dropped.
pub struct AgentConnection {
    shares: Arc<Shares>,
    agent: String,
    role: Option<String>,
    rights: Rights,
    input: u64,
}

impl Shares {
    pub fn new(limits: ShareLimits, names: Arc<dyn Names>) -> Arc<Self> {
        Arc::new(Self { limits, names, usage: Mutex::default() })
    }

    /// Counts work for an agent. Returns how long nothing more should be read from it.
    ///
    /// An agent that may do something is only paused while all agents together make more work than the whole: what others
    /// leave unused, it may use without a debt. Work `in_vain`, for something that is refused, is not worth that.
    fn work(&self, agent: &str, role: Option<&str>, units: u64, in_vain: bool) -> Duration {
        let (share, units) = (self.names.share(role), units as f64);
        let whole = self.limits.requests.max(1) as f64 * REQUEST_COST as f64;
        let rate = share.of(self.limits.requests).max(1) as f64 * REQUEST_COST as f64;
        let (mut usage, now) = (self.lock(), Instant::now());
        if usage.work.len() > MAX_IDLE {
            usage.work.retain(|_, work| now.duration_since(work.at) < BURST);
        }
        let all = usage.all_work.get_or_insert(Work::none(now));
        all.add(units, whole, whole * MAX_CONTENTION.as_secs_f64(), now);
        let is_contended = share == Share::LEAST || in_vain || all.units > whole * BURST.as_secs_f64();
        let most = if is_contended { MAX_DEBT } else { BURST };
        let work = usage.work.entry(agent.to_owned()).or_insert(Work::none(now));
        work.add(units, rate, rate * most.as_secs_f64(), now);
        Duration::try_from_secs_f64(work.units / rate).unwrap_or(BURST).saturating_sub(BURST)
    }

    /// Counts a connection. Returns `None` if the broker has too many, or the agent has used up its share.
    pub fn connect(self: &Arc<Self>, identity: &Identity) -> Option<AgentConnection> {
        let role = identity.agent.role.as_ref().map(ToString::to_string);
        let (agent, rights) = (identity.principal().to_owned(), identity.rights);
        let mut usage = self.lock();
        let (all, own) = (usage.all.connections, usage.of(&agent).connections);
        if !self.admits(role.as_deref(), rights, own, all, self.limits.connections) {
            return None;
        }
        usage.change(&agent, |amounts| amounts.connections += 1);
        drop(usage);
        Some(AgentConnection { shares: Arc::clone(self), agent, role, rights, input: 0 })
    }

    /// A host refused a request of the agent.
    pub fn refused(&self, agent: &str) {
        let (mut usage, now) = (self.lock(), Instant::now());
        let cost = (REFUSAL * REQUEST_COST as u64) as f64;
        usage.all_work.get_or_insert(Work::none(now)).units += cost;
        usage.work.entry(agent.to_owned()).or_insert(Work::none(now)).units += cost;
    }

    fn admits(&self, role: Option<&str>, rights: Rights, own: u64, all: u64, whole: u64) -> bool {
        let free = rights.usable(whole).saturating_sub(all);
        free > 0 && (!rights.has_share() || self.names.share(role).admits(own, free))
    }

    fn lock(&self) -> MutexGuard<'_, Usage> {
        self.usage.lock().expect("no code panics while holding the lock")
    }
}

impl Usage {
    fn of(&self, agent: &str) -> Amounts {
        self.agents.get(agent).copied().unwrap_or_default()
    }

    fn change(&mut self, agent: &str, change: impl Fn(&mut Amounts)) {
        change(&mut self.all);
        let own = self.agents.entry(agent.to_owned()).or_default();
        change(own);
        if *own == Amounts::default() {
            self.agents.remove(agent);
        }
    }
}

impl AgentConnection {
    /// Whether the connection belongs to this agent in this role.
    pub fn is_of(&self, identity: &Identity) -> bool {
        self.agent == identity.principal() && self.role.as_deref() == identity.agent.role.as_deref()
    }

    /// Counts work for the connection, and requests that were refused. Returns how long to pause it.
    pub fn work(&self, units: usize, refused: usize) -> Duration {
        if !self.rights.has_share() || (units == 0 && refused == 0) {
            return Duration::ZERO;
        }
        let units = units as u64 + refused as u64 * REFUSAL * REQUEST_COST as u64;
        self.shares.work(&self.agent, self.role.as_deref(), units, refused > 0)
    }

    /// Counts input that is read only to be discarded. Returns how long to pause.
    pub fn discard(&self, units: usize) -> Duration {
        match self.rights.has_share() {
            true => self.shares.work(&self.agent, self.role.as_deref(), units as u64, true),
            false => Duration::ZERO,
        }
    }

    /// The most that the agent could ever send at once.
    pub fn largest_input(&self) -> u64 {
        if !self.rights.has_share() {
            return u64::MAX;
        }
        let whole = self.rights.usable(self.shares.limits.input_bytes);
        self.shares.names.share(self.role.as_deref()).of(whole).max(FREE_INPUT)
    }

    /// Sets how many bytes of input are held for this connection. Returns false if the agent has used up its share; the
    /// caller has to drop the input then.
    #[must_use]
    pub fn hold_input(&mut self, bytes: u64) -> bool {
        let (before, now) = (self.input, if bytes > FREE_INPUT { bytes } else { 0 });
        if now == before {
            return true;
        }
        let mut usage = self.shares.lock();
        if now > before {
            // The last byte has to be within the share.
            let added = now - before - 1;
            let (all, own) = (usage.all.input + added, usage.of(&self.agent).input + added);
            if !self.shares.admits(self.role.as_deref(), self.rights, own, all, self.shares.limits.input_bytes) {
                return false;
            }
        }
        usage.change(&self.agent, |amounts| amounts.input = amounts.input - before + now);
        self.input = now;
        true
    }
}

impl Drop for AgentConnection {
    fn drop(&mut self) {
        let input = self.input;
        self.shares.lock().change(&self.agent, |amounts| {
            amounts.connections -= 1;
            amounts.input -= input;
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use toolbus_engine::{Sender, Share};
    use toolbus_protocol::AgentRef;

    struct Roles;

    impl Names for Roles {
        fn is_host(&self, _mailbox: &str) -> bool {
            false
        }

        fn may_message(&self, _from: &Sender, _to: &str) -> bool {
            false
        }

        fn share(&self, role: Option<&str>) -> Share {
            if role == Some("small") { Share::LEAST } else { Share::DEFAULT }
        }
    }

    fn connect(shares: &Arc<Shares>, name: &str, role: &str, rights: Rights) -> AgentConnection {
        shares.connect(&Identity::local(AgentRef::new(name).with_role(role), rights)).expect("a connection")
    }

    fn shares() -> Arc<Shares> {
        Shares::new(ShareLimits { connections: 100, input_bytes: 1 << 20, requests: 4_000 }, Arc::new(Roles))
    }

    fn requests(connection: &AgentConnection, count: usize) -> Duration {
        connection.work(count * REQUEST_COST, 0)
    }

    /// Other agents make as much work as the broker has room for.
    fn contend(shares: &Arc<Shares>) {
        for number in 0..4 {
            let other = connect(shares, &format!("other-{number}"), "worker", Rights::WORKER);
            assert_eq!(requests(&other, 1_000), Duration::ZERO, "a burst");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_agent_that_makes_more_work_than_its_share_is_paused() {
        let shares = shares();
        contend(&shares);
        let one = connect(&shares, "one#a", "worker", Rights::WORKER);
        assert_eq!(requests(&one, 1_000), Duration::ZERO, "a burst");
        assert_eq!(requests(&one, 500), Duration::from_millis(500));
        let same = connect(&shares, "one#b", "worker", Rights::WORKER);
        assert_eq!(requests(&same, 1), Duration::from_millis(501), "all connections of the agent count together");
        assert_eq!(requests(&connect(&shares, "two", "worker", Rights::WORKER), 1_000), Duration::ZERO);
        assert_eq!(requests(&connect(&shares, "host", "", Rights::HOST), 100_000), Duration::ZERO);
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(requests(&one, 500), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn an_agent_may_use_what_others_leave_unused_without_a_debt() {
        let shares = shares();
        let one = connect(&shares, "one", "worker", Rights::WORKER);
        for _ in 0..20 {
            assert_eq!(requests(&one, 3_500), Duration::ZERO, "less than the whole");
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        contend(&shares);
        assert_eq!(requests(&one, 1), Duration::ZERO, "nothing of it counts against the agent");
        assert_eq!(requests(&one, 1_001), Duration::from_millis(2), "only its share is left");
    }

    #[tokio::test(start_paused = true)]
    async fn an_agent_without_rights_gets_its_share_also_if_it_is_alone() {
        let shares = shares();
        let small = connect(&shares, "small", "small", Rights::WORKER);
        assert_eq!(requests(&small, 40), Duration::ZERO, "a burst");
        assert_eq!(requests(&small, 40), Duration::from_secs(1));
    }

    #[test]
    fn input_that_comes_at_once_is_held_only_within_the_share() {
        let shares = shares();
        let mut one = connect(&shares, "one", "worker", Rights::WORKER);
        assert!(!one.hold_input(300 << 10) && one.hold_input(200 << 10), "a quarter of 1 MiB");
        let mut same = connect(&shares, "one#b", "worker", Rights::WORKER);
        assert!(!same.hold_input(100 << 10), "all connections of the agent count together");
        let mut small = connect(&shares, "small", "small", Rights::WORKER);
        assert_eq!((one.largest_input(), small.largest_input()), (249_037, 64 << 10));
        assert!(!small.hold_input(65 << 10) && small.hold_input(64 << 10), "a little is not counted");
        assert!(one.hold_input(0) && same.hold_input(100 << 10));
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_costs_as_much_as_many_requests() {
        let shares = shares();
        let one = connect(&shares, "one", "worker", Rights::WORKER);
        assert_eq!(one.work(0, 10), Duration::ZERO);
        assert_eq!(one.work(0, 1), Duration::from_millis(100));
        let small = connect(&shares, "small", "small", Rights::WORKER);
        assert_eq!(small.work(0, 1), Duration::from_millis(1_500), "a smaller share");
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_by_a_host_counts_when_the_agent_sends_again() {
        let shares = shares();
        let one = connect(&shares, "one", "worker", Rights::WORKER);
        (0..15).for_each(|_| shares.refused("one"));
        assert_eq!(one.work(1, 0).as_millis(), 500);
    }

    #[tokio::test(start_paused = true)]
    async fn idle_agents_are_forgotten() {
        let shares = shares();
        for number in 0..2 * MAX_IDLE {
            requests(&connect(&shares, &number.to_string(), "worker", Rights::WORKER), 1);
            tokio::time::advance(Duration::from_millis(2)).await;
        }
        assert!(shares.lock().work.len() <= MAX_IDLE + 1);
        assert!(shares.lock().agents.is_empty());
    }
}
