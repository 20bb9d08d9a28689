//! The limit of what waits for a broker that does not read. Deliveries, acknowledgements and cancels are bounded by the
//! operations that they belong to; events and queries are not, so those are dropped here once too many frames wait: events
//! are lossy, and a query fails by its own timeout.

use toolbus_protocol::ClientFrame;

const MAX_FRAMES: usize = 8192;
const MAX_EVENT_BYTES: usize = 16 << 20;

/// Counts the frames that are queued for the connection.
#[derive(Debug, Default)]
pub struct Backlog {
    event_bytes: usize,
}

impl Backlog {
    /// Whether the frame may be queued behind so many others.
    pub fn admits(&mut self, queued: usize, frame: &ClientFrame) -> bool {
        match frame {
            ClientFrame::Event(event) => {
                let bytes = event.body.as_bytes().len();
                let admitted = queued < MAX_FRAMES && self.event_bytes + bytes <= MAX_EVENT_BYTES;
                self.event_bytes += if admitted { bytes } else { 0 };
                admitted
            }
            ClientFrame::Status { .. }
            | ClientFrame::Inspect(_)
            | ClientFrame::Hosts(_)
            | ClientFrame::ListConnected { .. } => queued < MAX_FRAMES,
            _ => true,
        }
    }

    /// The queue was emptied.
    pub fn clear(&mut self) {
        self.event_bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use toolbus_protocol::{Body, Event};

    fn event(bytes: usize) -> ClientFrame {
        let body = Body::of(&"x".repeat(bytes)).expect("a string");
        ClientFrame::Event(Event { peer: "w".into(), correlation_id: "c".into(), body })
    }

    #[test]
    fn events_and_queries_are_dropped_behind_too_many_frames_and_nothing_else_is() {
        let mut backlog = Backlog::default();
        let status = ClientFrame::Status { request_id: "s".into() };
        assert!(backlog.admits(MAX_FRAMES - 1, &event(1)) && backlog.admits(MAX_FRAMES - 1, &status));
        assert!(!backlog.admits(MAX_FRAMES, &event(1)) && !backlog.admits(MAX_FRAMES, &status));
        let ack = ClientFrame::Ack { id: "m".into() };
        assert!(backlog.admits(MAX_FRAMES, &ack) && backlog.admits(MAX_FRAMES, &ClientFrame::Subscribe));
    }

    #[test]
    fn events_are_bounded_by_their_bytes_until_they_are_sent() {
        let mut backlog = Backlog::default();
        assert!(backlog.admits(0, &event(MAX_EVENT_BYTES / 2)) && backlog.admits(1, &event(MAX_EVENT_BYTES / 4)));
        assert!(!backlog.admits(2, &event(MAX_EVENT_BYTES / 2)));
        assert!(backlog.admits(2, &event(10)), "a smaller one fits");
        backlog.clear();
        assert!(backlog.admits(0, &event(MAX_EVENT_BYTES / 2)));
    }
}
