//! A request that waits for its reply: its caller, cancellation, deadline and progress.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use toolbus_mcp::Raw;
use toolbus_protocol::{InboxMessage, MsgId, principal_of};

/// The cancellation of a call.
#[derive(Debug, Default)]
pub struct Cancel {
    token: CancellationToken,
    reason: OnceLock<String>,
    cause: OnceLock<Cause>,
    /// The caller's deadline. The caller may be gone by then, so no cancel need arrive.
    deadline: Mutex<Option<Instant>>,
    /// The policy's time limit and its name. The caller still waits, so it gets an error.
    limit: OnceLock<(Instant, String)>,
}

/// Why a call was cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// Its caller cancelled it.
    Caller,
    /// The caller stayed disconnected.
    CallerGone,
    /// Cancelled through the admin API. The caller still waits, so it gets an error.
    Admin,
}

impl Cancel {
    pub fn fire(&self, reason: Option<String>) {
        self.fire_for(Cause::Caller, reason);
    }

    /// The first cause and the first reason win.
    pub fn fire_for(&self, cause: Cause, reason: Option<String>) {
        self.cause.set(cause).ok();
        if let Some(reason) = reason {
            self.reason.set(reason).ok();
        }
        self.token.cancel();
    }

    /// Sets the deadline or extends it. A redelivery carries the same deadline; a joined call may bring a later one.
    pub fn expire_at(&self, deadline: Instant) {
        let mut present = self.deadline();
        *present = Some(present.map_or(deadline, |present| present.max(deadline)));
    }

    /// Extends the deadline to that of another call, if that is later.
    pub fn extend_to(&self, other: &Self) {
        let deadline = *other.deadline();
        match deadline {
            Some(deadline) if self.deadline().is_some() => self.expire_at(deadline),
            Some(_) => {}
            None => *self.deadline() = None,
        }
    }

    pub fn set_limit(&self, deadline: Instant, which: String) {
        // Set once per call.
        self.limit.set((deadline, which)).ok();
    }

    pub async fn fired(&self) {
        // The deadline may have been extended meanwhile.
        while !self.is_fired() {
            tokio::select! {
                () = self.token.cancelled() => {}
                () = until(self.end()) => {}
            }
        }
    }

    pub fn is_fired(&self) -> bool {
        self.token.is_cancelled() || self.end().is_some_and(|end| end <= Instant::now())
    }

    /// The earlier of deadline and limit.
    pub fn end(&self) -> Option<Instant> {
        let limit = self.limit.get().map(|(deadline, _)| *deadline);
        self.deadline().into_iter().chain(limit).min()
    }

    /// The limit, if it ended the call.
    pub fn passed_limit(&self) -> Option<&str> {
        let (deadline, which) = self.limit.get()?;
        (!self.token.is_cancelled() && *deadline <= Instant::now()).then_some(which)
    }

    /// Whether the caller's own deadline ended the call.
    pub fn passed_deadline(&self) -> bool {
        !self.token.is_cancelled() && self.deadline().is_some_and(|deadline| deadline <= Instant::now())
    }

    pub fn caller_is_gone(&self) -> bool {
        self.is_fired_for(Cause::CallerGone)
    }

    pub fn is_fired_for(&self, cause: Cause) -> bool {
        self.token.is_cancelled() && self.cause.get() == Some(&cause)
    }

    pub fn reason(&self) -> Option<&str> {
        self.reason.get().map(String::as_str)
    }

    fn deadline(&self) -> MutexGuard<'_, Option<Instant>> {
        self.deadline.lock().expect("no code panics while it holds this lock")
    }
}

/// A worker's request that waits for its reply.
#[derive(Debug, Clone)]
pub struct Caller {
    pub request: Arc<InboxMessage>,
    pub cancel: Arc<Cancel>,
    pub progress: Arc<CallProgress>,
}

/// The state of a call that others can see.
#[derive(Debug)]
pub struct CallProgress {
    pub arrived: Instant,
    pub description: OnceLock<CallDescription>,
    stage: Mutex<Stage>,
    /// Calls that will get this call's answer.
    joiners: Mutex<Vec<Joiner>>,
    /// The call whose answer this one waits for.
    joined_to: Mutex<Option<Caller>>,
    /// Cancelled when the call is removed from the running calls.
    pub ended: CancellationToken,
}

/// What a call is about.
#[derive(Debug, Clone)]
pub struct CallDescription {
    pub server: String,
    /// The tool as the caller named it, or the method.
    pub tool: String,
    /// Hash of server, method and params; only for calls that others may join.
    pub content: Option<[u8; 32]>,
    pub is_task: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// For its session order, a permit, or its server.
    Waiting,
    /// For approval.
    Approval,
    /// Sent to the server.
    Running,
    /// Waiting for an earlier call's answer.
    Joined,
}

/// A call that joined another one, and the token of its client's progress.
#[derive(Debug, Clone)]
pub struct Joiner {
    pub mailbox: String,
    pub id: MsgId,
    pub progress_token: Option<Raw>,
}

impl CallProgress {
    fn new() -> Self {
        Self {
            arrived: Instant::now(),
            description: OnceLock::new(),
            stage: Mutex::new(Stage::Waiting),
            joiners: Mutex::default(),
            joined_to: Mutex::default(),
            ended: CancellationToken::new(),
        }
    }

    pub fn description(&self) -> Option<&CallDescription> {
        self.description.get()
    }

    pub fn stage(&self) -> Stage {
        *self.stage.lock().expect("no code panics while it holds this lock")
    }

    pub fn set_stage(&self, stage: Stage) {
        *self.stage.lock().expect("no code panics while it holds this lock") = stage;
    }

    pub fn joiners(&self) -> Vec<Joiner> {
        self.lock_joiners().clone()
    }

    pub fn add_joiner(&self, joiner: Joiner) {
        self.lock_joiners().push(joiner);
    }

    pub fn joined_to(&self) -> Option<Caller> {
        self.joined_to.lock().expect("no code panics while it holds this lock").clone()
    }

    pub fn set_joined_to(&self, other: Option<Caller>) {
        *self.joined_to.lock().expect("no code panics while it holds this lock") = other;
    }

    pub fn remove_joiner(&self, id: &MsgId) {
        self.lock_joiners().retain(|joiner| joiner.id != *id);
    }

    fn lock_joiners(&self) -> MutexGuard<'_, Vec<Joiner>> {
        self.joiners.lock().expect("no code panics while it holds this lock")
    }
}

impl Caller {
    pub fn new(request: Arc<InboxMessage>) -> Self {
        Self { request, cancel: Arc::default(), progress: Arc::new(CallProgress::new()) }
    }

    pub fn mailbox(&self) -> &str {
        &self.request.from.session_id
    }

    pub fn agent(&self) -> &str {
        principal_of(self.mailbox())
    }

    pub fn role(&self) -> Option<&str> {
        self.request.from.role.as_deref()
    }

    pub fn id(&self) -> &MsgId {
        &self.request.id
    }
}

pub async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn a_call_is_cancelled_at_its_deadline() {
        let cancel = Arc::new(Cancel::default());
        cancel.expire_at(Instant::now() + Duration::from_secs(60));
        assert!(!cancel.is_fired());
        cancel.fired().await;
        assert!(cancel.is_fired());
    }

    #[tokio::test(start_paused = true)]
    async fn a_joined_call_extends_the_deadline() {
        let cancel = Arc::new(Cancel::default());
        let now = Instant::now();
        cancel.expire_at(now + Duration::from_secs(60));
        let waiting = tokio::spawn({
            let cancel = Arc::clone(&cancel);
            async move { cancel.fired().await }
        });
        tokio::task::yield_now().await;
        cancel.expire_at(now + Duration::from_secs(90));
        waiting.await.expect("no panic");
        assert_eq!(now.elapsed(), Duration::from_secs(90));
        assert!(cancel.passed_deadline());
    }
}
