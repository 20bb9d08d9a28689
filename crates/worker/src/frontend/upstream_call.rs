//! A request that one server answers: what it says meanwhile goes to the client in order, then its answer.

use super::away::{AwayWatch, Departures, away_since, when};
use super::call::Step;
use super::tasks::offer;
use super::{Frontend, Target, body};
use crate::bus::{BusCall, BusItem};
use crate::error;
use crate::view::Upstream;
use crate::worker::lock;
use std::sync::Arc;
use std::time::Duration;
use toolbus_client::BrokerError;
use toolbus_mcp::{
    Era, HostEvent, HostReply, HostRequest, Id, Members, Message, Notification, Outcome, Raw, Request, Rpc, RpcError,
    meta, raw,
};
use toolbus_protocol::{Body, ErrorCode};

pub struct UpstreamCall {
    call: Box<dyn BusCall>,
    pub upstream: Arc<Upstream>,
    away: AwayWatch,
    era: Era,
    limit: Duration,
    purpose: Purpose,
    /// For a call that is not to wait for an absent host.
    departures: Option<Departures>,
    taken_back: bool,
}

/// What the front itself has to see of the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    Plain,
    Initialize,
    Discover,
    /// The client is to see which tools can be tasks.
    MarkTools,
    Listen {
        acknowledged: bool,
    },
    /// Its result may make a task, which only its server knows.
    MayMakeTask,
}

impl UpstreamCall {
    /// Sends the request. `number` is the client's call, for cancellations.
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
        let departures = frontend.is_hasty(upstream, purpose, (method, params.as_ref()));
        if departures && let Some(since) = away_since(&hosts, &upstream.host) {
            return Err(error::host_offline(&upstream.host, &when(since)));
        }
        let departures = departures.then(|| Departures::new(hosts, upstream));
        let token = meta::get(params.as_deref(), meta::PROGRESS_TOKEN);
        let rpc = Rpc {
            server: upstream.server().to_owned(),
            session: frontend.session.clone(),
            client: frontend.hello(era),
            method: method.to_owned(),
            params,
            task: None,
        };
        frontend.touch(&upstream.host);
        let call = frontend.worker.bus.start_call(&upstream.host, body(HostRequest::Rpc(rpc)), limit).await;
        let call = call.map_err(|error| error::from_bus(&error))?;
        if let Some(number) = number
            && let Some(flight) = lock(&frontend.state).calls.get_mut(&number)
        {
            let bus_id = call.id().to_owned();
            flight.target = Some(Target { upstream: Arc::clone(upstream), bus_id, era });
        }
        let away = AwayWatch::new(Arc::clone(&frontend.worker.bus), upstream, call.id(), token, options.away_progress);
        Ok(Self { call, upstream: Arc::clone(upstream), away, era, limit, purpose, departures, taken_back: false })
    }

    pub async fn step(&mut self, frontend: &Arc<Frontend>, id: &Id) -> Step {
        loop {
            let item = tokio::select! {
                biased;
                item = self.call.next() => item,
                news = self.away.news(), if self.departures.is_none() => return Step::Message(news),
                () = departure(&mut self.departures) => {
                    self.take_back(frontend).await;
                    continue;
                }
            };
            match item {
                BusItem::Event(event) => {
                    if let Some(message) = self.event(frontend, id, &event).await {
                        return Step::Message(message);
                    }
                }
                BusItem::Reply(reply) => return self.reply(frontend, id, reply),
            }
        }
    }

    /// The host has left. What never reached it is taken back; what did may have begun, and its answer is waited for.
    async fn take_back(&mut self, frontend: &Frontend) {
        if frontend.worker.bus.is_untouched(&self.upstream.host, self.call.id()).await {
            self.taken_back = true;
            self.call.take_back();
        }
    }

    /// The answer to a call that is not the client's own. What the server says meanwhile still concerns the client.
    pub async fn outcome(mut self, frontend: &Arc<Frontend>) -> Outcome {
        let id = Id::number(0);
        loop {
            match self.call.next().await {
                BusItem::Event(event) => {
                    let message = self.event(frontend, &id, &event).await;
                    message.into_iter().for_each(|message| frontend.tell_aside(message));
                }
                BusItem::Reply(reply) => {
                    return match self.reply(frontend, &id, reply) {
                        Step::Done(outcome) => outcome,
                        _ => error::call_timeout(self.limit).into(),
                    };
                }
            }
        }
    }

    async fn event(&mut self, frontend: &Arc<Frontend>, id: &Id, event: &Body) -> Option<Message> {
        let event = std::str::from_utf8(event.as_bytes()).ok().and_then(|text| HostEvent::parse(text).ok())?;
        let mut message = frontend.translate(&self.upstream.host, self.era, event).await?;
        if let (Purpose::Listen { acknowledged }, Message::Notification(notification)) =
            (&mut self.purpose, &mut message)
        {
            let is_first = notification.method == ACKNOWLEDGED && !std::mem::replace(acknowledged, true);
            // A host that was started again begins the listening again; the client needs no second word of it.
            if notification.method == ACKNOWLEDGED && !is_first {
                return None;
            }
            under_subscription(notification, id);
        }
        Some(message)
    }

    fn reply(&mut self, frontend: &Frontend, id: &Id, reply: Result<Body, BrokerError>) -> Step {
        let mut outcome = match reply {
            Ok(body) => match std::str::from_utf8(body.as_bytes()).map(HostReply::parse) {
                Ok(Ok(HostReply::Rpc(outcome))) => outcome,
                // It reached its host after all, which came back at that moment.
                Ok(Ok(HostReply::Cancelled)) if self.taken_back => error::gone_and_back(&self.upstream.host).into(),
                Ok(Ok(HostReply::Cancelled)) => return Step::Nothing,
                Ok(Ok(HostReply::Task(task))) => return Step::Done(Outcome::Result(raw(&task))),
                Ok(Err(error)) => error::bad_reply(&error.reason).into(),
                Err(error) => error::bad_reply(&error.to_string()).into(),
            },
            Err(error) if self.taken_back && error.code() == Some(ErrorCode::Cancelled) => {
                let since = self.away.away_since().unwrap_or_default();
                error::host_offline(&self.upstream.host, &when(since)).into()
            }
            Err(error) => self.failure(id, &error),
        };
        if let (Outcome::Error(_), Purpose::Initialize) = (&outcome, self.purpose) {
            lock(&frontend.state).initialize = None;
        }
        if let Outcome::Result(result) = &mut outcome {
            self.offer_tasks(result);
            match self.purpose {
                Purpose::Initialize => frontend.greeted(result),
                Purpose::MayMakeTask => {
                    task_of(result).into_iter().for_each(|task| frontend.worker.remember_task(task, &self.upstream));
                }
                Purpose::Listen { .. } => return Step::Done(Outcome::Result(ended_listen(Some(result), id))),
                Purpose::Plain | Purpose::Discover | Purpose::MarkTools => {}
            }
        }
        Step::Done(outcome)
    }

    /// What the server says of itself, and that its calls can be tasks.
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
        let timed_out = matches!(error, BrokerError::Timeout(_)) || error.code() == Some(ErrorCode::Expired);
        if !timed_out {
            return error::from_bus(error).into();
        }
        if matches!(self.purpose, Purpose::Listen { .. }) {
            return Outcome::Result(ended_listen(None, id));
        }
        match self.away.away_all_along() {
            Some(since) => error::host_away(&self.upstream.host, &when(since)).into(),
            None => error::call_timeout(self.limit).into(),
        }
    }
}

async fn departure(departures: &mut Option<Departures>) {
    match departures {
        Some(departures) => departures.next().await,
        None => std::future::pending().await,
    }
}

pub const ACKNOWLEDGED: &str = "notifications/subscriptions/acknowledged";

/// Puts the client's own id of the listening into what comes of it.
pub fn under_subscription(notification: &mut Notification, id: &Id) {
    let set = meta::set(notification.params.as_deref(), meta::SUBSCRIPTION_ID, id.as_raw().to_owned());
    if let Ok(params) = set {
        notification.params = Some(params);
    }
}

/// The result with which a listening ends.
pub fn ended_listen(result: Option<&Raw>, id: &Id) -> Raw {
    let base = result.cloned().unwrap_or_else(|| raw(&serde_json::json!({"resultType": "complete"})));
    meta::set(Some(&base), meta::SUBSCRIPTION_ID, id.as_raw().to_owned()).unwrap_or(base)
}

/// The task that a result makes, in either era's way of saying it.
fn task_of(result: &Raw) -> Option<String> {
    if !result.get().contains("\"taskId\"") {
        return None;
    }
    let result = Members::of(Some(result)).ok()?;
    let task = Members::of(result.get("task")).ok().and_then(|task| task.text("taskId"));
    task.or_else(|| result.text("taskId"))
}

impl Frontend {
    /// Whether a request is refused while its host is away: by the worker's options, or because the tool's manifest says so.
    pub(super) fn is_hasty(
        &self,
        upstream: &Upstream,
        purpose: Purpose,
        (method, params): (&str, Option<&Raw>),
    ) -> bool {
        if matches!(purpose, Purpose::Initialize | Purpose::Listen { .. }) {
            return false;
        }
        let fail_fast = &upstream.manifest().fail_fast;
        let named = || Members::of(params.map(|params| &**params)).ok().and_then(|params| params.text("name"));
        let by_manifest = || method == "tools/call" && fail_fast.contain(named().as_deref());
        self.worker.options.fail_fast || (!fail_fast.is_empty() && by_manifest())
    }

    /// What a host says, in the client's terms.
    pub(super) async fn translate(self: &Arc<Self>, host: &str, era: Era, event: HostEvent) -> Option<Message> {
        match event {
            HostEvent::Notification { server, method, params }
                if method == "notifications/cancelled" && era == Era::Legacy =>
            {
                let params = lock(&self.state).questions.cancelled(host, &server, params.as_ref())?;
                Some(Notification { method, params: Some(params) }.into())
            }
            HostEvent::Notification { method, params, .. } => Some(Notification { method, params }.into()),
            HostEvent::Request { server, id, method, params } => {
                let limit = self.worker.options.max_questions;
                // A modern client is never asked; hosts know, and answer for it.
                let asked = match era {
                    Era::Legacy => lock(&self.state).questions.ask(host, &server, id.clone(), params.as_ref(), limit),
                    Era::Modern => None,
                };
                if let Some(id) = asked {
                    return Some(Request { id, method, params }.into());
                }
                let refusal = RpcError::new(toolbus_mcp::codes::INVALID_REQUEST, "the client can't be asked now");
                let answer = toolbus_mcp::Answer { server, session: self.session.clone(), id, outcome: refusal.into() };
                self.send(host, HostRequest::Answer(answer)).await;
                None
            }
            HostEvent::Closed { server, reason } => {
                tracing::debug!(%host, %server, %reason, "the host ended a session");
                None
            }
        }
    }
}
