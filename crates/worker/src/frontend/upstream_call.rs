//! A request to one server. Its events are passed to the client in order, then its response.

use super::away::{AwayWatch, Departures, away_since, when};
use super::call::CallStep;
use super::call_state::{CallState, Leave, NoReply};
use super::tasks::offer;
use super::{Frontend, Target, body};
use crate::bus::{BoxFuture, BusCall, BusItem};
use crate::error;
use crate::taken_routes::RouteKey;
use crate::view::Upstream;
use crate::worker::lock;
use std::sync::Arc;
use std::time::Duration;
use toolbus_base::now_ms;
use toolbus_client::BrokerError;
use toolbus_mcp::{
    Era, HostEvent, HostReply, HostRequest, Id, Members, Message, Notification, Outcome, Raw, Request, Rpc, RpcError,
    meta, raw,
};
use toolbus_protocol::Body;

pub struct UpstreamCall {
    call: Box<dyn BusCall>,
    pub upstream: Arc<Upstream>,
    away: AwayWatch,
    era: Era,
    limit: Duration,
    purpose: Purpose,
    state: CallState,
    /// Set for a fail-fast call.
    departures: Option<Departures>,
    /// What the server will own for this worker once it has answered.
    route: Option<RouteKey>,
    /// A withdrawal under way. Returns whether it was confirmed, or `None` if the call has to be awaited.
    withdrawal: Option<BoxFuture<'static, Option<bool>>>,
}

/// How the frontend itself has to process the response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    Plain,
    Initialize,
    Discover,
    /// Marks the tools in the list that can be called as tasks.
    MarkTools,
    Listen {
        acknowledged: bool,
    },
    /// The result may create a task of the server, whose owner has to be remembered.
    MayMakeTask,
}

impl UpstreamCall {
    /// Sends the request. `number` is the number of the client's call, which a cancellation has to find.
    pub async fn start(
        frontend: &Arc<Frontend>,
        number: Option<u64>,
        upstream: &Arc<Upstream>,
        era: Era,
        (method, params): (&str, Option<Raw>),
        purpose: Purpose,
    ) -> Result<Self, RpcError> {
        let options = &frontend.worker.options;
        let limit = match purpose {
            Purpose::Listen { .. } => options.listen_deadline,
            _ => options.call_deadline,
        };
        let hosts = frontend.worker.hosts();
        let fails_fast = frontend.fails_fast(upstream, purpose, (method, params.as_ref()));
        let state = CallState::start(fails_fast, away_since(&hosts, &upstream.host), now_ms())
            .map_err(|no_reply| explain(no_reply, upstream, limit))?;
        let departures = state.fails_fast.then(|| Departures::new(hosts, upstream));
        let token = meta::get(params.as_ref(), meta::PROGRESS_TOKEN).map(|token| token.detached());
        let rpc = Rpc {
            server: upstream.server().to_owned(),
            session: frontend.session.clone(),
            client: frontend.hello(era),
            method: method.to_owned(),
            params,
            task: None,
        };
        frontend.mark_contacted(&upstream.host);
        let call = frontend.worker.bus.start_call(&upstream.host, body(HostRequest::Rpc(rpc)), limit).await;
        let call = call.map_err(|error| error::from_bus(&error))?;
        if let Some(number) = number
            && let Some(flight) = lock(&frontend.state).calls.get_mut(&number)
        {
            let bus_id = call.id().to_owned();
            flight.target = Some(Target { upstream: Arc::clone(upstream), bus_id, era });
        }
        let away = AwayWatch::new(Arc::clone(&frontend.worker.bus), upstream, call.id(), token, options.away_progress);
        Ok(Self {
            call,
            upstream: Arc::clone(upstream),
            away,
            era,
            limit,
            purpose,
            state,
            departures,
            route: None,
            withdrawal: None,
        })
    }

    /// Later requests for the same will go to the same server if it answers this one with a result.
    pub fn remembering(self, route: Option<RouteKey>) -> Self {
        Self { route, ..self }
    }

    /// Call before the call is dropped: cancels it at its host, or lets it go on.
    pub fn leave(&mut self, worker_stops: bool) {
        if self.state.leave(worker_stops) == Leave::Detach {
            self.call.detach();
        }
    }

    pub async fn step(&mut self, frontend: &Arc<Frontend>, id: &Id) -> CallStep {
        loop {
            let item = tokio::select! {
                biased;
                // The broker ends a withdrawn call before it has confirmed the withdrawal.
                is_confirmed = pending(&mut self.withdrawal) => {
                    self.withdrawal = None;
                    let away_since = self.away.away_since();
                    let end = is_confirmed.and_then(|confirmed| self.state.withdrawal_ended(confirmed, away_since));
                    match end {
                        Some(end) => return CallStep::Done(explain(end, &self.upstream, self.limit).into()),
                        None => continue,
                    }
                }
                item = self.call.next(), if self.withdrawal.is_none() => item,
                message = self.away.next_progress(), if self.departures.is_none() => return CallStep::Message(message),
                () = departure(&mut self.departures), if self.withdrawal.is_none() => {
                    self.withdrawal = Some(self.withdraw(frontend));
                    continue;
                }
            };
            match item {
                BusItem::Event(event) => {
                    if let Some(message) = self.event(frontend, id, &event).await {
                        return CallStep::Message(message);
                    }
                }
                BusItem::Reply(reply) => return self.reply(frontend, id, reply),
            }
        }
    }

    /// Withdraws the call after the host disconnected, unless it was delivered.
    fn withdraw(&self, frontend: &Frontend) -> BoxFuture<'static, Option<bool>> {
        let (bus, state) = (Arc::clone(&frontend.worker.bus), self.state);
        let (host, id) = (self.upstream.host.clone(), self.call.id().to_owned());
        Box::pin(async move {
            match state.withdraws(bus.is_untouched(&host, &id).await) {
                true => Some(bus.withdraw(&host, &id).await),
                false => None,
            }
        })
    }

    /// The outcome of a call that the frontend made on its own. Its events are sent to the client out of band.
    pub async fn outcome(mut self, frontend: &Arc<Frontend>) -> Outcome {
        let id = Id::number(0);
        loop {
            match self.call.next().await {
                BusItem::Event(event) => {
                    let message = self.event(frontend, &id, &event).await;
                    message.into_iter().for_each(|message| frontend.send_out_of_band(message));
                }
                BusItem::Reply(reply) => {
                    return match self.reply(frontend, &id, reply) {
                        CallStep::Done(outcome) => outcome,
                        _ => error::call_timeout(self.limit).into(),
                    };
                }
            }
        }
    }

    async fn event(&mut self, frontend: &Arc<Frontend>, id: &Id, event: &Body) -> Option<Message> {
        let event = event.text().ok().and_then(|text| HostEvent::parse(text).ok())?;
        let mut message = frontend.translate(&self.upstream.host, self.era, event).await?;
        if let (Purpose::Listen { acknowledged }, Message::Notification(notification)) =
            (&mut self.purpose, &mut message)
        {
            let is_first = notification.method == ACKNOWLEDGED && !std::mem::replace(acknowledged, true);
            // A restarted host subscribes again; the client gets only the first acknowledgement.
            if notification.method == ACKNOWLEDGED && !is_first {
                return None;
            }
            under_subscription(notification, id);
        }
        Some(message)
    }

    fn reply(&mut self, frontend: &Frontend, id: &Id, reply: Result<Body, BrokerError>) -> CallStep {
        let mut outcome = match reply {
            Ok(body) => match body.text().map(HostReply::parse) {
                Ok(Ok(HostReply::Rpc(outcome))) => outcome,
                Ok(Ok(HostReply::Cancelled)) => match self.state.host_cancelled() {
                    Some(no_reply) => explain(no_reply, &self.upstream, self.limit).into(),
                    None => return CallStep::Cancelled,
                },
                Ok(Ok(HostReply::Task(task))) => return CallStep::Done(Outcome::Result(raw(&task))),
                Ok(Err(error)) => error::bad_reply(&error.reason).into(),
                Err(error) => error::bad_reply(&error.to_string()).into(),
            },
            Err(error) => self.failure(id, &error),
        };
        if let (Outcome::Error(_), Purpose::Initialize) = (&outcome, self.purpose) {
            lock(&frontend.state).initialize = None;
        }
        if let Outcome::Result(result) = &mut outcome {
            self.offer_tasks(result);
            self.route.iter().for_each(|route| frontend.worker.remember_route(route, &self.upstream));
            match self.purpose {
                Purpose::Initialize => frontend.record_initialize(result),
                Purpose::MayMakeTask => {
                    task_of(result).into_iter().for_each(|task| frontend.worker.remember_task(task, &self.upstream));
                }
                Purpose::Listen { .. } => return CallStep::Done(Outcome::Result(ended_listen(Some(result), id))),
                Purpose::Plain | Purpose::Discover | Purpose::MarkTools => {}
            }
        }
        CallStep::Done(outcome)
    }

    /// Adds to the result that the bus offers tasks.
    fn offer_tasks(&self, result: &mut Raw) {
        let offer = match self.purpose {
            Purpose::Initialize => offer::in_initialize,
            Purpose::Discover => offer::in_discover,
            Purpose::MarkTools => offer::in_tools,
            Purpose::Plain | Purpose::Listen { .. } | Purpose::MayMakeTask => return,
        };
        *result = offer(std::mem::replace(result, toolbus_mcp::empty_object()));
    }

    fn failure(&self, id: &Id, error: &BrokerError) -> Outcome {
        let is_listen = matches!(self.purpose, Purpose::Listen { .. });
        match self.state.failed(error, self.away.away_since()) {
            NoReply::Failed => error::from_bus(error).into(),
            NoReply::HostAway { .. } | NoReply::TimedOut if is_listen => Outcome::Result(ended_listen(None, id)),
            no_reply => explain(no_reply, &self.upstream, self.limit).into(),
        }
    }
}

/// The error that the client of a call without a reply gets.
fn explain(no_reply: NoReply, upstream: &Upstream, limit: Duration) -> RpcError {
    match no_reply {
        NoReply::NotRun { since } => error::host_offline(&upstream.host, &when(since)),
        NoReply::WithdrawnTooLate => error::withdrawn_too_late(&upstream.host),
        NoReply::HostAway { since } => error::host_away(&upstream.host, &when(since)),
        NoReply::TimedOut | NoReply::Failed => error::call_timeout(limit),
    }
}

async fn pending(withdrawal: &mut Option<BoxFuture<'static, Option<bool>>>) -> Option<bool> {
    match withdrawal {
        Some(withdrawal) => withdrawal.await,
        None => std::future::pending().await,
    }
}

async fn departure(departures: &mut Option<Departures>) {
    match departures {
        Some(departures) => departures.next().await,
        None => std::future::pending().await,
    }
}

pub const ACKNOWLEDGED: &str = "notifications/subscriptions/acknowledged";

/// Sets the subscription id of a notification to the client's request id.
pub fn under_subscription(notification: &mut Notification, id: &Id) {
    let set = meta::set(notification.params.as_ref(), meta::SUBSCRIPTION_ID, id.to_raw());
    if let Ok(params) = set {
        notification.params = Some(params);
    }
}

/// The result that ends a `subscriptions/listen`.
pub fn ended_listen(result: Option<&Raw>, id: &Id) -> Raw {
    let base = result.cloned().unwrap_or_else(|| raw(&serde_json::json!({"resultType": "complete"})));
    meta::set(Some(&base), meta::SUBSCRIPTION_ID, id.to_raw()).unwrap_or(base)
}

/// The id of the task that a result creates, in the format of either era.
fn task_of(result: &Raw) -> Option<String> {
    let result = result.members().ok()?;
    let task = Members::of(result.get("task")).ok().and_then(|task| task.text("taskId"));
    task.or_else(|| result.text("taskId"))
}

impl Frontend {
    /// Whether a request is rejected while its host is away, by the worker's options or by the tool's manifest.
    pub(super) fn fails_fast(
        &self,
        upstream: &Upstream,
        purpose: Purpose,
        (method, params): (&str, Option<&Raw>),
    ) -> bool {
        if matches!(purpose, Purpose::Initialize | Purpose::Listen { .. }) {
            return false;
        }
        let fail_fast = &upstream.manifest().fail_fast;
        let named = || Members::of(params).ok().and_then(|params| params.text("name"));
        let by_manifest = || method == "tools/call" && fail_fast.contain(named().as_deref());
        self.worker.options.fail_fast || (!fail_fast.is_empty() && by_manifest())
    }

    /// Translates an event of a host into a message to the client.
    pub(super) async fn translate(self: &Arc<Self>, host: &str, era: Era, event: HostEvent) -> Option<Message> {
        match event {
            HostEvent::Notification { server, method, params }
                if method == "notifications/cancelled" && era == Era::Legacy =>
            {
                let params = lock(&self.state).pending_requests.cancelled(host, &server, params.as_ref())?;
                Some(Notification { method, params: Some(params) }.into())
            }
            HostEvent::Notification { method, params, .. } => Some(Notification { method, params }.into()),
            HostEvent::Request { server, id, method, params } => {
                let limit = self.worker.options.max_questions;
                // Modern clients can't receive requests; their hosts handle them.
                let pending_id = match era {
                    Era::Legacy => {
                        lock(&self.state).pending_requests.register(host, &server, id.clone(), params.as_ref(), limit)
                    }
                    Era::Modern => None,
                };
                if let Some(id) = pending_id {
                    return Some(Request { id, method, params }.into());
                }
                let refusal =
                    RpcError::new(toolbus_mcp::codes::INVALID_REQUEST, "the client does not accept requests now");
                let answer = toolbus_mcp::Answer { server, session: self.session.clone(), id, outcome: refusal.into() };
                self.send(host, HostRequest::Answer(answer)).await;
                None
            }
            HostEvent::Closed { server, reason } => {
                tracing::debug!(%host, %server, %reason, "the host closed a server's session");
                None
            }
        }
    }
}
