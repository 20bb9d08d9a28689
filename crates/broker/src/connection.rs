//! The life of one connection after its handshake. One task does all of it in turns: write what waits, read what is
//! there, hand it to the mailboxes, write again; then rest until the socket or the outbox has something.

use crate::auditing::Auditor;
use crate::budget::{BYTES_PER_COST, MESSAGE_COST, TURN_BUDGET, charge, frame_cost};
use crate::egress::Egress;
use crate::handshake::{Goodbye, Greeted, Socket, dismiss, drain, part, ws_goodbye};
use crate::host_registration::HostRegistration;
use crate::outbox::ConnectionOutbox;
use crate::server::ServerShared;
use crate::wire;
use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, Interval, MissedTickBehavior, Sleep};
use tokio_util::sync::WaitForCancellationFutureOwned;
use tokio_websockets::{CloseCode, Message as WsMessage};
use toolbus_engine::{Command, ConnId, Mailboxes, Outgoing, Peer, Rights};
use toolbus_identity::{EndReason, Identity};
use toolbus_protocol::{BrokerFrame, ClientFrame, ErrorCode, Framing, Refusal, compact, json};

/// Unreadable frames that are answered before the peer is given up.
const MAX_BAD_FRAMES: u32 = 32;
/// How long a connection waits before it looks again whether the disk has caught up.
const CONGESTION_PAUSE: Duration = Duration::from_millis(2);

pub async fn serve(greeted: Greeted, server: &Arc<ServerShared>) {
    let Greeted { mut socket, identity, framing, version } = greeted;
    let Some(_place) = server.take_place(&identity) else {
        let reason =
            format!("{:?} has {} connections already", identity.principal(), server.options.max_connections_per_agent);
        return dismiss(&mut socket, &Goodbye::new(ErrorCode::TooManyConnections, reason)).await;
    };
    let auditor = Auditor::new(server.options.audit.as_ref(), &identity.agent);
    auditor.iter().for_each(Auditor::accepted);
    let outbox = Arc::new(ConnectionOutbox::new(auditor));
    let numbered_receipts = version >= 2;
    let peer = peer(&identity, numbered_receipts);
    let restricted = !peer.rights.unrestricted;
    let name = peer.name.clone();
    let conn = server.core.attach(peer, outbox.clone());
    tracing::debug!(agent = &*name, ?conn, framing = framing.as_str(), "connected");
    let half_heartbeat = server.options.heartbeat / 2;
    let mut ticks = tokio::time::interval_at(Instant::now() + half_heartbeat, half_heartbeat);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut connection = Connection {
        socket,
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
        others: Vec::new(),
        bad_frames: 0,
        silent_ticks: 0,
        blocked_since: None,
        taken: 0,
        ticks,
        pause: None,
        stop: Box::pin(server.stop.clone().cancelled_owned()),
        restricted,
        standing: watch(identity),
    };
    let end = poll_fn(|cx| connection.poll_turn(cx)).await;
    connection.registration = None;
    server.core.detach(conn);
    connection.outbox.tell_closed(if let End::Dismissed(goodbye) = &end { Some(goodbye) } else { None });
    match end {
        End::Gone => {}
        End::Left => part(&mut connection.socket).await,
        End::Stopping => connection.farewell().await,
        End::Dismissed(goodbye) => {
            tracing::warn!(agent = &*name, code = goodbye.code.code(), reason = goodbye.reason, "closing a connection");
            dismiss(&mut connection.socket, &goodbye).await;
        }
    }
    tracing::debug!(agent = &*name, ?conn, "disconnected");
}

enum End {
    Gone,
    /// The peer closed in order.
    Left,
    Stopping,
    Dismissed(Goodbye),
}

struct Connection {
    socket: Socket,
    server: Arc<ServerShared>,
    outbox: Arc<ConnectionOutbox>,
    conn: ConnId,
    framing: Framing,
    egress: Egress,
    numbered_receipts: bool,
    /// Frames of a binary message that this turn had no budget for, and how large the whole message was.
    packed: Bytes,
    packed_size: usize,
    /// For peers that know of hosts.
    registration: Option<HostRegistration>,
    commands: Vec<Command>,
    outgoing: Vec<Outgoing>,
    others: Vec<BrokerFrame>,
    bad_frames: u32,
    /// Half heartbeats without a sign of life.
    silent_ticks: u32,
    /// Since when the peer takes no bytes.
    blocked_since: Option<Instant>,
    /// Bytes that the peer had taken by then.
    taken: u64,
    ticks: Interval,
    pause: Option<Pin<Box<Sleep>>>,
    stop: Pin<Box<WaitForCancellationFutureOwned>>,
    /// The credential says what the peer may do, and whom else nobody can be.
    restricted: bool,
    /// Resolves when the peer's credential no longer holds.
    standing: Pin<Box<dyn Future<Output = EndReason> + Send>>,
}

impl Connection {
    fn poll_turn(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        if self.stop.as_mut().poll(cx).is_ready() {
            return Poll::Ready(End::Stopping);
        }
        if let Poll::Ready(reason) = self.standing.as_mut().poll(cx) {
            return Poll::Ready(End::Dismissed(reason.into()));
        }
        let mut budget = TURN_BUDGET;
        loop {
            self.outbox.begin_turn(cx.waker());
            if let Err(end) = self.write(cx) {
                return Poll::Ready(end);
            }
            if self.restricted && self.outbox.is_displaced() {
                return Poll::Ready(displaced());
            }
            let before = budget;
            let read = self.read(cx, &mut budget);
            // What came before a bad frame or a goodbye was meant, and counts.
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
                if let Err(end) = self.write(cx).and_then(|()| self.heartbeat(cx)) {
                    return Poll::Ready(end);
                }
                // Unless the peer is behind, nothing may be left when the task rests.
                let done = self.outbox.end_turn() && self.commands.is_empty();
                if done || self.blocked_since.is_some() {
                    return Poll::Pending;
                }
            }
        }
    }

    /// Sends what waits in the outbox, unless the peer is not taking what it was sent before.
    fn write(&mut self, cx: &mut Context<'_>) -> Result<(), End> {
        loop {
            if self.blocked_since.is_none() {
                self.outbox.take(&mut self.outgoing, &mut self.others);
                if self.restricted && self.outbox.is_displaced() {
                    // It is told with the goodbye.
                    self.outgoing.retain(|out| {
                        !matches!(out, Outgoing::Refused { refusal: toolbus_engine::Refusal::Displaced { .. }, .. })
                    });
                }
                let socket = &mut self.socket;
                let mut closed = false;
                let mut send = |message| closed |= socket.start_send_unpin(message).is_err();
                self.egress.encode(&mut self.outgoing, &mut self.commands, &mut send);
                self.egress.encode_others(&mut self.others, send);
                if closed {
                    return Err(End::Gone);
                }
            }
            match self.socket.poll_flush_unpin(cx) {
                Poll::Ready(Ok(())) if self.blocked_since.take().is_some() => self.outbox.set_behind(false),
                Poll::Ready(Ok(())) => return Ok(()),
                Poll::Ready(Err(_)) => return Err(End::Gone),
                Poll::Pending => return self.note_blocked(),
            }
        }
    }

    /// A peer that takes some of it is slow, but not stuck.
    fn note_blocked(&mut self) -> Result<(), End> {
        let taken = self.socket.get_ref().written();
        if self.blocked_since.is_none() || taken > self.taken {
            self.blocked_since = Some(Instant::now());
            self.taken = taken;
        }
        self.outbox.set_behind(true);
        if self.outbox.overflows() { Err(slow_reader()) } else { Ok(()) }
    }

    /// Reads what is there into commands. A peer that doesn't read is not read from, and neither is anyone while the
    /// disk is behind: that is what bounds memory.
    fn read(&mut self, cx: &mut Context<'_>, budget: &mut usize) -> Result<(), End> {
        if self.blocked_since.is_some() || self.paused(cx) {
            return Ok(());
        }
        while *budget > 0 {
            if !self.packed.is_empty() {
                self.unpack(budget)?;
                continue;
            }
            match self.socket.poll_next_unpin(cx) {
                Poll::Pending => return Ok(()),
                Poll::Ready(None) => return Err(End::Gone),
                Poll::Ready(Some(Err(error))) => return Err(ws_goodbye(error).map_or(End::Gone, End::Dismissed)),
                Poll::Ready(Some(Ok(message))) => {
                    self.silent_ticks = 0;
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
            return if message.is_close() { Err(End::Left) } else { Ok(()) };
        }
        let payload = Bytes::from(message.into_payload());
        let limit = self.server.options.max_frame_bytes;
        if payload.len() > limit {
            let id = if text { json::message_id_of(&payload) } else { None };
            let reason = format!("a frame of {} bytes; the limit is {limit}", payload.len());
            return self.bad_frame(ErrorCode::FrameTooLarge, reason, id.map(|id| id.into_inner()));
        }
        if text {
            match json::read_client(&payload) {
                Ok(frame) => self.accept(frame, budget),
                Err(error) => {
                    let id = json::message_id_of(&payload).map(|id| id.into_inner());
                    let Goodbye { code, reason } = error.into();
                    self.bad_frame(code, reason, id)
                }
            }
        } else if self.framing == Framing::Compact {
            self.packed_size = payload.len();
            self.packed = payload;
            Ok(())
        } else {
            let reason = "a binary message, but this connection speaks JSON".to_owned();
            self.bad_frame(ErrorCode::NotCompact, reason, None)
        }
    }

    /// Reads the frames of a binary message, as far as the budget goes. What is in them are slices that keep all of it;
    /// where they are but a small part, they get bytes of their own.
    fn unpack(&mut self, budget: &mut usize) -> Result<(), End> {
        let first = self.commands.len();
        let outcome = self.unpack_frames(budget);
        let commands = &mut self.commands[first..];
        if commands.iter().map(wire::weight).sum::<usize>() < self.packed_size / 4 {
            commands.iter_mut().for_each(wire::detach);
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
                // Where the next frame would begin is unknown, and so are the numbers of the delivers behind it.
                Err(error) => return Err(End::Dismissed(error.into())),
            }
        }
        Ok(())
    }

    fn accept(&mut self, frame: ClientFrame, budget: &mut usize) -> Result<(), End> {
        charge(budget, frame_cost(&frame));
        if matches!(frame, ClientFrame::Hello(_)) {
            return self.bad_frame(ErrorCode::AlreadyGreeted, "this connection has said hello already".into(), None);
        }
        match (frame, &mut self.registration) {
            (ClientFrame::Announce(announce), Some(registration)) => {
                if registration.announce(announce) {
                    self.commands.push(Command::ActAsHost);
                }
            }
            (ClientFrame::Hosts(ask), Some(registration)) => registration.ask(ask),
            (frame, _) => self.commands.extend(wire::command(frame)),
        }
        Ok(())
    }

    /// Tells the peer, leaves a line in the log, and has patience only up to a point.
    fn bad_frame(&mut self, code: ErrorCode, reason: String, id: Option<bytestring::ByteString>) -> Result<(), End> {
        self.bad_frames += 1;
        if self.bad_frames >= MAX_BAD_FRAMES {
            return Err(End::Dismissed(Goodbye::new(code, format!("too many bad frames; the last: {reason}"))));
        }
        if self.numbered_receipts {
            // It may have been a deliver, which the peer counts and we can't: from here on receipts would name the
            // wrong messages.
            return Err(End::Dismissed(Goodbye::new(code, reason)));
        }
        tracing::warn!(conn = ?self.conn, code = code.code(), reason, "a bad frame");
        let frame = BrokerFrame::Error(Refusal { reason, id, code: Some(code) });
        let text = json::write_broker(&frame).expect("an error frame has no body");
        self.socket.start_send_unpin(WsMessage::text(text)).map_err(|_| End::Gone)
    }

    /// Asks a silent peer for a sign of life, and gives up on it after two and a half heartbeats.
    fn heartbeat(&mut self, cx: &mut Context<'_>) -> Result<(), End> {
        while self.ticks.poll_tick(cx).is_ready() {
            if self.blocked_since.is_some_and(|since| since.elapsed() > self.server.options.heartbeat * 2) {
                return Err(slow_reader());
            }
            // While we don't listen, silence is no sign of anything.
            if self.blocked_since.is_some() || self.pause.is_some() {
                continue;
            }
            self.silent_ticks += 1;
            match self.silent_ticks {
                0..=2 => {}
                3..=4 => {
                    self.socket.start_send_unpin(WsMessage::ping(Bytes::new())).map_err(|_| End::Gone)?;
                    if let Poll::Ready(Err(_)) = self.socket.poll_flush_unpin(cx) {
                        return Err(End::Gone);
                    }
                }
                _ => {
                    tracing::info!(conn = ?self.conn, "the peer went silent");
                    return Err(End::Gone);
                }
            }
        }
        Ok(())
    }

    /// The broker stops: the last receipts go out, then a close frame.
    async fn farewell(&mut self) {
        let goodbye = async {
            self.outbox.take(&mut self.outgoing, &mut self.others);
            let socket = &mut self.socket;
            self.egress.encode(&mut self.outgoing, &mut self.commands, |message| {
                socket.start_send_unpin(message).ok();
            });
            let reason = ErrorCode::ShuttingDown.code();
            self.socket.feed(WsMessage::close(Some(CloseCode::GOING_AWAY), reason)).await.ok();
            self.socket.flush().await.ok();
            drain(&mut self.socket).await;
        };
        tokio::time::timeout(Duration::from_secs(1), goodbye).await.ok();
    }
}

fn peer(identity: &Identity, numbered_receipts: bool) -> Peer {
    let Identity { agent, rights, .. } = identity;
    let rights = Rights { unrestricted: rights.unrestricted, host: rights.host, operator: rights.operator };
    Peer { name: agent.session_id.clone(), role: agent.role.clone(), numbered_receipts, rights }
}

/// A secret that all share is not taken back from one of them.
fn watch(identity: Identity) -> Pin<Box<dyn Future<Output = EndReason> + Send>> {
    match identity.rights.unrestricted {
        true => Box::pin(std::future::pending()),
        false => Box::pin(async move { identity.standing.wait().await }),
    }
}

/// Who has no mailbox any more has nothing to do here: two of one credential would only fight for it.
fn displaced() -> End {
    End::Dismissed(Goodbye::new(ErrorCode::Displaced, ErrorCode::Displaced.meaning()))
}

fn slow_reader() -> End {
    End::Dismissed(Goodbye::new(ErrorCode::SlowReader, ErrorCode::SlowReader.meaning()))
}
