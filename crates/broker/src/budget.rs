//! Limits how much one poll of a connection's task reads before it yields to other tasks.

use toolbus_protocol::ClientFrame;

/// Cost units that one poll may read before the task yields; see [`charge`].
pub const POLL_BUDGET: usize = 8192;
/// Cost of a message to a mailbox. Few per poll, so that recipients process the first ones while the next ones are read.
pub const REQUEST_COST: usize = POLL_BUDGET / 16;
/// Cost of a session of an application, in addition to the request that opens it: it is created, kept, and ended later.
pub const SESSION_COST: usize = 10 * REQUEST_COST;
/// Bytes of payload that cost as much as a request in the share of an agent: the disk and the network are slower than the
/// processor.
const BYTES_PER_REQUEST: usize = 2 << 10;
/// Base cost of a WebSocket message.
pub const MESSAGE_COST: usize = 64;
/// Bytes of a WebSocket message that cost one unit.
pub const BYTES_PER_COST: usize = 1 << 10;

/// Deducts from the budget. The budget bounds memory, the time that the mailboxes are locked, and the latency of other
/// connections.
pub fn charge(budget: &mut usize, cost: usize) {
    *budget = budget.saturating_sub(cost);
}

/// Cost of received bytes in the share of an agent.
pub fn payload_cost(bytes: usize) -> usize {
    bytes * REQUEST_COST / BYTES_PER_REQUEST
}

/// Cost of a frame, charged on top of its message because one message can pack many frames. Frames with large responses
/// cost more.
pub fn frame_cost(frame: &ClientFrame) -> usize {
    match frame {
        ClientFrame::Deliver(_) => REQUEST_COST,
        ClientFrame::AckTags { .. } | ClientFrame::Event(_) | ClientFrame::EventBatch(_) => 1,
        ClientFrame::Status { .. } | ClientFrame::Inspect(_) | ClientFrame::Hosts(_) => POLL_BUDGET,
        ClientFrame::Subscribe | ClientFrame::ListConnected { .. } | ClientFrame::Follow(_) => POLL_BUDGET / 8,
        _ => MESSAGE_COST,
    }
}
