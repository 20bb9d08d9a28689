//! The processes that are struck: NATS servers, brokers and hosts.

use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Nats,
    Broker,
    Host,
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

    pub fn host(number: usize) -> Self {
        Self { role: Role::Host, number }
    }
}

impl fmt::Display for Node {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let role = match self.role {
            Role::Nats => "nats",
            Role::Broker => "broker",
            Role::Host => "host",
        };
        write!(formatter, "{role}-{}", self.number)
    }
}
