//! A tool call that becomes a task: because its client requests it (legacy), or because the client declares tasks and
//! the call would block (modern).

use super::admin;
use super::offer::task_support;
use super::wire;
use crate::bus::{BusCall, BusItem};
use crate::error;
use crate::frontend::away::when;
use crate::frontend::call::Work;
use crate::frontend::member::Destination;
use crate::frontend::route::IncomingRequest;
use crate::frontend::upstream_call::{Purpose, UpstreamCall};
use crate::frontend::{Frontend, body};
use crate::view::Upstream;
use std::sync::Arc;
use std::time::Duration;
use toolbus_client::BrokerError;
use toolbus_mcp::{Era, HostReply, HostRequest, Members, Outcome, Raw, Rpc, RpcError, TaskName, TaskView, TaskWish};
use toolbus_protocol::{Body, ErrorCode};

/// How long a connected host may take to accept a task. After that the task counts as queued in its mailbox.
const ACCEPT_TIMEOUT: Duration = Duration::from_secs(10);

/// Minimum deadline of the request that creates a task, even if the task's own TTL is shorter.
const MIN_REQUEST_DEADLINE: Duration = Duration::from_secs(60);
/// How long the result of a call that became a task because it took long is kept after the call deadline.
const RETENTION_AFTER_DEADLINE: Duration = Duration::from_secs(600);

/// Whether a call has to become a task of the bus.
pub enum TaskRequest {
    No,
    Yes { wish: TaskWish, params: Option<Raw> },
    Rejected(RpcError),
}

pub fn task_request(incoming: &IncomingRequest<'_>, upstream: &Upstream) -> TaskRequest {
    if incoming.method != "tools/call" || upstream.has_own_tasks(incoming.era) {
        return TaskRequest::No;
    }
    // A fail-fast call to an absent host is rejected as a call, not queued as a task.
    let request = (incoming.method, incoming.params.as_ref());
    if upstream.away_since_ms.is_some() && incoming.frontend.fails_fast(upstream, Purpose::Plain, request) {
        return TaskRequest::No;
    }
    match incoming.era {
        Era::Legacy => legacy_task_request(incoming, upstream),
        Era::Modern => modern_task_request(incoming, upstream),
    }
}

fn legacy_task_request(incoming: &IncomingRequest<'_>, upstream: &Upstream) -> TaskRequest {
    let Ok(params) = Members::of(incoming.params.as_ref()) else { return TaskRequest::No };
    // In a version without tasks, `task` is ignored, as a server without tasks does.
    if !params.contains("task") || !incoming.frontend.has_legacy_tasks() {
        return TaskRequest::No;
    }
    let support = params.text("name").and_then(|tool| task_support(upstream, &tool));
    match support.as_deref() {
        Some("required") => return TaskRequest::No,
        Some("forbidden") => return TaskRequest::Rejected(error::task_forbidden()),
        _ => {}
    }
    let mut params = params.clone();
    let task = params.remove("task");
    let requested = Members::of(task.as_ref()).ok().and_then(|task| match task.get("ttl") {
        None => Some(None),
        Some(ttl) if ttl.get() == "null" => Some(None),
        Some(ttl) => ttl.get().parse::<f64>().ok().filter(|ms| *ms >= 0.0).map(|ms| Some(ms as u64)),
    });
    match requested {
        Some(ttl_ms) => TaskRequest::Yes { wish: TaskWish { ttl_ms }, params: Some(params.into_raw()) },
        None => {
            TaskRequest::Rejected(RpcError::invalid_params("params.task must be an object, and its ttl a number of ms"))
        }
    }
}

/// In the modern era the server decides. A follow-up of a call (for example with the answer to an elicitation) is not a
/// new call and never becomes a task.
fn modern_task_request(incoming: &IncomingRequest<'_>, upstream: &Upstream) -> TaskRequest {
    let options = &incoming.frontend.worker.options;
    let is_away = upstream.away_since_ms.is_some();
    let given = incoming.params.as_ref();
    // A server can't send client requests from within a task, so calls of clients that accept them stay calls while the
    // host is connected.
    let would_wait = is_away || (options.task_after.is_some() && !wire::accepts_client_requests(given));
    if !would_wait || !wire::declares_tasks(given) {
        return TaskRequest::No;
    }
    let params = Members::of(given).unwrap_or_default();
    if params.contains("requestState") || params.contains("inputResponses") {
        return TaskRequest::No;
    }
    // The call deadline plus time to fetch the result. Short, because most of these tasks end immediately and a host
    // keeps a limited number.
    let ttl = (options.call_deadline + RETENTION_AFTER_DEADLINE).as_millis() as u64;
    let ttl_ms = (!is_away).then_some(ttl);
    TaskRequest::Yes { wish: TaskWish { ttl_ms }, params: incoming.params.clone() }
}

pub async fn create(
    incoming: IncomingRequest<'_>,
    upstream: &Arc<Upstream>,
    wish: TaskWish,
    params: Option<Raw>,
) -> Work {
    let (frontend, era) = (Arc::clone(incoming.frontend), incoming.era);
    // A task stays at the host of a pool that accepted it.
    let Destination { member, params, .. } = frontend.destination(upstream, era, (incoming.method, params), &[]);
    let upstream = &member;
    let rpc = Rpc {
        server: upstream.server().to_owned(),
        session: frontend.session.clone(),
        client: frontend.hello(era),
        method: incoming.method.to_owned(),
        params: params.clone(),
        task: Some(wish),
        hand_back: false,
    };
    let tool = Members::of(rpc.params.as_ref()).ok().and_then(|params| params.text("name")).unwrap_or_default();
    // The request stays queued for its host for the TTL of the task.
    let limit = Duration::from_millis(wish.granted_ttl_ms()).max(MIN_REQUEST_DEADLINE);
    let call = match frontend.worker.bus.start_call(&upstream.host, body(HostRequest::Rpc(rpc)), limit).await {
        Ok(call) => call,
        Err(error) => return Work::Ready(Some(error::from_bus(&error).into())),
    };
    frontend.set_target(Some(incoming.number), upstream, call.id(), era);
    let creation =
        TaskCreation { frontend, number: incoming.number, upstream: Arc::clone(upstream), era, tool, wish, params };
    Work::Gather(Box::pin(creation.run(call)))
}

struct TaskCreation {
    frontend: Arc<Frontend>,
    /// The number of the client's call.
    number: u64,
    upstream: Arc<Upstream>,
    era: Era,
    tool: String,
    wish: TaskWish,
    params: Option<Raw>,
}

impl TaskCreation {
    async fn run(self, call: Box<dyn BusCall>) -> Outcome {
        let name = TaskName { host: self.upstream.host.clone(), id: call.id().to_owned() };
        let (view, away) = match self.accepted(call).await {
            Ok(Some(view)) => (view, false),
            Ok(None) => {
                let view = self.queued_view(&name);
                self.frontend.worker.remember_queued_task(&name, view.clone());
                (view, true)
            }
            // The client did not request a task and nothing has started, so it becomes a plain call.
            Err(outcome) if self.era == Era::Modern && admin::has_code(&outcome, ErrorCode::TooManyTasks) => {
                return self.run_as_call().await;
            }
            Err(outcome) => return outcome,
        };
        match self.early_result(&name, away).await {
            Some(outcome) => outcome,
            None => Outcome::Result(wire::created(self.era, &name, &view, away)),
        }
    }

    /// The task as the host accepted it; `None` if it stays queued in the mailbox of a host that does not answer.
    async fn accepted(&self, mut call: Box<dyn BusCall>) -> Result<Option<TaskView>, Outcome> {
        let mut timeout = std::pin::pin!(tokio::time::sleep(ACCEPT_TIMEOUT));
        let reply = loop {
            tokio::select! {
                biased;
                item = call.next() => if let BusItem::Reply(reply) = item { break reply },
                () = self.frontend.worker.host_disconnected(&self.upstream.host) => return leave_queued(call).await,
                () = &mut timeout => return leave_queued(call).await,
            }
        };
        match reply {
            // The request is stored at the broker, and the host may have started it.
            Err(BrokerError::Timeout(_)) => leave_queued(call).await,
            reply => parse_reply(reply),
        }
    }

    async fn run_as_call(self) -> Outcome {
        let request = ("tools/call", self.params);
        let number = Some(self.number);
        // A plain call may go to any host of a pool.
        let view = self.frontend.worker.view();
        let shown = view.find(self.upstream.shown_host(), self.upstream.server()).unwrap_or(&self.upstream);
        let call = UpstreamCall::start(&self.frontend, number, shown, self.era, request, Purpose::MayMakeTask).await;
        match call {
            Ok(call) => call.outcome(&self.frontend).await,
            Err(error) => error.into(),
        }
    }

    /// The view of a task that its host has not accepted yet.
    fn queued_view(&self, name: &TaskName) -> TaskView {
        let message = match self.frontend.worker.away_since(&name.host) {
            Some(since) => format!("queued: host {} has been away since {}", name.host, when(since)),
            None => format!("queued: host {} has not answered yet", name.host),
        };
        TaskView {
            server: self.upstream.server().to_owned(),
            tool: self.tool.clone(),
            message: Some(message),
            ttl_ms: self.wish.granted_ttl_ms(),
            ..admin::placeholder(&name.id)
        }
    }

    /// The result of a tool that ends within `task_after`; the call is then answered directly, without a task.
    async fn early_result(&self, name: &TaskName, away: bool) -> Option<Outcome> {
        let after = self.frontend.worker.options.task_after.filter(|_| self.era == Era::Modern && !away)?;
        let ended = admin::wait(&self.frontend, name, after).await.ok()?;
        wire::outcome(ended)
    }
}

async fn leave_queued(call: Box<dyn BusCall>) -> Result<Option<TaskView>, Outcome> {
    call.leave().await.map(|()| None).map_err(|error| error::from_bus(&error).into())
}

fn parse_reply(reply: Result<Body, BrokerError>) -> Result<Option<TaskView>, Outcome> {
    let body = reply.map_err(|error| error::from_bus(&error))?;
    match body.text().map(HostReply::parse) {
        Ok(Ok(HostReply::Task(view))) => Ok(Some(*view)),
        // The host rejected the task, or has no tasks and replied with the result itself.
        Ok(Ok(HostReply::Rpc(outcome))) => Err(outcome),
        Ok(Ok(HostReply::Cancelled | HostReply::HandedBack)) => Err(error::task_cancelled().into()),
        Ok(Err(error)) => Err(error::bad_reply(&error.reason).into()),
        Err(error) => Err(error::bad_reply(&error.to_string()).into()),
    }
}
