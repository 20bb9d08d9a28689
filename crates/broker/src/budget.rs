//! What a connection may take in before others get their turn.

use toolbus_protocol::ClientFrame;

/// What may be read in one turn before it is dealt with and others get theirs; see `charge`.
pub const TURN_BUDGET: usize = 8192;
const DELIVERS_PER_TURN: usize = 16;
/// What a WebSocket message costs by itself, and how many of its bytes cost as much as a small frame.
pub const MESSAGE_COST: usize = 64;
pub const BYTES_PER_COST: usize = 1 << 10;

/// Bounds what one turn takes in, and with it memory, the time that the mailboxes are locked, and everyone's wait.
pub fn charge(budget: &mut usize, cost: usize) {
    *budget = budget.saturating_sub(cost);
}

/// Many small frames fit into one message. What has a long answer costs more than what has a short one or none.
pub fn frame_cost(frame: &ClientFrame) -> usize {
    match frame {
        // A few at a time: while the first are on their way to their recipients, the next are taken in.
        ClientFrame::Deliver(_) => TURN_BUDGET / DELIVERS_PER_TURN,
        ClientFrame::AckTags { .. } | ClientFrame::Event(_) => 1,
        ClientFrame::Status { .. } | ClientFrame::Inspect(_) | ClientFrame::Hosts(_) => TURN_BUDGET,
        ClientFrame::Subscribe | ClientFrame::ListConnected { .. } => TURN_BUDGET / 8,
        _ => MESSAGE_COST,
    }
}
