//! Bodies of calls and answers.

use bytes::Bytes;
use bytestring::ByteString;
use std::hash::{DefaultHasher, Hasher};

/// A tool call. Tools with odd numbers are replay-safe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Work {
    pub tool: u64,
    pub argument: u64,
    /// The call runs as a task.
    pub task: bool,
}

impl Work {
    pub fn is_replay_safe(self) -> bool {
        self.tool % 2 == 1
    }

    /// Whether it crashes its host, if the plan enables that.
    pub fn crashes_host(self) -> bool {
        self.tool == 3 && self.argument == 0
    }

    pub fn body(self) -> Bytes {
        Bytes::from(format!("{} {} {}", self.tool, self.argument, u8::from(self.task)))
    }

    pub fn parse(body: &[u8]) -> Option<Self> {
        let mut words = std::str::from_utf8(body).ok()?.split(' ');
        let (tool, argument) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        Some(Self { tool, argument, task: words.next()? == "1" })
    }

    /// The content that a repeated id must match, and that calls must share to be joined.
    pub fn content(self, with_argument: bool) -> [u8; 32] {
        let mut content = [0; 32];
        content[..8].copy_from_slice(&self.tool.to_le_bytes());
        if with_argument {
            content[8..16].copy_from_slice(&self.argument.to_le_bytes());
        }
        content[16] = u8::from(self.task);
        content
    }
}

/// The outcome of a call as reported to its caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The result of that run of the tool.
    Result(usize),
    /// That run failed.
    Failed(usize),
    /// Not run because the deadline had passed.
    Expired,
    Unknown,
    Poisoned,
    /// The task was accepted; its result is queried later.
    Accepted,
}

/// An answer to a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub outcome: Outcome,
    /// The id of the call that was run: another one if this call was joined.
    pub of: ByteString,
    pub joined: bool,
}

impl Answer {
    pub fn body(&self) -> Bytes {
        let (kind, run) = match self.outcome {
            Outcome::Result(run) => ("result", run),
            Outcome::Failed(run) => ("failed", run),
            Outcome::Expired => ("expired", 0),
            Outcome::Unknown => ("unknown", 0),
            Outcome::Poisoned => ("poisoned", 0),
            Outcome::Accepted => ("accepted", 0),
        };
        Bytes::from(format!("{kind} {run} {} {}", self.of, u8::from(self.joined)))
    }

    pub fn parse(body: &[u8]) -> Option<Self> {
        let mut words = std::str::from_utf8(body).ok()?.split(' ');
        let (kind, run) = (words.next()?, words.next()?.parse().ok()?);
        let outcome = match kind {
            "result" => Outcome::Result(run),
            "failed" => Outcome::Failed(run),
            "expired" => Outcome::Expired,
            "unknown" => Outcome::Unknown,
            "poisoned" => Outcome::Poisoned,
            "accepted" => Outcome::Accepted,
            _ => return None,
        };
        Some(Self { outcome, of: words.next()?.into(), joined: words.next()? == "1" })
    }
}

/// The hash that the broker compares when an id is repeated.
pub fn content_hash(body: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(body);
    hasher.finish()
}
