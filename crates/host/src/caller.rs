//! A request that waits for its reply: who waits for it, how it is called off, when its time is up, and what others may know
//! of it meanwhile.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use toolbus_mcp::Raw;
use toolbus_protocol::{InboxMessage, MsgId, principal_of};

/// The wish to call a call off.
#[derive(Debug, Default)]
pub struct Cancel {
    token: CancellationToken,
    reason: OnceLock<String>,
    cause: OnceLock<Cause>,
    /// When the caller's patience ends: nobody waits for the call any more, and nobody may be there to say so.
    deadline: Mutex<Option<Instant>>,
    /// When the policy's patience ends, and which limit it is: the caller waits on and is to be told.
    limit: OnceLock<(Instant, String)>,
}

/// Who called a call off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    Caller,
    /// Nobody did, but nobody is there any more to wait for it.
    CallerGone,
    /// Somebody who looks after calls: the caller waits on and is to be told.
    Admin,
}

impl Cancel {
    pub fn fire(&self, reason: Option<String>) {
        self.fire_for(Cause::Caller, reason);
    }

    /// Only the first cause counts, and the first reason.
    pub fn fire_for(&self, cause: Cause, reason: Option<String>) {
        self.cause.set(cause).ok();
        if let Some(reason) = reason {
            self.reason.set(reason).ok();
        }
        self.token.cancel();
    }

    /// A call has one deadline; a second push of it brings the same. Whoever is joined to it may have more patience.
    pub fn expire_at(&self, deadline: Instant) {
        let mut present = self.deadline();
        *present = Some(present.map_or(deadline, |present| present.max(deadline)));
    }

    /// Puts the end off until the other's, where that is later.
    pub fn last_as_long_as(&self, other: &Self) {
        let deadline = *other.deadline();
        match deadline {
            Some(deadline) if self.deadline().is_some() => self.expire_at(deadline),
            Some(_) => {}
            None => *self.deadline() = None,
        }
    }

    pub fn limit(&self, deadline: Instant, which: String) {
        // A call is held to its limits once.
        self.limit.set((deadline, which)).ok();
    }

    pub async fn fired(&self) {
        // The end may have been put off meanwhile.
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

    /// When the call ends by itself.
    pub fn end(&self) -> Option<Instant> {
        let limit = self.limit.get().map(|(deadline, _)| *deadline);
        self.deadline().into_iter().chain(limit).min()
    }

    /// The limit, if it is what ended the call.
    pub fn passed_limit(&self) -> Option<&str> {
        let (deadline, which) = self.limit.get()?;
        (!self.token.is_cancelled() && *deadline <= Instant::now()).then_some(which)
    }

    /// Whether the caller's own deadline is what ended the call.
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
        self.deadline.lock().expect("nothing panics while it holds this lock")
    }
}

/// A worker's request that waits for its reply.
#[derive(Debug, Clone)]
pub struct Caller {
    pub request: Arc<InboxMessage>,
    pub cancel: Arc<Cancel>,
    pub progress: Arc<CallProgress>,
}

/// What others may know of a call while it is here.
#[derive(Debug)]
pub struct CallProgress {
    pub arrived: Instant,
    pub about: OnceLock<About>,
    stage: Mutex<Stage>,
    /// Those who are answered with what this call is answered with.
    joiners: Mutex<Vec<Joiner>>,
    /// The call whose answer this one waits for.
    joined_to: Mutex<Option<Caller>>,
    /// Fires when it has been answered, or is somebody else's by now.
    pub ended: CancellationToken,
}

/// What a call is.
#[derive(Debug, Clone)]
pub struct About {
    pub server: String,
    /// The tool as the caller named it, or the method.
    pub tool: String,
    /// Of server, method and params; only for calls that others may be joined to.
    pub content: Option<[u8; 32]>,
    pub is_task: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// For its turn, its place, or its server.
    Waiting,
    /// For somebody to approve it.
    Approval,
    /// The server has it.
    Running,
    /// It is answered with what an earlier call is answered with.
    Joined,
}

/// A call that was joined to another, and how its client recognises its progress.
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
            about: OnceLock::new(),
            stage: Mutex::new(Stage::Waiting),
            joiners: Mutex::default(),
            joined_to: Mutex::default(),
            ended: CancellationToken::new(),
        }
    }

    pub fn about(&self) -> Option<&About> {
        self.about.get()
    }

    pub fn stage(&self) -> Stage {
        *self.stage.lock().expect("nothing panics while it holds this lock")
    }

    pub fn set_stage(&self, stage: Stage) {
        *self.stage.lock().expect("nothing panics while it holds this lock") = stage;
    }

    pub fn joiners(&self) -> Vec<Joiner> {
        self.lock_joiners().clone()
    }

    pub fn add_joiner(&self, joiner: Joiner) {
        self.lock_joiners().push(joiner);
    }

    pub fn joined_to(&self) -> Option<Caller> {
        self.joined_to.lock().expect("nothing panics while it holds this lock").clone()
    }

    pub fn set_joined_to(&self, other: Option<Caller>) {
        *self.joined_to.lock().expect("nothing panics while it holds this lock") = other;
    }

    pub fn remove_joiner(&self, id: &MsgId) {
        self.lock_joiners().retain(|joiner| joiner.id != *id);
    }

    fn lock_joiners(&self) -> MutexGuard<'_, Vec<Joiner>> {
        self.joiners.lock().expect("nothing panics while it holds this lock")
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
    async fn a_call_ends_with_its_callers_patience() {
        let cancel = Arc::new(Cancel::default());
        cancel.expire_at(Instant::now() + Duration::from_secs(60));
        assert!(!cancel.is_fired());
        cancel.fired().await;
        assert!(cancel.is_fired());
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_is_joined_to_a_call_lends_it_patience() {
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
