//! Encodes outgoing frames in the peer's framing. Frames that are ready at the same time are sent in one write.

use crate::wire;
use bytes::BytesMut;
use bytestring::ByteString;
use tokio_websockets::{CloseCode, Message as WsMessage};
use toolbus_engine::{Command, Outgoing, Refusal};
use toolbus_protocol::{BrokerFrame, Framing, compact, json};

/// Compact frames are packed into WebSocket messages of about this size.
const PACK_BYTES: usize = 256 << 10;
/// Maximum size of the encode buffer that a connection keeps between polls.
const KEPT_BYTES: usize = 16 << 10;
/// Maximum number of logged refusals per connection, because a peer can provoke any number of them.
const MAX_LOGGED_REFUSALS: u32 = 32;

pub struct Egress {
    agent: ByteString,
    framing: Framing,
    numbered_receipts: bool,
    buffer: BytesMut,
    receipts: Vec<u64>,
    /// Messages that were encoded for a peer of version 1 and not reported as passed on.
    passed: Vec<u64>,
    refusals: u32,
}

impl Egress {
    pub fn new(agent: ByteString, framing: Framing, numbered_receipts: bool) -> Self {
        let (buffer, receipts, passed) = (BytesMut::new(), Vec::new(), Vec::new());
        Self { agent, framing, numbered_receipts, buffer, receipts, passed, refusals: 0 }
    }

    /// Encodes and drains `outgoing`. A message that can't be encoded for this peer is reported as
    /// [`Command::Unreadable`].
    pub fn encode(
        &mut self,
        outgoing: &mut Vec<Outgoing>,
        commands: &mut Vec<Command>,
        mut send: impl FnMut(WsMessage),
    ) {
        self.take_each(outgoing, |egress, out| match egress.framing {
            Framing::Compact => {
                wire::write_compact(&out, &mut egress.buffer);
                if egress.buffer.len() >= PACK_BYTES {
                    send(WsMessage::binary(std::mem::take(&mut egress.buffer)));
                }
            }
            Framing::Json => {
                let frame = if egress.numbered_receipts { wire::frame(&out) } else { wire::version1_frame(&out) };
                match json::write_broker(&frame) {
                    Ok(text) => send(WsMessage::text(text)),
                    Err(error) => unreadable(out, &error, commands),
                }
            }
        });
        if let Some(receipts) = self.take_receipts() {
            match self.framing {
                Framing::Compact => compact::write_broker(&receipts, &mut self.buffer),
                Framing::Json => send(WsMessage::text(json::write_broker(&receipts).expect("receipts have no body"))),
            }
        }
        if !self.buffer.is_empty() {
            // A small buffer is reused; a large one would be kept by a connection that may be idle for hours.
            let packed =
                if self.buffer.len() > KEPT_BYTES { std::mem::take(&mut self.buffer) } else { self.buffer.split() };
            send(WsMessage::binary(packed));
        }
    }

    /// Converts and drains `outgoing`, for a peer in this process.
    pub fn convert(&mut self, outgoing: &mut Vec<Outgoing>, mut send: impl FnMut(BrokerFrame)) {
        self.take_each(outgoing, |_, out| send(wire::frame(&out)));
        self.take_receipts().into_iter().for_each(send);
    }

    /// Drains `outgoing`. Numbered receipts are collected for one frame behind the others.
    fn take_each(&mut self, outgoing: &mut Vec<Outgoing>, mut pass: impl FnMut(&mut Self, Outgoing)) {
        for out in outgoing.drain(..) {
            if let Outgoing::Refused { refusal, .. } = &out {
                self.log_refusal(refusal);
            }
            match out {
                Outgoing::Receipt { number, .. } if self.numbered_receipts => self.receipts.push(number),
                out => {
                    if let Outgoing::Message { message, .. } = &out
                        && !self.numbered_receipts
                    {
                        self.passed.push(message.seq);
                    }
                    pass(self, out);
                }
            }
        }
    }

    /// To be called when everything encoded so far is written to the socket.
    pub fn take_passed(&mut self) -> Option<Command> {
        (!self.passed.is_empty()).then(|| Command::Passed { tags: std::mem::take(&mut self.passed) })
    }

    fn take_receipts(&mut self) -> Option<BrokerFrame> {
        (!self.receipts.is_empty()).then(|| BrokerFrame::Receipts { ranges: ranges(&mut self.receipts) })
    }

    /// Encodes frames that do not come from the engine.
    pub fn encode_broker_frames(&self, frames: &mut Vec<BrokerFrame>, mut send: impl FnMut(WsMessage)) {
        for frame in frames.drain(..) {
            match self.framing {
                Framing::Compact => {
                    let mut buffer = BytesMut::new();
                    compact::write_broker(&frame, &mut buffer);
                    send(WsMessage::binary(buffer));
                }
                Framing::Json => match json::write_broker(&frame) {
                    Ok(text) => send(WsMessage::text(text)),
                    Err(error) => tracing::error!(%error, "can't encode a frame as JSON"),
                },
            }
        }
    }

    fn log_refusal(&mut self, refusal: &Refusal) {
        self.refusals = self.refusals.saturating_add(1);
        if self.refusals <= MAX_LOGGED_REFUSALS {
            tracing::info!(agent = &*self.agent, code = wire::code(refusal).code(), %refusal, "refused");
        }
    }
}

fn unreadable(out: Outgoing, error: &toolbus_protocol::BodyError, commands: &mut Vec<Command>) {
    match out {
        Outgoing::Message { message, .. } => {
            tracing::warn!(mailbox = &*message.mailbox, id = &*message.id, %error, "can't encode a message as JSON");
            commands.push(Command::Unreadable { message });
        }
        _ => tracing::debug!(%error, "dropped a live event that is not JSON"),
    }
}

/// Converts numbers to inclusive ranges and drains the list.
fn ranges(numbers: &mut Vec<u64>) -> Vec<(u64, u64)> {
    numbers.sort_unstable();
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for number in numbers.drain(..) {
        match ranges.last_mut() {
            Some((_, last)) if number <= *last + 1 => *last = number.max(*last),
            _ => ranges.push((number, number)),
        }
    }
    ranges
}

/// Builds an unmasked text frame, for the one case in which the WebSocket library no longer accepts messages.
pub fn raw_text_frame(text: &str) -> Vec<u8> {
    let mut frame = vec![0x81];
    match text.len() {
        short @ 0..=125 => frame.push(short as u8),
        longer => {
            frame.push(126);
            frame.extend_from_slice(&(longer.min(usize::from(u16::MAX)) as u16).to_be_bytes());
        }
    }
    frame.extend_from_slice(&text.as_bytes()[..text.len().min(usize::from(u16::MAX))]);
    frame
}

/// Builds a close frame, for the same case.
pub fn raw_close_frame(status: CloseCode, reason: &str) -> Vec<u8> {
    let mut frame = vec![0x88, 2 + reason.len() as u8];
    frame.extend_from_slice(&u16::from(status).to_be_bytes());
    frame.extend_from_slice(reason.as_bytes());
    frame
}

#[cfg(test)]
mod tests {
    use super::ranges;

    #[test]
    fn receipts_in_any_order_become_ranges() {
        assert_eq!(ranges(&mut vec![3, 1, 2, 7, 9, 8, 8]), [(1, 3), (7, 9)]);
        assert_eq!(ranges(&mut vec![]), []);
    }
}
