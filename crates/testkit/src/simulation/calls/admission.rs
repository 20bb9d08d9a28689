//! Frames of the broker become events of the host's machine.

use super::World;
use super::host::{Call, Tag};
use super::network::Owner;
use super::wire::{ToHost, Work};
use bytes::Bytes;
use bytestring::ByteString;
use std::collections::VecDeque;
use toolbus_call::{CancelBy, Effect, Event, Origin, ReplaySetting, Request, SessionHold, SessionKey, TaskRequest};
use toolbus_engine::{Command, Message, Millis, Outgoing, Refusal};
use toolbus_journal::CallKey;

/// Longer than any simulated run.
const TTL: u64 = 1 << 40;

impl World {
    pub fn host_reads(&mut self, host: usize, outgoing: Outgoing) {
        match outgoing {
            Outgoing::Unsure { id } => drop(self.hosts[host].unsure.insert(id)),
            Outgoing::Message { message, attempt, deadline_ms } => self.receive(host, &message, attempt, deadline_ms),
            Outgoing::Receipt { id, .. } => self.reply_settled(host, &id, false),
            Outgoing::Cancel { correlation_id, from } => {
                self.cancel_by_id(host, correlation_id, from.map_or(CancelBy::Broker, CancelBy::Caller));
            }
            Outgoing::Inspected { request_id, view } => self.inspection_answered(host, &request_id, *view),
            Outgoing::Followed { request_id, view } => self.host_followed(host, &request_id, &view),
            Outgoing::Refused { refusal: Refusal::Displaced { .. }, .. } => self.disconnect(Owner::Host(host)),
            Outgoing::Refused { refusal: Refusal::NotYourRequest { .. }, id: Some(id) } => {
                self.reply_settled(host, &id, true);
            }
            // The request expired or was withdrawn before it was acknowledged by id.
            Outgoing::Refused { refusal: Refusal::UnknownMessage { .. }, .. } => {}
            Outgoing::Refused { refusal, .. } => self.oracle.violated(format!("a reply was refused: {refusal}")),
            _ => {}
        }
    }

    fn receive(&mut self, host: usize, message: &Message, delivery: u32, deadline_ms: Option<u64>) {
        let key = CallKey { caller: ByteString::from(&*message.from.name), id: message.id.clone() };
        let tag = Tag { link: self.hosts[host].link, seq: message.seq };
        match ToHost::parse(&message.sealed) {
            Some(ToHost::Call { work, sent_at }) => {
                let unsure = self.hosts[host].unsure.remove(&key.id);
                let is_damaged = self.process(host).is_some_and(|process| process.is_damaged);
                if unsure || (delivery > 1 && is_damaged) {
                    self.oracle.is_unsure(&key);
                }
                let origin = Origin::Mailbox { delivery, unsure };
                let deadline = deadline_ms.map(|ms| self.now + ms);
                let request = self.request(&key, work, origin, deadline, sent_at);
                self.arrive(host, request, work, message.sealed.clone(), Some(tag));
            }
            Some(ToHost::Cancel { id }) => {
                self.send(self.hosts[host].conn, Command::AckTags { tags: vec![message.seq] });
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
            needs_permit: true,
            guarded: true,
            exclusive: (self.plan.exclusive && work.tool == 0).then(|| "exclusive".into()),
        }
    }

    /// A request reaches the machine, which names the call in its first effect.
    pub fn arrive(&mut self, host: usize, request: Request, work: Work, body: Bytes, tag: Option<Tag>) {
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
                    Call { key, work, request, body, tag, queue, is_parked, run, reply, cancelled, has_left_order };
                process.calls.insert(call, admitted);
            }
            Some(Effect::Redelivered { call }) => {
                if let Some(call) = process.calls.get_mut(&call) {
                    call.tag = tag;
                }
            }
            Some(Effect::Ignored) => self.acknowledge_ignored(host, &key, tag),
            other => self.oracle.violated(format!("the first effect of an arrival was {other:?}")),
        }
        self.distribute(host, effects);
    }

    /// The reply of a call that is on its way also settles this delivery.
    fn acknowledge_ignored(&mut self, host: usize, key: &CallKey, tag: Option<Tag>) {
        let Some(process) = self.process(host) else { return };
        let ending = process.calls.values_mut().find(|call| call.key == *key);
        let reply = process.outbox.iter_mut().find(|(_, reply)| reply.key == *key);
        match (ending, reply, tag) {
            (_, Some((reply_id, reply)), _) => {
                reply.tag = tag;
                let reply_id = reply_id.clone();
                self.send_reply(host, &reply_id);
            }
            (Some(call), ..) => call.tag = tag,
            (None, None, Some(tag)) => self.send(self.hosts[host].conn, Command::AckTags { tags: vec![tag.seq] }),
            (None, None, None) => {}
        }
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
