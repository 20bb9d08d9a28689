//! A host: what it does with a call that arrives, by what its journal knows of it.

use super::World;
use super::network::Owner;
use super::paper::Paper;
use super::plan::Plan;
use super::running::{Run, Stage, Tag};
use super::wire::{Answer, Outcome, Work};
use crate::planted::Planted;
use bytestring::ByteString;
use std::collections::BTreeMap;
use std::sync::Arc;
use toolbus_engine::{ConnId, Message, Millis, Outgoing, Refusal};
use toolbus_journal::{CallKey, Decision, Entry, Finish, Known, Location, Replay, Start, decide};
use toolbus_store::sim_disk::SimDisk;

pub struct Host {
    pub name: ByteString,
    pub conn: Option<ConnId>,
    /// The number of that link.
    pub link: u64,
    pub disk: SimDisk,
    pub paper: Paper,
    /// Calls that this process deals with.
    pub runs: BTreeMap<CallKey, Run>,
    /// Answers without a receipt, by their ids.
    pub outbox: BTreeMap<ByteString, Reply>,
    /// Answers that are written down when they have one, which is a planted defect.
    pub unwritten: BTreeMap<ByteString, Finish>,
}

/// An answer on its way.
#[derive(Debug, Clone)]
pub struct Reply {
    pub key: CallKey,
    pub answer: Answer,
}

/// How often a call that may be run again is begun.
pub const MAX_ATTEMPTS: u32 = 3;

pub fn replay_of(work: Work) -> Replay {
    if work.is_safe() { Replay::Safe } else { Replay::Never }
}

impl Host {
    pub fn new(number: usize, plan: &Plan, now: Millis) -> Self {
        let disk = SimDisk::default();
        let (paper, _) = Paper::open(&disk, plan, now).expect("an empty disk without faults can be opened");
        let name = ByteString::from(format!("host{number}"));
        Self {
            name,
            conn: None,
            link: 0,
            disk,
            paper,
            runs: BTreeMap::new(),
            outbox: BTreeMap::new(),
            unwritten: BTreeMap::new(),
        }
    }
}

impl World {
    pub fn host_is_connected(&mut self, host: usize, conn: ConnId) {
        self.hosts[host].conn = Some(conn);
        self.hosts[host].link = self.fresh_id();
        for (reply_id, reply) in self.hosts[host].outbox.clone() {
            self.send_reply(host, reply_id, reply, None);
        }
    }

    pub fn host_lost_its_link(&mut self, host: usize) {
        self.hosts[host].conn = None;
        // The broker can't tell any more, so the call runs by itself.
        let looking: Vec<CallKey> =
            self.hosts[host].runs.values().filter(|run| run.is_looking()).map(|run| run.key.clone()).collect();
        looking.iter().for_each(|key| self.begin(host, key));
    }

    pub fn host_reads(&mut self, host: usize, outgoing: Outgoing) {
        match outgoing {
            Outgoing::Message { message, deadline_ms, .. } => self.arrives(host, &message, deadline_ms),
            Outgoing::Receipt { id, .. } => {
                self.hosts[host].outbox.remove(&id);
                if let Some(finish) = self.hosts[host].unwritten.remove(&id) {
                    self.write_down(host, Entry::Finish(finish), false);
                }
            }
            Outgoing::Inspected { request_id, view } => self.has_looked(host, &request_id, &view),
            Outgoing::Refused { refusal: Refusal::Displaced { .. }, .. } => {}
            Outgoing::Refused { refusal, .. } => self.truth.violated(format!("an answer was refused: {refusal}")),
            _ => {}
        }
    }

    fn arrives(&mut self, host: usize, message: &Arc<Message>, deadline_ms: Option<u64>) {
        let key = CallKey { caller: ByteString::from(&*message.from.name), id: message.id.clone() };
        let Some(work) = Work::parse(&message.sealed) else { return self.truth.violated("a call that is none") };
        let call = self.truth.find(&key.caller, &key.id).map_or(u64::MAX, |no| no as u64);
        self.note("arrives", &[("host", host as u64), ("seq", message.seq), ("call", call)]);
        let tag = Tag { link: self.hosts[host].link, seq: message.seq };
        if let Some(run) = self.hosts[host].runs.get_mut(&key) {
            if work.task && run.stage != Stage::Accepting {
                return self.say_accepted(host, &key, Some(tag));
            }
            // One answer answers both.
            run.tag = Some(tag);
            return;
        }
        let content = work.content(!self.plan.is_planted(Planted::JoinWithoutArguments));
        let known = self.hosts[host].paper.book.look_up(&key, &content);
        let deadline = deadline_ms.map(|ms| self.now + ms);
        let run = Run { key: key.clone(), work, content, tag: Some(tag), deadline, attempt: 1, stage: Stage::Arrived };
        if work.task
            && let Ok(known) = &known
        {
            return self.task_arrives(host, run, known);
        }
        match decide(known.clone(), replay_of(work), MAX_ATTEMPTS) {
            Decision::OtherContent { .. } => self.truth.violated(format!("{} was taken for another call", key.id)),
            Decision::Reply { reply_id, reply, .. } => self.answer_again(host, &key, tag, &reply_id, &reply),
            Decision::Run { attempt } => {
                self.hosts[host].runs.insert(key.clone(), Run { attempt, ..run });
                self.look_for_an_earlier_one(host, &key);
            }
            Decision::AlreadyRunning => {
                let Ok(Known::Running(start)) = known else { return };
                self.wait_for(host, run, start.key.clone());
            }
            Decision::Unknown(start) => self.settle_as(host, run, &start, Outcome::Unknown),
            Decision::Poisoned(start) => self.settle_as(host, run, &start, Outcome::Poisoned),
        }
    }

    /// The call that was run gets an answer by itself, and this one, which may be another that was joined to it, the same.
    pub fn settle_as(&mut self, host: usize, run: Run, start: &Arc<Start>, outcome: Outcome) {
        let root = start.key.clone();
        if run.key == root {
            self.hosts[host].runs.insert(root.clone(), run);
        } else {
            let of_root = Run { key: root.clone(), tag: None, stage: Stage::Arrived, ..run.clone() };
            self.hosts[host].runs.entry(root.clone()).or_insert(of_root);
            self.wait_for(host, run, root.clone());
        }
        let is_settled = |run: &Run| matches!(run.stage, Stage::Finishing);
        if !self.hosts[host].runs.get(&root).is_some_and(is_settled) {
            self.finish(host, &root, outcome);
        }
    }

    /// This call is answered when that one is.
    pub fn wait_for(&mut self, host: usize, run: Run, root: CallKey) {
        self.hosts[host].runs.insert(run.key.clone(), Run { stage: Stage::Joined { to: root }, ..run });
    }

    /// The same answer goes out again, under the same id.
    pub fn answer_again(&mut self, host: usize, key: &CallKey, tag: Tag, reply_id: &ByteString, location: &Location) {
        let kept = self.hosts[host].paper.reply(location).ok().and_then(|body| Answer::parse(&body));
        let Some(kept) = kept else { return self.truth.violated(format!("the answer to {} can't be read", key.id)) };
        let answer = Answer { joined: kept.of != key.id, ..kept };
        self.reply(host, reply_id.clone(), Reply { key: key.clone(), answer }, Some(tag));
    }

    /// The process ends, and perhaps its machine with it: then what was not synced may be gone.
    pub fn host_crashes(&mut self, host: usize, with_machine: bool) {
        self.crashes += 1;
        self.note("host crashes", &[("host", host as u64), ("machine", u64::from(with_machine))]);
        self.disconnect(Owner::Host(host));
        let (in_doubt, mut machine_stopped) = (self.hosts[host].paper.unsynced_ends(), with_machine);
        self.hosts[host].runs.clear();
        self.hosts[host].outbox.clear();
        self.hosts[host].unwritten.clear();
        self.hosts[host].disk.stop_after(None);
        self.hosts[host].disk.fail_syncs(false);
        if with_machine {
            self.hosts[host].disk.crash(&mut self.rng);
        }
        if self.rng.chance(20) {
            // It stops once more while it reads its journal.
            self.hosts[host].disk.stop_after(Some(self.rng.below(6)));
        }
        loop {
            match Paper::open(&self.hosts[host].disk, &self.plan, self.now) {
                Ok((paper, recovery)) => {
                    self.hosts[host].disk.stop_after(None);
                    if recovery.is_damaged() {
                        self.truth.violated("a crash was taken for damage");
                    }
                    if machine_stopped {
                        let is_lost = |key: &&CallKey| !paper.book.is_answered(key);
                        self.truth.forgotten(in_doubt.iter().filter(is_lost));
                    }
                    self.hosts[host].paper = paper;
                    return self.take_tasks_up(host);
                }
                Err(_) => {
                    machine_stopped = true;
                    self.hosts[host].disk.stop_after(None);
                    self.hosts[host].disk.crash(&mut self.rng);
                }
            }
        }
    }
}
