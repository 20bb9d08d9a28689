//! Drives the journal of a host: appends at once, and one slow operation at a time. Any other event can happen while an
//! operation runs.

use super::World;
use super::host::Phase;
use super::restart::Stop;
use super::wire::{Outcome, WireAnswer};
use bytestring::ByteString;
use std::sync::Arc;
use toolbus_call::{CallNo, Effect, Event, JoinMode, Record};
use toolbus_journal::{
    Appended, CallKey, Dead, Entry, Finish, Joined, JournalState, Known, Recovery, Start, Task, Wait,
};

impl World {
    /// Appends a record of a call. Returns the effects of the outcome.
    pub fn append(&mut self, host: usize, call: CallNo, record: Record<Outcome>, wait: Wait) -> Vec<Effect<Outcome>> {
        let (kind, wall) = (record.kind(), self.wall());
        let number =
            self.call(host, call).map(|call| call.key.clone()).map_or(u64::MAX, |key| self.oracle.number(&key));
        self.note("append", &[("host", host as u64), ("call", number), ("kind", kind as u64), ("wait", wait as u64)]);
        self.check_record(host, call, &record);
        let Some(entry) = self.entry(host, call, record) else { return Vec::new() };
        let Some(process) = self.hosts[host].process.as_mut() else { return Vec::new() };
        let end = if let Entry::Finish(finish) = &entry { Some(finish.key.clone()) } else { None };
        let outcome = process.journal.append(entry, wait, wall).map(|appended| match appended {
            Appended::Written => None,
            Appended::Waits(ticket) => Some(ticket),
        });
        match (end, &outcome) {
            (Some(key), Ok(_)) => process.unsynced_ends.push(key),
            (Some(key), Err(_)) => self.oracle.result_failed(&key),
            (None, _) => {}
        }
        self.handle(host, Event::Appended { call, record: kind, outcome })
    }

    fn entry(&mut self, host: usize, no: CallNo, record: Record<Outcome>) -> Option<Entry> {
        let (at, reply_id) = (self.wall(), ByteString::from(format!("reply-{}", self.fresh_id())));
        let process = self.hosts[host].process.as_mut()?;
        let Some(call) = process.calls.get_mut(&no) else {
            self.oracle.violated("a record concerns an unknown call");
            return None;
        };
        let (key, content, request) = (call.key.clone(), call.request.content, call.body.clone());
        let (server, tool) = (ByteString::from(format!("s{}", call.work.server)), call.work.tool_name());
        Some(match record {
            Record::Start { attempt, safe } => {
                Entry::Start(Arc::new(Start { key, server, tool, content, attempt, at, safe }))
            }
            Record::Result { answer, end } => {
                let reply = self.codebook.encode(&WireAnswer::new(&key, &answer));
                call.reply = Some((reply_id.clone(), reply.clone()));
                Entry::Finish(Finish { key, reply_id, reply, end, at })
            }
            Record::Joined { to } => Entry::Joined(Joined { key, to, content, at }),
            Record::Task => {
                let ttl_ms = call.request.task.map_or(0, |task| task.ttl);
                Entry::Task(Task { key, server, tool, content, request, role: None, ttl_ms, at })
            }
            Record::Dead { attempts, history: story } => {
                Entry::Dead(Dead { key, server, tool, request, role: None, attempts, story, at })
            }
        })
    }

    fn check_record(&mut self, host: usize, no: CallNo, record: &Record<Outcome>) {
        let Some(process) = self.hosts[host].process.as_ref() else { return };
        let Some(call) = process.calls.get(&no) else { return };
        let (key, work) = (call.key.clone(), call.work);
        match record {
            Record::Start { .. } => {
                self.oracle.writes_start(&key);
                if self.policy.refuses(&key, work) {
                    self.oracle.violated(format!("{} was started although the policy refuses it", key.id));
                }
                if self.is_draining(host) {
                    self.oracle.violated(format!("{} was started during a drain", key.id));
                }
            }
            Record::Result { answer, .. } => {
                let outcome = WireAnswer::new(&key, answer).outcome;
                if process.phase == Phase::Shutdown && matches!(outcome, Outcome::Died(_)) {
                    self.oracle.violated(format!("{} was answered with the end of its server at shutdown", key.id));
                }
                self.oracle.writes_result(&key, outcome);
            }
            Record::Joined { to } => {
                let is_asked = self.plan.join == JoinMode::Gone && !self.oracle.is_forgetful(self.hosts[host].number);
                let inspection = process.callers.inspected.get(&to.caller);
                self.oracle.joins(&key, to, inspection, is_asked);
            }
            // If its sync fails, the next process may find and start it.
            Record::Task => self.oracle.writes_start(&key),
            Record::Dead { .. } => {}
        }
    }

    /// Whether START survives a crash of the machine, or of the process if the call is replay-safe.
    pub fn has_start(&self, host: usize, key: &CallKey, content: &[u8; 32], safe: bool) -> bool {
        let after_crash = self.journal_after_crash(host, !safe);
        after_crash.is_some_and(|journal| !matches!(journal.index().look_up(key, content), Ok(Known::New)))
    }

    /// Whether a RESULT that the index has survives a crash of the process.
    pub fn has_result(&self, host: usize, key: &CallKey) -> bool {
        self.journal_after_crash(host, false).is_some_and(|journal| journal.index().is_answered(key))
    }

    /// Whether the entry of a task survives a crash of the machine.
    pub fn has_task(&self, host: usize, key: &CallKey) -> bool {
        let after_crash = self.journal_after_crash(host, true);
        after_crash.is_some_and(|journal| journal.index().task(&key.id, Some(key.agent())).is_some())
    }

    /// The journal as the next process would find it if this one, or its machine, ended now.
    fn journal_after_crash(&self, host: usize, of_machine: bool) -> Option<JournalState> {
        let disk = &self.hosts[host].folder.disk;
        let disk = if of_machine { disk.fork_synced() } else { disk.fork() };
        let opened = JournalState::open(Arc::new(disk), self.plan.journal.clone(), self.wall());
        opened.ok().map(|(journal, _)| journal)
    }

    /// The entries that a process found in its journal are durable: decisions rest on them.
    pub fn check_opened(&mut self, host: usize, recovery: &Recovery) {
        let disk = Arc::new(self.hosts[host].folder.disk.fork_synced());
        let opened = JournalState::open(disk, self.plan.journal.clone(), self.wall());
        if opened.is_ok_and(|(_, durable)| durable.records != recovery.records) {
            self.oracle.violated("an entry that was read when the journal was opened is not durable");
        }
    }

    /// Begins or ends a slow operation.
    pub fn journal_step(&mut self, host: usize) {
        let (wall, first) = (self.wall(), self.rng.chance(50));
        let Some(process) = self.hosts[host].process.as_mut() else { return };
        if let Some(group) = process.sync.take() {
            let synced = group.sync();
            let synced = process.journal.complete_sync(group, synced, wall);
            let ends = std::mem::take(&mut process.syncing_ends);
            if synced.outcome.is_err() {
                ends.iter().for_each(|key| self.oracle.result_failed(key));
                process.unsynced_ends.extend(ends);
            }
            let (count, is_ok) = (synced.tickets.len() as u64, u64::from(synced.outcome.is_ok()));
            self.note("journal synced", &[("host", host as u64), ("tickets", count), ("ok", is_ok)]);
            self.feed(host, Event::Synced { tickets: synced.tickets, outcome: synced.outcome });
        } else if let Some(operation) = process.maintenance.take() {
            process.journal.complete_maintenance(operation.run());
        } else {
            if !first {
                process.maintenance = process.journal.begin_maintenance(wall);
            }
            if process.maintenance.is_none() {
                process.sync = process.journal.begin_sync();
                if process.sync.is_some() {
                    process.syncing_ends.append(&mut process.unsynced_ends);
                } else if first {
                    process.maintenance = process.journal.begin_maintenance(wall);
                }
            }
        }
        self.stop_if_disk_failed(host);
    }

    pub fn journal_is_idle(&self, host: usize) -> bool {
        self.hosts[host].process.as_ref().is_none_or(|process| process.sync.is_none() && !process.journal.needs_sync())
    }

    /// A disk that stopped takes its machine with it. A failed sync alone does not: the host refuses calls from then on.
    pub fn stop_if_disk_failed(&mut self, host: usize) {
        let has_failed = self.hosts[host].process.as_ref().is_some_and(|process| process.journal.failure().is_some());
        if has_failed && self.hosts[host].machine_stops {
            self.restart(host, Stop::Machine);
        }
    }
}
