//! How processes of hosts end and start again, and what becomes of their journals.

use super::World;
use super::callers::Callers;
use super::host::{Folder, Host, Phase, Process};
use super::network::Owner;
use super::wire::ToHost;
use crate::planted::Planted;
use bytestring::ByteString;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use toolbus_call::{CallMachine, Event, MachineOptions, Origin};
use toolbus_client::simulation::SimulatedClient;
use toolbus_journal::{CallKey, JournalState, Known};
use toolbus_protocol::{JournalClaim, MAX_ANCESTORS};

/// How a process of a host ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// It is killed.
    Process,
    /// Its machine stops: unsynced data may be lost.
    Machine,
    /// It shut down.
    Orderly,
    /// It is killed, and its state folder is lost.
    FolderLost,
    /// It is killed, and an older copy of its state folder is restored.
    FolderRestored,
    /// It is killed, and a bit of its journal flips.
    Corruption,
}

impl World {
    /// A process of a host ends and another one starts.
    pub fn restart(&mut self, host: usize, how: Stop) {
        if self.hosts[host].process.is_none() {
            return;
        }
        self.crashes += 1;
        self.note("host restarts", &[("host", host as u64), ("how", how as u64)]);
        let loses_state = matches!(how, Stop::FolderLost | Stop::FolderRestored | Stop::Corruption);
        if loses_state && self.rng.chance(40) {
            // A disaster strikes both, for example because they share a machine.
            self.broker_crashes();
        }
        let in_doubt = self.end_process(host);
        let copy = self.hosts[host].folder.copy();
        match how {
            Stop::Process | Stop::Orderly => {}
            Stop::Machine => self.hosts[host].folder.disk.crash(&mut self.rng),
            Stop::FolderLost if self.is_claimed(host) => {
                self.oracle.forgets(self.hosts[host].number);
                self.hosts[host].folder = self.new_folder();
            }
            Stop::FolderRestored if self.is_older_noticed(host) => {
                self.oracle.forgets(self.hosts[host].number);
                let older = self.hosts[host].older.as_ref().map(Folder::copy);
                older.into_iter().for_each(|older| self.hosts[host].folder = older);
                // Processes that end before they connect, after which the copy was opened more often than the original.
                for _ in 0..self.rng.below(5) {
                    let instance = ByteString::from(format!("unseen-{}", self.fresh_id()));
                    self.hosts[host].folder.instances.push(instance);
                    self.hosts[host].folder.epoch += 1;
                }
            }
            Stop::Corruption if self.is_claimed(host) => {
                self.hosts[host].folder.is_corrupt |= self.hosts[host].folder.disk.rot("journal-", &mut self.rng);
            }
            Stop::FolderLost | Stop::FolderRestored | Stop::Corruption => {}
        }
        if self.plan.amnesia && self.rng.chance(30) {
            self.hosts[host].older = Some(copy);
        }
        if self.rng.chance(20) {
            // A second crash, during recovery of the journal.
            self.hosts[host].folder.disk.stop_after(Some(self.rng.below(6)));
        }
        let machine_stopped = self.start_process(host) || how == Stop::Machine;
        if machine_stopped {
            self.oracle.starts_lost(self.hosts[host].number);
            let index = self.hosts[host].process.as_ref().map(|process| process.journal.index());
            let is_lost = |key: &&CallKey| index.is_none_or(|index| !index.is_answered(key));
            self.oracle.ends_lost(in_doubt.iter().filter(is_lost));
        }
        self.forget_lost_joins(host);
        self.resume_tasks(host);
    }

    /// A call whose JOINED was not written before the end of the process is decided again, and perhaps not joined.
    fn forget_lost_joins(&mut self, host: usize) {
        let Host { number, process: Some(process), .. } = &self.hosts[host] else { return };
        // Such a host may have a second journal, which has other joins.
        if self.oracle.is_forgetful(*number) {
            return;
        }
        let index = process.journal.index();
        let is_lost = |key: &CallKey, content: &[u8; 32]| matches!(index.look_up(key, content), Ok(Known::New));
        self.oracle.joins_lost(*number, is_lost);
    }

    /// Ends a process. Returns the calls whose RESULT was not synced.
    pub fn end_process(&mut self, host: usize) -> Vec<CallKey> {
        self.disconnect(Owner::Host(host));
        self.host_ended(host);
        let at = &mut self.hosts[host];
        at.folder.disk.stop_after(None);
        at.folder.disk.fail_syncs(false);
        at.machine_stops = false;
        let ended = at.process.take().map(|process| [process.unsynced_ends, process.syncing_ends].concat());
        ended.unwrap_or_default()
    }

    /// The broker knows of the journal, so that it notices another one.
    fn is_claimed(&self, host: usize) -> bool {
        self.broker.claims.contains_key(&self.hosts[host].name)
    }

    /// An older copy is noticed only if its host has claimed a later opening since.
    fn is_older_noticed(&self, host: usize) -> bool {
        let Host { name, older, .. } = &self.hosts[host];
        let Some((older, (last, _))) = older.as_ref().zip(self.broker.claims.get(name)) else { return false };
        !older.instances.contains(&last.instance)
    }

    /// Starts a process on the state folder. Returns whether the machine stopped during recovery.
    pub fn start_process(&mut self, host: usize) -> bool {
        let mut machine_stopped = false;
        let (journal, recovery) = loop {
            let disk = Arc::new(self.hosts[host].folder.disk.clone());
            match JournalState::open(disk, self.plan.journal.clone(), self.wall()) {
                Ok(opened) => break opened,
                Err(_) => {
                    machine_stopped = true;
                    self.hosts[host].folder.disk.stop_after(None);
                    self.hosts[host].folder.disk.crash(&mut self.rng);
                }
            }
        };
        let number = self.fresh_id();
        let planted = self.plan.planted.and_then(Planted::in_client);
        let mut client = SimulatedClient::new(&self.hosts[host].name, self.instant(), planted);
        let at = &mut self.hosts[host];
        at.folder.disk.stop_after(None);
        at.folder.epoch += 1;
        if recovery.is_damaged() && !at.folder.is_corrupt {
            self.oracle.violated("a torn write was reported as corruption");
        }
        if at.folder.is_corrupt {
            self.oracle.forgets(at.number);
        }
        let instance = ByteString::from(format!("process-{number}"));
        let lineage = toolbus_journal::lineage(&at.folder.disk).ok().flatten();
        let named = lineage.map_or_else(|| at.folder.id.clone(), ByteString::from);
        let ancestors = at.folder.instances.iter().rev().take(MAX_ANCESTORS).cloned().collect();
        at.folder.instances.push(instance.clone());
        client.serve(JournalClaim { journal: named, epoch: at.folder.epoch, instance, ancestors });
        let options = MachineOptions { journal_damaged: recovery.is_damaged(), ..self.plan.machine.clone() };
        at.process = Some(Process {
            number,
            machine: CallMachine::new(options),
            journal,
            sync: None,
            maintenance: None,
            client,
            phase: Phase::Running,
            calls: BTreeMap::new(),
            answered: BTreeSet::new(),
            callers: Callers::default(),
            early_cancels: BTreeSet::new(),
            notifications: BTreeSet::new(),
            sessions: BTreeMap::new(),
            unsynced_ends: Vec::new(),
            syncing_ends: Vec::new(),
            is_damaged: recovery.is_damaged(),
        });
        self.check_opened(host, &recovery);
        machine_stopped
    }

    /// A restarted host resumes the unfinished tasks of its journal.
    fn resume_tasks(&mut self, host: usize) {
        let Some(process) = self.process(host) else { return };
        for row in process.journal.index().unfinished_tasks() {
            let Some(process) = self.process(host) else { return };
            let key = row.manifest.key.clone();
            let body = process.journal.reader().payload(&row.manifest.request);
            let request = body.ok().and_then(|body| Some((ToHost::parse(&body)?, body)));
            let Some((ToHost::Call { work, sent_at }, body)) = request else {
                return self.oracle.violated(format!("the request of {} can't be read", key.id));
            };
            let request = self.request(&key, work, Origin::Journal, None, sent_at);
            self.arrive(host, request, work, body);
        }
    }

    /// SIGTERM: the host drains, then closes its servers, then ends.
    pub fn terminate_host(&mut self, host: usize) {
        let Some(process) = self.process(host) else { return };
        let (phase, event) = match process.phase {
            Phase::Running => (Phase::Draining, Event::Drain),
            Phase::Draining => (Phase::Shutdown, Event::Shutdown),
            Phase::Shutdown => return self.end_orderly(host),
        };
        process.phase = phase;
        self.note("host stops", &[("host", host as u64), ("phase", phase as u64)]);
        self.feed(host, event);
        if phase == Phase::Shutdown {
            self.servers_close(host);
        }
    }

    /// The process waits for the effects of its calls, its journal and its last frames.
    fn end_orderly(&mut self, host: usize) {
        for _ in 0..200 {
            self.host_step(host);
            self.journal_step(host);
        }
        self.flush(Owner::Host(host), true);
        if let Some(conn) = self.hosts[host].conn {
            (0..200).for_each(|_| self.broker_reads(conn));
        }
        self.restart(host, Stop::Orderly);
    }

    /// The second host of a name starts, with a journal of its own, or is killed.
    pub fn toggle_second_host(&mut self) {
        let second = self.plan.hosts;
        if second >= self.hosts.len() || !self.is_claimed(0) {
            return;
        }
        self.crashes += 1;
        self.note("second host", &[]);
        self.oracle.forgets(0);
        match self.hosts[second].process.is_some() {
            true => drop(self.end_process(second)),
            false => drop(self.start_process(second)),
        }
    }
}

impl Folder {
    fn copy(&self) -> Self {
        Self { disk: self.disk.fork(), ..self.clone() }
    }
}
