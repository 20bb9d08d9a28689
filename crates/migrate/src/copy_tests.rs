//! A folder is moved into partitions and back, on disks that lose what was not synced, with a power cut after every few calls.

use super::*;
use crate::plan::{IdLimits, to_folder, to_partitions};
use std::collections::BTreeMap;
use toolbus_broker::{MovedState, StatePlace};
use toolbus_cluster::{Partition, Partitions, stays_with_sender};
use toolbus_engine::{EngineOptions, Sender, Seq, Settled, fingerprint};
use toolbus_protocol::{AgentRef, Body, InboxMessage};
use toolbus_store::Disk;
use toolbus_store::sim_disk::{Rng, SimDisk};

const SEED: u64 = 77;
const KINDS: [&str; 4] = ["mcp_request", "mcp_reply", "mcp_event", "task"];

fn limits() -> IdLimits {
    let EngineOptions { history_ids, history_age, .. } = EngineOptions::default();
    IdLimits { count: history_ids, age: history_age }
}

fn open(disk: &SimDisk) -> Result<Log, MoveError> {
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    let place = StatePlace::in_partition(&disk, SEED);
    Log::open(disk, place, SEED)
}

fn message(rng: &mut Rng, seq: Seq) -> Message {
    let agents = ["host", "ana", "bo", "bo#mcp"];
    let (to, from) = (agents[rng.below(4) as usize], agents[rng.below(4) as usize]);
    let kind = KINDS[rng.below(4) as usize];
    let body = Body::of(&"x".repeat(rng.below(3000) as usize)).expect("text is JSON");
    let envelope = InboxMessage::new(AgentRef::new(from), kind, body).seal();
    Message {
        seq,
        mailbox: to.into(),
        from: Arc::new(Sender { name: from.into(), role: rng.chance(50).then(|| "reader".into()) }),
        id: envelope.id.clone(),
        correlation_id: envelope.correlation_id.clone(),
        fingerprint: fingerprint(SEED, to, &envelope.id),
        sealed: envelope.sealed().clone(),
        content: rng.next_u64(),
        accepted_at: 1_000 + seq * 10 - rng.below(30),
        expires_at: rng.chance(30).then(|| 9_000 + seq),
    }
}

/// A folder with messages, attempts, ids, gaps between sequence numbers, and a fenced mailbox.
fn folder(rng: &mut Rng) -> SimDisk {
    let disk = SimDisk::default();
    let log = open(&disk).expect("a new log");
    let mut seq = 1;
    for _ in 0..40 {
        seq += rng.below(3) + 1;
        let message = message(rng, seq);
        let mailbox = Arc::clone(&message.mailbox);
        let attempts = rng.chance(30).then(|| AttemptsNote { mailbox, seq, attempts: rng.below(5) as u32 });
        let id = Settled {
            fingerprint: fingerprint(SEED, "ana", &seq.to_string()),
            content: seq,
            size: 0,
            at: seq,
            stored: None,
        };
        let settled = rng.chance(40).then_some(id).into_iter().collect();
        let puts = vec![Arc::new(message)];
        let batch =
            Batch { next_seq: seq + 1, puts, settled, attempts: attempts.into_iter().collect(), ..Batch::default() };
        log.store.write(&batch).expect("there is room");
    }
    log.store.sync().expect("there is room");
    log.place.write(&state(seq / 2)).expect("there is room");
    disk
}

fn state(fence: Seq) -> MovedState {
    let folder = tempfile::tempdir().expect("a folder");
    let claims = format!(
        r#"{{"host":{{"journal":"a","epoch":1,"instance":"i","fence":{fence},"fenced_at":5}},
            "ana":{{"journal":"b","epoch":1,"instance":"j","fence":0,"fenced_at":0}}}}"#
    );
    std::fs::write(folder.path().join("claims.json"), claims).expect("writable");
    let generations = r#"{"bo":{"incarnation":4,"latest":4,"generation":1,"before":3}}"#;
    std::fs::write(folder.path().join("generations.json"), generations).expect("writable");
    StatePlace::in_folder(folder.path()).read().expect("readable")
}

fn contents(logs: &[Log], partitions: Partitions) -> Contents {
    Contents::of(logs, |_, message, purpose| {
        let stays = stays_with_sender(purpose, &*message.from.name == "host");
        Verdict::Keep(partitions.of(if stays { &message.from.name } else { &message.mailbox }).0)
    })
    .expect("readable")
}

/// Copies with a power cut after some calls, again and again, until it has succeeded.
fn copy_with_cuts(sources: &[Log], plan: &LogPlan<'_>, disk: &SimDisk, rng: &mut Rng) -> u64 {
    for cuts in 0.. {
        // Longer each time, so that it ends.
        disk.stop_after(Some(rng.below(20) + cuts * 8));
        let copied = open(disk).and_then(|target| copy(sources, plan, &target));
        disk.crash(rng);
        if copied.is_ok() {
            return cuts;
        }
    }
    unreachable!("the loop returns")
}

/// Everything of the messages of a place, by lane and in order.
fn lanes(contents: &Contents) -> BTreeMap<u128, Vec<u128>> {
    let mut lanes: BTreeMap<u128, Vec<u128>> = BTreeMap::new();
    contents.messages.iter().for_each(|item| lanes.entry(item.lane).or_default().push(item.hash));
    lanes
}

/// The messages of the host that are before its fence.
fn fenced(logs: &[Log], contents: &Contents) -> Vec<u128> {
    let fence = |log: &Log| log.state.fence_of("host").map_or(0, |fence| fence.before);
    let is_fenced = |item: &&crate::survey::Item| &*item.mailbox == "host" && item.seq < fence(&logs[item.log]);
    let mut hashes: Vec<u128> = contents.messages.iter().filter(is_fenced).map(|item| item.hash).collect();
    hashes.sort_unstable();
    hashes
}

#[test]
fn a_folder_is_the_same_after_the_way_into_partitions_and_back_with_power_cuts() {
    let mut cuts = 0;
    for seed in 0..100 {
        let rng = &mut Rng::new(seed);
        let partitions = Partitions::new(1 + rng.below(5) as u16).expect("a valid number");
        let source = [open(&folder(rng)).expect("it opens")];
        let original = contents(&source, partitions);
        let plans =
            to_partitions(&original, source[0].recovery.next_seq, &source[0].state, partitions, limits()).expect("few");
        let disks: Vec<SimDisk> = partitions.all().map(|_| SimDisk::default()).collect();
        for (plan, disk) in plans.iter().zip(&disks) {
            cuts += copy_with_cuts(&source, plan, disk, rng);
            verify(plan, open(disk).expect("it opens")).expect("equal");
        }
        let logs: Vec<Log> = disks.iter().map(|disk| open(disk).expect("it opens")).collect();
        let moved = contents(&logs, partitions);
        assert!(moved.messages.iter().all(|item| usize::from(item.route) == item.log), "a router finds it there");
        assert!(moved.messages.iter().all(|item| Partition::of_seq(item.seq).0 == item.route), "so do its tags");
        assert_eq!(lanes(&moved), lanes(&original), "seed {seed}");
        // Only requests are fenced, and those are in the partition of the host.
        let in_home = |item: &&crate::survey::Item| Partition(item.route) == partitions.of("host");
        let home: Vec<u128> = original.messages.iter().filter(in_home).map(|item| item.hash).collect();
        let mut expected = fenced(&source, &original);
        expected.retain(|hash| home.contains(hash));
        assert_eq!(fenced(&logs, &moved), expected, "seed {seed}");

        let states: Vec<MovedState> = logs.iter().map(|log| log.state.clone()).collect();
        let plan = to_folder(&moved, &states, limits());
        let disk = SimDisk::default();
        cuts += copy_with_cuts(&logs, &plan, &disk, rng);
        verify(&plan, open(&disk).expect("it opens")).expect("equal");
        let back = [open(&disk).expect("it opens")];
        let again = contents(&back, partitions);
        assert_eq!(lanes(&again), lanes(&original), "seed {seed}");
        assert_eq!(back[0].store.remembered(), source[0].store.remembered(), "seed {seed}");
        assert_eq!((back[0].state.claims(), back[0].state.generations()), (2, 1));
        assert!(expected.iter().all(|hash| fenced(&back, &again).contains(hash)), "seed {seed}");
    }
    assert!(cuts > 500, "{cuts} cuts");
}

#[test]
fn a_copy_that_differs_in_anything_is_refused() {
    let rng = &mut Rng::new(3);
    let source = [open(&folder(rng)).expect("it opens")];
    let partitions = Partitions::new(1).expect("a valid number");
    let original = contents(&source, partitions);
    let planned = || {
        let next_seq = source[0].recovery.next_seq;
        to_partitions(&original, next_seq, &source[0].state, partitions, limits()).expect("few").remove(0)
    };
    let check = |expected: Option<&str>, change: fn(&mut LogPlan<'_>)| {
        let (disk, mut changed) = (SimDisk::default(), planned());
        change(&mut changed);
        copy(&source, &changed, &open(&disk).expect("it opens")).expect("there is room");
        let verified = verify(&planned(), open(&disk).expect("it opens"));
        let what = verified.err().map(|error| match error {
            MoveError::Unequal { what } => what,
            other => panic!("{other}"),
        });
        assert_eq!(what, expected);
    };
    check(None, |_| {});
    check(Some("messages"), |plan| plan.messages.truncate(7));
    check(Some("messages"), |plan| plan.messages.last_mut().expect("some").1 += 1);
    check(Some("ids of settled messages"), |plan| drop(plan.ids.pop()));
    check(Some("ids of settled messages"), |plan| plan.ids[0].content ^= 1);
    check(Some("claims of journals and generations of agents"), |plan| plan.state = state(1));
    check(Some("next sequence number"), |plan| plan.next_seq += 1);
}

#[test]
fn messages_that_are_not_in_the_plan_are_found() {
    let rng = &mut Rng::new(4);
    let (first, other) = (folder(rng), folder(rng));
    let source = [open(&first).expect("it opens")];
    let partitions = Partitions::new(1).expect("a valid number");
    let original = contents(&source, partitions);
    let next_seq = source[0].recovery.next_seq;
    let plan = to_partitions(&original, next_seq, &source[0].state, partitions, limits()).expect("few").remove(0);
    copy(&source, &plan, &open(&other).expect("it opens")).expect("there is room");
    let verified = verify(&plan, open(&other).expect("it opens"));
    assert!(matches!(verified.err(), Some(MoveError::Unequal { what: "messages" })));
}
