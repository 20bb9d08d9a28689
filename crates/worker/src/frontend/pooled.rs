//! A call to a pool: watches its member for absence, and starts the call again at another member.

use super::failover::{Failover, Situation, Step, may_move};
use super::member::Destination;
use super::{Frontend, body, call_state::NoReply};
use crate::bus::{BoxFuture, BusCall, Hosts};
use crate::call_key::content_key;
use crate::pools::CountedCall;
use crate::view::{Upstream, View};
use crate::worker::Worker;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use toolbus_base::now_ms;
use toolbus_client::BrokerError;
use toolbus_mcp::{Era, HostRequest, NameKey, Raw, Rpc, has_effect, routed_name};
use toolbus_protocol::Body;

/// How long a call that was withdrawn too late may take to end. The broker or the member ends it at once, unless that got lost.
const END_TIMEOUT: Duration = Duration::from_secs(10);
/// Delay before a call goes to the member that has handed it back, if there is no other.
const SAME_MEMBER_DELAY: Duration = Duration::from_millis(500);
/// How often a call moves at most.
const MAX_MOVES: usize = 64;

/// What a call needs to move within its pool.
pub struct Pooled {
    pool: Arc<Upstream>,
    era: Era,
    request: (String, Option<Raw>),
    name: Option<NameKey>,
    request_body: Body,
    deadline: Instant,
    hosts: watch::Receiver<Hosts>,
    fails_fast: bool,
    failover: Failover,
    /// Hosts that handed the call back.
    tried: Vec<String>,
    moves: usize,
    ends_by: Option<Instant>,
    /// The member knows an equal call of an earlier worker, which this one may repeat.
    is_repeated: bool,
    key: u64,
    /// Counts the call at its member.
    counted: CountedCall,
}

/// What is due for a call whose member is away.
pub enum Due {
    /// Withdraw it if the member never received it.
    WithdrawUntouched,
    Fence,
    /// It was withdrawn and has not ended.
    GiveUp,
}

/// A call on its way to another member.
pub struct Moving {
    pub to: Arc<Upstream>,
    pub started: BoxFuture<'static, Result<Box<dyn BusCall>, BrokerError>>,
}

impl Pooled {
    /// `is_repeated`: the member knows an equal call of an earlier worker, which this one may repeat. It goes nowhere else.
    pub fn new(
        frontend: &Frontend,
        (pool, member): (&Arc<Upstream>, &Upstream),
        is_repeated: bool,
        (era, rpc): (Era, &Rpc),
        (limit, fails_fast): (Duration, bool),
    ) -> Box<Self> {
        let options = &frontend.worker.options;
        let keeps_state = is_repeated || pool.pool.as_ref().is_some_and(|pool| pool.keeps_state(era));
        let grace = u64::try_from(options.pool_grace.as_millis()).unwrap_or(u64::MAX);
        Box::new(Self {
            pool: Arc::clone(pool),
            era,
            name: routed_name(&rpc.method, rpc.params.as_ref()),
            request: (rpc.method.clone(), rpc.params.clone()),
            request_body: body(HostRequest::Rpc(rpc.clone())),
            key: content_key(rpc),
            is_repeated,
            deadline: Instant::now() + limit,
            hosts: frontend.worker.hosts(),
            fails_fast,
            failover: Failover::new(grace, keeps_state, fails_fast),
            tried: Vec::new(),
            moves: 0,
            ends_by: None,
            counted: frontend.worker.pools.count(&member.host),
        })
    }

    /// Sends the call to its first member.
    pub async fn start(&self, frontend: &Frontend, member: &Upstream) -> Result<Box<dyn BusCall>, BrokerError> {
        let (request, limit) = (self.request_body.clone(), self.remaining());
        frontend.worker.bus.start_keyed_call(&member.host, request, limit, self.key).await
    }

    /// What it means for the client that the call ended without a reply. If it was not run, an equal one of an earlier worker
    /// may have been.
    pub fn meaning(&self, no_reply: NoReply) -> NoReply {
        match no_reply {
            NoReply::NotRun { .. } if self.is_repeated => NoReply::WithdrawnTooLate,
            no_reply => no_reply,
        }
    }

    /// What is left of the call's time.
    pub fn remaining(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Resolves when something has to be done because the member is away. Cancellation-safe.
    pub async fn due(&mut self, worker: &Worker, member: &str) -> Due {
        loop {
            self.hosts.mark_unchanged();
            let situation = self.situation(&worker.view(), member);
            let now = now_ms();
            let until = match self.failover.next(situation, now) {
                _ if self.ends_by.is_some() => self.ends_by,
                Step::WithdrawUntouched => return Due::WithdrawUntouched,
                Step::Fence => return Due::Fence,
                Step::Wait => None,
                Step::Until(at) => Some(Instant::now() + Duration::from_millis(at.saturating_sub(now))),
            };
            tokio::select! {
                () = sleep_until(until) => if self.ends_by.is_some() { return Due::GiveUp },
                changed = self.hosts.changed() => if changed.is_err() {
                    // A closed bus ends the call itself.
                    return std::future::pending().await;
                },
            }
        }
    }

    fn situation(&self, view: &View, member: &str) -> Situation {
        let pool = self.current(view);
        let members = || pool.pool.as_ref().map(|pool| pool.serving(self.name.as_ref())).unwrap_or_default();
        let at_member = view.find(member, pool.server());
        Situation {
            away_since: at_member.map_or(Some(0), |upstream| upstream.away_since_ms),
            is_draining: at_member.is_some_and(|upstream| upstream.is_draining()),
            has_others: members()
                .iter()
                .any(|other| other.host != member && other.away_since_ms.is_none() && !other.is_draining()),
        }
    }

    fn current(&self, view: &View) -> Arc<Upstream> {
        view.find(&self.pool.host, self.pool.server()).map_or_else(|| Arc::clone(&self.pool), Arc::clone)
    }

    /// The member was asked, or may have been: the call is not withdrawn before the grace is over.
    pub fn touched(&mut self) {
        self.failover.touched();
    }

    pub fn fenced(&mut self) {
        self.failover.fenced();
    }

    /// The withdrawal came too late. The broker or the member ends the call.
    pub fn await_end(&mut self) {
        self.ends_by = Some(Instant::now() + END_TIMEOUT);
    }

    /// Whether the call may run at another member.
    pub fn may_move(&self, frontend: &Frontend, member: &Upstream, no_reply: NoReply) -> bool {
        if self.is_repeated || self.moves >= MAX_MOVES || self.remaining().is_zero() {
            return false;
        }
        let situation = self.situation(&frontend.worker.view(), &member.host);
        let fails_now = matches!(no_reply, NoReply::NotRun { .. }) && !situation.has_others && self.fails_fast;
        may_move(no_reply, self.is_replay_safe(frontend, member)) && !fails_now
    }

    /// The member that the call was sent to, and all that are connected now, say that the call may run twice.
    fn is_replay_safe(&self, frontend: &Frontend, member: &Upstream) -> bool {
        let (method, _) = &self.request;
        let tool = match &self.name {
            _ if !has_effect(method) => return true,
            Some(NameKey::Tool(tool)) if method == "tools/call" => tool,
            _ => return false,
        };
        let pool = self.current(&frontend.worker.view());
        [member, &*pool].iter().all(|upstream| upstream.manifest().replay_safe.contain(Some(tool)))
    }

    /// The member has handed the call back: it goes there only if there is no other.
    pub fn handed_back(&mut self, host: &str) {
        if !self.tried.iter().any(|tried| tried == host) {
            self.tried.push(host.to_owned());
        }
    }

    /// Sends the call to another member, under a new id: the earlier one is settled.
    pub fn start_again(&mut self, frontend: &Arc<Frontend>, from: &str) -> Box<Moving> {
        let (method, params) = (self.request.0.as_str(), self.request.1.clone());
        let pool = self.current(&frontend.worker.view());
        let Destination { member, .. } = frontend.destination(&pool, self.era, (method, params), &self.tried);
        tracing::info!(pool = pool.host, from, to = member.host, method, "a call moves to another host of its pool");
        frontend.mark_contacted(&member.host);
        self.moves += 1;
        self.ends_by = None;
        self.counted = frontend.worker.pools.count(&member.host);
        let (bus, request, host) = (Arc::clone(&frontend.worker.bus), self.request_body.clone(), member.host.clone());
        let (limit, key, is_same) = (self.remaining(), self.key, host == from);
        let started = Box::pin(async move {
            if is_same {
                tokio::time::sleep(SAME_MEMBER_DELAY.min(limit)).await;
            }
            bus.start_keyed_call(&host, request, limit, key).await
        });
        Box::new(Moving { to: member, started })
    }
}

/// The call at its next member; pending if it does not move.
pub async fn moving(moving: &mut Option<Box<Moving>>) -> Result<Box<dyn BusCall>, BrokerError> {
    match moving {
        Some(moving) => (&mut moving.started).await,
        None => std::future::pending().await,
    }
}

/// [`Pooled::due`]; pending if the call is not one to a pool.
pub async fn due(pooled: &mut Option<Box<Pooled>>, frontend: &Frontend, host: &str) -> Due {
    match pooled {
        Some(pooled) => pooled.due(&frontend.worker, host).await,
        None => std::future::pending().await,
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
