//! Serves one connection after its handshake, in a single task. Each poll writes the outbox to the socket, reads frames
//! within a budget, submits them to the mailboxes and writes again, until neither side has work left.

#[cfg(test)]
mod acknowledgement_tests;
#[cfg(test)]
mod closing_tests;
mod incoming;
mod input;

use crate::auditing::Auditor;
use crate::budget::{POLL_BUDGET, REQUEST_COST, payload_cost};
use crate::channel::{Channel, Gone};
use crate::egress::Egress;
use crate::handshake::{Accepted, CloseReason};
use crate::host_registration::HostRegistration;
use crate::outbox::ConnectionOutbox;
use crate::server::ServerShared;
use bytes::Bytes;
use futures_util::SinkExt;
use input::Input;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, Interval, MissedTickBehavior, Sleep};
use tokio_util::sync::WaitForCancellationFutureOwned;
use tokio_websockets::Message as WsMessage;
use toolbus_engine::{Command, ConnId, Outgoing, Peer};
use toolbus_identity::{EndReason, Identity};
use toolbus_protocol::{BrokerFrame, ErrorCode, Framing};

/// Work of a new connection: of its handshake, which comes before its agent is known, and of its end.
const CONNECT_COST: usize = 10 * REQUEST_COST;
/// A connection that makes too much work is read from again after this time, so that its peer's end is noticed.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Maximum time to send the last receipts when the broker shuts down.
const LAST_FRAMES_LIMIT: Duration = Duration::from_secs(1);

pub async fn serve(accepted: Accepted, server: &Arc<ServerShared>) {
    let Accepted { mut channel, identity, counted, largest_message, framing, version } = accepted;
    let auditor = Auditor::new(server.options.audit.as_ref(), &identity.agent);
    auditor.iter().for_each(Auditor::accepted);
    let outbox = Arc::new(ConnectionOutbox::new(auditor));
    let numbered_receipts = version >= 2;
    let peer = peer(&identity, numbered_receipts);
    let restricted = !peer.rights.unrestricted;
    let name = peer.name.clone();
    let conn = server.core.attach(peer, outbox.clone());
    if !server.core.is_current(&identity) {
        server.core.detach(conn);
        let close = EndReason::Revoked.into();
        outbox.audit_closed(Some(&close));
        return channel.close_with_error(&close, |_| Duration::ZERO).await;
    }
    tracing::debug!(agent = &*name, ?conn, framing = framing.as_str(), "connected");
    let half_heartbeat = server.options.heartbeat / 2;
    let mut ticks = tokio::time::interval_at(Instant::now() + half_heartbeat, half_heartbeat);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut connection = Connection {
        input: Input::new(counted, largest_message, channel.received()),
        channel,
        server: Arc::clone(server),
        conn,
        framing,
        egress: Egress::new(name.clone(), framing, numbered_receipts),
        numbered_receipts,
        packed: Bytes::new(),
        packed_size: 0,
        registration: (version >= 2).then(|| HostRegistration::new(server, &identity, conn, Arc::clone(&outbox))),
        outbox,
        commands: Vec::new(),
        outgoing: Vec::new(),
        broker_frames: Vec::new(),
        bad_frames: 0,
        refused: 0,
        payload: 0,
        silent_ticks: 0,
        blocked_since: None,
        written_when_blocked: 0,
        ticks,
        pause: None,
        stop: Box::pin(server.stop.clone().cancelled_owned()),
        restricted,
        credential_end: credential_end(identity),
    };
    connection.slow_down(CONNECT_COST);
    let end = poll_fn(|cx| connection.poll_serve(cx)).await;
    if let End::Error(_) = &end {
        connection.refused += 1;
        connection.slow_down(0);
    }
    connection.registration = None;
    server.core.detach(conn);
    connection.outbox.audit_closed(if let End::Error(reason) = &end { Some(reason) } else { None });
    match end {
        End::Lost => {}
        End::ClosedByPeer => connection.channel.answer_close().await,
        End::Stopping => connection.close_for_shutdown().await,
        End::Error(close) => {
            tracing::warn!(agent = &*name, code = close.code.code(), reason = close.reason, "closing the connection");
            let Connection { channel, input, .. } = &mut connection;
            channel.close_with_error(&close, |bytes| input.discard(payload_cost(bytes))).await;
        }
    }
    tracing::debug!(agent = &*name, ?conn, "disconnected");
}

/// Why a connection ends.
enum End {
    /// The socket failed, or the peer missed its heartbeats.
    Lost,
    /// The peer sent a close frame.
    ClosedByPeer,
    /// The broker shuts down.
    Stopping,
    Error(CloseReason),
}

struct Connection {
    channel: Channel,
    input: Input,
    server: Arc<ServerShared>,
    outbox: Arc<ConnectionOutbox>,
    conn: ConnId,
    framing: Framing,
    egress: Egress,
    numbered_receipts: bool,
    /// Frames of a binary message that are not read yet because the budget was used up.
    packed: Bytes,
    /// Size of that message in bytes.
    packed_size: usize,
    /// `None` for version 1 peers, which have no host frames.
    registration: Option<HostRegistration>,
    commands: Vec<Command>,
    outgoing: Vec<Outgoing>,
    broker_frames: Vec<BrokerFrame>,
    bad_frames: u32,
    /// Refusals that were sent since the work of the agent was counted.
    refused: usize,
    /// Bytes that were received since then.
    payload: usize,
    /// Half heartbeats since the last message of the peer.
    silent_ticks: u32,
    /// Since when the socket accepts no bytes.
    blocked_since: Option<Instant>,
    /// Bytes written to the socket by then.
    written_when_blocked: u64,
    ticks: Interval,
    pause: Option<Pin<Box<Sleep>>>,
    stop: Pin<Box<WaitForCancellationFutureOwned>>,
    /// The peer has a credential of its own that limits its rights.
    restricted: bool,
    /// Resolves when the peer's credential expires or is revoked.
    credential_end: Pin<Box<dyn Future<Output = EndReason> + Send>>,
}

impl Connection {
    fn poll_serve(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        if self.stop.as_mut().poll(cx).is_ready() {
            return Poll::Ready(End::Stopping);
        }
        if let Poll::Ready(reason) = self.credential_end.as_mut().poll(cx) {
            return Poll::Ready(End::Error(reason.into()));
        }
        let mut budget = POLL_BUDGET;
        // The budget when the work was last counted.
        let mut counted = budget;
        loop {
            self.outbox.begin_poll(cx.waker());
            if let Err(end) = self.write(cx) {
                return Poll::Ready(end);
            }
            if self.restricted && self.outbox.is_displaced() {
                return Poll::Ready(displaced());
            }
            // The peer connects again and repeats what was not confirmed, as after a stop.
            if self.outbox.is_moved() {
                return Poll::Ready(End::Stopping);
            }
            if let Some(registration) = &self.registration {
                registration.count_refused(&self.outbox.take_refused_senders());
            }
            let before = budget;
            let read = self.read(cx, &mut budget);
            // Frames before a bad frame or a close are valid and must be submitted.
            if !self.commands.is_empty() {
                self.server.core.submit(self.conn, &mut self.commands);
            }
            if let Err(end) = read {
                return Poll::Ready(end);
            }
            if budget == 0 {
                cx.waker().wake_by_ref();
            }
            if budget == before || budget == 0 {
                self.slow_down(counted - budget);
                counted = budget;
                if let Err(end) = self.write(cx).and_then(|()| self.heartbeat(cx)) {
                    return Poll::Ready(end);
                }
                // Clients of the original leave Nagle's algorithm on: after an `ack`, which has no answer, their next
                // frame would wait 40 ms for the delayed acknowledgement.
                if let (Channel::Socket(socket), Framing::Json) = (&mut self.channel, self.framing) {
                    socket.get_mut().acknowledge();
                }
                // The task may sleep only when the outbox is empty, or while the socket is blocked.
                let done = self.outbox.end_poll() && self.commands.is_empty();
                if done || self.blocked_since.is_some() {
                    return Poll::Pending;
                }
            }
        }
    }

    /// Stops reading for a while if the agent makes more work than its share.
    fn slow_down(&mut self, units: usize) {
        let payload = payload_cost(std::mem::take(&mut self.payload));
        let pause = self.input.work(units + payload, std::mem::take(&mut self.refused));
        if !pause.is_zero() && self.pause.is_none() {
            self.pause = Some(Box::pin(tokio::time::sleep(pause.min(LONGEST_PAUSE))));
        }
    }

    /// Writes the outbox to the socket, unless the socket is blocked by earlier writes.
    fn write(&mut self, cx: &mut Context<'_>) -> Result<(), End> {
        loop {
            if self.blocked_since.is_none() {
                self.outbox.take(&mut self.outgoing, &mut self.broker_frames);
                if self.restricted && self.outbox.is_displaced() {
                    // The close reason reports it.
                    self.outgoing.retain(|out| {
                        !matches!(out, Outgoing::Refused { refusal: toolbus_engine::Refusal::Displaced { .. }, .. })
                    });
                }
                let is_refused = |out: &&Outgoing| matches!(out, Outgoing::Refused { .. });
                self.refused += self.outgoing.iter().filter(is_refused).count();
                self.start_send()?;
            }
            match self.channel.poll_flush(cx) {
                Poll::Ready(Ok(())) if self.blocked_since.take().is_some() => self.outbox.set_blocked(false),
                Poll::Ready(Ok(())) => {
                    self.commands.extend(self.egress.take_passed());
                    return Ok(());
                }
                Poll::Ready(Err(_)) => return Err(End::Lost),
                Poll::Pending => return self.note_blocked(),
            }
        }
    }

    fn start_send(&mut self) -> Result<(), End> {
        let Self { channel, egress, outgoing, broker_frames, commands, .. } = self;
        channel.start_send(egress, outgoing, broker_frames, commands).map_err(|Gone| End::Lost)
    }

    /// A peer that still accepts some bytes is slow, not stuck: progress restarts the timeout.
    fn note_blocked(&mut self) -> Result<(), End> {
        let written = self.channel.written();
        if self.blocked_since.is_none() || written > self.written_when_blocked {
            self.blocked_since = Some(Instant::now());
            self.written_when_blocked = written;
        }
        self.outbox.set_blocked(true);
        if self.outbox.overflows() { Err(slow_reader()) } else { Ok(()) }
    }

    /// Pings a silent peer after 1.5 heartbeats and drops the connection after 2.5.
    fn heartbeat(&mut self, cx: &mut Context<'_>) -> Result<(), End> {
        while self.ticks.poll_tick(cx).is_ready() {
            if self.blocked_since.is_some_and(|since| since.elapsed() > self.server.options.heartbeat * 2) {
                return Err(slow_reader());
            }
            // The broker is not reading now, so the peer's silence means nothing.
            if self.blocked_since.is_some() || self.pause.is_some() {
                continue;
            }
            // A link ends with its peer.
            let Channel::Socket(socket) = &mut self.channel else { continue };
            self.silent_ticks += 1;
            match self.silent_ticks {
                0..=2 => {}
                3..=4 => {
                    socket.start_send_unpin(WsMessage::ping(Bytes::new())).map_err(|_| End::Lost)?;
                    if let Poll::Ready(Err(_)) = socket.poll_flush_unpin(cx) {
                        return Err(End::Lost);
                    }
                }
                _ => {
                    tracing::info!(conn = ?self.conn, "heartbeat timeout");
                    return Err(End::Lost);
                }
            }
        }
        Ok(())
    }

    /// Sends the last receipts and a close frame.
    async fn close_for_shutdown(&mut self) {
        let closing = async {
            self.outbox.take(&mut self.outgoing, &mut self.broker_frames);
            self.start_send().ok();
            self.channel.close_for_shutdown().await;
        };
        tokio::time::timeout(LAST_FRAMES_LIMIT, closing).await.ok();
    }
}

fn peer(identity: &Identity, numbered_receipts: bool) -> Peer {
    let Identity { agent, rights, incarnation, .. } = identity;
    let (name, role) = (agent.session_id.clone(), agent.role.clone());
    Peer { name, role, numbered_receipts, rights: *rights, incarnation: *incarnation }
}

/// Never resolves for a shared token: it cannot be revoked for a single peer.
fn credential_end(identity: Identity) -> Pin<Box<dyn Future<Output = EndReason> + Send>> {
    match identity.rights.unrestricted {
        true => Box::pin(std::future::pending()),
        false => Box::pin(async move { identity.standing.wait().await }),
    }
}

/// Closes a displaced connection: two peers with one credential would otherwise displace each other forever.
fn displaced() -> End {
    End::Error(CloseReason::new(ErrorCode::Displaced, ErrorCode::Displaced.meaning()))
}

fn slow_reader() -> End {
    End::Error(CloseReason::new(ErrorCode::SlowReader, ErrorCode::SlowReader.meaning()))
}
