//! What is written to the journal about one call: that it begins, before the server hears of it, and how it ended, before the
//! caller does. Between the two nobody can know whether it had its effect.

use crate::caller::Caller;
use crate::failure;
use crate::host::Host;
use crate::outbox::{Answer, Form};
use crate::session::SessionId;
use bytes::Bytes;
use bytestring::ByteString;
use ring::digest::{Context, SHA256};
use std::sync::Arc;
use tokio::sync::Mutex;
use toolbus_audit::canonical::canonical;
use toolbus_client::BrokerError;
use toolbus_journal::{CallKey, Dead, End, Finish, Journal, JournalError, Known, Replay, Start, Wait};
use toolbus_mcp::{Members, NameKey, Rpc, RpcError, meta, routed_name};
use toolbus_protocol::{Body, ErrorCode, InboxMessage, MsgId};

/// How often a call is begun before it is taken for what ends its server or its host.
pub const MAX_ATTEMPTS: u32 = 3;

/// Methods of MCP that have no effect but at their own connection, or none that a second time would add to.
const READS: [&str; 9] = [
    "resources/read",
    "resources/subscribe",
    "resources/unsubscribe",
    "prompts/get",
    "completion/complete",
    "tasks/get",
    "tasks/result",
    "tasks/list",
    "tasks/cancel",
];

/// Whether a request may have an effect that must not happen twice. What nobody knows might.
pub fn is_journaled(method: &str) -> bool {
    !toolbus_mcp::is_plain_request(method) && !READS.contains(&method)
}

/// Names stay in memory as long as their calls are in the journal. What is longer is no tool's; the content tells such
/// calls apart, the journal shows how the name begins.
const MAX_NAME_BYTES: usize = 1024;

fn kept_name(name: &str) -> ByteString {
    ByteString::from(&name[..name.floor_char_boundary(MAX_NAME_BYTES)])
}

/// Refuses what names a server or a session that nobody can have, before anything of it is kept.
pub fn check_names(server: &str, session: &str) -> Result<(), RpcError> {
    let what = match () {
        () if server.len() > MAX_NAME_BYTES => "server",
        () if session.len() > MAX_NAME_BYTES || SessionId::is_key_of_task(session) => "session",
        () => return Ok(()),
    };
    Err(failure::bus(ErrorCode::BadArguments, format!("no {what} can have that name; nothing was run")))
}

/// One call in the journal.
pub struct Record {
    journal: Arc<Journal>,
    pub key: CallKey,
    pub server: ByteString,
    /// As the caller named it; the method where it names none.
    pub tool: ByteString,
    names_tool: bool,
    pub content: [u8; 32],
    /// The request itself, for the dead letters.
    request: Arc<InboxMessage>,
    /// Its end is written even if it never begins: the journal knows of it already, or somebody will ask.
    pub is_kept: bool,
    state: Mutex<State>,
}

struct State {
    attempt: u32,
    /// As what it was begun, by this process and in this attempt.
    begun: Option<Replay>,
    /// What became of earlier attempts, a sentence each.
    story: Vec<String>,
}

impl Record {
    pub fn new(journal: Arc<Journal>, caller: &Caller, rpc: &Rpc) -> Self {
        let name = routed_name(&rpc.method, rpc.params.as_deref());
        Self::named(journal, caller, rpc, name.as_ref())
    }

    /// The same where somebody has read already what the request names.
    pub fn named(journal: Arc<Journal>, caller: &Caller, rpc: &Rpc, name: Option<&NameKey>) -> Self {
        let (tool, names_tool) = match name {
            Some(NameKey::Tool(tool)) => (kept_name(tool), true),
            _ => (kept_name(&rpc.method), false),
        };
        Self {
            journal,
            key: CallKey { caller: caller.mailbox().into(), id: caller.id().as_str().into() },
            server: rpc.server.as_str().into(),
            tool,
            names_tool,
            content: content_of(rpc),
            request: Arc::clone(&caller.request),
            is_kept: false,
            state: Mutex::new(State { attempt: 1, begun: None, story: Vec::new() }),
        }
    }

    pub fn named_tool(&self) -> Option<&str> {
        self.names_tool.then_some(&*self.tool)
    }

    /// Whether the server may have heard of it.
    pub async fn is_begun(&self) -> bool {
        self.state.lock().await.begun.is_some()
    }

    pub fn journal(&self) -> &Arc<Journal> {
        &self.journal
    }

    /// It was begun before, by a process that is gone.
    pub fn in_attempt(mut self, attempt: u32) -> Self {
        if attempt > 1 {
            self.is_kept = true;
            let state = self.state.get_mut();
            state.attempt = attempt;
            state.story.push(format!("attempt {}: the host ended before the call did", attempt - 1));
        }
        self
    }

    /// Returns when the server may be told: it is on disk that the call begins, or it may run twice anyway.
    pub async fn begin(&self, replay: Replay) -> Result<(), JournalError> {
        let mut state = self.state.lock().await;
        if state.begun.is_some() {
            return Ok(());
        }
        let start = self.start(state.attempt, replay);
        let wait = match replay {
            Replay::Never => Wait::Synced,
            Replay::Safe => Wait::Written,
        };
        self.journal.start(start, wait).await?;
        state.begun = Some(replay);
        Ok(())
    }

    /// The server died. True if the call is to be begun once more.
    pub async fn may_run_again(&self, what_happened: String) -> bool {
        let mut state = self.state.lock().await;
        let attempt = state.attempt;
        state.story.push(format!("attempt {attempt}: {what_happened}"));
        let again = state.begun == Some(Replay::Safe) && attempt < MAX_ATTEMPTS;
        if again {
            (state.attempt, state.begun) = (attempt + 1, None);
        }
        again
    }

    /// Whether it was begun as often as it may be.
    pub async fn is_exhausted(&self) -> bool {
        let state = self.state.lock().await;
        state.begun == Some(Replay::Safe) && state.attempt >= MAX_ATTEMPTS
    }

    /// Puts the call to the dead letters.
    pub async fn bury(&self, attempts: u32) -> Result<(), JournalError> {
        let story = self.state.lock().await.story.clone();
        let (server, tool, role) = (self.server.clone(), self.tool.clone(), self.request.from.role.clone());
        let request = self.request.body.as_bytes().clone();
        let role = role.map(|role| ByteString::from(&*role));
        self.journal.bury(Dead { key: self.key.clone(), server, tool, request, role, attempts, story, at: now() }).await
    }

    pub async fn note(&self, what_happened: String) {
        self.state.lock().await.story.push(what_happened);
    }

    /// Returns when the caller may be told.
    pub async fn finish(&self, reply: &InboxMessage, end: End) -> Result<(), JournalError> {
        let begun = self.state.lock().await.begun;
        // Refusals are made anew as often as somebody asks. But what was called off must not run after all.
        if begun.is_none() && !self.is_kept && end != End::Cancelled {
            return Ok(());
        }
        let body: Bytes = reply.body.as_bytes().clone();
        let reply_id = reply.id.as_str().into();
        let finish = Finish { key: self.key.clone(), reply_id, reply: body, end, at: now() };
        self.journal.finish(finish, self.wait_for_end(begun)).await
    }

    /// If the machine stops before the end of a call is on disk, the call is in doubt, and that is what it is if its caller asks
    /// again. What somebody will ask for must not change, and what was not begun must not begin after all.
    fn wait_for_end(&self, begun: Option<Replay>) -> Wait {
        match begun {
            Some(Replay::Safe) if !self.is_kept => Wait::Written,
            Some(Replay::Never) if !self.is_kept && !self.journal.syncs_results() => Wait::Written,
            _ => Wait::Synced,
        }
    }

    /// As it would stand in the journal.
    pub fn start(&self, attempt: u32, replay: Replay) -> Start {
        Start {
            key: self.key.clone(),
            server: self.server.clone(),
            tool: self.tool.clone(),
            content: self.content,
            attempt,
            at: now(),
            safe: replay == Replay::Safe,
        }
    }
}

impl Host {
    /// The end of a call: written down, then told.
    pub async fn finish(&self, caller: &Caller, record: Option<&Record>, answer: Answer) {
        let request = &caller.request;
        let form = answer.form;
        let mut reply = self.write_end(request, record, answer, None).await;
        let mut sent = self.outbox.send(request, &reply).await;
        if let Err(BrokerError::Rejected { code: Some(ErrorCode::FrameTooLarge), reason, .. }) = &sent {
            // The broker takes less than it did a moment ago.
            let (reason, id) = (form.too_large(reason), reply.id.clone());
            reply = self.write_end(request, record, reason, Some(id)).await;
            sent = self.outbox.send(request, &reply).await;
        }
        self.outbox.settle(request, sent).await;
        self.running.finish(caller);
    }

    /// Writes down how a call ended, and returns what its caller is told. `id`: of the message that it takes the place of, which nobody got.
    pub async fn write_end(
        &self,
        request: &InboxMessage,
        record: Option<&Record>,
        answer: Answer,
        id: Option<MsgId>,
    ) -> InboxMessage {
        let form = answer.form;
        let (mut reply, mut end) = self.outbox.fitting(request, answer);
        reply.id = id.unwrap_or(reply.id);
        let Some(record) = record else { return reply };
        let mut written = record.finish(&reply, end).await;
        if let Err(error @ JournalError::TooLarge { .. }) = &written {
            let answer = form.too_large(&error.to_string());
            (reply.body, end) = (answer.body, answer.end);
            written = record.finish(&reply, end).await;
        }
        // What was told first stays the answer.
        let is_second = matches!(written, Err(JournalError::Answered));
        if let Some(first) = is_second.then(|| self.first_answer(request, record)).flatten() {
            return first;
        }
        match written {
            Ok(()) => reply,
            Err(error) => {
                // What nobody wrote down nobody may be told: after a restart it would be unknown too.
                self.journal_failed(&error);
                let message = format!("{:?} ran, but its result can't be written down: {error}", record.tool);
                self.outbox.reply_to(request, form.error(&failure::bus(ErrorCode::OutcomeUnknown, message)))
            }
        }
    }

    fn first_answer(&self, request: &InboxMessage, record: &Record) -> Option<InboxMessage> {
        let known = record.journal.look_up(&record.key, &record.content).ok()?;
        let Known::Answered { reply_id, reply, .. } = known else { return None };
        let mut first = self.outbox.reply_to(request, Body::from_trusted(record.journal.reply(&reply).ok()?));
        first.id = MsgId::from(reply_id);
        Some(first)
    }

    /// Says it where somebody looks. No further call is begun.
    pub fn journal_failed(&self, error: &JournalError) {
        if error.is_about_one_call() {
            return tracing::warn!(%error, "a call was not written to the call journal");
        }
        let trouble = format!("calls are refused: the call journal can't be written ({error})");
        if self.catalog.set_trouble(trouble) {
            tracing::error!(%error, "the call journal can't be written; calls are refused until the host is started again");
        }
    }
}

/// The same for calls that ask for the same: which server, which method, and all params but what is about the request itself.
/// Eras differ in how answers are written, so a call of one is never that of another.
fn content_of(rpc: &Rpc) -> [u8; 32] {
    let mut hash = Context::new(&SHA256);
    let mut update = |part: &str| {
        hash.update(&(part.len() as u64).to_le_bytes());
        hash.update(part.as_bytes());
    };
    [rpc.client.era.as_str(), &rpc.server, &rpc.method].into_iter().for_each(&mut update);
    let params = rpc.params.as_deref();
    match Members::of(params) {
        Ok(members) => {
            let mut members: Vec<_> = members.iter().filter(|(name, _)| *name != meta::META).collect();
            members.sort_unstable_by_key(|(name, _)| *name);
            for (name, value) in members {
                update(name);
                update(&canonical(value));
            }
        }
        Err(_) => params.iter().for_each(|params| update(params.get())),
    }
    let mut content = [0; 32];
    content.copy_from_slice(hash.finish().as_ref());
    content
}

/// Milliseconds since 1970.
pub fn now() -> u64 {
    u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or_default()
}

/// As people write it.
pub fn written_time(millis: u64) -> String {
    let time = i64::try_from(millis).ok().and_then(|millis| jiff::Timestamp::from_millisecond(millis).ok());
    time.map(|time| time.to_string()).unwrap_or_default()
}

impl Form {
    pub fn too_large(self, reason: &str) -> Answer {
        let error = failure::bus(ErrorCode::ResultTooLarge, format!("the result can't be sent: {reason}"));
        Answer { body: self.error(&error), end: End::Failed, form: self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::value::RawValue;
    use toolbus_mcp::ClientHello;

    fn content(server: &str, method: &str, params: Option<&str>) -> [u8; 32] {
        let params = params.map(|params| RawValue::from_string(params.to_owned()).expect("JSON"));
        let (server, method, session) = (server.to_owned(), method.to_owned(), "s".to_owned());
        content_of(&Rpc { server, session, client: ClientHello::modern(), method, params, task: None })
    }

    #[test]
    fn content_is_what_is_asked_for_and_nothing_else() {
        let call = |params| content("one", "tools/call", Some(params));
        let usual = call(r#"{"name":"a","arguments":{"x":1,"y":[1,2]}}"#);
        assert_eq!(usual, call(r#"{ "arguments": {"y":[1,2], "x":1}, "name":"a", "_meta": {"progressToken": 7} }"#));
        for other in [
            r#"{"name":"b","arguments":{"x":1,"y":[1,2]}}"#,
            r#"{"name":"a","arguments":{"x":1,"y":[2,1]}}"#,
            r#"{"name":"a","arguments":{"x":1.0,"y":[1,2]}}"#,
            r#"{"name":"a","arguments":{"x":1,"y":[1,2],"_meta":{}}}"#,
            r#"{"name":"a","arguments":{"x":1,"y":[1,2]},"requestState":"s"}"#,
        ] {
            assert_ne!(usual, call(other), "{other}");
        }
        assert_ne!(content("ab", "c", None), content("a", "bc", None));
        assert_ne!(usual, content("two", "tools/call", Some(r#"{"name":"a","arguments":{"x":1,"y":[1,2]}}"#)));
    }

    #[test]
    fn of_a_long_name_only_the_beginning_is_kept() {
        assert_eq!(kept_name("tool"), "tool");
        assert_eq!(kept_name(&"ü".repeat(20_000)).len(), MAX_NAME_BYTES);
        assert_eq!(kept_name(&format!("x{}", "ü".repeat(20_000))).len(), MAX_NAME_BYTES - 1);
    }

    #[test]
    fn only_what_may_have_an_effect_is_journaled() {
        for method in ["tools/call", "vendor/anything", "tasks/update"] {
            assert!(is_journaled(method), "{method}");
        }
        for method in ["tools/list", "resources/read", "initialize", "subscriptions/listen", "tasks/get", "ping"] {
            assert!(!is_journaled(method), "{method}");
        }
    }
}
