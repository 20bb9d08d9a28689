//! The incoming side of a connection: reads messages within the budget and decodes their frames into commands.

use super::{Connection, End};
use crate::budget::{BYTES_PER_COST, MESSAGE_COST, charge, frame_cost};
use crate::channel::Channel;
use crate::handshake::{CloseReason, close_reason};
use crate::wire;
use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio_websockets::{Error as WsError, Message as WsMessage};
use toolbus_engine::Command;
use toolbus_protocol::{BrokerFrame, ClientFrame, ErrorCode, FrameBytes, Framing, Refusal, compact, json};

/// Number of bad frames at which the connection of a version 1 peer is closed.
const MAX_BAD_FRAMES: u32 = 32;
/// Frames of the original without a counterpart here. Its clients wait for their effect, or for an answer that carries no
/// id of an error, so only a closed connection tells them.
const UNSUPPORTED: [&str; 2] = ["observe_host", "subscribe_environment_lease_v1"];
/// How often a connection that stopped reading because of disk congestion checks again.
const CONGESTION_PAUSE: Duration = Duration::from_millis(2);

fn too_much_input() -> CloseReason {
    let reason = "the messages that this agent's connections are sending use up its share of the broker's memory";
    CloseReason::new(ErrorCode::ShareFull, reason)
}

/// A peer learns the size of messages in the handshake, and reconnects.
fn larger_share() -> CloseReason {
    let reason = "the agent may send larger messages than before; a new connection announces it";
    CloseReason::new(ErrorCode::ShareFull, reason)
}

impl Connection {
    /// Reads frames into commands. Backpressure: does not read while the peer takes no bytes, nor while the disk is
    /// congested. This bounds memory.
    pub(super) fn read(&mut self, cx: &mut Context<'_>, budget: &mut usize) -> Result<(), End> {
        if self.blocked_since.is_some() || self.paused(cx) {
            return Ok(());
        }
        // A message slightly over the limit is still read, so that the error can name its id.
        let limit = self.server.options.max_frame_bytes;
        let largest = self.input.largest_message(limit * 2);
        if let Channel::Socket(socket) = &mut self.channel {
            socket.limits_mut().set_max_payload_len(Some(largest));
        }
        if self.registration.is_some() && self.input.has_grown(limit) {
            return Err(End::Error(larger_share()));
        }
        while *budget > 0 {
            if !self.packed.is_empty() {
                self.unpack(budget)?;
                continue;
            }
            let socket = match &mut self.channel {
                Channel::Socket(socket) => socket,
                Channel::Link(link) => match link.poll_receive(cx) {
                    Poll::Pending => return Ok(()),
                    Poll::Ready(None) => return Err(End::Lost),
                    Poll::Ready(Some(frame)) => {
                        self.receive_frame(frame, largest, budget)?;
                        continue;
                    }
                },
            };
            match socket.poll_next_unpin(cx) {
                Poll::Pending if self.input.waits(socket.get_ref()) => return Ok(()),
                Poll::Pending => return Err(End::Error(too_much_input())),
                Poll::Ready(None) => return Err(End::Lost),
                Poll::Ready(Some(Err(WsError::PayloadTooLong { max_len, .. })))
                    if max_len < self.server.options.max_frame_bytes =>
                {
                    return Err(End::Error(too_much_input()));
                }
                Poll::Ready(Some(Err(error))) => return Err(close_reason(error).map_or(End::Lost, End::Error)),
                Poll::Ready(Some(Ok(message))) => {
                    self.silent_ticks = 0;
                    self.payload += message.as_payload().len();
                    self.input.completed(message.as_payload().len(), socket.get_ref());
                    charge(budget, MESSAGE_COST + message.as_payload().len() / BYTES_PER_COST);
                    self.receive(message, budget)?;
                }
            }
        }
        Ok(())
    }

    fn paused(&mut self, cx: &mut Context<'_>) -> bool {
        loop {
            if let Some(pause) = &mut self.pause {
                if pause.as_mut().poll(cx).is_pending() {
                    return true;
                }
                self.pause = None;
            }
            if !self.server.core.congested() {
                return false;
            }
            self.pause = Some(Box::pin(tokio::time::sleep(CONGESTION_PAUSE)));
        }
    }

    fn receive(&mut self, message: WsMessage, budget: &mut usize) -> Result<(), End> {
        let text = message.is_text();
        if !text && !message.is_binary() {
            return if message.is_close() { Err(End::ClosedByPeer) } else { Ok(()) };
        }
        let payload = Bytes::from(message.into_payload());
        let limit = self.server.options.max_frame_bytes;
        if payload.len() > limit {
            let id = if text { json::message_id_of(&payload) } else { None };
            let reason = format!("the frame has {} bytes; the limit is {limit}", payload.len());
            return self.bad_frame(ErrorCode::FrameTooLarge, reason, id.map(|id| id.into_inner()));
        }
        if text {
            match json::read_client(&payload) {
                Ok(frame) => self.accept(frame, budget),
                Err(error) => {
                    let id = json::message_id_of(&payload).map(|id| id.into_inner());
                    let CloseReason { code, reason } = error.into();
                    self.bad_frame(code, reason, id)
                }
            }
        } else if self.framing == Framing::Compact {
            self.packed_size = payload.len();
            self.packed = payload;
            Ok(())
        } else {
            let reason = "binary message on a connection with JSON framing".to_owned();
            self.bad_frame(ErrorCode::NotCompact, reason, None)
        }
    }

    /// Takes a frame of a peer in this process.
    fn receive_frame(&mut self, frame: ClientFrame, largest: usize, budget: &mut usize) -> Result<(), End> {
        let (bytes, limit) = (frame.frame_bytes(), self.server.options.max_frame_bytes);
        self.payload += bytes;
        charge(budget, MESSAGE_COST + bytes / BYTES_PER_COST);
        if bytes > largest && largest < limit {
            return Err(End::Error(too_much_input()));
        }
        if bytes > limit {
            let reason = format!("the frame has {bytes} bytes; the limit is {limit}");
            return Err(End::Error(CloseReason::new(ErrorCode::FrameTooLarge, reason)));
        }
        let frame = frame.checked().map_err(|error| End::Error(error.into()))?;
        self.accept(frame, budget)
    }

    /// Reads frames of the binary message within the budget. Their payloads are slices of the message's buffer; if they
    /// use only a small part of it, they are copied, so that the whole buffer is not kept alive.
    fn unpack(&mut self, budget: &mut usize) -> Result<(), End> {
        let first = self.commands.len();
        let outcome = self.unpack_frames(budget);
        let commands = &mut self.commands[first..];
        if commands.iter().map(wire::payload_bytes).sum::<usize>() < self.packed_size / 4 {
            commands.iter_mut().for_each(wire::unshare);
        }
        if self.packed.is_empty() {
            self.packed = Bytes::new();
        }
        outcome
    }

    fn unpack_frames(&mut self, budget: &mut usize) -> Result<(), End> {
        while *budget > 0 {
            match compact::read_client(&mut self.packed) {
                Ok(Some(frame)) => self.accept(frame, budget)?,
                Ok(None) => return Ok(()),
                // The start of the next frame is unknown, and so are the receipt numbers of the delivers after it.
                Err(error) => return Err(End::Error(error.into())),
            }
        }
        Ok(())
    }

    fn accept(&mut self, frame: ClientFrame, budget: &mut usize) -> Result<(), End> {
        charge(budget, frame_cost(&frame));
        if matches!(frame, ClientFrame::Hello(_)) {
            let reason = "`hello` was already received on this connection";
            return self.bad_frame(ErrorCode::AlreadyGreeted, reason.into(), None);
        }
        match (frame, &mut self.registration) {
            (ClientFrame::Announce(announce), Some(registration)) => {
                if registration.announce(announce) {
                    self.commands.push(Command::ActAsHost);
                }
            }
            (ClientFrame::Hosts(ask), Some(registration)) => registration.list_hosts(ask),
            // Ignored from a peer that may not be a host.
            (ClientFrame::Claim(claim), Some(registration)) if registration.may_announce() => {
                self.commands.push(Command::Claim { claim: Box::new(wire::claim(claim)) });
            }
            (ClientFrame::Refused { tags }, Some(registration)) if registration.may_announce() => {
                self.commands.push(Command::RefusedRequests { tags });
            }
            (ClientFrame::Unknown { kind }, _) if UNSUPPORTED.contains(&&*kind) => {
                return Err(End::Error(CloseReason::new(
                    ErrorCode::UnsupportedFrame,
                    format!("`{kind}` is not supported"),
                )));
            }
            (frame, _) => self.commands.extend(wire::command(frame)),
        }
        Ok(())
    }

    /// Reports a bad frame to the peer and logs it. Closes the connection after too many, or if receipts are numbered.
    fn bad_frame(&mut self, code: ErrorCode, reason: String, id: Option<bytestring::ByteString>) -> Result<(), End> {
        self.bad_frames += 1;
        if self.bad_frames >= MAX_BAD_FRAMES {
            return Err(End::Error(CloseReason::new(code, format!("too many bad frames; the last: {reason}"))));
        }
        let Channel::Socket(socket) = &mut self.channel else {
            return Err(End::Error(CloseReason::new(code, reason)));
        };
        if self.numbered_receipts {
            // If it was a deliver, the peer has counted it and the broker has not: all later receipts would refer to
            // the wrong messages.
            return Err(End::Error(CloseReason::new(code, reason)));
        }
        tracing::warn!(conn = ?self.conn, code = code.code(), reason, "bad frame");
        let frame = BrokerFrame::Error(Refusal { reason, id, code: Some(code) });
        let text = json::write_broker(&frame).expect("an error frame has no body");
        socket.start_send_unpin(WsMessage::text(text)).map_err(|_| End::Lost)
    }
}
