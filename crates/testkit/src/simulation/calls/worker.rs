//! Workers and the clients behind them. After a crash of its worker, a client starts another one and may repeat its
//! unanswered requests there, as new calls with new ids.

use super::World;
use super::network::Owner;
use super::oracle::{Request, RequestNo};
use super::wire::{LONGEST_CALL, ToHost, Work};
use crate::planted::Planted;
use crate::simulation::scenario::pick;
use bytestring::ByteString;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use toolbus_client::simulation::SimulatedClient;
use toolbus_client::{BrokerError, ErrorCode};
use toolbus_engine::{ConnId, Outgoing};
use toolbus_protocol::InboxKind;
use toolbus_worker::simulation::{CallState, Leave, NoReply};

pub struct Worker {
    pub agent: usize,
    pub mailbox: ByteString,
    pub alive: bool,
    pub conn: Option<ConnId>,
    pub client: SimulatedClient,
    pub requests: Vec<RequestNo>,
    /// Requests for whose reply the worker waits.
    pub open: BTreeMap<RequestNo, CallState>,
    /// Since when hosts are away, as far as the worker knows.
    pub away: BTreeMap<usize, u64>,
    /// Calls whose withdrawal has no answer.
    pub withdrawing: BTreeSet<RequestNo>,
}

impl World {
    pub fn start_worker(&mut self, agent: usize) -> usize {
        let number = self.workers.len();
        let mailbox = ByteString::from(format!("agent{agent}#{number}"));
        let planted = self.plan.planted.and_then(Planted::in_client);
        let mut client = SimulatedClient::new(&mailbox, self.instant(), planted);
        client.multiplex();
        let (requests, open, away, withdrawing) = (Vec::new(), BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        self.workers.push(Worker {
            agent,
            mailbox,
            alive: true,
            conn: None,
            client,
            requests,
            open,
            away,
            withdrawing,
        });
        number
    }

    pub fn random_worker(&mut self) -> usize {
        let alive: Vec<usize> = (0..self.workers.len()).filter(|worker| self.workers[*worker].alive).collect();
        *pick(&mut self.rng, &alive)
    }

    /// Sends a new random call.
    pub fn send_call(&mut self, worker: usize) {
        let task = self.rng.chance(self.plan.tasks);
        let session = self.rng.chance(self.plan.sessions);
        let server = self.rng.below(self.plan.machine.servers.len() as u64) as usize;
        let (tool, argument) = (*pick(&mut self.rng, &[0, 0, 1, 2, 2, 3]), self.rng.below(self.plan.arguments));
        let work = Work { server, tool, argument, task, session };
        let host = self.rng.below(self.plan.hosts as u64) as usize;
        let deadline = self.rng.chance(self.plan.deadlines).then(|| self.now + 1 + self.rng.below(300));
        self.ask(worker, host, work, deadline, None);
    }

    pub fn ask(&mut self, worker: usize, host: usize, work: Work, deadline: Option<u64>, repeats: Option<RequestNo>) {
        let no = self.oracle.requests.len();
        let id = ByteString::from(format!("call-{no}"));
        let (agent, mailbox) = (self.workers[worker].agent, self.workers[worker].mailbox.clone());
        self.note("call", &[("request", no as u64), ("worker", worker as u64), ("tool", work.tool)]);
        let body = ToHost::Call { work, sent_at: self.now }.body();
        let message = self.message(&mailbox, InboxKind::McpRequest, &id, body);
        let request = Request { agent, mailbox, host, work, id, deadline, repeats, ..Request::default() };
        self.oracle.add_request(request);
        self.workers[worker].requests.push(no);
        let away_since = self.workers[worker].away.get(&host).copied();
        let state = match CallState::start(!work.task && self.rng.chance(self.plan.fail_fast), away_since, self.now) {
            Ok(state) => state.with_planted(self.plan.planted.and_then(Planted::in_worker)),
            Err(_) => return self.oracle.not_run(no),
        };
        self.workers[worker].open.insert(no, state);
        let limit = Duration::from_millis(deadline.map_or(LONGEST_CALL, |at| at - self.now));
        let to = self.hosts[host].name.clone();
        let sent = self.client(Owner::Worker(worker)).map(|client| client.call(&to, &message, limit));
        if let Some(Err(error)) = sent {
            self.oracle.violated(format!("call-{no} can't be sent: {error}"));
        }
        self.flush(Owner::Worker(worker), false);
    }

    pub fn worker_reads(&mut self, worker: usize, outgoing: &Outgoing) {
        if let Outgoing::Inspected { .. } = outgoing {
            return self.delivery_known(worker, outgoing);
        }
        self.receive_frame(Owner::Worker(worker), outgoing);
        self.end_withdrawals(worker);
        let answered = self.take_answers(worker);
        let Outgoing::Message { message, .. } = outgoing else { return };
        let mailbox = self.workers[worker].mailbox.clone();
        self.oracle.delivered(&mailbox, message.seq, &message.id);
        let about = message.correlation_id.as_ref().and_then(|id| self.oracle.find(&mailbox, id));
        let envelope = toolbus_protocol::Envelope::from_sealed(message.sealed.clone());
        let body = envelope.map(|envelope| envelope.open(toolbus_protocol::AgentRef::new("host")).body);
        let answer = body.ok().and_then(|body| self.codebook.decode(body.as_bytes()));
        match (about, answer) {
            (Some(no), _) if answered.contains(&no) => {}
            // The caller has stopped waiting, but the answer must be the same.
            (Some(no), Some(answer)) if !self.workers[worker].open.contains_key(&no) => {
                self.oracle.answered(no, answer)
            }
            // It is taken when the withdrawal is answered.
            (Some(no), Some(_)) if self.workers[worker].withdrawing.contains(&no) => {}
            (Some(no), Some(_)) => {
                self.oracle.violated(format!("the answer to {} did not reach its caller", self.oracle.requests[no].id));
            }
            _ => self.oracle.violated("a worker received a message that answers none of its requests"),
        }
    }

    /// Gives the client the outcomes of its requests. Returns those that got an answer.
    fn take_answers(&mut self, worker: usize) -> Vec<RequestNo> {
        let mut answered = Vec::new();
        for (no, state) in self.workers[worker].open.clone() {
            // The broker ends a withdrawn call before it has confirmed the withdrawal.
            if self.workers[worker].withdrawing.contains(&no) {
                continue;
            }
            let id = self.oracle.requests[no].id.clone();
            let Some(outcome) = self.client(Owner::Worker(worker)).and_then(|client| client.outcome(&id)) else {
                continue;
            };
            self.workers[worker].open.remove(&no);
            match outcome {
                Ok(reply) => match self.codebook.decode(reply.body.as_bytes()) {
                    Some(answer) => {
                        self.note("answer", &[("request", no as u64), ("joined", u64::from(answer.joined))]);
                        answered.push(no);
                        self.oracle.answered(no, answer);
                    }
                    None => self.oracle.violated("a malformed answer"),
                },
                Err(error) => self.call_failed(worker, no, state, &error),
            }
        }
        answered
    }

    fn call_failed(&mut self, worker: usize, no: RequestNo, state: CallState, error: &BrokerError) {
        let away_since = self.workers[worker].away.get(&self.oracle.requests[no].host).copied();
        match state.failed(error, away_since) {
            // The broker's clock may reach the deadline before the worker's.
            NoReply::HostAway { .. } | NoReply::TimedOut => {
                self.oracle.tally.expired += 1;
                self.cancel_at_broker(worker, no);
                self.oracle.timed_out(no);
            }
            NoReply::WithdrawnTooLate => self.oracle.timed_out(no),
            NoReply::NotRun { .. } => self.oracle.not_run(no),
            NoReply::Failed if error.code() == Some(ErrorCode::Cancelled) && self.oracle.requests[no].cancelled => {}
            NoReply::Failed => self.oracle.violated(format!("a call was refused: {error}")),
        }
    }

    fn cancel_at_broker(&mut self, worker: usize, no: RequestNo) {
        let request = &self.oracle.requests[no];
        let (to, id) = (self.hosts[request.host].name.clone(), request.id.clone());
        self.client(Owner::Worker(worker)).into_iter().for_each(|client| client.cancel(&to, &id));
        self.flush(Owner::Worker(worker), false);
    }

    /// Workers stop waiting for calls whose deadline has passed, and cancel them.
    pub fn time_out_requests(&mut self) {
        for worker in 0..self.workers.len() {
            let is_over = |no: &RequestNo| self.oracle.requests[*no].deadline.is_some_and(|at| at <= self.now);
            let late: Vec<RequestNo> = self.workers[worker].open.keys().copied().filter(is_over).collect();
            for no in late {
                self.oracle.tally.expired += 1;
                self.oracle.timed_out(no);
                self.abandon(worker, no);
            }
        }
    }

    /// The worker stops waiting for a call and cancels it.
    pub fn abandon(&mut self, worker: usize, no: RequestNo) {
        self.workers[worker].open.remove(&no);
        self.workers[worker].withdrawing.remove(&no);
        let request = &self.oracle.requests[no];
        let (to, id) = (self.hosts[request.host].name.clone(), request.id.clone());
        self.client(Owner::Worker(worker)).into_iter().for_each(|client| client.abandon(&to, &id));
        self.flush(Owner::Worker(worker), false);
    }

    /// The client cancels a request: its worker abandons the call, or sends a message to the host and waits for the reply.
    pub fn cancel_request(&mut self, worker: usize) {
        let open = self.workers[worker].open.keys().copied();
        let open: Vec<RequestNo> = open.filter(|no| !self.oracle.requests[*no].is_answered()).collect();
        if open.is_empty() {
            return;
        }
        let no = *pick(&mut self.rng, &open);
        self.note("cancel", &[("request", no as u64)]);
        let request = &mut self.oracle.requests[no];
        request.cancelled = true;
        let (to, id) = (self.hosts[request.host].name.clone(), request.id.clone());
        if self.rng.chance(60) {
            return self.abandon(worker, no);
        }
        let number = format!("cancel-{}", self.fresh_id());
        let mailbox = self.workers[worker].mailbox.clone();
        let message = self.message(&mailbox, InboxKind::McpRequest, &number, ToHost::Cancel { id }.body());
        let limit = Duration::from_millis(LONGEST_CALL);
        let sent = self.client(Owner::Worker(worker)).map(|client| client.deliver(&to, &message, limit));
        if let Some(Err(error)) = sent {
            self.oracle.violated(format!("a cancel can't be sent: {error}"));
        }
        self.flush(Owner::Worker(worker), false);
    }

    /// The worker process ends, and no client waits for its requests any more.
    pub fn stop_worker(&mut self, worker: usize) {
        self.crashes += 1;
        self.note("worker ends", &[("worker", worker as u64)]);
        self.disconnect(Owner::Worker(worker));
        self.workers[worker].alive = false;
        self.workers[worker].open.clear();
        self.workers[worker].withdrawing.clear();
        for no in &self.workers[worker].requests {
            let request = &mut self.oracle.requests[*no];
            request.caller_is_gone |= !request.is_answered();
        }
    }

    /// SIGTERM: the worker leaves its calls, sends what it has, and closes its link. One with a client on stdio cuts its link
    /// first, so that it acknowledges no reply that the client does not get.
    pub fn worker_detaches(&mut self, worker: usize) {
        if self.rng.chance(50) {
            self.disconnect(Owner::Worker(worker));
        }
        for (no, state) in std::mem::take(&mut self.workers[worker].open) {
            let id = self.oracle.requests[no].id.clone();
            match state.leave(true) {
                Leave::Cancel => self.abandon(worker, no),
                Leave::Detach => self.client(Owner::Worker(worker)).into_iter().for_each(|client| client.detach(&id)),
            }
        }
        self.flush(Owner::Worker(worker), true);
        if let Some(conn) = self.workers[worker].conn {
            (0..50).for_each(|_| self.broker_reads(conn));
        }
        self.worker_crashes(worker);
    }

    /// The worker process ends. Its client starts another one and repeats most of the unanswered requests.
    pub fn worker_crashes(&mut self, worker: usize) {
        self.stop_worker(worker);
        let next = self.start_worker(self.workers[worker].agent);
        for no in self.workers[worker].requests.clone() {
            let request = &self.oracle.requests[no];
            let (host, work, is_open) = (request.host, request.work, !request.is_answered());
            // A request that was answered is sometimes made again, and meant so.
            if self.rng.chance(if is_open { 75 } else { self.plan.made_again }) {
                let deadline = self.rng.chance(self.plan.deadlines).then(|| self.now + 1 + self.rng.below(300));
                self.ask(next, host, work, deadline, is_open.then_some(no));
            }
        }
    }
}
