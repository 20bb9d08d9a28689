//! Measures the input that a peer has sent without completing a message.

use crate::prefixed::Prefixed;
use crate::shares::AgentConnection;
use std::time::Duration;
use tokio::time::Instant;

/// How long it takes at most until a changed share applies to the size of messages.
const SHARE_CHECK: Duration = Duration::from_secs(1);

pub struct Input {
    counted: AgentConnection,
    /// The largest message to read, when that was determined, and what was announced to the peer.
    largest: u64,
    checked: Instant,
    announced: u64,
    /// Bytes read from the socket up to the end of the last message, as far as that is known.
    complete: u64,
}

impl Input {
    /// `received`: bytes read from the socket so far.
    pub fn new(counted: AgentConnection, announced: u64, received: u64) -> Self {
        let largest = counted.largest_input();
        Self { counted, largest, checked: Instant::now(), announced, complete: received }
    }

    /// Counts the work of a poll and the requests refused in it. Returns how long to pause the connection.
    pub fn work(&self, units: usize, refused: usize) -> Duration {
        self.counted.work(units, refused)
    }

    /// Counts input that is read only to be discarded. Returns how long to pause.
    pub fn discard(&self, units: usize) -> Duration {
        self.counted.discard(units)
    }

    /// The largest message to read: the header of a larger one is enough to refuse it.
    pub fn largest_message(&mut self, limit: usize) -> usize {
        if self.checked.elapsed() >= SHARE_CHECK {
            (self.largest, self.checked) = (self.counted.largest_input(), Instant::now());
        }
        usize::try_from(self.largest).unwrap_or(limit).min(limit)
    }

    /// Whether the peer may send larger messages than it was told.
    pub fn has_grown(&self, limit: usize) -> bool {
        self.largest.min(limit as u64) > self.announced
    }

    /// A message is complete. Behind it, bytes of the next one may have been read.
    pub fn completed(&mut self, payload: usize, socket: &Prefixed) {
        // The parts of a fragmented message have a header each; what was read last bounds the error.
        let rest = (socket.received() - self.complete).saturating_sub((payload + header_bytes(payload)) as u64);
        self.complete = socket.received() - rest.min(socket.last_received());
    }

    /// No further message is complete. Returns false if the agent has used up its share of unfinished input.
    pub fn waits(&mut self, socket: &Prefixed) -> bool {
        self.counted.hold_input(socket.received() - self.complete)
    }
}

/// Size of a client's frame header (RFC 6455): flags, length, mask.
fn header_bytes(payload: usize) -> usize {
    match payload {
        0..=125 => 6,
        126..=0xffff => 8,
        _ => 14,
    }
}
