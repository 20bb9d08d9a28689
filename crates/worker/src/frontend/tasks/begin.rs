//! A tool call that becomes a task: because its client wishes it (legacy), or because the client can handle one and
//! would have to wait (modern).

use super::admin;
use super::offer::support_of;
use super::wire;
use crate::bus::{BusCall, BusItem};
use crate::error;
use crate::frontend::away::when;
use crate::frontend::call::Work;
use crate::frontend::route::Asked;
use crate::frontend::upstream_call::{Purpose, UpstreamCall};
use crate::frontend::{Frontend, Target, body};
use crate::view::Upstream;
use crate::worker::lock;
use std::sync::Arc;
use std::time::Duration;
use toolbus_client::BrokerError;
use toolbus_mcp::{Era, HostReply, HostRequest, Members, Outcome, Raw, Rpc, RpcError, TaskName, TaskView, TaskWish};
use toolbus_protocol::{Body, ErrorCode};

/// How long a host that is there may take to accept a task. Past it the task is in its mailbox, which is as good.
const ACCEPT_PATIENCE: Duration = Duration::from_secs(10);

/// A request for a task waits for its host at least so long, however soon the task is to be forgotten.
const SHORTEST_WAIT: Duration = Duration::from_secs(60);
/// How long an answer is kept for a client that was given a task because its call took long.
const KEPT_AFTER_DEADLINE: Duration = Duration::from_secs(600);

/// Whether a call is to be a task of the bus.
pub enum Wish {
    No,
    Yes { wish: TaskWish, params: Option<Raw> },
    Refused(RpcError),
}

pub fn wish(asked: &Asked<'_>, upstream: &Upstream) -> Wish {
    if asked.method != "tools/call" || upstream.has_own_tasks(asked.era) {
        return Wish::No;
    }
    // What is not to wait for its host is refused as a call, not kept as a task.
    let request = (asked.method, asked.params.as_ref());
    if upstream.away_since_ms.is_some() && asked.frontend.is_hasty(upstream, Purpose::Plain, request) {
        return Wish::No;
    }
    match asked.era {
        Era::Legacy => legacy_wish(asked, upstream),
        Era::Modern => modern_wish(asked, upstream),
    }
}

fn legacy_wish(asked: &Asked<'_>, upstream: &Upstream) -> Wish {
    let Ok(mut params) = Members::of(asked.params.as_deref()) else { return Wish::No };
    // Who was told of no tasks gets what it would get of a server that ignores the wish.
    if !params.contains("task") || !asked.frontend.has_legacy_tasks() {
        return Wish::No;
    }
    let support = params.text("name").and_then(|tool| support_of(upstream, &tool));
    match support.as_deref() {
        Some("required") => return Wish::No,
        Some("forbidden") => return Wish::Refused(error::no_task_of_this_tool()),
        _ => {}
    }
    let task = params.remove("task");
    let wished = Members::of(task.as_deref()).ok().and_then(|task| match task.get("ttl") {
        None => Some(None),
        Some(ttl) if ttl.get() == "null" => Some(None),
        Some(ttl) => ttl.get().parse::<f64>().ok().filter(|ms| *ms >= 0.0).map(|ms| Some(ms as u64)),
    });
    match wished {
        Some(ttl_ms) => Wish::Yes { wish: TaskWish { ttl_ms }, params: Some(params.to_raw()) },
        None => Wish::Refused(RpcError::invalid_params("params.task has to be an object, and its ttl a number of ms")),
    }
}

/// The modern era leaves it to the server. A call that continues another one is no call of its own.
fn modern_wish(asked: &Asked<'_>, upstream: &Upstream) -> Wish {
    let options = &asked.frontend.worker.options;
    let is_away = upstream.away_since_ms.is_some();
    let given = asked.params.as_deref();
    // Inside of a task a server can't ask, so whoever can be asked waits for a host that is there.
    let would_wait = is_away || (options.task_after.is_some() && !wire::can_be_asked(given));
    if !would_wait || !wire::declares_tasks(given) {
        return Wish::No;
    }
    let params = Members::of(given).unwrap_or_default();
    if params.contains("requestState") || params.contains("inputResponses") {
        return Wish::No;
    }
    // As long as the call could have taken, and a while to fetch the answer: most of these end at once, and a host keeps
    // only so many.
    let brief = (options.call_deadline + KEPT_AFTER_DEADLINE).as_millis() as u64;
    let ttl_ms = (!is_away).then_some(brief);
    Wish::Yes { wish: TaskWish { ttl_ms }, params: asked.params.clone() }
}

pub async fn begin(asked: Asked<'_>, upstream: &Arc<Upstream>, wish: TaskWish, params: Option<Raw>) -> Work {
    let (frontend, era) = (Arc::clone(asked.frontend), asked.era);
    let rpc = Rpc {
        server: upstream.server().to_owned(),
        session: frontend.session.clone(),
        client: frontend.hello(era),
        method: asked.method.to_owned(),
        params: params.clone(),
        task: Some(wish),
    };
    let tool = Members::of(rpc.params.as_deref()).ok().and_then(|params| params.text("name")).unwrap_or_default();
    // The request waits for its host as long as the task may live.
    let limit = Duration::from_millis(wish.granted_ttl_ms()).max(SHORTEST_WAIT);
    let call = match frontend.worker.bus.start_call(&upstream.host, body(HostRequest::Rpc(rpc)), limit).await {
        Ok(call) => call,
        Err(error) => return Work::Ready(Some(error::from_bus(&error).into())),
    };
    if let Some(flight) = lock(&frontend.state).calls.get_mut(&asked.number) {
        flight.target = Some(Target { upstream: Arc::clone(upstream), bus_id: call.id().to_owned(), era });
    }
    let beginning =
        Beginning { frontend, number: asked.number, upstream: Arc::clone(upstream), era, tool, wish, params };
    Work::Gather(Box::pin(beginning.run(call)))
}

struct Beginning {
    frontend: Arc<Frontend>,
    /// The client's call.
    number: u64,
    upstream: Arc<Upstream>,
    era: Era,
    tool: String,
    wish: TaskWish,
    params: Option<Raw>,
}

impl Beginning {
    async fn run(self, call: Box<dyn BusCall>) -> Outcome {
        let name = TaskName { host: self.upstream.host.clone(), id: call.id().to_owned() };
        let (view, away) = match self.accepted(call).await {
            Ok(Some(view)) => (view, false),
            Ok(None) => {
                let view = self.left(&name);
                self.frontend.worker.leave_task(&name, view.clone());
                (view, true)
            }
            // The client asked for no task, and nothing ran.
            Err(outcome) if self.era == Era::Modern && admin::has_code(&outcome, ErrorCode::TooManyTasks) => {
                return self.into_call().await;
            }
            Err(outcome) => return outcome,
        };
        match self.quick_end(&name, away).await {
            Some(outcome) => outcome,
            None => Outcome::Result(wire::created(self.era, &name, &view, away)),
        }
    }

    /// The task as its host accepted it; nothing if it was left in the mailbox of a host that does not answer.
    async fn accepted(&self, mut call: Box<dyn BusCall>) -> Result<Option<TaskView>, Outcome> {
        let mut patience = std::pin::pin!(tokio::time::sleep(ACCEPT_PATIENCE));
        let reply = loop {
            tokio::select! {
                biased;
                item = call.next() => if let BusItem::Reply(reply) = item { break reply },
                () = self.frontend.worker.host_leaves(&self.upstream.host) => return left_alone(call).await,
                () = &mut patience => return left_alone(call).await,
            }
        };
        match reply {
            // The broker has the request, and its host may have begun.
            Err(BrokerError::Timeout(_)) => left_alone(call).await,
            reply => read(reply),
        }
    }

    async fn into_call(self) -> Outcome {
        let request = ("tools/call", self.params);
        let number = Some(self.number);
        let call =
            UpstreamCall::start(&self.frontend, number, &self.upstream, self.era, request, Purpose::MayMakeTask).await;
        match call {
            Ok(call) => call.outcome(&self.frontend).await,
            Err(error) => error.into(),
        }
    }

    /// What can be said of a task that only the broker has.
    fn left(&self, name: &TaskName) -> TaskView {
        let message = match self.frontend.worker.away_since(&name.host) {
            Some(since) => format!("queued: host {} is away since {}", name.host, when(since)),
            None => format!("queued: host {} has not answered yet", name.host),
        };
        TaskView {
            server: self.upstream.server().to_owned(),
            tool: self.tool.clone(),
            message: Some(message),
            ttl_ms: self.wish.granted_ttl_ms(),
            ..admin::unseen(&name.id)
        }
    }

    /// What a tool answers soon enough needs no task.
    async fn quick_end(&self, name: &TaskName, away: bool) -> Option<Outcome> {
        let after = self.frontend.worker.options.task_after.filter(|_| self.era == Era::Modern && !away)?;
        let ended = admin::wait(&self.frontend, name, after).await.ok()?;
        wire::outcome(ended)
    }
}

async fn left_alone(call: Box<dyn BusCall>) -> Result<Option<TaskView>, Outcome> {
    call.leave().await.map(|()| None).map_err(|error| error::from_bus(&error).into())
}

fn read(reply: Result<Body, BrokerError>) -> Result<Option<TaskView>, Outcome> {
    let body = reply.map_err(|error| error::from_bus(&error))?;
    match std::str::from_utf8(body.as_bytes()).map(HostReply::parse) {
        Ok(Ok(HostReply::Task(view))) => Ok(Some(view)),
        // A refusal; or the result itself, of a host that keeps no tasks.
        Ok(Ok(HostReply::Rpc(outcome))) => Err(outcome),
        Ok(Ok(HostReply::Cancelled)) => Err(error::task_cancelled().into()),
        Ok(Err(error)) => Err(error::bad_reply(&error.reason).into()),
        Err(error) => Err(error::bad_reply(&error.to_string()).into()),
    }
}
