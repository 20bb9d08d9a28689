//! The journal records of one call: START before the server gets the request, RESULT before the caller gets the reply.
//! A call with a START and no RESULT has an unknown outcome.

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

/// Maximum attempts of a replay-safe call before it is dead-lettered.
pub const MAX_ATTEMPTS: u32 = 3;

/// MCP methods without an effect outside their connection, or whose repetition has no further effect.
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

/// Whether a request may have an effect that must not happen twice. True for unknown methods.
pub fn is_journaled(method: &str) -> bool {
    !toolbus_mcp::is_plain_request(method) && !READS.contains(&method)
}

/// Names stay in memory as long as their calls are journaled, so longer ones are truncated. The content hash still
/// tells such calls apart.
const MAX_NAME_BYTES: usize = 1024;

fn truncated_name(name: &str) -> ByteString {
    ByteString::from(&name[..name.floor_char_boundary(MAX_NAME_BYTES)])
}

/// Refuses impossible names of servers and sessions before any of them is stored.
pub fn check_names(server: &str, session: &str) -> Result<(), RpcError> {
    let what = match () {
        () if server.len() > MAX_NAME_BYTES => "server",
        () if session.len() > MAX_NAME_BYTES || SessionId::is_key_of_task(session) => "session",
        () => return Ok(()),
    };
    Err(failure::bus(ErrorCode::BadArguments, format!("invalid {what} name; the call was not run")))
}

/// The journal record of one call.
pub struct Record {
    journal: Arc<Journal>,
    pub key: CallKey,
    pub server: ByteString,
    /// As the caller named it; the method if it names no tool.
    pub tool: ByteString,
    names_tool: bool,
    pub content: [u8; 32],
    /// The request itself, for a dead letter.
    request: Arc<InboxMessage>,
    /// Journals the end even if the call never starts, because the journal knows the call already or its outcome will
    /// be queried.
    pub always_journaled: bool,
    state: Mutex<State>,
}

struct State {
    attempt: u32,
    /// The replay setting of the START that this process wrote for the current attempt.
    begun: Option<Replay>,
    /// What happened to earlier attempts, one sentence each.
    history: Vec<String>,
}

impl Record {
    pub fn new(journal: Arc<Journal>, caller: &Caller, rpc: &Rpc) -> Self {
        let name = routed_name(&rpc.method, rpc.params.as_deref());
        Self::named(journal, caller, rpc, name.as_ref())
    }

    /// Like [`Self::new`], with the name that the caller has already parsed.
    pub fn named(journal: Arc<Journal>, caller: &Caller, rpc: &Rpc, name: Option<&NameKey>) -> Self {
        let (tool, names_tool) = match name {
            Some(NameKey::Tool(tool)) => (truncated_name(tool), true),
            _ => (truncated_name(&rpc.method), false),
        };
        Self {
            journal,
            key: CallKey { caller: caller.mailbox().into(), id: caller.id().as_str().into() },
            server: rpc.server.as_str().into(),
            tool,
            names_tool,
            content: content_of(rpc),
            request: Arc::clone(&caller.request),
            always_journaled: false,
            state: Mutex::new(State { attempt: 1, begun: None, history: Vec::new() }),
        }
    }

    pub fn named_tool(&self) -> Option<&str> {
        self.names_tool.then_some(&*self.tool)
    }

    /// Whether the server may have received the request.
    pub async fn is_begun(&self) -> bool {
        self.state.lock().await.begun.is_some()
    }

    pub fn journal(&self) -> &Arc<Journal> {
        &self.journal
    }

    /// Continues a call that an earlier process started.
    pub fn in_attempt(mut self, attempt: u32) -> Self {
        if attempt > 1 {
            self.always_journaled = true;
            let state = self.state.get_mut();
            state.attempt = attempt;
            state.history.push(format!("attempt {}: the host ended before the call was answered", attempt - 1));
        }
        self
    }

    /// Writes START; afterwards the server may get the request. START is durable then, unless the call is replay-safe.
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

    /// As what the call was started, and in which attempt, if the server may have received it.
    pub async fn begun(&self) -> Option<(Replay, u32)> {
        let state = self.state.lock().await;
        state.begun.map(|replay| (replay, state.attempt))
    }

    /// Records that the server died. Returns true if the call may be started again.
    pub async fn may_run_again(&self, what_happened: String) -> bool {
        let mut state = self.state.lock().await;
        let attempt = state.attempt;
        state.history.push(format!("attempt {attempt}: {what_happened}"));
        let again = state.begun == Some(Replay::Safe) && attempt < MAX_ATTEMPTS;
        if again {
            (state.attempt, state.begun) = (attempt + 1, None);
        }
        again
    }

    /// Whether all attempts are used up.
    pub async fn is_exhausted(&self) -> bool {
        let state = self.state.lock().await;
        state.begun == Some(Replay::Safe) && state.attempt >= MAX_ATTEMPTS
    }

    /// Moves the call to the dead letters.
    pub async fn dead_letter(&self, attempts: u32) -> Result<(), JournalError> {
        let story = self.state.lock().await.history.clone();
        let (server, tool, role) = (self.server.clone(), self.tool.clone(), self.request.from.role.clone());
        let request = self.request.body.as_bytes().clone();
        let role = role.map(|role| ByteString::from(&*role));
        self.journal
            .dead_letter(Dead { key: self.key.clone(), server, tool, request, role, attempts, story, at: now() })
            .await
    }

    pub async fn add_history(&self, what_happened: String) {
        self.state.lock().await.history.push(what_happened);
    }

    /// Writes RESULT; afterwards the reply may be sent.
    pub async fn finish(&self, reply: &InboxMessage, end: End) -> Result<(), JournalError> {
        let begun = self.state.lock().await.begun;
        // A call that was refused before it started may be decided again. A cancelled one must never run.
        if begun.is_none() && !self.always_journaled && end != End::Cancelled {
            return Ok(());
        }
        let body: Bytes = reply.body.as_bytes().clone();
        let reply_id = reply.id.as_str().into();
        let finish = Finish { key: self.key.clone(), reply_id, reply: body, end, at: now() };
        self.journal.finish(finish, self.wait_for_end(begun)).await
    }

    /// Losing an unsynced RESULT in a power cut leaves a START, so the call is reported as unknown and not run again.
    /// Without a START, or if the outcome will be queried, RESULT must be durable first.
    fn wait_for_end(&self, begun: Option<Replay>) -> Wait {
        match begun {
            Some(Replay::Safe) if !self.always_journaled => Wait::Written,
            Some(Replay::Never) if !self.always_journaled && !self.journal.syncs_results() => Wait::Written,
            _ => Wait::Synced,
        }
    }

    /// The START record of that attempt.
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
    /// Ends a call: journals its answer, then replies.
    pub async fn finish(&self, caller: &Caller, record: Option<&Record>, answer: Answer) {
        let request = &caller.request;
        let form = answer.form;
        let mut reply = self.journal_end(request, record, answer, None).await;
        let mut sent = self.outbox.send(request, &reply).await;
        if let Err(BrokerError::Rejected { code: Some(ErrorCode::FrameTooLarge), reason, .. }) = &sent {
            // The broker's frame limit shrank since the reply was checked.
            let (reason, id) = (form.too_large(reason), reply.id.clone());
            reply = self.journal_end(request, record, reason, Some(id)).await;
            sent = self.outbox.send(request, &reply).await;
        }
        self.outbox.ack_if_unsent(request, sent).await;
        self.running.finish(caller);
    }

    /// Journals how a call ended, and returns the reply to send. `id`: the id of an undelivered reply that this one
    /// replaces.
    pub async fn journal_end(
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
        // The first answer is final.
        let is_second = matches!(written, Err(JournalError::Answered));
        if let Some(first) = is_second.then(|| self.first_answer(request, record)).flatten() {
            return first;
        }
        match written {
            Ok(()) => reply,
            Err(error) => {
                // An answer that is not journaled must not be sent: after a restart the outcome would be unknown.
                self.journal_failed(&error);
                let message = format!("the result of {:?} could not be journaled: {error}", record.tool);
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

/// A hash over era, server, method and params without `_meta`: equal for equal calls. The eras format answers
/// differently, so their calls are never equal.
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

/// Milliseconds since the Unix epoch.
pub fn now() -> u64 {
    u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or_default()
}

/// As RFC 3339 text.
pub fn format_time(millis: u64) -> String {
    let time = i64::try_from(millis).ok().and_then(|millis| jiff::Timestamp::from_millisecond(millis).ok());
    time.map(|time| time.to_string()).unwrap_or_default()
}

impl Form {
    pub fn too_large(self, reason: &str) -> Answer {
        let error = failure::bus(ErrorCode::ResultTooLarge, format!("the result cannot be sent: {reason}"));
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
    fn content_depends_on_the_request_but_not_on_its_metadata_or_order() {
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
    fn long_names_are_truncated() {
        assert_eq!(truncated_name("tool"), "tool");
        assert_eq!(truncated_name(&"ü".repeat(20_000)).len(), MAX_NAME_BYTES);
        assert_eq!(truncated_name(&format!("x{}", "ü".repeat(20_000))).len(), MAX_NAME_BYTES - 1);
    }

    #[test]
    fn only_methods_with_possible_effects_are_journaled() {
        for method in ["tools/call", "vendor/anything", "tasks/update"] {
            assert!(is_journaled(method), "{method}");
        }
        for method in ["tools/list", "resources/read", "initialize", "subscriptions/listen", "tasks/get", "ping"] {
            assert!(!is_journaled(method), "{method}");
        }
    }
}
