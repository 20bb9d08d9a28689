//! Joins a new call to an equal earlier call of the same agent, if the earlier caller is disconnected and its answer
//! was not collected.

use super::World;
use super::running::{Run, Stage};
use super::wire::Outcome;
use crate::planted::Planted;
use bytestring::ByteString;
use toolbus_engine::{Command, Inspect, InspectView, MessageAt};
use toolbus_journal::{CallKey, Candidate, CandidateState, Entry, Joined, Known, Sharer};

impl World {
    pub fn find_candidate(&mut self, host: usize, key: &CallKey) {
        let Some(run) = self.hosts[host].runs.get(key).cloned() else { return };
        let earlier = self.hosts[host].journal.book().candidate(key.agent(), &run.content, 0);
        let earlier = earlier.filter(|earlier| {
            !run.work.is_replay_safe() && !run.work.task && run.attempt == 1 && earlier.key.caller != key.caller
        });
        let (Some(earlier), Some(conn)) = (earlier, self.hosts[host].conn) else { return self.begin(host, key) };
        let inspect = ByteString::from(format!("inspect-{}", self.fresh_id()));
        let asked = inspection_of(&earlier);
        if asked.peers.contains(&key.caller) {
            // The same caller repeats the call on purpose: it is not joined.
            return self.begin(host, key);
        }
        if let Some(run) = self.hosts[host].runs.get_mut(key) {
            run.stage = Stage::Inspecting { inspect: inspect.clone(), earlier };
        }
        self.send(Some(conn), Command::Inspect { request_id: inspect, inspect: Box::new(asked) });
    }

    pub fn handle_inspection(&mut self, host: usize, answered: &ByteString, view: &InspectView) {
        let is_inspected = |run: &&Run| matches!(&run.stage, Stage::Inspecting { inspect, .. } if inspect == answered);
        let Some(run) = self.hosts[host].runs.values().find(is_inspected).cloned() else { return };
        let Stage::Inspecting { earlier, .. } = &run.stage else { return };
        let now = self.hosts[host].journal.book().candidate(run.key.agent(), &run.content, 0);
        if now.as_ref() != Some(earlier) {
            // The candidate changed during the inspection.
            return self.find_candidate(host, &run.key);
        }
        let is_gone = view.peers.iter().all(|connected| !connected);
        let uncollected = view.messages.iter().all(Option::is_some) || self.plan.is_planted(Planted::JoinCollected);
        if !is_gone || !uncollected {
            return self.begin(host, &run.key);
        }
        self.note("joins", &[("host", host as u64)]);
        self.oracle.joins(&run.key, &earlier.key, answered);
        let joined = Joined { key: run.key.clone(), to: earlier.key.clone(), content: run.content, at: self.now };
        if let Some(run) = self.hosts[host].runs.get_mut(&run.key) {
            run.stage = Stage::Joining { to: earlier.key.clone() };
        }
        self.write_entry(host, Entry::Joined(joined), true);
    }

    /// The `Joined` entry is durable: continue in the state of the earlier call.
    pub fn is_joined(&mut self, host: usize, key: &CallKey, _to: &CallKey) {
        let Some(run) = self.hosts[host].runs.remove(key) else { return };
        match self.hosts[host].journal.book().look_up(key, &run.content) {
            Ok(Known::Answered { reply_id, reply, .. }) => {
                if let Some(tag) = run.tag {
                    self.answer_again(host, key, tag, &reply_id, &reply);
                }
            }
            Ok(Known::Running(start)) => self.await_root(host, run, start.key.clone()),
            Ok(Known::Interrupted(start)) => self.finish_interrupted(host, run, &start, Outcome::Unknown),
            known => self.oracle.violated(format!("a call was joined to a call in state {known:?}")),
        }
    }
}

/// Asks whether any caller of the earlier call is connected, and whether all of its replies are still queued.
fn inspection_of(earlier: &Candidate) -> Inspect {
    let mut messages = Vec::new();
    if let CandidateState::Answered { reply_id, .. } = &earlier.state {
        messages.push(MessageAt { to: earlier.key.caller.clone(), id: reply_id.clone() });
    }
    let mut peers = vec![earlier.key.caller.clone()];
    for Sharer { key, reply_id } in &earlier.sharers {
        peers.push(key.caller.clone());
        messages.extend(reply_id.iter().map(|id| MessageAt { to: key.caller.clone(), id: id.clone() }));
    }
    Inspect { peers, messages, rows_of: None }
}
