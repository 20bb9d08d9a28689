//! A host: admission of calls by what its journal knows of them, and crashes.

use super::World;
use super::journal::HostJournal;
use super::network::Owner;
use super::plan::Plan;
use super::running::{Run, Stage, Tag};
use super::wire::{Answer, Outcome, Work};
use crate::planted::Planted;
use bytestring::ByteString;
use std::collections::BTreeMap;
use std::sync::Arc;
use toolbus_engine::{ConnId, Message, Millis, Outgoing, Refusal};
use toolbus_journal::{CallKey, Decision, Known, Location, Replay, Start, decide};
use toolbus_store::sim_disk::SimDisk;

pub struct Host {
    pub name: ByteString,
    pub conn: Option<ConnId>,
    /// The number of the current link.
    pub link: u64,
    pub disk: SimDisk,
    pub journal: HostJournal,
    /// Calls in progress in this process.
    pub runs: BTreeMap<CallKey, Run>,
    /// Replies without a receipt, by id.
    pub outbox: BTreeMap<ByteString, Reply>,
}

/// A reply in transit.
#[derive(Debug, Clone)]
pub struct Reply {
    pub key: CallKey,
    pub answer: Answer,
}

/// Maximum number of attempts of a replay-safe call.
pub const MAX_ATTEMPTS: u32 = 3;

pub fn replay_of(work: Work) -> Replay {
    if work.is_replay_safe() { Replay::Safe } else { Replay::Never }
}

impl Host {
    pub fn new(number: usize, plan: &Plan, now: Millis) -> Self {
        let disk = SimDisk::default();
        let (journal, _) = HostJournal::open(&disk, plan, now).expect("an empty disk without faults can be opened");
        let name = ByteString::from(format!("host{number}"));
        Self { name, conn: None, link: 0, disk, journal, runs: BTreeMap::new(), outbox: BTreeMap::new() }
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

    pub fn host_link_lost(&mut self, host: usize) {
        self.hosts[host].conn = None;
        // The inspection will not be answered, so the call runs instead of joining.
        let inspecting: Vec<CallKey> =
            self.hosts[host].runs.values().filter(|run| run.is_inspecting()).map(|run| run.key.clone()).collect();
        inspecting.iter().for_each(|key| self.begin(host, key));
    }

    pub fn host_reads(&mut self, host: usize, outgoing: Outgoing) {
        match outgoing {
            Outgoing::Message { message, deadline_ms, .. } => self.admit(host, &message, deadline_ms),
            Outgoing::Receipt { id, .. } => {
                self.hosts[host].outbox.remove(&id);
            }
            Outgoing::Inspected { request_id, view } => self.handle_inspection(host, &request_id, &view),
            Outgoing::Refused { refusal: Refusal::Displaced { .. }, .. } => {}
            Outgoing::Refused { refusal, .. } => self.oracle.violated(format!("a reply was refused: {refusal}")),
            _ => {}
        }
    }

    fn admit(&mut self, host: usize, message: &Arc<Message>, deadline_ms: Option<u64>) {
        let key = CallKey { caller: ByteString::from(&*message.from.name), id: message.id.clone() };
        let Some(work) = Work::parse(&message.sealed) else { return self.oracle.violated("a malformed call") };
        let call = self.oracle.find(&key.caller, &key.id).map_or(u64::MAX, |no| no as u64);
        self.note("admit", &[("host", host as u64), ("seq", message.seq), ("call", call)]);
        let tag = Tag { link: self.hosts[host].link, seq: message.seq };
        if let Some(run) = self.hosts[host].runs.get_mut(&key) {
            if work.task && run.stage != Stage::Accepting {
                return self.reply_accepted(host, &key, Some(tag));
            }
            // One reply answers both copies of the message.
            run.tag = Some(tag);
            return;
        }
        let content = work.content(!self.plan.is_planted(Planted::JoinWithoutArguments));
        let known = self.hosts[host].journal.book().look_up(&key, &content);
        let deadline = deadline_ms.map(|ms| self.now + ms);
        let run = Run { key: key.clone(), work, content, tag: Some(tag), deadline, attempt: 1, stage: Stage::Admitted };
        if work.task
            && let Ok(known) = &known
        {
            return self.admit_task(host, run, known);
        }
        match decide(known.clone(), replay_of(work), MAX_ATTEMPTS) {
            Decision::OtherContent { .. } => {
                self.oracle.violated(format!("{} was rejected as a duplicate with other content", key.id))
            }
            Decision::Reply { reply_id, reply, .. } => self.answer_again(host, &key, tag, &reply_id, &reply),
            Decision::Run { attempt } => {
                self.hosts[host].runs.insert(key.clone(), Run { attempt, ..run });
                self.find_candidate(host, &key);
            }
            Decision::AlreadyRunning => {
                let Ok(Known::Running(start)) = known else { return };
                self.await_root(host, run, start.key.clone());
            }
            Decision::Unknown(start) => self.finish_interrupted(host, run, &start, Outcome::Unknown),
            Decision::Poisoned(start) => self.finish_interrupted(host, run, &start, Outcome::Poisoned),
        }
    }

    /// Finishes the interrupted call `start` with this outcome, and answers `run` with it, which is that call or one
    /// joined to it.
    pub fn finish_interrupted(&mut self, host: usize, run: Run, start: &Arc<Start>, outcome: Outcome) {
        let root = start.key.clone();
        if run.key == root {
            self.hosts[host].runs.insert(root.clone(), run);
        } else {
            let of_root = Run { key: root.clone(), tag: None, stage: Stage::Admitted, ..run.clone() };
            self.hosts[host].runs.entry(root.clone()).or_insert(of_root);
            self.await_root(host, run, root.clone());
        }
        let is_settled = |run: &Run| matches!(run.stage, Stage::Finishing);
        if !self.hosts[host].runs.get(&root).is_some_and(is_settled) {
            self.finish(host, &root, outcome);
        }
    }

    /// Answers this call together with the call that it is joined to.
    pub fn await_root(&mut self, host: usize, run: Run, root: CallKey) {
        self.hosts[host].runs.insert(run.key.clone(), Run { stage: Stage::Joined { to: root }, ..run });
    }

    /// Sends the journaled answer again, under the same id.
    pub fn answer_again(&mut self, host: usize, key: &CallKey, tag: Tag, reply_id: &ByteString, location: &Location) {
        let kept = self.hosts[host].journal.reply(location).ok().and_then(|body| Answer::parse(&body));
        let Some(kept) = kept else { return self.oracle.violated(format!("the answer to {} can't be read", key.id)) };
        let answer = Answer { joined: kept.of != key.id, ..kept };
        self.reply(host, reply_id.clone(), Reply { key: key.clone(), answer }, Some(tag));
    }

    /// The host process crashes. With its machine, unsynced data may be lost.
    pub fn host_crashes(&mut self, host: usize, with_machine: bool) {
        self.crashes += 1;
        self.note("host crashes", &[("host", host as u64), ("machine", u64::from(with_machine))]);
        self.disconnect(Owner::Host(host));
        let (in_doubt, mut machine_stopped) = (self.hosts[host].journal.unsynced_ends(), with_machine);
        self.hosts[host].runs.clear();
        self.hosts[host].outbox.clear();
        self.hosts[host].disk.stop_after(None);
        self.hosts[host].disk.fail_syncs(false);
        if with_machine {
            self.hosts[host].disk.crash(&mut self.rng);
        }
        if self.rng.chance(20) {
            // A second crash, during recovery of the journal.
            self.hosts[host].disk.stop_after(Some(self.rng.below(6)));
        }
        loop {
            match HostJournal::open(&self.hosts[host].disk, &self.plan, self.now) {
                Ok((journal, recovery)) => {
                    self.hosts[host].disk.stop_after(None);
                    if recovery.is_damaged() {
                        self.oracle.violated("a torn write was reported as corruption");
                    }
                    if machine_stopped {
                        let is_lost = |key: &&CallKey| !journal.book().is_answered(key);
                        self.oracle.ends_lost(in_doubt.iter().filter(is_lost));
                    }
                    self.hosts[host].journal = journal;
                    return self.resume_tasks(host);
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
