//! The broker with its disk. Its guarantees about messages are checked by the other simulation; here it only provides
//! real message delivery, including the effects of crashes.

use super::World;
use super::plan::Plan;
use bytestring::ByteString;
use std::collections::BTreeMap;
use std::sync::Arc;
use toolbus_engine::{
    AttemptsNote, Batch, Effect, Effects, Engine, Fence, JournalClaim, Millis, Names, Outgoing, Page, RestoredMessage,
    Sender, Seq, Settled,
};
use toolbus_protocol::principal_of;
use toolbus_store::sim_disk::SimDisk;
use toolbus_store::{LogStore, Replay, Store, StoreError};

pub struct Broker {
    pub engine: Engine,
    pub store: LogStore,
    pub disk: SimDisk,
    write: Option<(Batch, Stage)>,
    fetches: Vec<Fetch>,
    /// The last claim of each host's mailbox, and its fence. Written at once, so a crash loses none.
    pub claims: BTreeMap<ByteString, (JournalClaim, Option<Fence>)>,
    /// The agents that were revoked, and the end of their messages. Written at once, too.
    pub ended: BTreeMap<ByteString, Seq>,
}

/// Hosts are known by their names.
struct HostNames;

impl Names for HostNames {
    fn is_host(&self, mailbox: &str) -> bool {
        mailbox.starts_with("host")
    }

    fn may_message(&self, _from: &Sender, _to: &str) -> bool {
        false
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Taken,
    Written,
    Synced,
}

struct Fetch {
    mailbox: Arc<str>,
    from: Seq,
    max_messages: usize,
    max_bytes: u64,
    page: Option<Page>,
}

struct Restoring<'a>(&'a mut Engine);

impl Replay for Restoring<'_> {
    fn message(&mut self, message: RestoredMessage<'_>) {
        self.0.restore_message(message);
    }

    fn settled(&mut self, settled: &Settled) {
        self.0.restore_settled(settled);
    }

    fn attempts(&mut self, note: &AttemptsNote) {
        self.0.restore_attempts(note);
    }
}

fn open(
    disk: &SimDisk,
    plan: &Plan,
    ended: &BTreeMap<ByteString, Seq>,
    now: Millis,
) -> Result<(Engine, LogStore), StoreError> {
    let mut engine = Engine::new(plan.engine.clone());
    ended.keys().for_each(|agent| engine.restore_generation(agent, 1));
    let (store, recovery) = LogStore::open(Arc::new(disk.clone()), plan.store.clone(), &mut Restoring(&mut engine))?;
    engine.finish_restore(recovery.next_seq, 1, recovery.damaged);
    engine.set_names(Arc::new(HostNames));
    let ended: Vec<(&str, Seq)> = ended.iter().map(|(agent, before)| (&**agent, *before)).collect();
    engine.remove_earlier(now, &ended, &mut Effects::default());
    Ok((engine, store))
}

impl Broker {
    pub fn new(plan: &Plan) -> Self {
        let disk = SimDisk::default();
        let ended = BTreeMap::new();
        let (engine, store) = open(&disk, plan, &ended, 0).expect("an empty disk without faults can be opened");
        Self { engine, store, disk, write: None, fetches: Vec::new(), claims: BTreeMap::new(), ended }
    }

    pub fn is_idle(&self) -> bool {
        self.write.is_none() && self.fetches.is_empty() && !self.engine.anything_to_write()
    }
}

impl World {
    /// One step of the broker's current write or read.
    pub fn broker_disk_step(&mut self) {
        if !self.broker.fetches.is_empty() && self.rng.chance(50) {
            return self.fetch_step();
        }
        let mut effects = Effects::default();
        match self.broker.write.take() {
            None => {
                if let Some(batch) = self.broker.engine.take_batch(self.now) {
                    self.note("batch", &[("puts", batch.puts.len() as u64), ("settled", batch.settled.len() as u64)]);
                    self.broker.write = Some((batch, Stage::Taken));
                }
            }
            Some((batch, Stage::Taken)) => match self.broker.store.write(&batch) {
                Ok(()) => self.broker.write = Some((batch, Stage::Written)),
                Err(_) => self.broker_crashes(),
            },
            Some((batch, Stage::Written)) if batch.sync => match self.broker.store.sync() {
                Ok(()) => {
                    self.broker.write = Some((batch, Stage::Synced));
                }
                Err(_) => self.broker_crashes(),
            },
            Some((batch, Stage::Written | Stage::Synced)) => {
                self.note("synced", &[("number", batch.number)]);
                self.broker.engine.synced(batch.number, &mut effects);
            }
        }
        self.apply_effects(effects);
    }

    fn fetch_step(&mut self) {
        let fetch = &mut self.broker.fetches[0];
        if fetch.page.is_none() {
            let page = self.broker.store.read(&fetch.mailbox, fetch.from, fetch.max_messages, fetch.max_bytes);
            match page {
                Ok(page) => fetch.page = Some(page),
                Err(_) => self.broker_crashes(),
            }
            return;
        }
        let fetch = self.broker.fetches.remove(0);
        let Some(page) = fetch.page else { return };
        self.note("page", &[("messages", page.messages.len() as u64)]);
        let mut effects = Effects::default();
        self.broker.engine.fetched(self.now, &fetch.mailbox, page, &mut effects);
        self.apply_effects(effects);
    }

    pub fn broker_reclaims(&mut self) {
        if self.broker.write.is_none() && self.broker.store.reclaim().is_err() {
            self.broker_crashes();
        }
    }

    pub fn tick(&mut self) {
        let mut effects = Effects::default();
        self.broker.engine.tick(self.now, &mut effects);
        self.apply_effects(effects);
        self.time_out_requests();
        if self.plan.fail_fast > 0 {
            self.workers_look();
        }
        for host in 0..self.hosts.len() {
            // Timers may be late.
            if self.rng.chance(70) {
                self.tick_host(host);
            }
            if !self.plan.follows && self.rng.chance(2) {
                self.poll_callers(host);
            }
        }
    }

    pub fn apply_effects(&mut self, effects: Effects) {
        for effect in effects.0 {
            match effect {
                Effect::Send { conn, outgoing } => {
                    if let Outgoing::Message { message, .. } = &outgoing
                        && self.broker.ended.contains_key(principal_of(&message.from.name))
                    {
                        self.oracle.violated(format!("{} was pushed after its agent was revoked", message.id));
                    }
                    if let Some(link) = self.links.get_mut(&conn) {
                        link.to_owner.push_back(outgoing);
                    }
                }
                Effect::Fetch { mailbox, from, max_messages, max_bytes } => {
                    self.broker.fetches.push(Fetch { mailbox, from, max_messages, max_bytes, page: None });
                }
            }
        }
    }

    /// Ends an agent for good.
    pub fn end_agent(&mut self, agent: &ByteString) {
        let mut effects = Effects::default();
        let (before, _) = self.broker.engine.end_generation(self.now, agent, &mut effects);
        self.broker.ended.insert(agent.clone(), before);
        self.apply_effects(effects);
    }

    /// A host names the journal behind its mailbox. Another journal than the last one fences the mailbox.
    pub fn claim(&mut self, mailbox: &ByteString, claim: JournalClaim) {
        let earlier = self.broker.claims.get(mailbox);
        let fence = match earlier {
            Some((earlier, fence)) if claim.continues(earlier) => *fence,
            None => None,
            Some(_) => Some(self.broker.engine.fence(self.now, mailbox)),
        };
        self.note("claim", &[("fence", fence.map_or(0, |fence| fence.before))]);
        self.broker.claims.insert(mailbox.clone(), (claim, fence));
    }

    /// SIGTERM: everything is written before the broker ends.
    pub fn broker_stops(&mut self) {
        self.broker.engine.stop_accepting();
        for _ in 0..100 {
            self.broker.engine.hurry(self.now);
            self.broker_disk_step();
            // Frames still cross the links, and new messages are refused.
            if let Some(conn) = self.random_link()
                && self.rng.chance(20)
            {
                self.broker_reads(conn);
                self.owner_reads(conn);
            }
        }
        self.note("broker stops", &[]);
        self.broker_restarts();
    }

    /// The broker's machine crashes and restarts.
    pub fn broker_crashes(&mut self) {
        self.note("broker crashes", &[]);
        self.broker.disk.crash(&mut self.rng);
        self.oracle.broker_crashed();
        self.broker_restarts();
    }

    /// All links break.
    fn broker_restarts(&mut self) {
        self.crashes += 1;
        let conns: Vec<_> = self.links.keys().copied().collect();
        for conn in conns {
            let link = self.links.remove(&conn).expect("the key is from the map itself");
            self.owner_link_lost(link.owner);
        }
        self.broker.write = None;
        self.broker.fetches.clear();
        match open(&self.broker.disk, &self.plan, &self.broker.ended, self.now) {
            Ok((mut engine, store)) => {
                for (mailbox, (_, fence)) in &self.broker.claims {
                    fence.iter().for_each(|fence| engine.restore_fence(mailbox, *fence));
                }
                (self.broker.engine, self.broker.store) = (engine, store);
            }
            Err(error) => self.oracle.violated(format!("the broker's log can't be opened after a crash: {error}")),
        }
    }
}
