//! A new call that looks like an earlier one of the same agent: if that one's caller is gone and its answer was never
//! collected, this one is answered by it.

use super::World;
use super::running::{Run, Stage};
use super::wire::Outcome;
use crate::planted::Planted;
use bytestring::ByteString;
use toolbus_engine::{Command, Inspect, InspectView, MessageAt};
use toolbus_journal::{CallKey, Candidate, CandidateState, Entry, Joined, Known, Sharer};

impl World {
    pub fn look_for_an_earlier_one(&mut self, host: usize, key: &CallKey) {
        let Some(run) = self.hosts[host].runs.get(key).cloned() else { return };
        let earlier = self.hosts[host].paper.book.candidate(key.agent(), &run.content, 0);
        let earlier = earlier.filter(|earlier| {
            !run.work.is_safe() && !run.work.task && run.attempt == 1 && earlier.key.caller != key.caller
        });
        let (Some(earlier), Some(conn)) = (earlier, self.hosts[host].conn) else { return self.begin(host, key) };
        let inspect = ByteString::from(format!("inspect-{}", self.fresh_id()));
        let asked = look_at(&earlier);
        if asked.peers.contains(&key.caller) {
            // Its own answer, and whoever asks twice means it.
            return self.begin(host, key);
        }
        if let Some(run) = self.hosts[host].runs.get_mut(key) {
            run.stage = Stage::Inspecting { inspect: inspect.clone(), earlier };
        }
        self.send(Some(conn), Command::Inspect { request_id: inspect, inspect: Box::new(asked) });
    }

    pub fn has_looked(&mut self, host: usize, answered: &ByteString, view: &InspectView) {
        let is_it = |run: &&Run| matches!(&run.stage, Stage::Inspecting { inspect, .. } if inspect == answered);
        let Some(run) = self.hosts[host].runs.values().find(is_it).cloned() else { return };
        let Stage::Inspecting { earlier, .. } = &run.stage else { return };
        let now = self.hosts[host].paper.book.candidate(run.key.agent(), &run.content, 0);
        if now.as_ref() != Some(earlier) {
            // What was asked about is not what is known now.
            return self.look_for_an_earlier_one(host, &run.key);
        }
        let is_gone = view.peers.iter().all(|is_there| !is_there);
        let uncollected = view.messages.iter().all(Option::is_some) || self.plan.is_planted(Planted::JoinCollected);
        if !is_gone || !uncollected {
            return self.begin(host, &run.key);
        }
        self.note("joins", &[("host", host as u64)]);
        self.truth.joins(&run.key, &earlier.key, answered);
        let joined = Joined { key: run.key.clone(), to: earlier.key.clone(), content: run.content, at: self.now };
        if let Some(run) = self.hosts[host].runs.get_mut(&run.key) {
            run.stage = Stage::Joining { to: earlier.key.clone() };
        }
        self.write_down(host, Entry::Joined(joined), true);
    }

    /// It is safe that it is joined: now it is what the earlier one is.
    pub fn is_joined(&mut self, host: usize, key: &CallKey, _to: &CallKey) {
        let Some(run) = self.hosts[host].runs.remove(key) else { return };
        match self.hosts[host].paper.book.look_up(key, &run.content) {
            Ok(Known::Answered { reply_id, reply, .. }) => {
                if let Some(tag) = run.tag {
                    self.answer_again(host, key, tag, &reply_id, &reply);
                }
            }
            Ok(Known::Running(start)) => self.wait_for(host, run, start.key.clone()),
            Ok(Known::Interrupted(start)) => self.settle_as(host, run, &start, Outcome::Unknown),
            known => self.truth.violated(format!("a call was joined to nothing: {known:?}")),
        }
    }
}

/// Whether anybody who has that answer, or will have it, is there, and whether it still waits for all of them.
fn look_at(earlier: &Candidate) -> Inspect {
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
