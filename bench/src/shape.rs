//! The shapes of load that are measured, with their names and sizes.

use std::{fmt, str::FromStr};

use anyhow::anyhow;
use bytes::Bytes;

/// One kind of load. Every contender that supports a shape runs exactly the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shape {
    /// Round trips worker → broker → host (echo) → broker → worker.
    Call { workers: u32, in_flight: u32, body: usize },
    /// Durable delivery to an absent receiver, pipelined on one connection.
    OneWay,
    /// A receiver empties a mailbox that holds `pending` messages, acking each.
    Drain { pending: u32 },
}

const fn call(workers: u32, in_flight: u32, body: usize) -> Shape {
    Shape::Call { workers, in_flight, body }
}

pub const LONE_SMALL: Shape = call(1, 1, 100);
pub const PIPELINED_SMALL: Shape = call(1, 64, 100);
pub const CROWD_SMALL: Shape = call(64, 1, 100);
pub const PIPELINED_LARGE: Shape = call(1, 64, 10_000);
pub const CROWD_LARGE: Shape = call(64, 1, 10_000);
pub const DRAIN_FEW: Shape = Shape::Drain { pending: 1_000 };
pub const DRAIN_MANY: Shape = Shape::Drain { pending: 100_000 };

/// Messages without a receipt that the one-way publisher keeps outstanding.
pub const ONE_WAY_WINDOW: u32 = 1_024;
/// Maximum number of messages of the one-way publisher, which bounds the disk use.
pub const ONE_WAY_LIMIT: u64 = 500_000;
/// Body size of a one-way and of a drained message.
pub const ONE_WAY_BODY: usize = 1_024;

impl Shape {
    pub const ALL: [Shape; 8] =
        [LONE_SMALL, PIPELINED_SMALL, CROWD_SMALL, PIPELINED_LARGE, CROWD_LARGE, Shape::OneWay, DRAIN_FEW, DRAIN_MANY];

    /// The name used on the command line and in JSON.
    pub fn key(self) -> String {
        match self {
            Shape::Call { workers, in_flight, body } => format!("{workers}x{in_flight}-{body}"),
            Shape::OneWay => "one-way".to_owned(),
            Shape::Drain { pending } => format!("drain-{pending}"),
        }
    }

    /// A description for reports.
    pub fn description(self) -> String {
        match self {
            Shape::Call { workers: 1, in_flight: 1, .. } => "one worker, one call at a time".to_owned(),
            Shape::Call { workers: 1, in_flight, .. } => format!("one worker, {in_flight} calls in flight"),
            Shape::Call { workers, .. } => format!("{workers} workers, one call each at a time"),
            Shape::OneWay => format!("durable, {ONE_WAY_WINDOW} without a receipt, receiver disconnected"),
            Shape::Drain { pending } => format!("receive and ack {},000 pending messages", pending / 1_000),
        }
    }

    /// The unit of the rate.
    pub fn unit(self) -> &'static str {
        match self {
            Shape::Call { .. } => "calls/s",
            Shape::OneWay | Shape::Drain { .. } => "messages/s",
        }
    }

    pub fn body_bytes(self) -> usize {
        match self {
            Shape::Call { body, .. } => body,
            Shape::OneWay | Shape::Drain { .. } => ONE_WAY_BODY,
        }
    }

    /// The message body for every contender: a JSON text of exactly the shape's size, so that brokers which require
    /// JSON carry the same bytes as the others.
    pub fn body(self) -> Bytes {
        let length = self.body_bytes();
        let mut text = Vec::with_capacity(length);
        text.push(b'"');
        text.extend((b'a'..=b'z').cycle().take(length - 2));
        text.push(b'"');
        text.into()
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Shape::Call { workers, in_flight, body } if body % 1_000 == 0 => {
                write!(formatter, "{workers}×{in_flight} {} KB", body / 1_000)
            }
            Shape::Call { workers, in_flight, body } => write!(formatter, "{workers}×{in_flight} {body} B"),
            Shape::OneWay => formatter.write_str("one-way 1 KiB"),
            Shape::Drain { pending } => write!(formatter, "drain {} k", pending / 1_000),
        }
    }
}

impl FromStr for Shape {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Shape::ALL.into_iter().find(|shape| shape.key() == text).ok_or_else(|| {
            let known = Shape::ALL.map(Shape::key).join(", ");
            anyhow!("unknown shape {text:?}; known shapes: {known}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shape_is_found_by_its_key() {
        for shape in Shape::ALL {
            assert_eq!(shape.key().parse::<Shape>().unwrap(), shape);
        }
    }

    #[test]
    fn a_body_is_json_of_the_exact_size() {
        for shape in Shape::ALL {
            let body = shape.body();
            assert_eq!(body.len(), shape.body_bytes());
            serde_json::from_slice::<String>(&body).unwrap();
        }
    }
}
