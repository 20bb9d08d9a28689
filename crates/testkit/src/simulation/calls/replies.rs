//! Replies of hosts: kept until the broker's receipt, and sent again after a reconnect.

use super::World;
use super::host::{Reply, Tag};
use super::wire::{LONGEST_CALL, Outcome, WireAnswer, content_hash};
use bytestring::ByteString;
use toolbus_call::{CallNo, Event};
use toolbus_engine::{Command, Delivery, Purpose};
use toolbus_journal::{CallKey, Known, Location};

impl World {
    pub fn reply(&mut self, host: usize, no: CallNo, answer: &WireAnswer) {
        let body = self.codebook.encode(answer);
        let fresh = ByteString::from(format!("reply-{}", self.fresh_id()));
        let Some(call) = self.call(host, no) else { return };
        let (key, tag) = (call.key.clone(), call.tag);
        // The id in RESULT stands for the answer in RESULT only.
        let journaled = call.reply.as_ref().filter(|(_, journaled)| *journaled == body).map(|(id, _)| id.clone());
        let number = self.oracle.number(&key);
        self.note("reply", &[("host", host as u64), ("call", number)]);
        let process = self.process(host).map_or(0, |process| process.number);
        self.oracle.replies(&key, answer.outcome, process);
        let reply = Reply { key, body, tag, is_final: true, is_journaled: journaled.is_some(), acked_on: None };
        self.put_in_outbox(host, journaled.unwrap_or(fresh), reply);
    }

    pub fn reply_accepted(&mut self, host: usize, no: CallNo) {
        let Some(call) = self.call(host, no) else { return };
        let (key, tag) = (call.key.clone(), call.tag);
        let body = self.codebook.encode(&WireAnswer::own(&key, Outcome::Accepted));
        let reply_id = ByteString::from(format!("accepted-{}", key.id));
        self.put_in_outbox(
            host,
            reply_id,
            Reply { key, body, tag, is_final: false, is_journaled: true, acked_on: None },
        );
    }

    /// Sends the journaled answer again, under the same id.
    pub fn resend(&mut self, host: usize, no: CallNo, reply_id: ByteString, location: &Location) {
        let Some(call) = self.call(host, no) else { return };
        let (key, tag) = (call.key.clone(), call.tag);
        // Compaction may have moved the answer since.
        let moved = || self.location_of(host, &key).and_then(|location| self.read_answer(host, &location).ok());
        match self.read_answer(host, location).or_else(|why| moved().ok_or(why)) {
            Ok(kept) => {
                // The answer may be that of the call to which this one was joined.
                let joined = kept.of != key.id;
                let body = self.codebook.encode(&WireAnswer { joined, ..kept });
                self.put_in_outbox(
                    host,
                    reply_id,
                    Reply { key, body, tag, is_final: true, is_journaled: true, acked_on: None },
                );
            }
            Err(why) => self.oracle.violated(format!("the answer to {} can't be read: {why}", key.id)),
        }
    }

    fn location_of(&self, host: usize, key: &CallKey) -> Option<Location> {
        let process = self.hosts[host].process.as_ref()?;
        let content = process.calls.values().find(|call| call.key == *key)?.request.content;
        match process.journal.index().look_up(key, &content) {
            Ok(Known::Answered { reply, .. }) => Some(reply),
            _ => None,
        }
    }

    pub fn read_answer(&self, host: usize, location: &Location) -> Result<WireAnswer, String> {
        let process = self.hosts[host].process.as_ref().ok_or("the host is stopped")?;
        let body = process.journal.reader().payload(location).map_err(|error| error.to_string())?;
        self.codebook.decode(&body).ok_or_else(|| "unknown format".to_owned())
    }

    fn put_in_outbox(&mut self, host: usize, reply_id: ByteString, reply: Reply) {
        if let Some(process) = self.process(host) {
            process.outbox.insert(reply_id.clone(), reply);
            self.send_reply(host, &reply_id);
        }
    }

    pub fn send_reply(&mut self, host: usize, reply_id: &ByteString) {
        let (conn, link) = (self.hosts[host].conn, self.hosts[host].link);
        let Some(reply) = self.process(host).and_then(|process| process.outbox.get_mut(reply_id)) else { return };
        let Some(conn) = conn else { return };
        let ack = reply.tag.filter(|tag| tag.link == link).map(|tag| tag.seq);
        if ack.is_none() && !reply.is_journaled {
            return;
        }
        reply.acked_on = ack.map(|_| link);
        let delivery = Delivery {
            to: reply.key.caller.clone(),
            id: reply_id.clone(),
            correlation_id: Some(reply.key.id.clone()),
            purpose: Purpose::HostReply,
            content: content_hash(&reply.body),
            sealed: reply.body.clone(),
            deadline_ms: Some(2 * LONGEST_CALL),
            ack,
        };
        self.send(Some(conn), Command::Deliver(delivery));
    }

    /// The broker receipted or refused a reply. A request that the reply did not acknowledge is acknowledged now.
    pub fn reply_settled(&mut self, host: usize, reply_id: &ByteString, refused: bool) {
        let (conn, link) = (self.hosts[host].conn, self.hosts[host].link);
        let Some(reply) = self.process(host).and_then(|process| process.outbox.remove(reply_id)) else { return };
        let Reply { key, tag, is_final, acked_on, .. } = reply;
        let number = self.oracle.number(&key);
        self.note("reply settled", &[("host", host as u64), ("call", number), ("refused", u64::from(refused))]);
        if acked_on != Some(link) || refused {
            self.send(conn, Command::Ack { id: key.id.clone() });
        } else if let Some(Tag { seq, .. }) = tag.filter(|tag| tag.link == link) {
            self.send(conn, Command::AckTags { tags: vec![seq] });
        }
        if is_final {
            if !refused {
                let process = self.process(host).map_or(0, |process| process.number);
                self.oracle.reply_is_durable(&key, process);
            }
            self.feed(host, Event::ReplySettled { key, refused });
        }
    }
}
