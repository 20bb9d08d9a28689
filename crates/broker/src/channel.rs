//! The way to a peer: a WebSocket, or a link within this process. The rules of a connection are the same on both.

use crate::egress::Egress;
use crate::handshake::{self, CloseReason, Socket};
use futures_util::SinkExt;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio_websockets::{CloseCode, Message as WsMessage};
use toolbus_engine::{Command, Outgoing};
use toolbus_protocol::{BrokerFrame, BrokerLink, ErrorCode};

pub enum Channel {
    Socket(Box<Socket>),
    Link(BrokerLink),
}

/// The peer is gone.
pub struct Gone;

impl Channel {
    /// Starts to send frames. What the peer can't be sent becomes a command.
    pub fn start_send(
        &mut self,
        egress: &mut Egress,
        outgoing: &mut Vec<Outgoing>,
        broker_frames: &mut Vec<BrokerFrame>,
        commands: &mut Vec<Command>,
    ) -> Result<(), Gone> {
        match self {
            Self::Link(link) => {
                egress.convert(outgoing, |frame| link.send(frame));
                broker_frames.drain(..).for_each(|frame| link.send(frame));
                Ok(())
            }
            Self::Socket(socket) => {
                let mut is_gone = false;
                let mut send = |message| is_gone |= socket.start_send_unpin(message).is_err();
                egress.encode(outgoing, commands, &mut send);
                egress.encode_broker_frames(broker_frames, send);
                if is_gone { Err(Gone) } else { Ok(()) }
            }
        }
    }

    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Gone>> {
        match self {
            Self::Link(link) => link.poll_flush(cx).map_err(|_| Gone),
            Self::Socket(socket) => socket.poll_flush_unpin(cx).map_err(|_| Gone),
        }
    }

    /// Grows as long as the peer reads, however slowly.
    pub fn written(&self) -> u64 {
        match self {
            Self::Link(link) => link.received_by_peer(),
            Self::Socket(socket) => socket.get_ref().written(),
        }
    }

    /// Bytes that were read from a socket.
    pub fn received(&self) -> u64 {
        match self {
            Self::Link(_) => 0,
            Self::Socket(socket) => socket.get_ref().received(),
        }
    }

    /// Sends an error frame and closes the connection. See [`handshake::shutdown_and_discard`] for `discarded`.
    pub async fn close_with_error(&mut self, close: &CloseReason, discarded: impl Fn(usize) -> Duration) {
        match self {
            Self::Link(link) => link.send(close.frame()),
            Self::Socket(socket) => handshake::close_with_error(socket, close, discarded).await,
        }
    }

    /// Answers the peer's close frame.
    pub async fn answer_close(&mut self) {
        if let Self::Socket(socket) = self {
            handshake::answer_close(socket).await;
        }
    }

    /// Says that the broker shuts down, and closes the connection. A link closes when it is dropped.
    pub async fn close_for_shutdown(&mut self) {
        if let Self::Socket(socket) = self {
            let reason = ErrorCode::ShuttingDown.code();
            socket.feed(WsMessage::close(Some(CloseCode::GOING_AWAY), reason)).await.ok();
            socket.flush().await.ok();
            handshake::shutdown_and_discard(socket.get_mut(), |_| Duration::ZERO).await;
        }
    }
}
