//! What the host keeps for a call of the machine: the request, and the effects that its task has to carry out.

use super::answers::Given;
use super::authorise::Authorised;
use super::parsed::ParsedCall;
use crate::outbox::Form;
use crate::pins::ListedTools;
use crate::server::Server;
use crate::session::SessionId;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use toolbus_call::{CallNo, Effect};
use toolbus_journal::CallKey;
use toolbus_mcp::{Era, Raw, RpcError, TaskView, meta};
use toolbus_protocol::{InboxMessage, MsgId, principal_of};
use toolbus_upstream::Caller;

/// Maximum effects that wait for the task of a call. The machine waits for the answer to most of them, so there are few
/// unless the task is stuck; the call then ends as after a panic.
const MAX_EFFECTS: usize = 16;

/// A request that is about to become a call.
pub struct NewCall {
    pub request: Arc<InboxMessage>,
    pub parsed: ParsedCall,
    pub server: Arc<Server>,
    pub form: Form,
    /// Gets the acceptance of a task that an operator started.
    pub operator: Option<oneshot::Sender<Result<TaskView, RpcError>>>,
}

/// A call of the machine at this host.
pub struct Slot {
    pub no: CallNo,
    key: CallKey,
    pub request: Arc<InboxMessage>,
    pub parsed: ParsedCall,
    pub server: Arc<Server>,
    pub form: Form,
    /// Whether the catalog was to answer it when it arrived.
    pub is_for_catalog: bool,
    pub received_at: Instant,
    /// Cancelled when the call is over.
    pub ended: CancellationToken,
    pub effects: EffectQueue,
    state: Mutex<SlotState>,
}

/// What the host finds out about a call while it is in progress.
#[derive(Default)]
pub struct SlotState {
    /// The last authorisation.
    pub authorised: Option<Arc<Authorised>>,
    /// The reply as it was journaled.
    pub reply: Option<InboxMessage>,
    /// When the request was sent to its server.
    pub started_at: Option<Instant>,
    /// The era used with the server.
    pub era: Option<Era>,
    /// The tools that its connection lists, if it calls one.
    pub listed: Option<Arc<ListedTools>>,
    /// How the call ended, for the audit log: a word and the size of the result.
    pub outcome: Option<(String, usize)>,
    pub operator: Option<oneshot::Sender<Result<TaskView, RpcError>>>,
    pub deferred: Deferred,
}

/// Whether the audit of an allowed call waits until its connection says whether it has the tool. A flood of calls of
/// invented names would otherwise write a line for each.
#[derive(Default)]
pub enum Deferred {
    #[default]
    No,
    /// With the decision to be audited.
    Until(Arc<Authorised>),
    /// The tool is not listed: the refusal was audited, and the call did not run.
    Refused,
}

impl Slot {
    pub fn new(no: CallNo, new: NewCall) -> Arc<Self> {
        let is_for_catalog = new.is_for_catalog();
        let NewCall { request, parsed, server, form, operator } = new;
        Arc::new(Self {
            is_for_catalog,
            no,
            key: key_of(&request),
            request,
            parsed,
            server,
            form,
            received_at: Instant::now(),
            ended: CancellationToken::new(),
            effects: EffectQueue::default(),
            state: Mutex::new(SlotState { operator, ..SlotState::default() }),
        })
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

    pub fn caller(&self) -> Caller<'_> {
        Caller { mailbox: self.mailbox(), role: self.role(), request: self.id().as_str() }
    }

    pub fn id(&self) -> &MsgId {
        &self.request.id
    }

    pub fn key(&self) -> CallKey {
        self.key.clone()
    }

    pub fn is_task(&self) -> bool {
        self.parsed.rpc.task.is_some()
    }

    pub fn session_id(&self) -> SessionId {
        SessionId { mailbox: self.mailbox().to_owned(), key: self.parsed.rpc.session.clone() }
    }

    pub fn progress_token(&self) -> Option<Raw> {
        meta::get(self.parsed.rpc.params.as_ref(), meta::PROGRESS_TOKEN)
    }

    pub fn state(&self) -> MutexGuard<'_, SlotState> {
        self.state.lock().expect("no code panics while it holds this lock")
    }
}

/// The effects of the machine for one call, in order.
#[derive(Default)]
pub struct EffectQueue {
    effects: Mutex<VecDeque<Effect<Given>>>,
    wake: Notify,
}

impl EffectQueue {
    /// Adds an effect. Returns false if [`MAX_EFFECTS`] wait already: all are dropped, and the machine has to end the call.
    pub fn push(&self, effect: Effect<Given>) -> bool {
        let mut effects = self.effects.lock().expect("no code panics while it holds this lock");
        if effects.iter().any(|waiting| is_same(waiting, &effect)) {
            return true;
        }
        let is_full = effects.len() >= MAX_EFFECTS;
        if is_full {
            effects.clear();
        }
        // Without it, the task of the call would not end.
        if !is_full || matches!(effect, Effect::Ended { .. }) {
            effects.push_back(effect);
            self.wake.notify_one();
        }
        !is_full
    }

    /// The next effect. Cancellation-safe.
    pub async fn next(&self) -> Effect<Given> {
        loop {
            let next = self.effects.lock().expect("no code panics while it holds this lock").pop_front();
            match next {
                Some(effect) => return effect,
                None => self.wake.notified().await,
            }
        }
    }
}

/// Whether both are one of the effects that the machine repeats without an answer, after each change of the rules and for
/// each delivery of a task: carried out once, they have the same result.
fn is_same(one: &Effect<Given>, other: &Effect<Given>) -> bool {
    match (one, other) {
        (Effect::Authorise { again, .. }, Effect::Authorise { again: other, .. }) => *again && *other,
        (Effect::Accepted { .. }, Effect::Accepted { .. }) => true,
        _ => false,
    }
}

pub fn key_of(request: &InboxMessage) -> CallKey {
    CallKey { caller: (&*request.from.session_id).into(), id: request.id.as_str().into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALL: CallNo = CallNo(1);

    #[tokio::test]
    async fn a_repeated_effect_that_waits_already_is_dropped() {
        let queue = EffectQueue::default();
        for _ in 0..MAX_EFFECTS {
            assert!(queue.push(Effect::Authorise { call: CALL, again: true }));
            assert!(queue.push(Effect::Accepted { call: CALL }));
        }
        assert!(matches!(queue.next().await, Effect::Authorise { again: true, .. }));
        assert!(matches!(queue.next().await, Effect::Accepted { .. }));
        assert!(queue.push(Effect::Send { call: CALL }));
        assert!(matches!(queue.next().await, Effect::Send { .. }));
    }

    #[tokio::test]
    async fn a_full_queue_drops_its_effects_and_keeps_only_the_end_of_the_call() {
        let full = || {
            let queue = EffectQueue::default();
            assert!((0..MAX_EFFECTS).all(|_| queue.push(Effect::Send { call: CALL })));
            queue
        };
        let queue = full();
        assert!(!queue.push(Effect::Send { call: CALL }));
        assert!(queue.push(Effect::Abort { call: CALL }));
        assert!(matches!(queue.next().await, Effect::Abort { .. }));
        let queue = full();
        assert!(!queue.push(Effect::Ended { call: CALL, left: false }));
        assert!(matches!(queue.next().await, Effect::Ended { .. }));
    }
}
