//! Admission: looks a request up in the call journal, which decides whether it runs or how it is answered instead.

use crate::caller::{CallDescription, Caller, until};
use crate::calls::subject_of;
use crate::catalog::names::own_name;
use crate::failure;
use crate::host::Host;
use crate::journaled::{MAX_ATTEMPTS, Record, format_time, is_journaled};
use crate::outbox::{Answer, Form};
use crate::server::Server;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use toolbus_audit::{CallEnd, Caller as AuditCaller, Record as AuditRecord};
use toolbus_journal::{Decision, End, Known, Replay, Start, decide};
use toolbus_mcp::{NameKey, Rpc, RpcError, routed_name};
use toolbus_protocol::{ErrorCode, InboxMessage};

/// How long to wait for a call that an earlier connection of this process still runs.
const MAX_WAIT: Duration = Duration::from_secs(30);
/// How often to look the call up meanwhile.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The decision about a request.
pub enum Admission {
    /// Run it, with its record if it is journaled.
    Run(Option<Record>),
    /// Answer it by what the journal knows.
    Known(Box<Record>, Decision),
}

impl Host {
    /// Looks the request up in the journal, and describes the call for admin queries and joins.
    pub fn admit(&self, caller: &Caller, server: &Server, rpc: &Rpc, form: Form) -> Admission {
        let name = routed_name(&rpc.method, rpc.params.as_deref());
        let Some(journal) = self.options.journal.as_ref().filter(|_| is_journaled(&rpc.method)) else {
            self.describe(caller, rpc, name, None);
            return Admission::Run(None);
        };
        let record = Record::named(Arc::clone(journal), caller, rpc, name.as_ref());
        // Replies in the original's format can't be shared with MCP callers.
        let is_joinable = form == Form::Mcp && rpc.task.is_none();
        self.describe(caller, rpc, name, is_joinable.then_some(record.content));
        match self.decide_about(&record, caller, server) {
            Decision::Run { attempt } => Admission::Run(Some(record.in_attempt(attempt))),
            decision => Admission::Known(Box::new(record), decision),
        }
    }

    fn describe(&self, caller: &Caller, rpc: &Rpc, name: Option<NameKey>, content: Option<[u8; 32]>) {
        let tool = match name {
            Some(NameKey::Tool(tool)) => tool,
            _ => rpc.method.clone(),
        };
        let description = CallDescription { server: rpc.server.clone(), tool, content, is_task: rpc.task.is_some() };
        self.running.describe(caller, description);
    }

    fn decide_about(&self, record: &Record, caller: &Caller, server: &Server) -> Decision {
        let journal = record.journal();
        let known = journal.look_up(&record.key, &record.content);
        let was_safe = matches!(&known, Ok(Known::Interrupted(start)) if start.safe);
        let replay = self.replay_of_call(server, record.named_tool(), was_safe);
        // If the journal lost entries, or another journal had the mailbox before, the call may have been started.
        let client = self.outbox.client();
        let attempt = client.attempt_of(caller.id()).unwrap_or(1);
        let may_be_started = client.is_unsure(caller.id()) || (attempt > 1 && journal.recovery().is_damaged());
        if may_be_started && matches!(known, Ok(Known::New)) && replay == Replay::Never {
            return Decision::Unknown(Arc::new(record.start(attempt.saturating_sub(1).max(1), replay)));
        }
        decide(known, replay, MAX_ATTEMPTS)
    }

    /// `visible`: the tool's name as workers see it; `None` for methods that name no tool.
    pub fn replay_of_call(&self, server: &Server, visible: Option<&str>, was_safe: bool) -> Replay {
        let own = visible.and_then(|visible| own_name(server.config.prefix.as_deref(), visible));
        self.replay_of(server, own, was_safe)
    }

    /// Answers a request that doesn't run.
    pub async fn answer_known(
        self: Arc<Self>,
        caller: Caller,
        server: Arc<Server>,
        rpc: Rpc,
        form: Form,
        known: (Box<Record>, Decision),
    ) {
        let (mut record, mut decision) = known;
        // This answer is final.
        record.always_journaled = true;
        if decision == Decision::AlreadyRunning {
            decision = self.wait_for_end(&record, &caller, &server).await;
        }
        let answered = match decision {
            Decision::Reply { reply_id, reply, .. } => match record.journal().reply(&reply) {
                Ok(body) => {
                    self.outbox.resend(&caller.request, &reply_id, body, form).await;
                    self.running.finish(&caller);
                    "repeated".to_owned()
                }
                Err(error) => {
                    let error = failure::unreadable_answer(&record.tool, &error.to_string());
                    self.finish_with_error(&caller, None, form, End::Unknown, &error).await
                }
            },
            Decision::Unknown(start) => {
                let error = failure::outcome_unknown(&start);
                self.finish_with_error(&caller, Some(&record), form, End::Unknown, &error).await
            }
            Decision::Poisoned(start) => {
                let error = self.dead_letter(&record, &start).await;
                self.finish_with_error(&caller, Some(&record), form, End::Failed, &error).await
            }
            Decision::OtherContent { tool } => {
                let message =
                    format!("the id {} was already used for a call of {tool:?} with other arguments", caller.id());
                let error = failure::bus(ErrorCode::IdConflict, message);
                self.finish_with_error(&caller, None, form, End::Failed, &error).await
            }
            // The earlier run ended and was forgotten meanwhile, or did not end in time.
            Decision::AlreadyRunning | Decision::Run { .. } => {
                let error = failure::outcome_unknown(&record.start(1, Replay::Never));
                self.finish_with_error(&caller, Some(&record), form, End::Unknown, &error).await
            }
        };
        self.audit_outcome(&caller, &rpc, answered).await;
    }

    async fn finish_with_error(
        &self,
        caller: &Caller,
        record: Option<&Record>,
        form: Form,
        end: End,
        error: &RpcError,
    ) -> String {
        self.finish(caller, record, Answer { body: form.error(error), end, form }).await;
        error.data.as_ref().and_then(|data| data["code"].as_str()).unwrap_or_default().to_owned()
    }

    /// Makes the dead letter durable before the caller is answered.
    pub async fn dead_letter(&self, record: &Record, start: &Start) -> RpcError {
        // An earlier process may have ended after it wrote the dead letter and before it answered.
        if record.journal().dead_letter_by_id(&record.key.id).is_none_or(|letter| letter.key != record.key) {
            for attempt in 1..start.attempt {
                record
                    .add_history(format!(
                        "attempt {attempt}: the server or the host ended before the call was answered"
                    ))
                    .await;
            }
            let began = format_time(start.at);
            record
                .add_history(format!(
                    "attempt {}, started {began}: the host ended before the call was answered",
                    start.attempt
                ))
                .await;
            if let Err(error) = record.dead_letter(start.attempt).await {
                self.journal_failed(&error);
            }
        }
        failure::poison(&record.tool, start.attempt)
    }

    /// Waits for a call that an earlier connection of this process runs. It ends soon, because its servers are closed.
    async fn wait_for_end(&self, record: &Record, caller: &Caller, server: &Server) -> Decision {
        let end = Instant::now() + MAX_WAIT;
        loop {
            let known = record.journal().look_up(&record.key, &record.content);
            let running = match known {
                Ok(Known::Running(start)) => start,
                _ => return self.decide_about(record, caller, server),
            };
            if Instant::now() >= end || caller.cancel.is_fired() {
                return Decision::Unknown(running);
            }
            until(Some(Instant::now() + POLL_INTERVAL)).await;
        }
    }

    pub async fn audit_outcome(&self, caller: &Caller, rpc: &Rpc, outcome: String) {
        let Some(audit) = &self.options.audit else { return };
        let who = AuditCaller { who: caller.mailbox().to_owned(), role: caller.role().map(ToOwned::to_owned) };
        let attempt = self.outbox.client().attempt_of(caller.id()).unwrap_or(1);
        let end = CallEnd { outcome, attempt, ..CallEnd::default() };
        let subject = subject_of(caller, rpc);
        if let Err(error) = audit.post(AuditRecord::Call { caller: who, subject, end }).await {
            tracing::error!(%error, "could not audit the end of a call");
        }
    }

    /// Sends the reply to a redelivered request again from the journal, in case the first one was lost.
    pub fn resend_reply(self: &Arc<Self>, request: Arc<InboxMessage>, server: Arc<Server>, rpc: Rpc, form: Form) {
        let Some(journal) = self.options.journal.as_ref().filter(|_| is_journaled(&rpc.method)) else { return };
        let caller = Caller::new(request);
        let record = Record::new(Arc::clone(journal), &caller, &rpc);
        let decision = self.decide_about(&record, &caller, &server);
        if matches!(decision, Decision::Reply { .. } | Decision::OtherContent { .. }) {
            let known = (Box::new(record), decision);
            self.tracker.spawn(Arc::clone(self).answer_known(caller, server, rpc, form, known));
        }
    }
}
