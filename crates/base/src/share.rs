//! How much of a limited resource one agent may use.

use crate::Rights;

/// A percentage of each resource: connections, sessions, processes, messages, running calls.
///
/// An agent may use as much as stands in this proportion to what is free. Alone it reaches its percentage of the whole;
/// the more others use, the less each may add, and some of the resource is always left for the next agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Share(u8);

impl Share {
    /// For roles without a setting.
    pub const DEFAULT: Self = Self(25);
    /// The same for what is used only while calls run: processes, and a server's concurrent calls.
    pub const RUNNING: Self = Self(67);
    /// Three agents that take all they can leave an eighth.
    pub const HALF: Self = Self(50);
    /// The smallest share. What it admits, every share admits.
    pub const LEAST: Self = Self(1);

    /// A share of 1 to 100 percent.
    pub fn percent(percentage: u8) -> Option<Self> {
        (1..=100).contains(&percentage).then_some(Self(percentage))
    }

    /// Parses a share such as `25%`.
    pub fn parse(text: &str) -> Option<Self> {
        Self::percent(text.strip_suffix('%')?.trim().parse().ok()?)
    }

    /// This percentage of a rate.
    pub fn of(self, whole: u64) -> u64 {
        whole / 100 * u64::from(self.0) + whole % 100 * u64::from(self.0) / 100
    }

    /// Whether an agent that uses `own` units of a resource may take one more while `free` units are left.
    pub fn admits(self, own: u64, free: u64) -> bool {
        let (own, free, percentage) = (u128::from(own), u128::from(free), u128::from(self.0));
        free > 0 && own * (100 - percentage) < free * percentage
    }
}

impl std::fmt::Display for Share {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}%", self.0)
    }
}

impl Rights {
    /// Whether the agent is limited to its share. Hosts and operators may use everything: what a host sends, others have
    /// asked for, and an operator has to be able to act on a broker that is full.
    pub fn has_share(self) -> bool {
        !(self.host || self.operator || self.unrestricted)
    }

    /// The part of a resource that an agent with these rights may see as the whole: a twentieth is a reserve of hosts and
    /// operators.
    pub fn usable(self, whole: u64) -> u64 {
        if self.has_share() { whole - whole / RESERVE } else { whole }
    }
}

/// The reserve is the whole divided by this.
const RESERVE: u64 = 20;

#[cfg(test)]
mod tests {
    use super::*;

    /// How much each of some agents gets of the whole if all take turns until none may take more.
    fn taken(share: &str, agents: usize, whole: u64) -> Vec<u64> {
        let share = Share::parse(share).expect("a share");
        let mut taken = vec![0; agents];
        loop {
            let before = taken.clone();
            for agent in 0..agents {
                let free = whole - taken.iter().sum::<u64>();
                taken[agent] += u64::from(share.admits(taken[agent], free));
            }
            if taken == before {
                return taken;
            }
        }
    }

    #[test]
    fn one_agent_gets_its_percentage() {
        assert_eq!(taken("25%", 1, 1000), [250]);
        assert_eq!(taken("50%", 1, 1000), [500]);
        assert_eq!(taken("100%", 1, 1000), [1000]);
        assert_eq!(taken("1%", 1, 1000), [10]);
    }

    #[test]
    fn many_agents_get_the_same_and_leave_room_for_another() {
        assert_eq!(taken("25%", 3, 1000), [167; 3]);
        let ten = taken("25%", 10, 1000);
        assert!(ten.iter().all(|taken| (76..=77).contains(taken)), "{ten:?}");
    }

    #[test]
    fn the_first_unit_of_a_small_resource_can_be_taken() {
        assert_eq!(taken("1%", 1, 1), [1]);
        assert_eq!(taken("25%", 2, 1), [1, 0]);
        assert!(!Share(100).admits(0, 0));
    }

    #[test]
    fn large_numbers_do_not_overflow() {
        assert_eq!((Share(100).of(u64::MAX), Share(25).of(1_010)), (u64::MAX, 252));
        assert!(Share(99).admits(1, u64::MAX) && !Share(1).admits(u64::MAX, u64::MAX));
    }

    #[test]
    fn shares_are_parsed_and_written() {
        assert_eq!(Share::parse("40%").map(|share| share.to_string()).as_deref(), Some("40%"));
        for wrong in ["0%", "101%", "40", "-1%", "", "%", "1.5%"] {
            assert_eq!(Share::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn hosts_and_operators_have_a_reserve() {
        assert_eq!(Rights::WORKER.usable(100), 95);
        assert_eq!([Rights::HOST, Rights::OPERATOR, Rights::UNRESTRICTED].map(|rights| rights.usable(100)), [100; 3]);
        assert!(Rights::WORKER.has_share() && !Rights::HOST.has_share());
    }
}
