//! A call at its host: START, the tool, RESULT, reply.

use super::World;
use super::host::Reply;
use super::wire::{Answer, Outcome, Work, content_hash};
use crate::planted::Planted;
use crate::simulation::scenario::pick;
use bytestring::ByteString;
use std::sync::Arc;
use toolbus_engine::{Command, Delivery, Millis, Purpose, Seq};
use toolbus_journal::{CallKey, Dead, End, Entry, Finish, Start};

/// A pushed message can be acknowledged only on the link on which it was pushed. Links are numbered here because a
/// restarted broker reuses connection ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tag {
    pub link: u64,
    pub seq: Seq,
}

#[derive(Debug, Clone)]
pub struct Run {
    pub key: CallKey,
    pub work: Work,
    pub content: [u8; 32],
    /// The last push of its request.
    pub tag: Option<Tag>,
    pub deadline: Option<Millis>,
    pub attempt: u32,
    pub stage: Stage,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stage {
    Admitted,
    /// Waits until the task's entry is durable.
    Accepting,
    /// Waits for the broker's answer to the inspection with this id, about an earlier call.
    Inspecting {
        inspect: ByteString,
        earlier: toolbus_journal::Candidate,
    },
    /// Waits until the `Joined` entry is durable.
    Joining {
        to: CallKey,
    },
    /// Answered together with that call.
    Joined {
        to: CallKey,
    },
    /// Waits until START is durable.
    Starting,
    AtTool {
        run: usize,
        acted: bool,
    },
    /// RESULT is being written.
    Finishing,
}

impl Run {
    pub fn is_inspecting(&self) -> bool {
        matches!(self.stage, Stage::Inspecting { .. })
    }

    pub fn is_expired(&self, now: Millis) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }
}

impl World {
    fn set_stage(&mut self, host: usize, key: &CallKey, stage: Stage) {
        if let Some(run) = self.hosts[host].runs.get_mut(key) {
            run.stage = stage;
        }
    }

    /// Writes START, unless the deadline has passed.
    pub fn begin(&mut self, host: usize, key: &CallKey) {
        let Some(run) = self.hosts[host].runs.get(key).cloned() else { return };
        if run.is_expired(self.now) && !self.plan.is_planted(Planted::HostIgnoresDeadline) {
            return self.not_run(host, &run);
        }
        self.oracle.writes_start(key);
        self.set_stage(host, key, Stage::Starting);
        let tool = ByteString::from(format!("tool{}", run.work.tool));
        let safe = run.work.is_replay_safe();
        let (key, content, attempt) = (key.clone(), run.content, run.attempt);
        let start = Start { key: key.clone(), server: "s".into(), tool, content, attempt, at: self.now, safe };
        if self.write_entry(host, Entry::Start(Arc::new(start)), !safe) && safe {
            self.start_tool(host, &key);
        }
    }

    /// The deadline passed before START: the call is answered without a journal entry.
    pub fn not_run(&mut self, host: usize, run: &Run) {
        let answer = Answer { outcome: Outcome::Expired, of: run.key.id.clone(), joined: false };
        let reply_id = ByteString::from(format!("reply-{}", self.fresh_id()));
        self.hosts[host].runs.remove(&run.key);
        self.reply(host, reply_id, Reply { key: run.key.clone(), answer }, run.tag);
    }

    /// An entry that a call waited for is durable.
    pub fn entry_is_durable(&mut self, host: usize, key: &CallKey, entry: &Entry) {
        match entry {
            Entry::Start(_) => self.start_tool(host, key),
            Entry::Joined(joined) => self.is_joined(host, key, &joined.to),
            Entry::Finish(finish) => self.reply_to_all(host, finish),
            Entry::Task(_) => self.is_accepted(host, key),
            Entry::Dead(_) | Entry::Dropped(_) => {}
        }
    }

    /// Starts the tool, unless the deadline passed while START was written.
    fn start_tool(&mut self, host: usize, key: &CallKey) {
        let Some(run) = self.hosts[host].runs.get(key).cloned() else { return };
        if run.is_expired(self.now) && !self.plan.is_planted(Planted::HostIgnoresDeadline) {
            return self.finish(host, key, Outcome::Expired);
        }
        let number = self.oracle.tool_started(key, self.now, run.deadline);
        self.note("runs", &[("host", host as u64), ("run", number as u64), ("attempt", run.attempt.into())]);
        self.set_stage(host, key, Stage::AtTool { run: number, acted: false });
    }

    /// One running tool has its effect, or returns.
    pub fn tool_step(&mut self, host: usize) {
        let at_tool = |run: &&Run| matches!(run.stage, Stage::AtTool { .. });
        let keys: Vec<CallKey> = self.hosts[host].runs.values().filter(at_tool).map(|run| run.key.clone()).collect();
        if keys.is_empty() {
            return;
        }
        let key = pick(&mut self.rng, &keys).clone();
        let Stage::AtTool { run, acted } = self.hosts[host].runs[&key].stage else { return };
        if !acted && self.rng.chance(85) {
            self.note("effect", &[("run", run as u64)]);
            self.oracle.tool_acted(run);
            self.set_stage(host, &key, Stage::AtTool { run, acted: true });
            if self.plan.host_crashing_tool && self.hosts[host].runs[&key].work.crashes_host() && self.rng.chance(80) {
                self.host_crashes(host, false);
            }
            return;
        }
        let outcome = if acted { Outcome::Result(run) } else { Outcome::Failed(run) };
        self.finish(host, &key, outcome);
    }

    /// Writes RESULT, then replies.
    pub fn finish(&mut self, host: usize, key: &CallKey, outcome: Outcome) {
        let Some(run) = self.hosts[host].runs.get(key).cloned() else { return };
        if outcome == Outcome::Poisoned {
            let (server, tool) = ("s".into(), ByteString::from(format!("tool{}", run.work.tool)));
            let (request, story) = (run.work.body(), vec!["attempt limit reached".to_owned()]);
            let attempts = run.attempt;
            let dead = Dead { key: key.clone(), server, tool, request, role: None, attempts, story, at: self.now };
            if !self.write_entry(host, Entry::Dead(dead), true) {
                return;
            }
        }
        let end = match outcome {
            Outcome::Result(_) => End::Done,
            Outcome::Failed(_) | Outcome::Expired | Outcome::Poisoned | Outcome::Accepted => End::Failed,
            Outcome::Unknown => End::Unknown,
        };
        let answer = Answer { outcome, of: key.id.clone(), joined: false };
        let reply_id = ByteString::from(format!("reply-{}", self.fresh_id()));
        let finish = Finish { key: key.clone(), reply_id, reply: answer.body(), end, at: self.now };
        self.set_stage(host, key, Stage::Finishing);
        let call = self.oracle.find(&key.caller, &key.id).map_or(u64::MAX, |no| no as u64);
        self.note("finish", &[("host", host as u64), ("call", call)]);
        // These answers are queried later or repeated to a retransmission, so they must not change after a crash.
        let is_kept = run.work.task || matches!(outcome, Outcome::Unknown | Outcome::Poisoned);
        let waits = !run.work.is_replay_safe() && (is_kept || self.plan.sync_results);
        if self.write_entry(host, Entry::Finish(finish.clone()), waits) && !waits {
            self.reply_to_all(host, &finish);
        }
    }

    /// Replies to the call and to all calls joined to it.
    fn reply_to_all(&mut self, host: usize, finish: &Finish) {
        let Some(kept) = Answer::parse(&finish.reply) else { return };
        let belongs = |run: &Run| run.key == finish.key || run.stage == Stage::Joined { to: finish.key.clone() };
        let waiting: Vec<Run> = self.hosts[host].runs.values().filter(|run| belongs(run)).cloned().collect();
        for run in waiting {
            self.hosts[host].runs.remove(&run.key);
            // A call without a tag has no request to answer on this link; a redelivered request gets the journaled
            // answer.
            if run.tag.is_some() {
                let joined = run.key != finish.key;
                let answer = Answer { joined, ..kept.clone() };
                let reply_id = match joined {
                    true => ByteString::from(format!("{}.{}", finish.reply_id, run.key.id)),
                    false => finish.reply_id.clone(),
                };
                self.reply(host, reply_id, Reply { key: run.key, answer }, run.tag);
            }
        }
    }

    pub fn reply(&mut self, host: usize, reply_id: ByteString, reply: Reply, tag: Option<Tag>) {
        self.hosts[host].outbox.insert(reply_id.clone(), reply.clone());
        self.send_reply(host, reply_id, reply, tag);
    }

    pub fn send_reply(&mut self, host: usize, id: ByteString, reply: Reply, tag: Option<Tag>) {
        let Some(conn) = self.hosts[host].conn else { return };
        let sealed = reply.answer.body();
        let delivery = Delivery {
            to: reply.key.caller.clone(),
            id,
            correlation_id: Some(reply.key.id.clone()),
            purpose: Purpose::HostReply,
            content: content_hash(&sealed),
            sealed,
            deadline_ms: None,
            ack: tag.filter(|tag| tag.link == self.hosts[host].link).map(|tag| tag.seq),
        };
        self.send(Some(conn), Command::Deliver(delivery));
    }
}
