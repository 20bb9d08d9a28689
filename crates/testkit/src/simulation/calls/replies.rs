//! Replies of hosts. The client of the host keeps them until the broker's receipt, and sends them again.

use super::World;
use super::network::Owner;
use super::wire::{Outcome, WireAnswer};
use bytes::Bytes;
use bytestring::ByteString;
use toolbus_call::{CallNo, Event};
use toolbus_client::Resend;
use toolbus_journal::{CallKey, Known, Location};
use toolbus_protocol::{InboxKind, InboxMessage, MsgId};

impl World {
    pub fn reply(&mut self, host: usize, no: CallNo, answer: &WireAnswer) {
        let body = self.codebook.encode(answer);
        let Some(call) = self.call(host, no) else { return };
        let key = call.key.clone();
        // The id in RESULT stands for the answer in RESULT only.
        let journaled = call.reply.as_ref().filter(|(_, journaled)| *journaled == body).map(|(id, _)| id.clone());
        let number = self.oracle.number(&key);
        self.note("reply", &[("host", host as u64), ("call", number)]);
        let process = self.process(host).map_or(0, |process| process.number);
        self.oracle.replies(&key, answer.outcome, process);
        self.process(host).map(|process| process.answered.insert(key.clone()));
        self.send_reply(host, &key, journaled, body);
    }

    pub fn reply_accepted(&mut self, host: usize, no: CallNo) {
        let Some(call) = self.call(host, no) else { return };
        let key = call.key.clone();
        let body = self.codebook.encode(&WireAnswer::own(&key, Outcome::Accepted));
        self.send_reply(host, &key, None, body);
    }

    /// Sends the journaled answer again, under the same id.
    pub fn resend(&mut self, host: usize, no: CallNo, reply_id: ByteString, location: &Location) {
        let Some(call) = self.call(host, no) else { return };
        let key = call.key.clone();
        // Compaction may have moved the answer since.
        let moved = || self.location_of(host, &key).and_then(|location| self.read_answer(host, &location).ok());
        match self.read_answer(host, location).or_else(|why| moved().ok_or(why)) {
            Ok(kept) => {
                // The answer may be that of the call to which this one was joined.
                let joined = kept.of != key.id;
                let body = self.codebook.encode(&WireAnswer { joined, ..kept });
                self.process(host).map(|process| process.answered.insert(key.clone()));
                self.send_reply(host, &key, Some(reply_id), body);
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

    /// Sends a reply under the id that the journal has. One that the journal does not have must not be durable without the
    /// acknowledgement of its request: the next process would decide about the request again.
    fn send_reply(&mut self, host: usize, key: &CallKey, journaled: Option<ByteString>, body: Bytes) {
        let resend = if journaled.is_some() { Resend::Immediately } else { Resend::WithRequest };
        let id = journaled.unwrap_or_else(|| ByteString::from(format!("reply-{}", self.fresh_id())));
        if resend == Resend::WithRequest {
            self.oracle.unrecorded.insert(id.clone());
        }
        let request = MsgId::from(key.id.clone());
        let reply = self.message(&self.hosts[host].name, InboxKind::McpReply, &id, body);
        let reply = InboxMessage { correlation_id: Some(request.clone()), ..reply };
        if let Some(client) = self.client(Owner::Host(host)) {
            let sent = client.reply(&key.caller, &request, &reply, resend);
            if let Err(error) = sent {
                self.oracle.violated(format!("the reply to {} can't be sent: {error}", key.id));
            }
            self.flush(Owner::Host(host), false);
        }
    }

    /// Replies that the broker receipted or refused.
    pub fn replies_settled(&mut self, host: usize) {
        let settled = self.client(Owner::Host(host)).map(|client| client.settled()).unwrap_or_default();
        for reply in settled {
            let key = CallKey { caller: reply.to, id: reply.request };
            let (number, refused) = (self.oracle.number(&key), reply.refused);
            self.note("reply settled", &[("host", host as u64), ("call", number), ("refused", u64::from(refused))]);
            let Some(process) = self.process(host) else { return };
            let (process, is_answered) = (process.number, process.answered.contains(&key));
            if is_answered && !refused {
                self.oracle.reply_is_durable(&key, process);
            }
            self.feed(host, Event::ReplySettled { key, refused });
        }
    }
}
