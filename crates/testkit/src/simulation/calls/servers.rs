//! MCP servers: they take requests, have effects, answer, hang and die.

use super::World;
use super::host::Phase;
use super::oracle::{RunNo, Start};
use super::restart::Stop;
use super::wire::{Outcome, Work};
use crate::simulation::scenario::pick;
use toolbus_call::{CallNo, Event, SessionHold};
use toolbus_journal::{CallKey, End};

/// A run of a tool.
pub struct Run {
    pub host: usize,
    /// The call that waits for the answer, and its process. Absent if the host no longer waits.
    call: Option<(u64, CallNo)>,
    key: CallKey,
    work: Work,
    acted: bool,
    hangs: bool,
    dies: bool,
    pub cancelled: bool,
}

impl World {
    pub fn connect_server(&mut self, host: usize, call: CallNo) {
        let is_closed = self.phase(host) == Some(Phase::Shutdown);
        let event = match self.rng.chance(self.plan.unreachable) {
            true if self.rng.chance(30) => Event::Refused { call, answer: Outcome::NoSession },
            true => Event::Connected { call, outcome: Err(Outcome::Unreachable) },
            false if is_closed => Event::Connected { call, outcome: Err(Outcome::Unreachable) },
            false => Event::Connected { call, outcome: Ok(()) },
        };
        self.feed(host, event);
    }

    fn phase(&self, host: usize) -> Option<Phase> {
        self.hosts[host].process.as_ref().map(|process| process.phase)
    }

    pub fn send_to_server(&mut self, host: usize, no: CallNo) {
        let is_closed = self.phase(host) == Some(Phase::Shutdown);
        if is_closed || self.rng.chance(self.plan.unreachable) {
            let event = match self.rng.chance(20) {
                true => Event::Refused { call: no, answer: Outcome::NoSession },
                false => Event::NotTaken { call: no, error: Outcome::Unreachable },
            };
            return self.feed(host, event);
        }
        let Some(call) = self.call(host, no) else { return };
        let (key, work, session) = (call.key.clone(), call.work, call.request.session.clone());
        let is_journaled = self.has_start(host, &key, &work.content(), work.is_replay_safe());
        let process = self.process(host).map_or(0, |process| process.number);
        let start = Start { key: &key, process, is_journaled, max_attempts: self.plan.machine.max_attempts };
        let run = self.oracle.tool_started(&start);
        self.note("runs", &[("host", host as u64), ("run", run as u64), ("call", self.oracle.number(&key))]);
        let (hangs, dies) = (self.rng.chance(self.plan.hanging), self.rng.chance(self.plan.dying));
        let call = Some((process, no));
        self.runs.insert(run, Run { host, call, key, work, acted: false, hangs, dies, cancelled: false });
        if let Some(call) = self.call(host, no) {
            call.run = Some(run);
        }
        self.check_limits(host, work);
        if !matches!(session, Some((_, SessionHold::UntilAnswered))) {
            self.leave_order(host, no);
        }
        self.feed(host, Event::Sent { call: no });
    }

    /// No more calls run than the limits permit.
    fn check_limits(&mut self, host: usize, work: Work) {
        let Some(process) = self.hosts[host].process.as_ref() else { return };
        let waits = |run: &&Run| run.host == host && run.call.is_some_and(|(_, no)| process.machine.view(no).is_some());
        let running: Vec<Work> = self.runs.values().filter(waits).map(|run| run.work).collect();
        let at_server = running.iter().filter(|other| other.server == work.server).count();
        let exclusive = running.iter().filter(|other| other.server == work.server && other.tool == 0).count();
        let max = self.plan.machine.servers[work.server].max_concurrency;
        let limits = self.plan.limits.iter().filter_map(|limit| limit.concurrency);
        let exceeds = |limit: std::num::NonZeroU32| running.len() > limit.get() as usize;
        if at_server > max || limits.into_iter().any(exceeds) {
            self.oracle.violated("more calls run than the limit permits");
        } else if self.plan.exclusive && work.tool == 0 && exclusive > 1 {
            self.oracle.violated("two exclusive calls run at once");
        }
    }

    /// The host no longer waits for a run, which continues at its server.
    pub fn detach(&mut self, run: RunNo) {
        if let Some(run) = self.runs.get_mut(&run) {
            run.call = None;
        }
    }

    /// One running tool has its effect, or ends.
    pub fn server_step(&mut self, host: usize) {
        let runs: Vec<RunNo> = self.runs.iter().filter(|(_, run)| run.host == host).map(|(no, _)| *no).collect();
        if runs.is_empty() {
            return;
        }
        let no = *pick(&mut self.rng, &runs);
        let (chance_acts, chance_ends) = (self.rng.chance(80), self.rng.chance(50));
        let Some(run) = self.runs.get_mut(&no) else { return };
        if !run.acted && chance_acts {
            run.acted = true;
            let crashes = self.plan.host_crashing_tool && run.work.crashes_host();
            self.note("effect", &[("run", no as u64)]);
            self.oracle.tool_acted(no, self.plan.join);
            if crashes && self.rng.chance(80) {
                self.restart(host, Stop::Process);
            }
        } else if run.dies {
            self.server_dies(host, no);
        } else if !run.hangs || (run.cancelled && chance_ends) {
            let outcome = if run.acted { (Outcome::Result(no), End::Done) } else { (Outcome::Failed(no), End::Failed) };
            self.run_ends(no, |call| Event::Answered { call, answer: outcome.0, end: outcome.1 });
        }
    }

    /// The server of a run ends, and sometimes with it its other runs.
    fn server_dies(&mut self, host: usize, no: RunNo) {
        let server = self.runs[&no].work.server;
        let is_shared = self.rng.chance(30);
        let shares = |run: &Run| run.host == host && run.work.server == server && is_shared;
        let runs: Vec<RunNo> =
            self.runs.iter().filter(|(other, run)| **other == no || shares(run)).map(|(no, _)| *no).collect();
        self.note("server dies", &[("runs", runs.len() as u64)]);
        for no in runs {
            let retry = self.rng.chance(85);
            self.run_dies(no, retry);
        }
    }

    fn run_dies(&mut self, no: RunNo, retry: bool) {
        let (error, why) = (Outcome::Died(no), "the server ended".to_owned());
        self.run_ends(no, |call| Event::Died { call, error, why, retry });
    }

    fn run_ends(&mut self, no: RunNo, event: impl FnOnce(CallNo) -> Event<Outcome>) {
        let Some(run) = self.runs.remove(&no) else { return };
        let Some((process, call)) = run.call else { return };
        if self.hosts[run.host].process.as_ref().is_none_or(|running| running.number != process) {
            return;
        }
        if let Some(call) = self.call(run.host, call) {
            call.run = None;
        }
        self.note("run ends", &[("run", no as u64), ("call", self.oracle.number(&run.key))]);
        self.feed(run.host, event(call));
    }

    /// The host closes its servers.
    pub fn servers_close(&mut self, host: usize) {
        let runs: Vec<RunNo> = self.runs.iter().filter(|(_, run)| run.host == host).map(|(no, _)| *no).collect();
        runs.into_iter().for_each(|no| self.run_dies(no, false));
    }

    /// The process of the host ended. Its servers end with it, except some that are services of their own.
    pub fn host_ended(&mut self, host: usize) {
        for (no, run) in std::mem::take(&mut self.runs) {
            if run.host != host {
                self.runs.insert(no, run);
            } else if self.rng.chance(30) {
                self.runs.insert(no, Run { call: None, ..run });
            }
        }
    }
}
