//! What a host has to remember of its calls beyond a connection: which run, which are answered but not safely sent, which
//! are over. A request that the broker pushes again is found here and does not run again.

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

/// Ids of calls that are over, and of calls that were cancelled before they arrived. The broker repeats no more than one
/// window of messages, which is a fraction of this.
const REMEMBERED_IDS: usize = 32 << 10;

pub struct Calls {
    me: AgentRef,
    backend: Arc<dyn ToolExecutor>,
    options: McpProxyHostOptions,
    turns: Arc<Semaphore>,
    open: HashMap<MsgId, Call>,
    tasks: JoinSet<Finished>,
    over: RecentIds,
    cancelled_early: RecentIds,
}

enum Call {
    Running(AbortHandle),
    Answered(Arc<Answer>),
}

/// A reply on its way to being safe. Its id stays the same however often it is sent.
pub struct Answer {
    pub request: InboxMessage,
    pub reply: InboxMessage,
    /// It says that the real answer could not be sent.
    is_apology: bool,
}

/// What is to be done on the connection.
pub enum Step {
    Nothing,
    Ack(MsgId),
    Send(Arc<Answer>),
}

struct Finished {
    request: InboxMessage,
    outcome: Outcome,
}

enum Outcome {
    Reply(McpReply),
    /// Nobody waits for the answer any more.
    Expired,
}

impl Calls {
    pub fn new(me: AgentRef, backend: Arc<dyn ToolExecutor>, options: McpProxyHostOptions) -> Self {
        let turns = Arc::new(Semaphore::new(options.max_concurrent_calls));
        Self {
            me,
            backend,
            options,
            turns,
            open: HashMap::new(),
            tasks: JoinSet::new(),
            over: RecentIds::default(),
            cancelled_early: RecentIds::default(),
        }
    }

    /// Whether another request may be taken from the mailbox.
    pub fn has_room(&self) -> bool {
        self.open.len() < self.options.max_concurrent_calls + self.options.max_waiting_calls
    }

    pub fn take(&mut self, request: InboxMessage, deadline: Option<Instant>) -> Step {
        let id = request.id.clone();
        if request.kind != InboxKind::McpRequest || self.over.contains(&id) {
            return Step::Ack(id);
        }
        if self.cancelled_early.remove(&id) {
            self.over.insert(id.clone());
            return Step::Ack(id);
        }
        if self.open.contains_key(&id) {
            // It runs, or its answer is being sent.
            return Step::Nothing;
        }
        let role = request.from.role.as_deref();
        match request.body.to::<McpRequest>() {
            Ok(McpRequest::Manifest) => {
                let tools = self.options.allowlist.visible(role, self.backend.list_tools());
                self.answer(request, McpReply::manifest(tools))
            }
            Ok(McpRequest::Call { tool, .. }) if !self.options.allowlist.allows(role, &tool) => {
                let role = role.unwrap_or("<none>");
                tracing::warn!(role, tool, caller = &*request.from.session_id, "a call was denied");
                let denial = McpReply::error(format!("tool '{tool}' is not allowed for role '{role}'"));
                self.answer(request, denial)
            }
            Ok(McpRequest::Call { tool, arguments }) => {
                self.start(request, FunctionCall { name: tool, arguments }, deadline);
                Step::Nothing
            }
            Err(error) => self.answer(request, McpReply::error(format!("bad mcp request: {error}"))),
        }
    }

    /// The next call that ends; never, while none runs.
    pub async fn finished(&mut self) -> Step {
        loop {
            match self.tasks.join_next().await {
                // Cancelled: it was settled then, even if it ended by itself in the same moment.
                Some(Err(_)) => {}
                Some(Ok(Finished { request, .. })) if !self.open.contains_key(&request.id) => {}
                Some(Ok(Finished { request, outcome: Outcome::Reply(reply) })) => return self.answer(request, reply),
                Some(Ok(Finished { request, outcome: Outcome::Expired })) => {
                    self.settle(&request.id);
                    return Step::Ack(request.id);
                }
                None => std::future::pending().await,
            }
        }
    }

    pub fn cancel(&mut self, id: &MsgId) -> Step {
        match self.open.get(id) {
            Some(Call::Running(task)) => {
                task.abort();
                self.settle(id);
                Step::Ack(id.clone())
            }
            Some(Call::Answered(_)) => Step::Nothing,
            None => {
                if !self.over.contains(id) {
                    self.cancelled_early.insert(id.clone());
                }
                Step::Nothing
            }
        }
    }

    /// Answers that no connection has brought to safety yet.
    pub fn unsent(&self) -> Vec<Arc<Answer>> {
        let answer = |call: &Call| match call {
            Call::Answered(answer) => Some(Arc::clone(answer)),
            Call::Running(_) => None,
        };
        self.open.values().filter_map(answer).collect()
    }

    /// The broker refuses an answer, and always will: its caller gets the reason instead, if that can be sent.
    pub fn refused(&mut self, answer: &Answer, reason: &dyn std::fmt::Display) -> Step {
        let request = answer.request.clone();
        tracing::warn!(id = request.id.as_str(), %reason, "an answer can't be sent");
        if answer.is_apology {
            self.settle(&request.id);
            return Step::Ack(request.id);
        }
        let apology = McpReply::error(format!("the tool ran, but its answer can't be sent: {reason}"));
        self.keep_answer(request, &apology, true)
    }

    /// The call is over: its answer is safe, or nobody wants one.
    pub fn settle(&mut self, id: &MsgId) {
        self.open.remove(id);
        self.over.insert(id.clone());
    }

    fn answer(&mut self, request: InboxMessage, reply: McpReply) -> Step {
        self.keep_answer(request, &reply, false)
    }

    fn keep_answer(&mut self, request: InboxMessage, reply: &McpReply, is_apology: bool) -> Step {
        let body = Body::of(reply).expect("strings and JSON values serialise");
        let reply = InboxMessage::new(self.me.clone(), InboxKind::McpReply, body).correlated_to(request.id.clone());
        let answer = Arc::new(Answer { request, reply, is_apology });
        self.open.insert(answer.request.id.clone(), Call::Answered(Arc::clone(&answer)));
        Step::Send(answer)
    }

    fn start(&mut self, request: InboxMessage, function: FunctionCall, deadline: Option<Instant>) {
        let id = request.id.clone();
        let call = ToolCall { id: format!("mcp-{id}"), tool_type: "function".into(), function };
        let (backend, turns) = (Arc::clone(&self.backend), Arc::clone(&self.turns));
        let longest = self.options.longest_call;
        let task = self.tasks.spawn(async move {
            let running = async {
                let _turn = turns.acquire().await.expect("nobody closes it");
                run(&*backend, &call, &request, longest).await
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
    longest: std::time::Duration,
) -> McpReply {
    let context = ToolExecutionContext {
        tool_call_id: &call.id,
        session_id: Some(&request.from.session_id),
        role: request.from.role.as_deref(),
    };
    let tool = &call.function.name;
    // A tool that panics has an answer too, and its neighbours go on.
    let running = AssertUnwindSafe(backend.execute_with_context(call, context)).catch_unwind();
    match timeout(longest, running).await {
        Ok(Ok(Ok(result))) => McpReply::result(result),
        Ok(Ok(Err(error))) => McpReply::error(error.to_string()),
        Ok(Err(_panic)) => McpReply::error(format!("tool '{tool}' panicked")),
        Err(_) => McpReply::error(format!("tool '{tool}' took longer than the host's limit of {longest:?}")),
    }
}

/// The latest ids of some kind.
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

    /// Its place in the order stays until it is the oldest, which is bounded as well.
    fn remove(&mut self, id: &MsgId) -> bool {
        self.ids.remove(id)
    }
}
