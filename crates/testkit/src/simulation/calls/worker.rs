//! Workers and the clients behind them. After a crash of its worker, a client starts another one and may repeat its
//! unanswered requests there, as new calls with new ids.

use super::World;
use super::network::Owner;
use super::oracle::{Request, RequestNo};
use super::wire::{Answer, Work, content_hash};
use crate::planted::Planted;
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
        *crate::simulation::scenario::pick(&mut self.rng, &alive)
    }

    /// Sends a new random call.
    pub fn call(&mut self, worker: usize) {
        let task = self.rng.chance(self.plan.tasks);
        let work = Work { tool: self.rng.below(4), argument: self.rng.below(self.plan.arguments), task };
        let host = self.rng.below(self.plan.hosts as u64) as usize;
        let deadline = self.rng.chance(self.plan.deadlines).then(|| self.now + 1 + self.rng.below(300));
        self.ask(worker, host, work, deadline);
    }

    fn ask(&mut self, worker: usize, host: usize, work: Work, deadline: Option<u64>) {
        let no = self.oracle.requests.len();
        let id = ByteString::from(format!("call-{no}"));
        let (agent, mailbox) = (self.workers[worker].agent, self.workers[worker].mailbox.clone());
        self.note("call", &[("request", no as u64), ("worker", worker as u64), ("tool", work.tool)]);
        self.oracle.add_request(Request::new(agent, mailbox, host, work, id, deadline));
        self.workers[worker].requests.push(no);
        self.send_request(worker, no);
    }

    fn send_request(&mut self, worker: usize, no: RequestNo) {
        let request = &self.oracle.requests[no];
        let sealed = request.work.body();
        let delivery = Delivery {
            to: self.hosts[request.host].name.clone(),
            id: request.id.clone(),
            correlation_id: None,
            purpose: Purpose::Request,
            content: content_hash(&sealed),
            sealed,
            deadline_ms: request.deadline.map(|at| at.saturating_sub(self.now)),
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
                match (about, Answer::parse(&message.sealed)) {
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
            (Refusal::Expired { .. }, Some(no)) => self.oracle.timed_out(no),
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

    /// The worker process ends. Its client starts another one and repeats most of the unanswered requests.
    pub fn worker_crashes(&mut self, worker: usize) {
        self.crashes += 1;
        self.note("worker crashes", &[("worker", worker as u64)]);
        self.disconnect(Owner::Worker(worker));
        self.workers[worker].alive = false;
        self.workers[worker].to_ack.clear();
        let next = self.start_worker(self.workers[worker].agent);
        for no in self.workers[worker].requests.clone() {
            if self.oracle.requests[no].is_answered() {
                continue;
            }
            self.oracle.requests[no].caller_is_gone = true;
            if self.rng.chance(75) {
                let (host, work) = (self.oracle.requests[no].host, self.oracle.requests[no].work);
                let deadline = self.rng.chance(self.plan.deadlines).then(|| self.now + 1 + self.rng.below(300));
                self.ask(next, host, work, deadline);
            }
        }
    }
}
