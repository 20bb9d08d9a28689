//! Crash-point enumeration: one fixed story in which every kind of record is written, cleaned up and replayed, stopped at
//! every call to the disk in turn.

use super::client::{Frame, Held};
use super::scenario::Scenario;
use super::sent::{MessageNo, SentMessage};
use super::trace::Trace;
use super::world::World;
use bytes::Bytes;
use bytestring::ByteString;
use toolbus_store::sim_disk::Rng;

/// Where the story is interrupted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CrashPoint {
    /// The machine stops after this many calls to the disk.
    pub call: u64,
    /// And again after this many calls of the recovery.
    pub recovery_call: Option<u64>,
    /// Decides what becomes of bytes that were not synced.
    pub seed: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    Crashed,
    /// The story was over before the machine stopped.
    Told,
}

const ANA: usize = 0;
const BO: usize = 1;
const CY: usize = 2;

/// Tells the story up to the crash, recovers, and drains. The error is the first broken promise.
pub fn run_to_crash_point(point: CrashPoint) -> Result<Ending, String> {
    let mut world = World::new(Scenario::plain(), Rng::new(point.seed), Trace::new(false));
    world.stop_recovery_after = point.recovery_call;
    world.disk.stop_after(Some(point.call));
    tell(&mut world);
    let ending = if world.crashes > 0 { Ending::Crashed } else { Ending::Told };
    if world.model.violation().is_none() {
        world.drain();
    }
    match world.model.violation() {
        Some(violation) => Err(format!("{point:?}: {violation}")),
        None => Ok(ending),
    }
}

fn tell(world: &mut World) {
    let acts: [fn(&mut World); 8] =
        [introduce, elide_and_store, fold, fill_segments, die, expire, acknowledge_the_rest, give_space_back];
    for act in acts {
        act(world);
        if world.crashes > 0 {
            return;
        }
    }
}

fn introduce(world: &mut World) {
    for client in [ANA, BO] {
        let conn = world.connect(client);
        world.make_primary(conn);
        world.queue(conn, Frame::Subscribe);
    }
    world.pass_all_frames();
}

/// Some messages are acknowledged before they have a record, some after, some by nobody.
fn elide_and_store(world: &mut World) {
    for body in [10, 500, 0, 120] {
        send(world, ANA, BO, body, None);
        send(world, ANA, CY, body, None);
    }
    world.pass_all_frames();
    acknowledge(world, BO, 1);
    to_disk(world);
    let Some(held) = first_held(world, BO) else { return };
    world.queue(held.conn, Frame::AckWithReceipt { no: held.no });
    world.pass_all_frames();
    to_disk(world);
}

/// A reply settles its request: once while the reply is open, once by a reply that is sent again while it is written.
fn fold(world: &mut World) {
    for resend in [false, true] {
        let Some(held) = first_held(world, BO) else { return };
        let reply = world.add_message(sent_message(world, BO, ANA, 200, None));
        world.send_message(BO, reply, (!resend).then_some(held.message.seq));
        world.pass_all_frames();
        world.advance(10);
        world.storage_step();
        if resend {
            world.send_message(BO, reply, Some(held.message.seq));
            world.pass_all_frames();
        }
        to_disk(world);
    }
}

fn fill_segments(world: &mut World) {
    for round in 0..6 {
        send(world, BO, CY, 600, None);
        send(world, ANA, BO, 700, (round == 3).then_some(60_000));
        world.pass_all_frames();
        to_disk(world);
    }
}

fn die(world: &mut World) {
    let Some(held) = first_held(world, BO) else { return };
    world.queue(held.conn, Frame::Unreadable { no: held.no, message: held.message });
    world.pass_all_frames();
    to_disk(world);
}

fn expire(world: &mut World) {
    send(world, ANA, CY, 300, Some(50));
    world.pass_all_frames();
    to_disk(world);
    world.advance(100);
    to_disk(world);
}

fn acknowledge_the_rest(world: &mut World) {
    acknowledge(world, BO, usize::MAX);
    acknowledge(world, ANA, usize::MAX);
    to_disk(world);
}

/// What is still pending is carried along, several times over.
fn give_space_back(world: &mut World) {
    for _ in 0..12 {
        world.reclaim();
        for _ in 0..3 {
            send(world, ANA, BO, 700, None);
        }
        world.pass_all_frames();
        to_disk(world);
        acknowledge(world, BO, usize::MAX);
        to_disk(world);
    }
    world.reclaim();
}

fn sent_message(world: &World, from: usize, to: usize, body: usize, deadline_ms: Option<u64>) -> SentMessage {
    let no = world.model.sent.len();
    let sealed = Bytes::from(vec![no as u8; body]);
    let mut sent_message =
        SentMessage::new(from, world.clients[to].name.clone(), ByteString::from(format!("m-{no}")), sealed);
    sent_message.deadline_ms = deadline_ms;
    sent_message
}

fn send(world: &mut World, from: usize, to: usize, body: usize, deadline_ms: Option<u64>) -> MessageNo {
    let no = world.add_message(sent_message(world, from, to, body, deadline_ms));
    world.send_message(from, no, None);
    no
}

/// Nothing, once a crash took it out of its reader's hands.
fn first_held(world: &mut World, client: usize) -> Option<Held> {
    let held = &mut world.clients[client].held;
    (!held.is_empty()).then(|| held.remove(0))
}

fn acknowledge(world: &mut World, client: usize, at_most: usize) {
    let held = &mut world.clients[client].held;
    let tags: Vec<u64> = held.drain(..at_most.min(held.len())).map(|held| held.message.seq).collect();
    if let Some(conn) = world.clients[client].primary {
        world.queue(conn, Frame::AckTags { tags });
        world.pass_all_frames();
    }
}

/// Writes and syncs all there is.
fn to_disk(world: &mut World) {
    world.advance(200);
    for _ in 0..12 {
        if world.crashes == 0 {
            world.storage_step();
        }
    }
    world.pass_all_frames();
}
