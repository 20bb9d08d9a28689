//! The processes that are struck: NATS servers and brokers.

use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Nats,
    Broker,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    pub role: Role,
    pub number: usize,
}

impl Node {
    pub fn nats(number: usize) -> Self {
        Self { role: Role::Nats, number }
    }

    pub fn broker(number: usize) -> Self {
        Self { role: Role::Broker, number }
    }
}

impl fmt::Display for Node {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let role = match self.role {
            Role::Nats => "nats",
            Role::Broker => "broker",
        };
        write!(formatter, "{role}-{}", self.number)
    }
}
