//! The calls of a host, across connections: running, answered without a receipt yet, and settled. A redelivered request
//! is recognised here and does not run again.

use crate::executor::{ToolExecutionContext, ToolExecutor};
use crate::host::McpProxyHostOptions;
use crate::tool::{FunctionCall, ToolCall};
use crate::wire::{McpReply, McpRequest};
use futures_util::FutureExt;
use std::collections::{HashMap, HashSet, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use tokio::sync::Semaphore;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, timeout, timeout_at};
use toolbus_client::{AgentRef, Body, InboxKind, InboxMessage, MsgId};

/// Remembered ids of settled calls, and of calls that were cancelled before they arrived. The broker redelivers at most
/// one window of messages, which is a fraction of this.
const REMEMBERED_IDS: usize = 32 << 10;

pub struct Calls {
    me: AgentRef,
    backend: Arc<dyn ToolExecutor>,
    options: McpProxyHostOptions,
    permits: Arc<Semaphore>,
    open: HashMap<MsgId, Call>,
    tasks: JoinSet<Finished>,
    settled: RecentIds,
    cancelled_early: RecentIds,
}

enum Call {
    Running(AbortHandle),
    Answered(Arc<PendingReply>),
}

/// A reply without a receipt yet. It keeps its id when it is sent again, so that the broker can deduplicate it.
pub struct PendingReply {
    pub request: InboxMessage,
    pub reply: InboxMessage,
    /// True for the error that replaces a reply which the broker rejected.
    is_replacement: bool,
}

/// An action on the connection.
pub enum Action {
    None,
    Acknowledge(MsgId),
    Send(Arc<PendingReply>),
}

struct Finished {
    request: InboxMessage,
    outcome: Outcome,
}

enum Outcome {
    Reply(McpReply),
    /// The deadline of the request passed.
    Expired,
}

impl Calls {
    pub fn new(me: AgentRef, backend: Arc<dyn ToolExecutor>, options: McpProxyHostOptions) -> Self {
        let permits = Arc::new(Semaphore::new(options.max_concurrent_calls));
        Self {
            me,
            backend,
            options,
            permits,
            open: HashMap::new(),
            tasks: JoinSet::new(),
            settled: RecentIds::default(),
            cancelled_early: RecentIds::default(),
        }
    }

    /// Whether another request may be taken from the mailbox (backpressure).
    pub fn has_room(&self) -> bool {
        self.open.len() < self.options.max_concurrent_calls + self.options.max_waiting_calls
    }

    pub fn admit(&mut self, request: InboxMessage, deadline: Option<Instant>) -> Action {
        let id = request.id.clone();
        if request.kind != InboxKind::McpRequest || self.settled.contains(&id) {
            return Action::Acknowledge(id);
        }
        if self.cancelled_early.remove(&id) {
            self.settled.insert(id.clone());
            return Action::Acknowledge(id);
        }
        if self.open.contains_key(&id) {
            // Redelivered: the call is running, or its reply is being sent.
            return Action::None;
        }
        let role = request.from.role.as_deref();
        match request.body.to::<McpRequest>() {
            Ok(McpRequest::Manifest) => {
                let tools = self.options.allowlist.visible(role, self.backend.list_tools());
                self.answer(request, McpReply::manifest(tools))
            }
            Ok(McpRequest::Call { tool, .. }) if !self.options.allowlist.allows(role, &tool) => {
                let role = role.unwrap_or("<none>");
                tracing::warn!(role, tool, caller = &*request.from.session_id, "tool call denied");
                let denial = McpReply::error(format!("tool '{tool}' is not allowed for role '{role}'"));
                self.answer(request, denial)
            }
            Ok(McpRequest::Call { tool, arguments }) => {
                self.start(request, FunctionCall { name: tool, arguments }, deadline);
                Action::None
            }
            Err(error) => self.answer(request, McpReply::error(format!("bad mcp request: {error}"))),
        }
    }

    /// Resolves when a call ends. Pending while none is running.
    pub async fn finished(&mut self) -> Action {
        loop {
            match self.tasks.join_next().await {
                // An aborted call was settled when it was cancelled, even if it completed at the same time.
                Some(Err(_)) => {}
                Some(Ok(Finished { request, .. })) if !self.open.contains_key(&request.id) => {}
                Some(Ok(Finished { request, outcome: Outcome::Reply(reply) })) => return self.answer(request, reply),
                Some(Ok(Finished { request, outcome: Outcome::Expired })) => {
                    self.settle(&request.id);
                    return Action::Acknowledge(request.id);
                }
                None => std::future::pending().await,
            }
        }
    }

    pub fn cancel(&mut self, id: &MsgId) -> Action {
        match self.open.get(id) {
            Some(Call::Running(task)) => {
                task.abort();
                self.settle(id);
                Action::Acknowledge(id.clone())
            }
            Some(Call::Answered(_)) => Action::None,
            None => {
                if !self.settled.contains(id) {
                    self.cancelled_early.insert(id.clone());
                }
                Action::None
            }
        }
    }

    /// Replies without a receipt.
    pub fn pending_replies(&self) -> Vec<Arc<PendingReply>> {
        let answer = |call: &Call| match call {
            Call::Answered(answer) => Some(Arc::clone(answer)),
            Call::Running(_) => None,
        };
        self.open.values().filter_map(answer).collect()
    }

    /// Handles a permanent rejection of a reply by the broker: the caller gets an error with the reason instead.
    pub fn reply_rejected(&mut self, answer: &PendingReply, reason: &dyn std::fmt::Display) -> Action {
        let request = answer.request.clone();
        tracing::warn!(id = request.id.as_str(), %reason, "the broker rejected a reply");
        if answer.is_replacement {
            self.settle(&request.id);
            return Action::Acknowledge(request.id);
        }
        let replacement = McpReply::error(format!("the tool ran, but its result could not be sent: {reason}"));
        self.store_reply(request, &replacement, true)
    }

    /// Marks the call as done: its reply is receipted, or it needs none.
    pub fn settle(&mut self, id: &MsgId) {
        self.open.remove(id);
        self.settled.insert(id.clone());
    }

    fn answer(&mut self, request: InboxMessage, reply: McpReply) -> Action {
        self.store_reply(request, &reply, false)
    }

    fn store_reply(&mut self, request: InboxMessage, reply: &McpReply, is_replacement: bool) -> Action {
        let body = Body::of(reply).expect("strings and JSON values always serialise");
        let reply = InboxMessage::new(self.me.clone(), InboxKind::McpReply, body).correlated_to(request.id.clone());
        let answer = Arc::new(PendingReply { request, reply, is_replacement });
        self.open.insert(answer.request.id.clone(), Call::Answered(Arc::clone(&answer)));
        Action::Send(answer)
    }

    fn start(&mut self, request: InboxMessage, function: FunctionCall, deadline: Option<Instant>) {
        let id = request.id.clone();
        let call = ToolCall { id: format!("mcp-{id}"), tool_type: "function".into(), function };
        let (backend, permits) = (Arc::clone(&self.backend), Arc::clone(&self.permits));
        let max_duration = self.options.longest_call;
        let task = self.tasks.spawn(async move {
            let running = async {
                let _permit = permits.acquire().await.expect("the semaphore is never closed");
                run(&*backend, &call, &request, max_duration).await
            };
            let outcome = match deadline {
                Some(deadline) => timeout_at(deadline, running).await.map_or(Outcome::Expired, Outcome::Reply),
                None => Outcome::Reply(running.await),
            };
            Finished { request, outcome }
        });
        self.open.insert(id, Call::Running(task));
    }
}

async fn run(
    backend: &dyn ToolExecutor,
    call: &ToolCall,
    request: &InboxMessage,
    max_duration: std::time::Duration,
) -> McpReply {
    let context = ToolExecutionContext {
        tool_call_id: &call.id,
        session_id: Some(&request.from.session_id),
        role: request.from.role.as_deref(),
    };
    let tool = &call.function.name;
    // A panic becomes an error reply and does not affect other calls.
    let running = AssertUnwindSafe(backend.execute_with_context(call, context)).catch_unwind();
    match timeout(max_duration, running).await {
        Ok(Ok(Ok(result))) => McpReply::result(result),
        Ok(Ok(Err(error))) => McpReply::error(error.to_string()),
        Ok(Err(_panic)) => McpReply::error(format!("tool '{tool}' panicked")),
        Err(_) => McpReply::error(format!("tool '{tool}' took longer than the host's limit of {max_duration:?}")),
    }
}

/// A bounded set of the most recent ids.
#[derive(Default)]
struct RecentIds {
    ids: HashSet<MsgId>,
    order: VecDeque<MsgId>,
}

impl RecentIds {
    fn insert(&mut self, id: MsgId) {
        if !self.ids.insert(id.clone()) {
            return;
        }
        self.order.push_back(id);
        if self.order.len() > REMEMBERED_IDS
            && let Some(oldest) = self.order.pop_front()
        {
            self.ids.remove(&oldest);
        }
    }

    fn contains(&self, id: &MsgId) -> bool {
        self.ids.contains(id)
    }

    /// Leaves the entry in `order`, which is bounded too.
    fn remove(&mut self, id: &MsgId) -> bool {
        self.ids.remove(id)
    }
}
