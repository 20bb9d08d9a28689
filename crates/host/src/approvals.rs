//! Approval of calls whose rule says `ask`. Such a call waits at the host, unacknowledged on the bus, until an approver
//! decides, its deadline passes or its caller cancels it. A decision is durable before it takes effect.

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

/// Time left for the reply when a call is given up before its deadline.
const REPLY_MARGIN: Duration = Duration::from_millis(100);

/// A call that waits for approval, as approvers see it.
#[derive(Debug, Clone, serde::Serialize)]
pub struct PendingApproval {
    pub id: String,
    /// Hash over server, method, name and arguments. An approval is valid only for this hash.
    pub hash: String,
    pub server: String,
    pub method: String,
    pub name: String,
    pub arguments: Option<Raw>,
    pub caller: String,
    pub role: Option<String>,
    /// The rule that requires the approval.
    pub rule: String,
    pub since_ms: u64,
    /// When the call expires.
    pub until_ms: Option<u64>,
}

impl PendingApproval {
    /// Size for the limits in bytes.
    fn bytes(&self) -> usize {
        self.name.len() + self.arguments.as_ref().map_or(0, |arguments| arguments.get().len())
    }
}

/// Returns when the call is approved.
pub async fn wait_for_approval(job: &mut Job, authorised: &Authorised) -> Result<(), Stop> {
    job.continues = continues_pending_call(job);
    if job.continues {
        return Ok(());
    }
    let longest = Instant::now() + job.host.options.limits.approval_time;
    // Shortly before the caller's deadline, so that the caller still gets the reason.
    let deadline =
        job.caller.cancel.end().map_or(longest, |end| longest.min(end - REPLY_MARGIN.min(end - Instant::now())));
    let pending = Arc::new(pending(job, authorised, deadline)?);
    let host = Arc::clone(&job.host);
    let approvals = Arc::clone(&host.options.approvals);
    let mut parking = match approvals.park(Arc::clone(&pending), &host.options.limits) {
        Ok(Parking::Waits(parked)) => parked,
        Ok(Parking::Decided(verdict)) => return apply_verdict(job, &pending, &verdict).await,
        Err(full) => return Err(failure::bus(ErrorCode::TooManyApprovals, full.to_string()).into()),
    };
    audit_approval(job, &pending, "parked", None).await?;
    job.caller.progress.set_stage(Stage::Approval);
    // Later requests of the session must not wait for the approval.
    let session = job.session.take().map(|(session, _ticket)| session);
    let verdict = tokio::select! {
        biased;
        verdict = parking.verdict() => verdict,
        () = until(Some(deadline)) => {
            audit_approval(job, &pending, "expired", None).await?;
            let PendingApproval { name, id, .. } = &*pending;
            let message = format!("the call of {name:?} was not approved in time (approval {id})");
            return Err(failure::bus(ErrorCode::ApprovalDenied, message).into());
        }
        () = job.caller.cancel.fired() => {
            audit_approval(job, &pending, "cancelled", None).await?;
            return Err(Stop::Cancelled);
        }
        // The request stays in the mailbox, and waits again when the host is back.
        () = host.draining.cancelled() => return Err(Stop::HandedOver),
        never = report_progress_periodically(job, &pending) => match never {},
    };
    job.session = session.map(|session| {
        let ticket = session.order.take_ticket();
        (session, ticket)
    });
    // A decided call must not be decided again.
    drop(parking);
    job.caller.progress.set_stage(Stage::Waiting);
    apply_verdict(job, &pending, &verdict).await
}

/// Audits the verdict before it takes effect. The call does so itself, which covers verdicts from before a restart.
async fn apply_verdict(job: &Job, pending: &PendingApproval, verdict: &Verdict) -> Result<(), Stop> {
    let by = AuditCaller { who: verdict.by.clone(), role: verdict.by_role.clone() };
    audit_approval(job, pending, if verdict.approve { "approved" } else { "denied" }, Some(by)).await?;
    if verdict.approve && verdict.hash == pending.hash {
        let used = job.host.options.approvals.consume(&pending.id).await;
        return used.map_err(|error| {
            let message = format!("the approval {} could not be marked as used: {error}", pending.id);
            RpcError::new(codes::INTERNAL_ERROR, message).into()
        });
    }
    let message = match verdict.approve {
        true => format!("the approval {} was given for other arguments", pending.id),
        false => format!("{} denied the call of {:?} (approval {})", verdict.by, pending.name, pending.id),
    };
    Err(failure::bus(ErrorCode::ApprovalDenied, message).into())
}

/// Whether the request answers a server's request of a pending call, which was approved with that call. Only modern
/// clients answer by repeating the request.
fn continues_pending_call(job: &Job) -> bool {
    if job.rpc.client.era != Era::Modern {
        return false;
    }
    let repetition = Repetition::of(job.rpc.params.as_deref()).ok().flatten();
    repetition.is_some_and(|repetition| job.host.pending_calls.knows(&job.identity(), &repetition.state))
}

fn pending(job: &Job, authorised: &Authorised, deadline: Instant) -> Result<PendingApproval, Stop> {
    let params = Members::of(job.rpc.params.as_deref()).map_err(crate::calls::bad_params)?;
    let name = params.text("name").or_else(|| params.text("uri")).unwrap_or_default();
    let arguments = params.get("arguments").map(ToOwned::to_owned);
    if arguments.as_ref().is_some_and(|arguments| !has_unique_keys(arguments.get())) {
        let message = format!("the call of {name:?} requires approval, but its arguments contain a duplicate key");
        return Err(failure::bus(ErrorCode::BadArguments, message).into());
    }
    let now = jiff::Timestamp::now().as_millisecond().max(0) as u64;
    let (server, method) = (job.server.name().to_owned(), job.rpc.method.clone());
    Ok(PendingApproval {
        // The same for a redelivery after a restart, and unique per caller.
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

async fn report_progress_periodically(job: &Job, pending: &PendingApproval) -> std::convert::Infallible {
    let mut ticks = interval(job.host.options.limits.approval_progress);
    let mut reports = 0;
    loop {
        ticks.tick().await;
        reports += 1;
        report_progress(job, pending, reports).await;
    }
}

async fn report_progress(job: &Job, pending: &PendingApproval, reports: u32) {
    let Some(token) = meta::get(job.rpc.params.as_deref(), meta::PROGRESS_TOKEN) else { return };
    let mut params = Members::default();
    params.set("progressToken", token);
    // Small steps, so that the server's own progress, which follows, is not lower.
    params.set("progress", raw(&(f64::from(reports) / 10_000.0)));
    params.set("message", raw(&format!("waiting for approval, id {}", pending.id)));
    job.notify_caller("notifications/progress".to_owned(), Some(params.to_raw())).await;
}

async fn audit_approval(
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
    audit.write(record).await.map_err(|error| failure::not_audited(&error).into())
}
