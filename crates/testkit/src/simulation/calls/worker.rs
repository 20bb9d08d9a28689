//! Workers and the clients behind them. A client whose worker crashed begins another one and, if it still wants an answer,
//! asks the same again, which is a new call to everybody else.

use super::World;
use super::network::Owner;
use super::truth::{Request, RequestNo};
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
    /// Answers that the client has and the broker does not know of yet.
    to_ack: Vec<Seq>,
}

/// A worker gives up by itself so long after a deadline: nobody may have told it.
const PATIENCE: u64 = 30;

impl Worker {
    pub fn lost_its_link(&mut self) {
        self.conn = None;
        self.to_ack.clear();
    }
}

impl World {
    pub fn begin_worker(&mut self, agent: usize) -> usize {
        let number = self.workers.len();
        let mailbox = ByteString::from(format!("agent{agent}#{number}"));
        self.workers.push(Worker { agent, mailbox, alive: true, conn: None, requests: Vec::new(), to_ack: Vec::new() });
        number
    }

    pub fn random_worker(&mut self) -> usize {
        let alive: Vec<usize> = (0..self.workers.len()).filter(|worker| self.workers[*worker].alive).collect();
        *crate::simulation::scenario::pick(&mut self.rng, &alive)
    }

    /// The client wants something.
    pub fn call(&mut self, worker: usize) {
        let task = self.rng.chance(self.plan.tasks);
        let work = Work { tool: self.rng.below(4), argument: self.rng.below(self.plan.arguments), task };
        let host = self.rng.below(self.plan.hosts as u64) as usize;
        let deadline = self.rng.chance(self.plan.deadlines).then(|| self.now + 1 + self.rng.below(300));
        self.ask(worker, host, work, deadline);
    }

    fn ask(&mut self, worker: usize, host: usize, work: Work, deadline: Option<u64>) {
        let no = self.truth.requests.len();
        let id = ByteString::from(format!("call-{no}"));
        let (agent, mailbox) = (self.workers[worker].agent, self.workers[worker].mailbox.clone());
        self.note("call", &[("request", no as u64), ("worker", worker as u64), ("tool", work.tool)]);
        self.truth.asked(Request::new(agent, mailbox, host, work, id, deadline));
        self.workers[worker].requests.push(no);
        self.send_request(worker, no);
    }

    fn send_request(&mut self, worker: usize, no: RequestNo) {
        let request = &self.truth.requests[no];
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

    /// Everything without a receipt goes out again, under the same id.
    pub fn worker_is_connected(&mut self, worker: usize, conn: ConnId) {
        self.workers[worker].conn = Some(conn);
        for no in self.workers[worker].requests.clone() {
            let request = &self.truth.requests[no];
            if request.receipted || request.is_answered() {
                continue;
            }
            if self.plan.is_planted(Planted::NewIdOnRetry) {
                let id = ByteString::from(format!("again-{}", self.fresh_id()));
                self.truth.renamed(no, id);
            }
            self.send_request(worker, no);
        }
    }

    pub fn worker_reads(&mut self, worker: usize, outgoing: Outgoing) {
        match outgoing {
            Outgoing::Message { message, .. } => {
                let mailbox = self.workers[worker].mailbox.clone();
                self.truth.delivered(&mailbox, message.seq, &message.id);
                self.workers[worker].to_ack.push(message.seq);
                let about = message.correlation_id.as_ref().and_then(|id| self.truth.find(&mailbox, id));
                match (about, Answer::parse(&message.sealed)) {
                    (Some(no), Some(answer)) => {
                        self.note("answer", &[("request", no as u64), ("joined", u64::from(answer.joined))]);
                        self.truth.told(no, answer);
                    }
                    _ => self.truth.violated("a worker was sent something that is no answer to it"),
                }
            }
            Outgoing::Receipt { id, .. } => {
                let mailbox = self.workers[worker].mailbox.clone();
                if let Some(no) = self.truth.find(&mailbox, &id) {
                    self.truth.requests[no].receipted = true;
                }
            }
            Outgoing::Refused { refusal, id: Some(id) } => self.worker_is_refused(worker, &refusal, &id),
            _ => {}
        }
    }

    fn worker_is_refused(&mut self, worker: usize, refusal: &Refusal, id: &ByteString) {
        let mailbox = self.workers[worker].mailbox.clone();
        match (refusal, self.truth.find(&mailbox, id)) {
            (Refusal::Expired { .. }, Some(no)) => self.truth.gave_up(no),
            (Refusal::Displaced { .. }, _) => {}
            _ => self.truth.violated(format!("a call was refused: {refusal}")),
        }
    }

    /// The client has the answers that came; now the broker hears of it.
    pub fn worker_acks(&mut self, worker: usize) {
        let tags = std::mem::take(&mut self.workers[worker].to_ack);
        if !tags.is_empty() {
            self.send(self.workers[worker].conn, Command::AckTags { tags });
        }
    }

    pub fn workers_look_at_the_clock(&mut self) {
        let over = |request: &Request| request.deadline.is_some_and(|at| at + PATIENCE < self.now);
        let late: Vec<RequestNo> =
            (0..self.truth.requests.len()).filter(|no| over(&self.truth.requests[*no])).collect();
        late.into_iter().for_each(|no| self.truth.gave_up(no));
    }

    /// The process ends for good. Its client begins another one and asks again what it still wants to know.
    pub fn worker_crashes(&mut self, worker: usize) {
        self.crashes += 1;
        self.note("worker crashes", &[("worker", worker as u64)]);
        self.disconnect(Owner::Worker(worker));
        self.workers[worker].alive = false;
        self.workers[worker].to_ack.clear();
        let next = self.begin_worker(self.workers[worker].agent);
        for no in self.workers[worker].requests.clone() {
            if self.truth.requests[no].is_answered() {
                continue;
            }
            self.truth.requests[no].caller_is_gone = true;
            if self.rng.chance(75) {
                let (host, work) = (self.truth.requests[no].host, self.truth.requests[no].work);
                let deadline = self.rng.chance(self.plan.deadlines).then(|| self.now + 1 + self.rng.below(300));
                self.ask(next, host, work, deadline);
            }
        }
    }
}
