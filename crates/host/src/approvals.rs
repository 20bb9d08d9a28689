//! Approval of calls whose rule says `ask`. Such a call waits at the host, unacknowledged on the bus, until an approver
//! decides, its deadline passes or its caller cancels it. A decision is durable before it takes effect.

mod admin;
mod listed;
mod store;
mod unique_keys;

pub use admin::is_operator;
pub use store::Approvals;

use crate::calls::{Given, Slot};
use crate::failure;
use crate::host::Host;
use std::sync::Arc;
use store::{Parking, Verdict};
use tokio::time::{Instant, interval};
use toolbus_audit::{Caller as AuditCaller, Record, canonical::canonical, sha256_hex};
use toolbus_base::{Share, now_ms};
use toolbus_call::Millis;
use toolbus_mcp::{Members, MembersError, Raw, Rpc, RpcError, TaskWish, codes, raw};
use toolbus_protocol::ErrorCode;
use unique_keys::has_unique_keys;

/// A call that waits for approval, as approvers see it.
#[derive(Debug, Clone, serde::Serialize)]
pub struct PendingApproval {
    pub id: String,
    /// Hash over server, method, all params and the wish for a task. An approval is valid only for this hash.
    pub hash: String,
    pub server: String,
    pub method: String,
    pub name: String,
    pub arguments: Option<Raw>,
    /// All members of the request's params, as the caller sent them.
    pub params: Option<Raw>,
    /// Set if the call is to run as a task, without its caller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<TaskWish>,
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
        self.params.as_ref().map_or(0, |params| params.get().len())
    }
}

/// Waits for an approver. Returns when the call is approved, or with the refusal.
pub async fn park(host: &Arc<Host>, slot: &Slot, until: Millis) -> Result<(), Given> {
    let pending = Arc::new(pending(host, slot, until)?);
    let approvals = Arc::clone(&host.options.approvals);
    let share = host.share_of(pending.role.as_deref()).unwrap_or(Share::DEFAULT);
    let mut parking = match approvals.park(Arc::clone(&pending), share, &host.options.limits) {
        Ok(Parking::Waits(parked)) => parked,
        Ok(Parking::Decided(verdict)) => return apply_verdict(host, slot, &pending, &verdict).await,
        Err(full) => return Err(failure::bus(ErrorCode::TooManyApprovals, full.to_string()).into()),
    };
    audit_approval(host, slot, "parked", None).await?;
    let verdict = tokio::select! {
        biased;
        verdict = parking.verdict() => verdict,
        never = report_progress_periodically(host, slot, &pending) => match never {},
    };
    // A decided call must not be decided again.
    drop(parking);
    apply_verdict(host, slot, &pending, &verdict).await
}

/// Audits that a call no longer waits for approval.
pub async fn audit_unparked(host: &Host, slot: &Slot, expired: bool) {
    let state = if expired { "expired" } else { "cancelled" };
    if let Err(error) = audit_approval(host, slot, state, None).await {
        tracing::error!(%error, "could not audit the end of a wait for approval");
    }
}

/// Audits the verdict before it takes effect. The call does so itself, which covers verdicts from before a restart.
async fn apply_verdict(host: &Host, slot: &Slot, pending: &PendingApproval, verdict: &Verdict) -> Result<(), Given> {
    let by = AuditCaller { who: verdict.by.clone(), role: verdict.by_role.clone() };
    audit_approval(host, slot, if verdict.approve { "approved" } else { "denied" }, Some(by)).await?;
    if verdict.approve && verdict.hash == pending.hash {
        let used = host.options.approvals.consume(&pending.id).await;
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

/// The id under which approvers see a call: the same for a redelivery after a restart, and unique per caller.
pub fn id_of(slot: &Slot) -> String {
    sha256_hex(format!("{}\0{}", slot.mailbox(), slot.id()).as_bytes())[..16].to_owned()
}

fn pending(host: &Host, slot: &Slot, until: Millis) -> Result<PendingApproval, RpcError> {
    let rpc = &slot.parsed.rpc;
    if rpc.params.as_ref().is_some_and(|params| !has_unique_keys(params.get())) {
        let message = "the call requires approval, but its params contain a duplicate key";
        return Err(failure::bus(ErrorCode::BadArguments, message));
    }
    let unreadable = |error: MembersError| RpcError::invalid_params(format!("Invalid params: {error}"));
    let params = Members::of(rpc.params.as_ref()).map_err(unreadable)?;
    let name = params.text("name").or_else(|| params.text("uri")).unwrap_or_default();
    let arguments = params.get("arguments").map(ToOwned::to_owned);
    let now = now_ms();
    let (server, method) = (slot.server.name().to_owned(), rpc.method.clone());
    let remaining = until.saturating_sub(host.calls.millis(Instant::now()));
    Ok(PendingApproval {
        id: id_of(slot),
        hash: call_hash(rpc),
        server,
        method,
        name,
        arguments,
        params: rpc.params.clone(),
        task: rpc.task,
        caller: slot.mailbox().to_owned(),
        role: slot.role().map(ToOwned::to_owned),
        rule: slot.state().authorised.as_ref().map(|authorised| authorised.why.clone()).unwrap_or_default(),
        since_ms: now,
        until_ms: Some(now.saturating_add(remaining)),
    })
}

/// No member is left out. An approval belongs to one message, whose params are the same in every delivery, so there is nothing
/// that could vary without harm. Members that only this host uses, such as a progress token that it replaces, do no harm.
fn call_hash(rpc: &Rpc) -> String {
    let params = rpc.params.as_ref().map_or("null".into(), |params| canonical(params.get()));
    let (server, method, task) = (raw(&rpc.server), raw(&rpc.method), raw(&rpc.task));
    sha256_hex(format!("[{server},{method},{task},{params}]").as_bytes())
}

async fn report_progress_periodically(host: &Host, slot: &Slot, pending: &PendingApproval) -> std::convert::Infallible {
    let mut ticks = interval(host.options.limits.approval_progress);
    let mut reports = 0;
    loop {
        ticks.tick().await;
        reports += 1;
        report_progress(host, slot, pending, reports).await;
    }
}

async fn report_progress(host: &Host, slot: &Slot, pending: &PendingApproval, reports: u32) {
    let Some(token) = slot.progress_token() else { return };
    let mut params = Members::default();
    params.set("progressToken", token);
    // Small steps, so that the server's own progress, which follows, is not lower.
    params.set("progress", raw(&(f64::from(reports) / 10_000.0)));
    params.set("message", raw(&format!("waiting for approval, id {}", pending.id)));
    host.notify_caller(slot, "notifications/progress".to_owned(), Some(params.into_raw())).await;
}

async fn audit_approval(
    host: &Host,
    slot: &Slot,
    state: &'static str,
    by: Option<AuditCaller>,
) -> Result<(), RpcError> {
    let Some(audit) = &host.options.audit else { return Ok(()) };
    let caller = AuditCaller { who: slot.mailbox().to_owned(), role: slot.role().map(ToOwned::to_owned) };
    let record = Record::Approval { id: id_of(slot), state, by, caller, subject: slot.parsed.subject.clone() };
    audit.write(record).await.map_err(|error| failure::not_audited(&error))
}
