//! The conversion between frames and the engine, for the simulation.

use crate::wire;
use toolbus_engine::{Command, Outgoing};
use toolbus_protocol::{BrokerFrame, ClientFrame, JournalClaim};

/// Converts a client frame to a command. Returns `None` for frames that are not for the engine.
pub fn command(frame: ClientFrame) -> Option<Command> {
    wire::command(frame)
}

/// Converts a host's claim.
pub fn claim(claim: JournalClaim) -> toolbus_engine::JournalClaim {
    wire::claim(claim)
}

/// Converts the engine's output to a frame for a client that understands numbered receipts.
pub fn frame(outgoing: &Outgoing) -> BrokerFrame {
    match outgoing {
        Outgoing::Receipt { number, .. } => BrokerFrame::Receipts { ranges: vec![(*number, *number)] },
        outgoing => wire::frame(outgoing),
    }
}
