//! A request to one server. Its events are passed to the client in order, then its response.

use super::away::{AwayWatch, Departures, away_since, when};
use super::call::CallStep;
use super::call_state::{CallState, Leave, NoReply};
use super::listen::{ACKNOWLEDGED, ended_listen, under_subscription};
use super::member::{Destination, with_marked_state};
use super::pooled::{Due, Moving, Pooled, due, moving};
use super::tasks::offer;
use super::{Frontend, body};
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
    Era, HostEvent, HostReply, HostRequest, Id, Members, Message, Outcome, Raw, Rpc, RpcError, meta, raw,
};
use toolbus_protocol::Body;

pub struct UpstreamCall {
    /// The number of the client's call.
    number: Option<u64>,
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
    /// Set if another host of a pool can run the call.
    pooled: Option<Box<Pooled>>,
    /// Set while the call is on its way to another host.
    moving: Option<Box<Moving>>,
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
    /// Sends the request, for a pool to one of its hosts. `number` is the number of the client's call, which a cancellation
    /// has to find.
    pub async fn start(
        frontend: &Arc<Frontend>,
        number: Option<u64>,
        upstream: &Arc<Upstream>,
        era: Era,
        (method, params): (&str, Option<Raw>),
        purpose: Purpose,
    ) -> Result<Self, RpcError> {
        let shown = upstream;
        let Destination { member, params, is_bound } = frontend.destination(shown, era, (method, params), &[]);
        let upstream = &member;
        let options = &frontend.worker.options;
        let limit = match purpose {
            Purpose::Listen { .. } => options.listen_deadline,
            _ => options.call_deadline,
        };
        let moves = shown.pool.as_ref().is_some_and(|pool| pool.members().count() > 1) && !is_bound;
        let rpc = Rpc {
            server: upstream.server().to_owned(),
            session: frontend.session.clone(),
            client: frontend.hello(era),
            method: method.to_owned(),
            params,
            task: None,
            hand_back: moves,
        };
        let holder = if moves { frontend.earlier_holder(shown, &rpc).await } else { None };
        let upstream = holder.as_ref().unwrap_or(upstream);
        let hosts = frontend.worker.hosts();
        let fails_fast = frontend.fails_fast(upstream, purpose, (method, rpc.params.as_ref()));
        let state = CallState::start(fails_fast, away_since(&hosts, &upstream.host), now_ms())
            .map_err(|no_reply| explain(no_reply, upstream, limit))?;
        let departures = (state.fails_fast && !moves).then(|| Departures::new(hosts, upstream));
        let token = meta::get(rpc.params.as_ref(), meta::PROGRESS_TOKEN).map(|token| token.detached());
        frontend.mark_contacted(&upstream.host);
        let pooled =
            moves.then(|| Pooled::new(frontend, (shown, upstream), holder.is_some(), (era, &rpc), (limit, fails_fast)));
        let call = match &pooled {
            Some(pooled) => pooled.start(frontend, upstream).await,
            None => frontend.worker.bus.start_call(&upstream.host, body(HostRequest::Rpc(rpc)), limit).await,
        };
        let call = call.map_err(|error| error::from_bus(&error))?;
        frontend.set_target(number, upstream, call.id(), era);
        let away = AwayWatch::new(Arc::clone(&frontend.worker.bus), upstream, call.id(), token, options.away_progress);
        Ok(Self {
            number,
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
            pooled,
            moving: None,
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
                        Some(end) if self.moves(frontend, end) => continue,
                        Some(end) => {
                            let end = self.pooled.as_ref().map_or(end, |pooled| pooled.meaning(end));
                            return CallStep::Done(explain(end, &self.upstream, self.limit).into());
                        }
                        None => {
                            self.pooled.iter_mut().for_each(|pooled| match is_confirmed {
                                Some(_) => pooled.await_end(),
                                None => pooled.touched(),
                            });
                            continue;
                        }
                    }
                }
                started = moving(&mut self.moving) => match self.moved(frontend, started) {
                    Ok(true) => continue,
                    Ok(false) => return CallStep::Cancelled,
                    Err(error) => return CallStep::Done(error.into()),
                },
                item = self.call.next(), if self.withdrawal.is_none() && self.moving.is_none() => item,
                due = due(&mut self.pooled, frontend, &self.upstream.host), if self.withdrawal.is_none() && self.moving.is_none() => {
                    match due {
                        Due::GiveUp if self.moves(frontend, NoReply::WithdrawnTooLate) => {}
                        Due::GiveUp => {
                            let end = explain(NoReply::WithdrawnTooLate, &self.upstream, self.limit);
                            return CallStep::Done(end.into());
                        }
                        Due::WithdrawUntouched => self.withdrawal = Some(self.withdraw(frontend)),
                        Due::Fence => self.withdrawal = Some(self.fence(frontend)),
                    }
                    continue;
                }
                message = self.away.next_progress(), if self.departures.is_none() && self.moving.is_none() => {
                    return CallStep::Message(message);
                }
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
                BusItem::Reply(reply) => match self.reply(frontend, id, reply) {
                    Some(step) => return step,
                    None => continue,
                },
            }
        }
    }

    /// Begins to move the call to another host of the pool, if it may run there. Returns false if it ends without a reply.
    fn moves(&mut self, frontend: &Arc<Frontend>, no_reply: NoReply) -> bool {
        let Some(pooled) = &mut self.pooled else { return false };
        let is_moved = !frontend.is_cancelled(self.number) && pooled.may_move(frontend, &self.upstream, no_reply);
        if is_moved {
            // What may still be under way at the host has no reader: it is not cancelled once more.
            self.call.detach();
            self.moving = Some(pooled.start_again(frontend, &self.upstream.host));
        }
        is_moved
    }

    /// The call is at its next host. Returns false if the client has cancelled it meanwhile.
    fn moved(
        &mut self,
        frontend: &Arc<Frontend>,
        started: Result<Box<dyn BusCall>, BrokerError>,
    ) -> Result<bool, RpcError> {
        let Some(moving) = self.moving.take() else { return Ok(true) };
        self.call = started.map_err(|error| error::from_bus(&error))?;
        self.upstream = moving.to;
        self.away.move_to(&self.upstream, self.call.id());
        self.state = CallState::started(self.state.fails_fast, now_ms());
        frontend.set_target(self.number, &self.upstream, self.call.id(), self.era);
        Ok(!frontend.is_cancelled(self.number))
    }

    /// Withdraws the call, whether or not its host received it: it does not get it again.
    fn fence(&mut self, frontend: &Frontend) -> BoxFuture<'static, Option<bool>> {
        let bus = Arc::clone(&frontend.worker.bus);
        let (host, id) = (self.upstream.host.clone(), self.call.id().to_owned());
        let limit = self.pooled.as_mut().map_or(self.limit, |pooled| {
            pooled.fenced();
            pooled.remaining()
        });
        Box::pin(async move { Some(bus.withdraw_within(&host, &id, limit).await) })
    }

    /// Withdraws the call after the host disconnected, unless it was delivered.
    fn withdraw(&self, frontend: &Frontend) -> BoxFuture<'static, Option<bool>> {
        let (bus, state) = (Arc::clone(&frontend.worker.bus), self.state);
        let (host, id) = (self.upstream.host.clone(), self.call.id().to_owned());
        let limit = self.pooled.as_ref().map(|pooled| pooled.remaining());
        Box::pin(async move {
            match (state.withdraws(bus.is_untouched(&host, &id).await), limit) {
                (true, Some(limit)) => Some(bus.withdraw_within(&host, &id, limit).await),
                (true, None) => Some(bus.withdraw(&host, &id).await),
                (false, _) => None,
            }
        })
    }

    /// The outcome of a call that the frontend made on its own. Its events are sent to the client out of band.
    pub async fn outcome(mut self, frontend: &Arc<Frontend>) -> Outcome {
        let id = Id::number(0);
        loop {
            match self.step(frontend, &id).await {
                CallStep::Message(message) => frontend.send_out_of_band(message),
                CallStep::Done(outcome) => return outcome,
                CallStep::Cancelled => return error::call_timeout(self.limit).into(),
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

    /// Returns `None` if the call moves to another host.
    fn reply(&mut self, frontend: &Arc<Frontend>, id: &Id, reply: Result<Body, BrokerError>) -> Option<CallStep> {
        let mut outcome = match reply {
            Ok(body) => match body.text().map(HostReply::parse) {
                Ok(Ok(HostReply::Rpc(outcome))) => outcome,
                Ok(Ok(HostReply::Cancelled)) => match self.state.host_cancelled() {
                    Some(no_reply) if self.moves(frontend, no_reply) => return None,
                    Some(no_reply) => explain(no_reply, &self.upstream, self.limit).into(),
                    None => return Some(CallStep::Cancelled),
                },
                Ok(Ok(HostReply::HandedBack)) => {
                    let since = self.away.away_since().unwrap_or_default();
                    self.pooled.iter_mut().for_each(|pooled| pooled.handed_back(&self.upstream.host));
                    let not_run = NoReply::NotRun { since };
                    match not_run {
                        no_reply if self.moves(frontend, no_reply) => return None,
                        _ if frontend.is_cancelled(self.number) => return Some(CallStep::Cancelled),
                        no_reply => {
                            let end = self.pooled.as_ref().map_or(no_reply, |pooled| pooled.meaning(no_reply));
                            explain(end, &self.upstream, self.limit).into()
                        }
                    }
                }
                Ok(Ok(HostReply::Task(task))) => return Some(CallStep::Done(Outcome::Result(raw(&task)))),
                Ok(Err(error)) => error::bad_reply(&error.reason).into(),
                Err(error) => error::bad_reply(&error.to_string()).into(),
            },
            Err(error) => {
                let no_reply = self.state.failed(&error, self.away.away_since());
                if self.moves(frontend, no_reply) {
                    return None;
                }
                self.failure(id, &error, no_reply)
            }
        };
        if let (Outcome::Error(_), Purpose::Initialize) = (&outcome, self.purpose) {
            lock(&frontend.state).initialize = None;
        }
        if let Outcome::Result(result) = &mut outcome {
            if self.upstream.member_of.is_some() {
                *result =
                    with_marked_state(std::mem::replace(result, toolbus_mcp::empty_object()), &self.upstream.host);
            }
            self.offer_tasks(result);
            self.route.iter().for_each(|route| frontend.worker.remember_route(route, &self.upstream));
            match self.purpose {
                Purpose::Initialize => frontend.record_initialize(result),
                Purpose::MayMakeTask => {
                    task_of(result).into_iter().for_each(|task| frontend.worker.remember_task(task, &self.upstream));
                }
                Purpose::Listen { .. } => {
                    return Some(CallStep::Done(Outcome::Result(ended_listen(Some(result), id))));
                }
                Purpose::Plain | Purpose::Discover | Purpose::MarkTools => {}
            }
        }
        Some(CallStep::Done(outcome))
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

    fn failure(&self, id: &Id, error: &BrokerError, no_reply: NoReply) -> Outcome {
        let is_listen = matches!(self.purpose, Purpose::Listen { .. });
        match no_reply {
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

/// The id of the task that a result creates, in the format of either era.
fn task_of(result: &Raw) -> Option<String> {
    let result = result.members().ok()?;
    let task = Members::of(result.get("task")).ok().and_then(|task| task.text("taskId"));
    task.or_else(|| result.text("taskId"))
}
