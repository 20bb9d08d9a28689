//! Workers and the clients behind them. After a crash of its worker, a client starts another one and may repeat its
//! unanswered requests there, as new calls with new ids.

use super::World;
use super::network::Owner;
use super::oracle::{Request, RequestNo};
use super::wire::{LONGEST_CALL, ToHost, Work, content_hash};
use crate::planted::Planted;
use crate::simulation::scenario::pick;
use bytestring::ByteString;
use toolbus_engine::{Command, ConnId, Delivery, Outgoing, Purpose, Refusal, Seq};

pub struct Worker {
    pub agent: usize,
    pub mailbox: ByteString,
    pub alive: bool,
    pub conn: Option<ConnId>,
    pub requests: Vec<RequestNo>,
    /// Answers that the client has and that are not acknowledged to the broker yet.
    to_ack: Vec<Seq>,
}

/// How long after a deadline a worker stops waiting on its own, in case no answer arrives.
const DEADLINE_GRACE: u64 = 30;

impl Worker {
    pub fn link_lost(&mut self) {
        self.conn = None;
        self.to_ack.clear();
    }
}

impl World {
    pub fn start_worker(&mut self, agent: usize) -> usize {
        let number = self.workers.len();
        let mailbox = ByteString::from(format!("agent{agent}#{number}"));
        self.workers.push(Worker { agent, mailbox, alive: true, conn: None, requests: Vec::new(), to_ack: Vec::new() });
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
        let sent_at = self.now;
        let request = Request { agent, mailbox, host, work, id, sent_at, deadline, repeats, ..Request::default() };
        self.oracle.add_request(request);
        self.workers[worker].requests.push(no);
        self.send_request(worker, no);
    }

    fn send_request(&mut self, worker: usize, no: RequestNo) {
        let request = &self.oracle.requests[no];
        let sealed = ToHost::Call { work: request.work, sent_at: request.sent_at }.body();
        let delivery = Delivery {
            to: self.hosts[request.host].name.clone(),
            id: request.id.clone(),
            correlation_id: None,
            purpose: Purpose::Request,
            content: content_hash(&sealed),
            sealed,
            deadline_ms: Some(request.deadline.map_or(LONGEST_CALL, |at| at.saturating_sub(self.now))),
            ack: None,
        };
        self.send(self.workers[worker].conn, Command::Deliver(delivery));
    }

    /// Retransmits every request without a receipt, under the same id.
    pub fn worker_is_connected(&mut self, worker: usize, conn: ConnId) {
        self.workers[worker].conn = Some(conn);
        for no in self.workers[worker].requests.clone() {
            let request = &self.oracle.requests[no];
            if request.receipted || request.is_answered() {
                continue;
            }
            if self.plan.is_planted(Planted::NewIdOnRetry) {
                let id = ByteString::from(format!("again-{}", self.fresh_id()));
                self.oracle.renamed(no, id);
            }
            self.send_request(worker, no);
        }
    }

    pub fn worker_reads(&mut self, worker: usize, outgoing: Outgoing) {
        match outgoing {
            Outgoing::Message { message, .. } => {
                let mailbox = self.workers[worker].mailbox.clone();
                self.oracle.delivered(&mailbox, message.seq, &message.id);
                self.workers[worker].to_ack.push(message.seq);
                let about = message.correlation_id.as_ref().and_then(|id| self.oracle.find(&mailbox, id));
                match (about, self.codebook.decode(&message.sealed)) {
                    (Some(no), Some(answer)) => {
                        self.note("answer", &[("request", no as u64), ("joined", u64::from(answer.joined))]);
                        self.oracle.answered(no, answer);
                    }
                    _ => self.oracle.violated("a worker received a message that answers none of its requests"),
                }
            }
            Outgoing::Receipt { id, .. } => {
                let mailbox = self.workers[worker].mailbox.clone();
                if let Some(no) = self.oracle.find(&mailbox, &id) {
                    self.oracle.requests[no].receipted = true;
                }
            }
            Outgoing::Refused { refusal, id: Some(id) } => self.worker_is_refused(worker, &refusal, &id),
            _ => {}
        }
    }

    fn worker_is_refused(&mut self, worker: usize, refusal: &Refusal, id: &ByteString) {
        let mailbox = self.workers[worker].mailbox.clone();
        match (refusal, self.oracle.find(&mailbox, id)) {
            (Refusal::Expired { .. }, Some(no)) => {
                self.oracle.tally.expired += 1;
                self.oracle.timed_out(no);
            }
            (Refusal::Cancelled { .. }, Some(no)) => self.oracle.timed_out(no),
            // The request of a cancel was lost in a crash, or a cancel is late.
            (Refusal::Displaced { .. }, _) => {}
            _ => self.oracle.violated(format!("a call was refused: {refusal}")),
        }
    }

    /// Acknowledges the answers that the client has.
    pub fn worker_acks(&mut self, worker: usize) {
        let tags = std::mem::take(&mut self.workers[worker].to_ack);
        if !tags.is_empty() {
            self.send(self.workers[worker].conn, Command::AckTags { tags });
        }
    }

    pub fn time_out_requests(&mut self) {
        let over = |request: &Request| request.deadline.is_some_and(|at| at + DEADLINE_GRACE < self.now);
        let late: Vec<RequestNo> =
            (0..self.oracle.requests.len()).filter(|no| over(&self.oracle.requests[*no])).collect();
        late.into_iter().for_each(|no| self.oracle.timed_out(no));
    }

    /// The client cancels a request: at the broker, or by a message to the host.
    pub fn cancel_request(&mut self, worker: usize) {
        let open = self.workers[worker].requests.iter().copied();
        let open: Vec<RequestNo> = open.filter(|no| !self.oracle.requests[*no].is_answered()).collect();
        if open.is_empty() {
            return;
        }
        let no = *pick(&mut self.rng, &open);
        self.note("cancel", &[("request", no as u64)]);
        let request = &mut self.oracle.requests[no];
        request.cancelled = true;
        let (to, id) = (self.hosts[request.host].name.clone(), request.id.clone());
        let command = match self.rng.chance(60) {
            true => Command::Cancel { to, correlation_id: id, request_id: None },
            false => {
                let (sealed, id) = (ToHost::Cancel { id }.body(), format!("cancel-{}", self.fresh_id()).into());
                let (purpose, content) = (Purpose::Request, content_hash(&sealed));
                let (correlation_id, deadline_ms, ack) = (None, None, None);
                Command::Deliver(Delivery { to, id, correlation_id, purpose, content, sealed, deadline_ms, ack })
            }
        };
        self.send(self.workers[worker].conn, command);
    }

    /// The worker process ends, and no client waits for its requests any more.
    pub fn stop_worker(&mut self, worker: usize) {
        self.crashes += 1;
        self.note("worker ends", &[("worker", worker as u64)]);
        self.disconnect(Owner::Worker(worker));
        self.workers[worker].alive = false;
        self.workers[worker].to_ack.clear();
        for no in &self.workers[worker].requests {
            let request = &mut self.oracle.requests[*no];
            request.caller_is_gone |= !request.is_answered();
        }
    }

    /// SIGTERM: the worker sends what it has and closes its link, without cancelling anything.
    pub fn worker_detaches(&mut self, worker: usize) {
        self.worker_acks(worker);
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
