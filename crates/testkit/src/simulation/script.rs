//! Crash-point enumeration: a fixed script that writes, reclaims and replays every kind of record, interrupted at every
//! disk operation in turn.

use super::client::{Frame, Unacked};
use super::messages::{MessageNo, SentMessage};
use super::scenario::Scenario;
use super::trace::Trace;
use super::world::World;
use bytes::Bytes;
use bytestring::ByteString;
use toolbus_store::sim_disk::Rng;

/// Where the script is interrupted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CrashPoint {
    /// The machine crashes after this many disk operations.
    pub call: u64,
    /// It crashes again after this many disk operations of the recovery.
    pub recovery_call: Option<u64>,
    /// Decides which unsynced bytes survive.
    pub seed: u64,
}

/// How a run of the script ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The machine crashed during the script.
    Crashed,
    /// The script ended before the crash point.
    Completed,
}

const ANA: usize = 0;
const BO: usize = 1;
const CY: usize = 2;

/// Runs the script up to the crash, recovers, and drains. The error is the first violation.
pub fn run_to_crash_point(point: CrashPoint) -> Result<Ending, String> {
    let mut world = World::new(Scenario::plain(), Rng::new(point.seed), Trace::new(false));
    world.stop_recovery_after = point.recovery_call;
    world.disk.stop_after(Some(point.call));
    run_script(&mut world);
    let ending = if world.crashes > 0 { Ending::Crashed } else { Ending::Completed };
    if world.model.violation().is_none() {
        world.drain();
    }
    match world.model.violation() {
        Some(violation) => Err(format!("{point:?}: {violation}")),
        None => Ok(ending),
    }
}

fn run_script(world: &mut World) {
    let stages: [fn(&mut World); 8] = [
        connect_clients,
        elide_and_store,
        ack_with_reply,
        fill_segments,
        dead_letter,
        expire,
        acknowledge_remaining,
        reclaim_space,
    ];
    for stage in stages {
        stage(world);
        if world.crashes > 0 {
            return;
        }
    }
}

fn connect_clients(world: &mut World) {
    for client in [ANA, BO] {
        let conn = world.connect(client);
        world.make_primary(conn);
        world.queue(conn, Frame::Subscribe);
    }
    world.pass_all_frames();
}

/// Some messages are acknowledged before they have a record, some after, some never.
fn elide_and_store(world: &mut World) {
    for body in [10, 500, 0, 120] {
        send(world, ANA, BO, body, None);
        send(world, ANA, CY, body, None);
    }
    world.pass_all_frames();
    acknowledge(world, BO, 1);
    to_disk(world);
    let Some(unacked) = first_held(world, BO) else { return };
    world.queue(unacked.conn, Frame::AckWithReceipt { no: unacked.no });
    world.pass_all_frames();
    to_disk(world);
}

/// A reply acknowledges its request: once with the first deliver of the reply, once with a retransmission while the
/// reply is being written.
fn ack_with_reply(world: &mut World) {
    for resend in [false, true] {
        let Some(unacked) = first_held(world, BO) else { return };
        let reply = world.add_message(new_message(world, BO, ANA, 200, None));
        world.send_message(BO, reply, (!resend).then_some(unacked.message.seq));
        world.pass_all_frames();
        world.advance(10);
        world.storage_step();
        if resend {
            world.send_message(BO, reply, Some(unacked.message.seq));
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

fn dead_letter(world: &mut World) {
    let Some(unacked) = first_held(world, BO) else { return };
    world.queue(unacked.conn, Frame::Unreadable { no: unacked.no, message: unacked.message });
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

fn acknowledge_remaining(world: &mut World) {
    acknowledge(world, BO, usize::MAX);
    acknowledge(world, ANA, usize::MAX);
    to_disk(world);
}

/// Pending messages are carried over to new segments several times.
fn reclaim_space(world: &mut World) {
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

fn new_message(world: &World, from: usize, to: usize, body: usize, deadline_ms: Option<u64>) -> SentMessage {
    let no = world.model.messages.len();
    let sealed = Bytes::from(vec![no as u8; body]);
    let mut sent = SentMessage::new(from, world.clients[to].name.clone(), ByteString::from(format!("m-{no}")), sealed);
    sent.deadline_ms = deadline_ms;
    sent
}

fn send(world: &mut World, from: usize, to: usize, body: usize, deadline_ms: Option<u64>) -> MessageNo {
    let no = world.add_message(new_message(world, from, to, body, deadline_ms));
    world.send_message(from, no, None);
    no
}

/// `None` after a crash, which empties the list.
fn first_held(world: &mut World, client: usize) -> Option<Unacked> {
    let unacked = &mut world.clients[client].unacked;
    (!unacked.is_empty()).then(|| unacked.remove(0))
}

fn acknowledge(world: &mut World, client: usize, at_most: usize) {
    let unacked = &mut world.clients[client].unacked;
    let tags: Vec<u64> = unacked.drain(..at_most.min(unacked.len())).map(|unacked| unacked.message.seq).collect();
    if let Some(conn) = world.clients[client].primary {
        world.queue(conn, Frame::AckTags { tags });
        world.pass_all_frames();
    }
}

/// Writes and syncs everything.
fn to_disk(world: &mut World) {
    world.advance(200);
    for _ in 0..12 {
        if world.crashes == 0 {
            world.storage_step();
        }
    }
    world.pass_all_frames();
}
