//! Moves frames over one connection. Each poll reads what is available, writes everything queued at once, and yields.

use crate::BrokerError;
use crate::connection::{Channel, Connection};
use crate::options::ClientOptions;
use crate::shared::Shared;
use bytes::{Bytes, BytesMut};
use futures_util::{SinkExt, StreamExt};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, Interval, MissedTickBehavior, Sleep};
use tokio_websockets::Message as WsMessage;
use toolbus_protocol::{AgentRef, ClientFrame, FrameBytes, Framing, compact, json};

/// How long acknowledgements wait for a frame to piggyback on.
const ACK_DELAY: Duration = Duration::from_millis(1);
/// WebSocket messages read per poll.
const POLL_BUDGET: usize = 128;
/// Frames of a packed message that are handled per poll. The rest waits for the next poll, so the answers to the first
/// ones are sent early and other processes can start on them.
const FRAMES_PER_POLL: usize = 16;
/// Compact frames are packed into WebSocket messages of about this size.
const PACK_BYTES: usize = 256 << 10;

/// Resolves when the connection ends, with the reason.
pub struct ConnectionDriver<'a> {
    shared: &'a Shared,
    options: &'a ClientOptions,
    channel: Channel,
    framing: Framing,
    me: AgentRef,
    frames: Vec<ClientFrame>,
    buffer: BytesMut,
    /// Received frames that are not handled yet.
    packed: Bytes,
    /// The last flush is incomplete, so no more frames are encoded (backpressure).
    blocked: bool,
    /// Set while acknowledgements wait.
    ack_timer: Option<Pin<Box<Sleep>>>,
    /// Set while postponed replies wait for their retry.
    retry: Option<Pin<Box<Sleep>>>,
    ticks: Interval,
    silent_ticks: u32,
}

impl<'a> ConnectionDriver<'a> {
    pub fn new(connection: Connection, shared: &'a Shared, options: &'a ClientOptions) -> Self {
        let mut ticks = tokio::time::interval(connection.heartbeat / 2);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let me = shared.lock().me.clone();
        Self {
            shared,
            options,
            channel: connection.channel,
            framing: connection.terms.framing,
            me,
            frames: Vec::new(),
            buffer: BytesMut::new(),
            packed: Bytes::new(),
            blocked: false,
            ack_timer: None,
            retry: None,
            ticks,
            silent_ticks: 0,
        }
    }

    /// Sends the queued frames and a close frame, within a second.
    pub async fn close(mut self) {
        tokio::time::timeout(Duration::from_secs(1), async {
            self.send(true).ok();
            if let Channel::Socket(socket) = &mut self.channel {
                socket.feed(WsMessage::close(None, "")).await.ok();
                socket.flush().await.ok();
            }
        })
        .await
        .ok();
    }

    fn poll_connection(&mut self, cx: &mut Context<'_>) -> Poll<BrokerError> {
        self.shared.begin_poll(cx.waker());
        let mut budget = POLL_BUDGET;
        loop {
            let before = budget;
            if let Err(error) = self.read(cx, &mut budget).and_then(|()| self.write(cx)) {
                return Poll::Ready(error);
            }
            if budget == 0 {
                cx.waker().wake_by_ref();
            }
            if budget == before || budget == 0 {
                self.shared.end_poll();
                self.send_postponed(cx);
                if let Err(error) = self.write(cx).and_then(|()| self.heartbeat(cx)) {
                    return Poll::Ready(error);
                }
                return match &self.shared.look().closed {
                    Some(closed) => Poll::Ready(closed.clone()),
                    None => Poll::Pending,
                };
            }
        }
    }

    fn read(&mut self, cx: &mut Context<'_>, budget: &mut usize) -> Result<(), BrokerError> {
        let mut received = false;
        let outcome = loop {
            if *budget == 0 || self.shared.look().inbox.len() >= self.options.max_inbox {
                break Ok(());
            }
            if !self.packed.is_empty() {
                received = true;
                if let Err(error) = self.unpack() {
                    break Err(error);
                }
                if !self.packed.is_empty() {
                    *budget = 0;
                }
                continue;
            }
            let socket = match &mut self.channel {
                Channel::Socket(socket) => socket,
                Channel::Link(link) => match link.poll_receive(cx) {
                    Poll::Pending => break Ok(()),
                    Poll::Ready(None) => break Err(closed_by_broker()),
                    Poll::Ready(Some(frame)) => {
                        *budget -= 1;
                        received = true;
                        self.shared.lock().receive(frame);
                        continue;
                    }
                },
            };
            match socket.poll_next_unpin(cx) {
                Poll::Pending => break Ok(()),
                Poll::Ready(None) => break Err(closed_by_broker()),
                Poll::Ready(Some(Err(error))) => break Err(BrokerError::Transport(error.to_string())),
                Poll::Ready(Some(Ok(message))) => {
                    *budget -= 1;
                    self.silent_ticks = 0;
                    received = true;
                    if let Err(error) = self.receive(message) {
                        break Err(error);
                    }
                }
            }
        };
        // Replies and receipts wake their callers themselves.
        if received && self.shared.look().has_news() {
            self.shared.updates.notify_waiters();
        }
        outcome
    }

    fn unpack(&mut self) -> Result<(), BrokerError> {
        let mut session = self.shared.lock();
        for _ in 0..FRAMES_PER_POLL {
            match compact::read_broker(&mut self.packed) {
                Ok(Some(frame)) => session.receive(frame),
                Ok(None) => break,
                Err(error) => return Err(BrokerError::Protocol(error.to_string())),
            }
        }
        Ok(())
    }

    fn receive(&mut self, message: WsMessage) -> Result<(), BrokerError> {
        let unreadable = |error: toolbus_protocol::DecodeError| BrokerError::Protocol(error.to_string());
        if message.is_text() {
            let frame = json::read_broker(message.as_payload()).map_err(unreadable)?;
            self.shared.lock().receive(frame);
        } else if message.is_binary() {
            self.packed = Bytes::from(message.into_payload());
        } else if message.is_close() {
            return Err(closed_by_broker());
        }
        Ok(())
    }

    fn write(&mut self, cx: &mut Context<'_>) -> Result<(), BrokerError> {
        loop {
            if !self.blocked {
                let flush_acks = self.ack_delay_elapsed(cx);
                self.send(flush_acks)?;
            }
            let flushed = match &mut self.channel {
                Channel::Socket(socket) => socket.poll_flush_unpin(cx).map_err(transport_error),
                Channel::Link(link) => link.poll_flush(cx).map_err(|_| closed_by_broker()),
            };
            match flushed {
                Poll::Ready(Ok(())) if std::mem::take(&mut self.blocked) => {}
                Poll::Ready(Ok(())) => return Ok(()),
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => {
                    self.blocked = true;
                    return Ok(());
                }
            }
        }
    }

    /// Whether pending acknowledgements must be sent by themselves now. The timer is not stopped when a frame takes
    /// them along: resetting it for every frame would cost more than an occasional spurious wake-up.
    fn ack_delay_elapsed(&mut self, cx: &mut Context<'_>) -> bool {
        if self.ack_timer.is_none() && self.shared.look().has_pending_acks() {
            self.ack_timer = Some(Box::pin(tokio::time::sleep_until(Instant::now() + ACK_DELAY)));
        }
        let elapsed = self.ack_timer.as_mut().is_some_and(|timer| timer.as_mut().poll(cx).is_ready());
        if elapsed {
            self.ack_timer = None;
        }
        elapsed
    }

    fn send_postponed(&mut self, cx: &mut Context<'_>) {
        let Some(due) = self.shared.look().postponed.due() else { return };
        let retry = self.retry.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(due)));
        if retry.as_mut().poll(cx).is_ready() {
            self.retry = None;
            self.shared.lock().send_postponed();
        }
    }

    /// Starts to send the queued frames. A socket gets whole buffers: it masks in place what no one shares, and copies
    /// what a `split` left shared.
    fn send(&mut self, flush_acks: bool) -> Result<(), BrokerError> {
        self.shared.look().take_frames(flush_acks, &mut self.frames);
        let socket = match &mut self.channel {
            Channel::Socket(socket) => socket,
            Channel::Link(link) => {
                self.frames.drain(..).for_each(|frame| link.send(frame));
                return Ok(());
            }
        };
        for frame in self.frames.drain(..) {
            match self.framing {
                Framing::Compact => {
                    // Packed with others, a large frame could exceed the broker's limit, so it is sent alone.
                    if !self.buffer.is_empty() && self.buffer.len() + frame.frame_bytes() > PACK_BYTES {
                        let packed = WsMessage::binary(std::mem::take(&mut self.buffer));
                        socket.start_send_unpin(packed).map_err(transport_error)?;
                    }
                    compact::write_client(&frame, &self.me, &mut self.buffer);
                }
                Framing::Json => {
                    let text = json::write_client(&frame, &self.me);
                    socket.start_send_unpin(WsMessage::text(text)).map_err(transport_error)?;
                }
            }
        }
        if !self.buffer.is_empty() {
            let packed = WsMessage::binary(std::mem::take(&mut self.buffer));
            socket.start_send_unpin(packed).map_err(transport_error)?;
        }
        Ok(())
    }

    fn heartbeat(&mut self, cx: &mut Context<'_>) -> Result<(), BrokerError> {
        while self.ticks.poll_tick(cx).is_ready() {
            // A link ends with its broker.
            let Channel::Socket(socket) = &mut self.channel else { continue };
            self.silent_ticks += 1;
            match self.silent_ticks {
                0..=2 => {}
                3..=4 => {
                    let ping = WsMessage::ping(Bytes::new());
                    socket.start_send_unpin(ping).map_err(transport_error)?;
                    self.write(cx)?;
                }
                _ => return Err(BrokerError::Transport("the broker stopped responding".into())),
            }
        }
        Ok(())
    }
}

impl Future for ConnectionDriver<'_> {
    type Output = BrokerError;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<BrokerError> {
        self.poll_connection(cx)
    }
}

fn closed_by_broker() -> BrokerError {
    BrokerError::Transport("the broker closed the connection".into())
}

fn transport_error(error: tokio_websockets::Error) -> BrokerError {
    BrokerError::Transport(error.to_string())
}
