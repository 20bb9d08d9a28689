//! Fail-fast calls: when a worker notices that their host is away, it withdraws those that the host has not received.

use super::World;
use super::network::Owner;
use super::oracle::RequestNo;
use toolbus_broker::simulation as wire;
use toolbus_engine::Outgoing;
use toolbus_protocol::{BrokerFrame, ClientFrame, Inspect};
use toolbus_worker::simulation::{inspect_call, is_untouched};

impl World {
    /// Connected workers notice, sooner or later, which hosts are away.
    pub fn workers_look(&mut self) {
        for worker in 0..self.workers.len() {
            if self.workers[worker].conn.is_none() || !self.rng.chance(20) {
                continue;
            }
            for number in 0..self.plan.hosts {
                let is_away = !self.hosts.iter().any(|host| host.number == number && host.conn.is_some());
                let was_away = self.workers[worker].away.contains_key(&number);
                match is_away {
                    true if !was_away => {
                        self.workers[worker].away.insert(number, self.now);
                        self.host_left(worker, number);
                    }
                    true => {}
                    false => drop(self.workers[worker].away.remove(&number)),
                }
            }
        }
    }

    /// Asks the broker whether the fail-fast calls to that host were delivered.
    fn host_left(&mut self, worker: usize, number: usize) {
        let calls: Vec<RequestNo> =
            self.workers[worker].open.iter().filter(|(_, state)| state.fails_fast).map(|(no, _)| *no).collect();
        for no in calls {
            let request = &self.oracle.requests[no];
            if self.hosts[request.host].number == number {
                let inspect = inspect_call(&self.hosts[request.host].name, &request.id);
                let frame = ClientFrame::Inspect(Inspect { request_id: format!("untouched-{no}").into(), ..inspect });
                let command = wire::command(frame);
                command.into_iter().for_each(|command| self.send(self.workers[worker].conn, command));
            }
        }
    }

    /// The broker's answer to such a question.
    pub fn delivery_known(&mut self, worker: usize, outgoing: &Outgoing) {
        let BrokerFrame::Inspected(inspected) = wire::frame(outgoing) else { return };
        let no = inspected.request_id.strip_prefix("untouched-").and_then(|no| no.parse::<RequestNo>().ok());
        let Some((no, state)) = no.and_then(|no| Some((no, *self.workers[worker].open.get(&no)?))) else { return };
        let request = &self.oracle.requests[no];
        let (to, id) = (self.hosts[request.host].name.clone(), request.id.clone());
        let is_untouched = is_untouched(&inspected, &id);
        if !state.withdraws(is_untouched) {
            return;
        }
        self.note("withdraws", &[("request", no as u64)]);
        self.workers[worker].withdrawing.insert(no);
        self.oracle.requests[no].in_withdrawal = is_untouched;
        let sent = self.client(Owner::Worker(worker)).map(|client| client.withdraw(&to, &id));
        if let Some(Err(error)) = sent {
            self.oracle.violated(format!("{id} can't be withdrawn: {error}"));
        }
        self.flush(Owner::Worker(worker), false);
    }

    /// Withdrawals that the broker answered.
    pub fn end_withdrawals(&mut self, worker: usize) {
        for no in self.workers[worker].withdrawing.clone() {
            let request = &self.oracle.requests[no];
            let (host, id) = (request.host, request.id.clone());
            let Some(is_confirmed) = self.client(Owner::Worker(worker)).and_then(|client| client.withdrawn(&id)) else {
                continue;
            };
            self.note("withdrawn", &[("request", no as u64), ("confirmed", u64::from(is_confirmed))]);
            self.workers[worker].withdrawing.remove(&no);
            self.oracle.requests[no].in_withdrawal &= !is_confirmed;
            let away_since = self.workers[worker].away.get(&host).copied();
            let Some(state) = self.workers[worker].open.get_mut(&no) else { continue };
            if state.withdrawal_ended(is_confirmed, away_since).is_some() {
                self.oracle.tally.withdrawn += 1;
                self.oracle.not_run(no);
                self.abandon(worker, no);
            }
        }
    }
}
