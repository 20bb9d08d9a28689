//! Appends the machine's records to the journal. The host adds names, message ids and bodies.

use super::answers::Given;
use super::slot::Slot;
use crate::host::Host;
use bytes::Bytes;
use bytestring::ByteString;
use std::sync::Arc;
use toolbus_base::now_ms;
use toolbus_call::{Answer, Failure, Record};
use toolbus_journal::{
    Appended, CallKey, Dead, Entry, Finish, Joined, JournalError, Known, Location, Start, Task, Ticket, Wait,
};
use toolbus_protocol::InboxMessage;

impl Host {
    /// Appends at once; returns the ticket to wait for.
    pub(super) fn append(
        &self,
        slot: &Slot,
        record: Record<Given>,
        wait: Wait,
    ) -> Result<Option<Ticket>, JournalError> {
        let (key, at) = (slot.key(), now_ms());
        let (server, tool, content) =
            (ByteString::from(slot.server.name()), slot.parsed.tool.clone(), slot.parsed.content);
        let role = slot.role().map(ByteString::from);
        let request = slot.request.body.as_bytes().clone();
        let entry = match record {
            Record::Start { attempt, safe } => {
                Entry::Start(Arc::new(Start { key, server, tool, content, attempt, at, safe }))
            }
            Record::Joined { to } => Entry::Joined(Joined { key, to, content, at }),
            Record::Task => {
                let ttl_ms = slot.parsed.rpc.task.unwrap_or_default().granted_ttl_ms();
                Entry::Task(Task { key, server, tool, content, request, role, ttl_ms, at })
            }
            Record::Dead { attempts, history } => {
                Entry::Dead(Dead { key, server, tool, request, role, attempts, story: history, at })
            }
            Record::Result { answer, end } => {
                if let Answer::Failure(Failure::BrokenInvariant(rule)) = &answer {
                    tracing::error!(rule, id = slot.id().as_str(), "a bug of the host: a call was not sent");
                }
                slot.state().outcome = Some(slot.word_for(&answer));
                let (reply, end) = self.outbox.fitting(&slot.request, slot.encode(&answer, end));
                return self.append_result(slot, reply, end, wait);
            }
        };
        self.append_entry(entry, wait)
    }

    fn append_result(
        &self,
        slot: &Slot,
        mut reply: InboxMessage,
        mut end: toolbus_journal::End,
        wait: Wait,
    ) -> Result<Option<Ticket>, JournalError> {
        let finish = |reply: &InboxMessage, end| {
            let (reply_id, body) = (reply.id.as_str().into(), reply.body.as_bytes().clone());
            Entry::Finish(Finish { key: slot.key(), reply_id, reply: body, end, at: now_ms() })
        };
        let mut appended = self.append_entry(finish(&reply, end), wait);
        if let Err(error @ JournalError::TooLarge { .. }) = &appended {
            let answer = slot.form.too_large(&error.to_string());
            (reply.body, end) = (answer.body, answer.end);
            appended = self.append_entry(finish(&reply, end), wait);
        }
        if appended.is_ok() {
            slot.state().reply = Some(reply);
        }
        appended
    }

    /// Reads the answer of a call. Compaction may have moved it since it was looked up.
    pub(super) fn stored_answer(
        &self,
        key: &CallKey,
        content: &[u8; 32],
        location: &Location,
    ) -> Result<Bytes, JournalError> {
        let journal = &self.options.journal;
        journal.reply(location).or_else(|error| match journal.look_up(key, content) {
            Ok(Known::Answered { reply, .. }) if reply != *location => journal.reply(&reply),
            _ => Err(error),
        })
    }

    fn append_entry(&self, entry: Entry, wait: Wait) -> Result<Option<Ticket>, JournalError> {
        let bytes = entry.weight();
        match self.options.journal.append(entry, wait) {
            Ok(Appended::Written) => Ok(None),
            Ok(Appended::Waits(ticket)) => {
                self.calls.backlog.add(ticket, bytes);
                Ok(Some(ticket))
            }
            Err(error) => {
                self.journal_failed(&error);
                Err(error)
            }
        }
    }

    /// Reports a failure of the journal, after which no further call is started.
    pub fn journal_failed(&self, error: &JournalError) {
        if error.is_about_one_call() {
            return tracing::warn!(%error, "could not journal a call");
        }
        let problem = format!("calls are refused: cannot write the call journal ({error})");
        if self.catalog.set_host_problem(problem) {
            tracing::error!(%error, "cannot write the call journal, calls are refused until the host is restarted");
        }
    }
}
