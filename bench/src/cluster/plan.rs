//! The blows of a run, in the order in which they fall. Only one node is struck at a time, so that a majority of the NATS
//! servers stays.

use std::time::Duration;

use super::node::{Node, Role};
use crate::faults::rng::Rng;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// SIGKILL, and a restart after a while.
    Kill,
    /// SIGTERM, and a restart after a while: a rolling restart.
    Stop,
    /// SIGSTOP, and SIGCONT after this time.
    Pause(Duration),
    /// No bytes between the node and the others for this time, then the same connections go on.
    Cut(Duration),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blow {
    pub node: Node,
    pub action: Action,
}

/// Names of the kinds of blows, in the order of the report.
pub const KINDS: [&str; 12] = [
    "NATS server killed",
    "NATS server stopped (SIGTERM)",
    "NATS server paused (SIGSTOP)",
    "NATS server cut off",
    "broker killed",
    "broker stopped (SIGTERM)",
    "broker paused (SIGSTOP)",
    "broker cut off",
    "host killed",
    "host stopped (SIGTERM)",
    "host paused (SIGSTOP)",
    "host cut off",
];

impl Blow {
    pub fn kind(&self) -> &'static str {
        let role = match self.node.role {
            Role::Nats => 0,
            Role::Broker => 4,
            Role::Host => 8,
        };
        let action = match self.action {
            Action::Kill => 0,
            Action::Stop => 1,
            Action::Pause(_) => 2,
            Action::Cut(_) => 3,
        };
        KINDS[role + action]
    }
}

/// How many nodes of each role there are.
#[derive(Clone, Copy, Debug)]
pub struct Nodes {
    pub nats: usize,
    pub brokers: usize,
    pub hosts: usize,
}

/// Draws this many blows. Each kind comes once before any comes again, and hits each node before it hits one again.
pub fn draw(rng: &mut Rng, nodes: Nodes, count: usize, pauses: (u64, u64)) -> Vec<Blow> {
    let first = rng.below(6) as usize;
    let mut blows = Vec::new();
    for round in 0.. {
        let exists = |kind: &usize| [nodes.nats, nodes.brokers, nodes.hosts][kind / 4] > 0;
        let mut kinds: Vec<usize> = (0..KINDS.len()).filter(exists).collect();
        while !kinds.is_empty() {
            if blows.len() == count {
                return blows;
            }
            let kind = kinds.swap_remove(rng.below(kinds.len() as u64) as usize);
            // Different kinds begin with different nodes.
            let number = first + kind + round;
            let node = match kind / 4 {
                0 => Node::nats(number % nodes.nats),
                1 => Node::broker(number % nodes.brokers),
                _ => Node::host(number % nodes.hosts),
            };
            let time = Duration::from_millis(rng.log_uniform(pauses.0, pauses.1));
            let action = [Action::Kill, Action::Stop, Action::Pause(time), Action::Cut(time)][kind % 4];
            blows.push(Blow { node, action });
        }
    }
    blows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_strikes_every_node() {
        let nodes = Nodes { nats: 3, brokers: 3, hosts: 3 };
        let blows = draw(&mut Rng::new(7), nodes, 36, (100, 1_000));
        for kind in KINDS {
            let mut struck: Vec<usize> =
                blows.iter().filter(|blow| blow.kind() == kind).map(|blow| blow.node.number).collect();
            struck.sort_unstable();
            assert_eq!(struck, [0, 1, 2], "{kind}");
        }
        assert_eq!(blows, draw(&mut Rng::new(7), nodes, 36, (100, 1_000)));
        assert_ne!(blows, draw(&mut Rng::new(8), nodes, 36, (100, 1_000)));
    }

    #[test]
    fn a_broker_without_nats_is_struck_alone() {
        let blows = draw(&mut Rng::new(1), Nodes { nats: 0, brokers: 1, hosts: 0 }, 9, (100, 1_000));
        assert!(blows.iter().all(|blow| blow.node == Node::broker(0)));
    }
}
