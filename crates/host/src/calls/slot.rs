//! What the host keeps for a call of the machine: the request, and the effects that its task has to carry out.

use super::answers::Given;
use super::authorise::Authorised;
use super::parsed::ParsedCall;
use crate::outbox::Form;
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
    pub request: Arc<InboxMessage>,
    pub parsed: ParsedCall,
    pub server: Arc<Server>,
    pub form: Form,
    pub received_at: Instant,
    /// Cancelled when the call is over.
    pub ended: CancellationToken,
    /// The effects of the machine for this call, in order. Few at a time: the machine waits for the answer to most.
    effects: Mutex<VecDeque<Effect<Given>>>,
    wake: Notify,
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
    /// How the call ended, for the audit log: a word and the size of the result.
    pub outcome: Option<(String, usize)>,
    pub operator: Option<oneshot::Sender<Result<TaskView, RpcError>>>,
}

impl Slot {
    pub fn new(no: CallNo, new: NewCall) -> Arc<Self> {
        let NewCall { request, parsed, server, form, operator } = new;
        Arc::new(Self {
            no,
            request,
            parsed,
            server,
            form,
            received_at: Instant::now(),
            ended: CancellationToken::new(),
            effects: Mutex::default(),
            wake: Notify::new(),
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
        key_of(&self.request)
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

    /// Adds an effect for the task of the call.
    pub fn push(&self, effect: Effect<Given>) {
        self.effects.lock().expect("no code panics while it holds this lock").push_back(effect);
        self.wake.notify_one();
    }

    /// The next effect. Cancellation-safe.
    pub async fn next_effect(&self) -> Effect<Given> {
        loop {
            let next = self.effects.lock().expect("no code panics while it holds this lock").pop_front();
            match next {
                Some(effect) => return effect,
                None => self.wake.notified().await,
            }
        }
    }
}

pub fn key_of(request: &InboxMessage) -> CallKey {
    CallKey { caller: (&*request.from.session_id).into(), id: request.id.as_str().into() }
}
