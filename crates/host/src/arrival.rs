//! A request that arrives, perhaps not for the first time: what the journal knows of it decides whether it runs, and how it
//! is answered if it doesn't.

use crate::caller::{About, Caller, until};
use crate::calls::subject_of;
use crate::catalog::names::own_name;
use crate::failure;
use crate::host::Host;
use crate::journaled::{MAX_ATTEMPTS, Record, is_journaled, written_time};
use crate::outbox::{Answer, Form};
use crate::server::Server;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use toolbus_audit::{CallEnd, Caller as AuditCaller, Record as AuditRecord};
use toolbus_journal::{Decision, End, Known, Replay, Start, decide};
use toolbus_mcp::{NameKey, Rpc, RpcError, routed_name};
use toolbus_protocol::{ErrorCode, InboxMessage};

/// How long a call is waited for that an earlier connection of this process still runs.
const LONGEST_WAIT: Duration = Duration::from_secs(30);
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(50);

/// What becomes of a request.
pub enum Arrival {
    /// It runs; with what is to be written about it, if anything is.
    Run(Option<Record>),
    /// The journal knows how it is answered.
    Known(Box<Record>, Decision),
}

impl Host {
    /// Looks a request up, and says what it is to those who look at the host's calls.
    pub fn arrive(&self, caller: &Caller, server: &Server, rpc: &Rpc, form: Form) -> Arrival {
        let name = routed_name(&rpc.method, rpc.params.as_deref());
        let Some(journal) = self.options.journal.as_ref().filter(|_| is_journaled(&rpc.method)) else {
            self.describe(caller, rpc, name, None);
            return Arrival::Run(None);
        };
        let record = Record::named(Arc::clone(journal), caller, rpc, name.as_ref());
        // The original's answers have another form, which nobody else could read.
        let is_joinable = form == Form::Mcp && rpc.task.is_none();
        self.describe(caller, rpc, name, is_joinable.then_some(record.content));
        match self.decide_about(&record, caller, server) {
            Decision::Run { attempt } => Arrival::Run(Some(record.in_attempt(attempt))),
            decision => Arrival::Known(Box::new(record), decision),
        }
    }

    fn describe(&self, caller: &Caller, rpc: &Rpc, name: Option<NameKey>, content: Option<[u8; 32]>) {
        let tool = match name {
            Some(NameKey::Tool(tool)) => tool,
            _ => rpc.method.clone(),
        };
        let about = About { server: rpc.server.clone(), tool, content, is_task: rpc.task.is_some() };
        self.running.describe(caller, about);
    }

    fn decide_about(&self, record: &Record, caller: &Caller, server: &Server) -> Decision {
        let journal = record.journal();
        let known = journal.look_up(&record.key, &record.content);
        let was_safe = matches!(&known, Ok(Known::Interrupted(start)) if start.safe);
        let replay = self.replay_of_call(server, record.named_tool(), was_safe);
        // Where entries are lost, what comes again may have been begun.
        let attempt = self.outbox.client().attempt_of(caller.id()).unwrap_or(1);
        let is_new = matches!(known, Ok(Known::New));
        if is_new && attempt > 1 && replay == Replay::Never && journal.recovery().is_damaged() {
            return Decision::Unknown(Arc::new(record.start(attempt - 1, replay)));
        }
        decide(known, replay, MAX_ATTEMPTS)
    }

    /// Of a tool under the name that workers see; of a method that names none, nobody knows what it does.
    pub fn replay_of_call(&self, server: &Server, visible: Option<&str>, was_safe: bool) -> Replay {
        let own = visible.and_then(|visible| own_name(server.config.prefix.as_deref(), visible));
        self.replay_of(server, own, was_safe)
    }

    /// Answers a request that does not run.
    pub async fn settle(
        self: Arc<Self>,
        caller: Caller,
        server: Arc<Server>,
        rpc: Rpc,
        form: Form,
        known: (Box<Record>, Decision),
    ) {
        let (mut record, mut decision) = known;
        // Whatever it is answered with now stays its answer.
        record.is_kept = true;
        if decision == Decision::AlreadyRunning {
            decision = self.wait_for_end(&record, &caller, &server).await;
        }
        let answered = match decision {
            Decision::Reply { reply_id, reply, .. } => match record.journal().reply(&reply) {
                Ok(body) => {
                    self.outbox.repeat(&caller.request, &reply_id, body, form).await;
                    self.running.finish(&caller);
                    "repeated".to_owned()
                }
                Err(error) => {
                    let error = failure::unreadable_answer(&record.tool, &error.to_string());
                    self.refuse_known(&caller, None, form, End::Unknown, &error).await
                }
            },
            Decision::Unknown(start) => {
                let error = failure::outcome_unknown(&start);
                self.refuse_known(&caller, Some(&record), form, End::Unknown, &error).await
            }
            Decision::Poisoned(start) => {
                let error = self.bury(&record, &start).await;
                self.refuse_known(&caller, Some(&record), form, End::Failed, &error).await
            }
            Decision::OtherContent { tool } => {
                let message = format!("the id {} was used for a call of {tool:?} with other arguments", caller.id());
                let error = failure::bus(ErrorCode::IdConflict, message);
                self.refuse_known(&caller, None, form, End::Failed, &error).await
            }
            // It was waited for; it was answered and forgotten in between, or is about to be.
            Decision::AlreadyRunning | Decision::Run { .. } => {
                let error = failure::outcome_unknown(&record.start(1, Replay::Never));
                self.refuse_known(&caller, Some(&record), form, End::Unknown, &error).await
            }
        };
        self.write_down(&caller, &rpc, answered).await;
    }

    async fn refuse_known(
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

    /// The dead letter counts before the caller hears of it.
    pub async fn bury(&self, record: &Record, start: &Start) -> RpcError {
        // It may have been buried by a process that ended before it could say so.
        if record.journal().letter(&record.key.id).is_none_or(|letter| letter.key != record.key) {
            for attempt in 1..start.attempt {
                record.note(format!("attempt {attempt}: the server or the host ended before the call did")).await;
            }
            let began = written_time(start.at);
            record.note(format!("attempt {}, begun {began}: the host ended before the call did", start.attempt)).await;
            if let Err(error) = record.bury(start.attempt).await {
                self.journal_failed(&error);
            }
        }
        failure::poison(&record.tool, start.attempt)
    }

    /// A call that an earlier connection of this process still runs ends soon: its servers are gone.
    async fn wait_for_end(&self, record: &Record, caller: &Caller, server: &Server) -> Decision {
        let end = Instant::now() + LONGEST_WAIT;
        loop {
            let known = record.journal().look_up(&record.key, &record.content);
            let running = match known {
                Ok(Known::Running(start)) => start,
                _ => return self.decide_about(record, caller, server),
            };
            if Instant::now() >= end || caller.cancel.is_fired() {
                return Decision::Unknown(running);
            }
            until(Some(Instant::now() + LOOK_AGAIN_AFTER)).await;
        }
    }

    pub async fn write_down(&self, caller: &Caller, rpc: &Rpc, outcome: String) {
        let Some(audit) = &self.options.audit else { return };
        let who = AuditCaller { who: caller.mailbox().to_owned(), role: caller.role().map(ToOwned::to_owned) };
        let attempt = self.outbox.client().attempt_of(caller.id()).unwrap_or(1);
        let end = CallEnd { outcome, attempt, ..CallEnd::default() };
        let subject = subject_of(caller, rpc);
        if let Err(error) = audit.post(AuditRecord::Call { caller: who, subject, end }).await {
            tracing::error!(%error, "the end of a call could not be written down");
        }
    }

    /// A request that was here before. Its reply is on its way, and goes out again from the journal in case it was lost.
    pub fn repeat(self: &Arc<Self>, request: Arc<InboxMessage>, server: Arc<Server>, rpc: Rpc, form: Form) {
        let Some(journal) = self.options.journal.as_ref().filter(|_| is_journaled(&rpc.method)) else { return };
        let caller = Caller::new(request);
        let record = Record::new(Arc::clone(journal), &caller, &rpc);
        let decision = self.decide_about(&record, &caller, &server);
        if matches!(decision, Decision::Reply { .. } | Decision::OtherContent { .. }) {
            let known = (Box::new(record), decision);
            self.tasks.spawn(Arc::clone(self).settle(caller, server, rpc, form, known));
        }
    }
}
