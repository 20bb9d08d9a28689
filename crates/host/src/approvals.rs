//! What happens to a call under `ask`: it waits at the host, unacknowledged on the bus, until somebody who may approve calls
//! has decided, its time is over, or its caller takes it back. A decision is on disk before it counts.

mod admin;
mod listed;
mod store;
mod unique_keys;

pub use admin::is_operator;
pub use store::Approvals;

use crate::caller::{Stage, until};
use crate::calls::{Authorised, Job, Stop};
use crate::failure;
use crate::translate::modern_on_legacy::Repetition;
use serde_json::value::RawValue;
use std::sync::Arc;
use std::time::Duration;
use store::{Parking, Verdict};
use tokio::time::{Instant, interval};
use toolbus_audit::{Caller as AuditCaller, Record, canonical::canonical, sha256_hex};
use toolbus_mcp::{Era, Members, Raw, RpcError, codes, meta, raw};
use toolbus_protocol::ErrorCode;
use unique_keys::has_unique_keys;

/// What is left of a call's time when it is given up.
const LAST_WORD: Duration = Duration::from_millis(100);

/// One call that waits, as those are told who decide.
#[derive(Debug, Clone, serde::Serialize)]
pub struct PendingApproval {
    pub id: String,
    /// Over server, what is called, and the arguments: what is approved is this and nothing else.
    pub hash: String,
    pub server: String,
    pub method: String,
    pub name: String,
    pub arguments: Option<Raw>,
    pub caller: String,
    pub role: Option<String>,
    /// Which rule asks.
    pub rule: String,
    pub since_ms: u64,
    /// When the call's time is over.
    pub until_ms: Option<u64>,
}

impl PendingApproval {
    /// What it takes to remember it.
    fn bytes(&self) -> usize {
        self.name.len() + self.arguments.as_ref().map_or(0, |arguments| arguments.get().len())
    }
}

/// Returns when the call may run.
pub async fn wait_for_approval(job: &mut Job, authorised: &Authorised) -> Result<(), Stop> {
    job.continues = continues_a_held_call(job);
    if job.continues {
        return Ok(());
    }
    let longest = Instant::now() + job.host.options.limits.approval_time;
    // A moment before the caller's patience ends, so that it still hears why.
    let deadline =
        job.caller.cancel.end().map_or(longest, |end| longest.min(end - LAST_WORD.min(end - Instant::now())));
    let pending = Arc::new(pending(job, authorised, deadline)?);
    let host = Arc::clone(&job.host);
    let approvals = Arc::clone(&host.options.approvals);
    let mut parking = match approvals.park(Arc::clone(&pending), &host.options.limits) {
        Ok(Parking::Waits(parked)) => parked,
        Ok(Parking::Decided(verdict)) => return judged(job, &pending, &verdict).await,
        Err(full) => return Err(failure::bus(ErrorCode::TooManyApprovals, full.to_string()).into()),
    };
    write_down(job, &pending, "parked", None).await?;
    job.caller.progress.set_stage(Stage::Approval);
    // Others of the session must not wait until somebody has looked at this one.
    let session = job.session.take().map(|(session, _turn)| session);
    let verdict = tokio::select! {
        biased;
        verdict = parking.verdict() => verdict,
        () = until(Some(deadline)) => {
            write_down(job, &pending, "expired", None).await?;
            let PendingApproval { name, id, .. } = &*pending;
            let message = format!("nobody decided in time about the call of {name:?} (approval {id})");
            return Err(failure::bus(ErrorCode::ApprovalDenied, message).into());
        }
        () = job.caller.cancel.fired() => {
            write_down(job, &pending, "cancelled", None).await?;
            return Err(Stop::Cancelled);
        }
        // It stays in the mailbox, and waits again when the host is back.
        () = host.shutdown.cancelled() => return Err(Stop::HandedOver),
        never = keep_telling(job, &pending) => match never {},
    };
    job.session = session.map(|session| {
        let turn = session.turns.take();
        (session, turn)
    });
    // Nobody decides once more about what is decided.
    drop(parking);
    job.caller.progress.set_stage(Stage::Waiting);
    judged(job, &pending, &verdict).await
}

/// Written down before it counts, and by whoever it counts for: so also where it was made before a restart.
async fn judged(job: &Job, pending: &PendingApproval, verdict: &Verdict) -> Result<(), Stop> {
    let by = AuditCaller { who: verdict.by.clone(), role: verdict.by_role.clone() };
    write_down(job, pending, if verdict.approve { "approved" } else { "denied" }, Some(by)).await?;
    if verdict.approve && verdict.hash == pending.hash {
        let used = job.host.options.approvals.use_up(&pending.id).await;
        return used.map_err(|error| {
            let message = format!("the approval {} could not be marked as used: {error}", pending.id);
            RpcError::new(codes::INTERNAL_ERROR, message).into()
        });
    }
    let message = match verdict.approve {
        true => format!("the approval {} was given to other arguments", pending.id),
        false => format!("{} decided against the call of {:?} (approval {})", verdict.by, pending.name, pending.id),
    };
    Err(failure::bus(ErrorCode::ApprovalDenied, message).into())
}

/// What a client answers to a call that runs already was approved with the call. Only modern clients answer by a repetition.
fn continues_a_held_call(job: &Job) -> bool {
    if job.rpc.client.era != Era::Modern {
        return false;
    }
    let repetition = Repetition::of(job.rpc.params.as_deref()).ok().flatten();
    repetition.is_some_and(|repetition| job.host.held.knows(&job.identity(), &repetition.state))
}

fn pending(job: &Job, authorised: &Authorised, deadline: Instant) -> Result<PendingApproval, Stop> {
    let params = Members::of(job.rpc.params.as_deref()).map_err(crate::calls::bad_params)?;
    let name = params.text("name").or_else(|| params.text("uri")).unwrap_or_default();
    let arguments = params.get("arguments").map(ToOwned::to_owned);
    if arguments.as_ref().is_some_and(|arguments| !has_unique_keys(arguments.get())) {
        let message = format!("the call of {name:?} has to be approved, and its arguments have a key twice");
        return Err(failure::bus(ErrorCode::BadArguments, message).into());
    }
    let now = jiff::Timestamp::now().as_millisecond().max(0) as u64;
    let (server, method) = (job.server.name().to_owned(), job.rpc.method.clone());
    Ok(PendingApproval {
        // The same when the request comes again after a restart, and nobody else's.
        id: sha256_hex(format!("{}\0{}", job.caller.mailbox(), job.caller.id()).as_bytes())[..16].to_owned(),
        hash: call_hash(&server, &method, &name, arguments.as_deref()),
        server,
        method,
        name,
        arguments,
        caller: job.caller.mailbox().to_owned(),
        role: job.caller.role().map(ToOwned::to_owned),
        rule: authorised.why.clone(),
        since_ms: now,
        until_ms: Some(now + deadline.saturating_duration_since(Instant::now()).as_millis() as u64),
    })
}

fn call_hash(server: &str, method: &str, name: &str, arguments: Option<&RawValue>) -> String {
    let arguments = arguments.map_or("".into(), canonical);
    let parts = [server, method, name].map(|part| raw(part).get().to_owned());
    sha256_hex(format!("[{},{arguments}]", parts.join(",")).as_bytes())
}

async fn keep_telling(job: &Job, pending: &PendingApproval) -> std::convert::Infallible {
    let mut ticks = interval(job.host.options.limits.approval_progress);
    let mut told = 0;
    loop {
        ticks.tick().await;
        told += 1;
        tell(job, pending, told).await;
    }
}

async fn tell(job: &Job, pending: &PendingApproval, told: u32) {
    let Some(token) = meta::get(job.rpc.params.as_deref(), meta::PROGRESS_TOKEN) else { return };
    let mut params = Members::default();
    params.set("progressToken", token);
    // Small steps, so that the server's own progress is not behind when it comes.
    params.set("progress", raw(&(f64::from(told) / 10_000.0)));
    params.set("message", raw(&format!("waits for approval, id {}", pending.id)));
    job.tell("notifications/progress".to_owned(), Some(params.to_raw())).await;
}

async fn write_down(
    job: &Job,
    pending: &PendingApproval,
    state: &'static str,
    by: Option<AuditCaller>,
) -> Result<(), Stop> {
    let Some(audit) = &job.host.options.audit else { return Ok(()) };
    let record = Record::Approval {
        id: pending.id.clone(),
        state,
        by,
        caller: AuditCaller { who: pending.caller.clone(), role: pending.role.clone() },
        subject: job.audit_subject(),
    };
    audit.write(record).await.map_err(|error| failure::not_written(&error).into())
}
