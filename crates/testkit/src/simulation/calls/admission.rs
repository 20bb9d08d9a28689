//! Frames of the broker become events of the host's machine.

use super::World;
use super::host::Call;
use super::network::Owner;
use super::restart::Stop;
use super::wire::{ToHost, Work};
use bytes::Bytes;
use bytestring::ByteString;
use std::collections::VecDeque;
use toolbus_call::{CancelBy, Effect, Event, Origin, ReplaySetting, Request, SessionHold, SessionKey, TaskRequest};
use toolbus_client::simulation::SimulatedClient;
use toolbus_engine::{Millis, Outgoing, Refusal};
use toolbus_journal::CallKey;
use toolbus_protocol::{InboxMessage, MsgId, principal_of};

/// Longer than any simulated run.
const TTL: u64 = 1 << 40;

impl World {
    pub fn host_reads(&mut self, host: usize, outgoing: Outgoing) {
        match outgoing {
            Outgoing::Inspected { request_id, view } => return self.inspection_answered(host, &request_id, *view),
            Outgoing::Followed { request_id, view } => return self.host_followed(host, &request_id, &view),
            Outgoing::Refused { ref refusal, .. } if !is_expected(refusal) && !self.is_to_revoked(refusal) => {
                return self.oracle.violated(format!("a reply was refused: {refusal}"));
            }
            _ => {}
        }
        self.receive_frame(Owner::Host(host), &outgoing);
        if self.client(Owner::Host(host)).is_some_and(|client| client.is_displaced()) {
            // The process ends, and its supervisor starts another one.
            return self.restart(host, Stop::Process);
        }
        // What it does not take is lost with the link.
        if self.rng.chance(80) {
            self.take_received(host);
        }
    }

    /// Whether a reply was removed because its recipient was revoked.
    fn is_to_revoked(&self, refusal: &Refusal) -> bool {
        matches!(refusal, Refusal::Cancelled { mailbox, .. } if self.broker.ended.contains_key(principal_of(mailbox)))
    }

    /// The process takes the cancels and messages that its client received.
    pub fn take_received(&mut self, host: usize) {
        let owner = Owner::Host(host);
        while let Some(cancel) = self.client(owner).and_then(SimulatedClient::next_cancellation) {
            let by = cancel.from.map_or(CancelBy::Broker, CancelBy::Caller);
            self.cancel_by_id(host, cancel.id.into_inner(), by);
        }
        while let Some(message) = self.client(owner).and_then(SimulatedClient::next_message) {
            self.dispatch(host, &message);
        }
    }

    fn dispatch(&mut self, host: usize, message: &InboxMessage) {
        let key = CallKey { caller: message.from.session_id.clone(), id: message.id.clone().into_inner() };
        match ToHost::parse(message.body.as_bytes()) {
            Some(ToHost::Call { work, sent_at }) => {
                let Some(client) = self.client(Owner::Host(host)) else { return };
                let (delivery, left, unsure) = client.delivery_of(&message.id);
                let is_damaged = self.process(host).is_some_and(|process| process.is_damaged);
                if unsure || (delivery > 1 && is_damaged) {
                    self.oracle.is_unsure(&key);
                }
                let origin = Origin::Mailbox { delivery, unsure };
                let deadline = left.map(|left| self.now + left.as_millis() as u64);
                let request = self.request(&key, work, origin, deadline, sent_at);
                self.arrive(host, request, work, message.body.as_bytes().clone());
            }
            Some(ToHost::Cancel { id }) => {
                self.client(Owner::Host(host)).into_iter().for_each(|client| client.ack(&message.id));
                self.cancel_by_id(host, id, CancelBy::Caller(key.caller));
            }
            None => self.oracle.violated("a malformed message"),
        }
    }

    pub fn request(
        &mut self,
        key: &CallKey,
        work: Work,
        origin: Origin,
        deadline: Option<Millis>,
        sent_at: Millis,
    ) -> Request {
        let is_late = !matches!(origin, Origin::Mailbox { delivery: 1, .. });
        let replay = match work.is_replay_safe() {
            true if is_late && self.rng.chance(20) => ReplaySetting::AsStarted,
            true => ReplaySetting::Safe,
            false => ReplaySetting::Never,
        };
        let hold = if work.argument % 5 == 1 { SessionHold::UntilAnswered } else { SessionHold::UntilSent };
        let session = SessionKey { server: work.server, mailbox: key.caller.clone(), key: "session".into() };
        Request {
            key: key.clone(),
            content: work.content(),
            server: work.server,
            tool: work.tool_name(),
            has_effect: true,
            replay,
            join: self.plan.join,
            join_window: u64::MAX / 4,
            origin,
            task: work.task.then_some(TaskRequest { ttl: TTL }),
            deadline,
            timeout: Some(self.plan.timeout),
            age: self.now.saturating_sub(sent_at),
            session: (work.session && !work.task).then_some((session, hold)),
            continues: false,
            hands_back: false,
            needs_permit: true,
            guarded: true,
            share: None,
            reserves: false,
            exclusive: (self.plan.exclusive && work.tool == 0).then(|| "exclusive".into()),
        }
    }

    /// A request reaches the machine, which names the call in its first effect.
    pub fn arrive(&mut self, host: usize, request: Request, work: Work, body: Bytes) {
        let key = request.key.clone();
        let number = self.oracle.number(&key);
        self.note("arrives", &[("host", host as u64), ("call", number)]);
        let mut effects: VecDeque<_> = self.handle(host, Event::Arrived(Box::new(request.clone()))).into();
        let first = effects.pop_front();
        let Some(process) = self.process(host) else { return };
        match first {
            Some(Effect::Admitted { call }) => {
                if let Some((session, _)) = &request.session {
                    process.sessions.entry(session.clone()).or_default().push(call);
                }
                let cancelled = process.early_cancels.contains(&key.id);
                let (queue, is_parked, run, reply, has_left_order) = (VecDeque::new(), false, None, None, false);
                let admitted =
                    Call { key, work, request, body, queue, is_parked, run, reply, cancelled, has_left_order };
                process.calls.insert(call, admitted);
            }
            Some(Effect::Redelivered { .. } | Effect::Ignored) => {}
            Some(Effect::Acknowledge) => {
                self.note("acknowledges", &[("host", host as u64), ("call", number)]);
                let owner = Owner::Host(host);
                // Its reply may have acknowledged it on this link, too.
                if let Some(link) = self.hosts[host].conn.and_then(|conn| self.links.get_mut(&conn)) {
                    link.acks.entry(key.id.clone()).or_default().1 += 1;
                }
                self.client(owner).into_iter().for_each(|client| client.ack(&MsgId::from(key.id.clone())));
                self.flush(owner, true);
            }
            other => self.oracle.violated(format!("the first effect of an arrival was {other:?}")),
        }
        self.distribute(host, effects);
    }

    fn cancel_by_id(&mut self, host: usize, id: ByteString, by: CancelBy) {
        self.note("cancelled", &[("host", host as u64)]);
        let Some(process) = self.process(host) else { return };
        let in_progress = process.machine.find(&id);
        if in_progress.is_empty() {
            process.early_cancels.insert(id.clone());
        }
        for view in in_progress {
            if let Some(call) = process.calls.get_mut(&view.call) {
                call.cancelled = true;
            }
        }
        self.feed(host, Event::CancelId { id, by, reason: None });
    }
}

/// Refusals that follow from faults: the request of a reply expired or was withdrawn or forgotten, or the broker stops.
fn is_expected(refusal: &Refusal) -> bool {
    use Refusal::{Displaced, NotYourRequest, ShuttingDown, UnknownMessage};
    matches!(refusal, Displaced { .. } | NotYourRequest { .. } | UnknownMessage { .. } | ShuttingDown)
}
