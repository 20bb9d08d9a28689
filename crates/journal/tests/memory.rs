//! Memory that the index needs per remembered call. A binary of its own, because it counts the allocations of its whole
//! process.

use bytes::Bytes;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use std::alloc::System;
use std::sync::Arc;
use toolbus_journal::{CallIndex, CallKey, End, Entry, Finish, Limits, Location, Start};
use uuid::Uuid;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const CALLS: u64 = 100_000;
const LIMIT: usize = 250;

/// Applies a call with realistic names, and with arguments of its own.
fn apply(index: &mut CallIndex, number: u64, caller: &str) {
    let key = CallKey { caller: caller.into(), id: Uuid::new_v4().to_string().into() };
    let mut content = [0; 32];
    content[..8].copy_from_slice(&number.to_le_bytes());
    let (server, tool) = ("files".into(), format!("write_{}", number % 50).into());
    let start = Start { key: key.clone(), server, tool, content, attempt: 1, at: number, safe: false };
    let (reply_id, reply) = (Uuid::new_v4().to_string().into(), Bytes::from(vec![b'x'; 4096]));
    let finish = Finish { key, reply_id, reply, end: End::Done, at: number };
    for entry in [Entry::Start(Arc::new(start)), Entry::Finish(finish)] {
        index.announce(&entry);
        index.enter(&entry, Location::Log(toolbus_wal::Location { segment: 1, offset: number as u32, length: 4300 }));
    }
}

#[test]
fn a_remembered_call_takes_at_most_250_bytes() {
    for calls_per_caller in [100, 1] {
        let before = Region::new(ALLOCATOR);
        let mut index = CallIndex::new(Limits::default(), 0);
        let mut caller = String::new();
        // Just after a table has doubled, the index wastes most.
        for (number, is_measured) in (0..CALLS).map(|number| (number, number + 1 == CALLS || number == 57_400)) {
            if number % calls_per_caller == 0 {
                caller = format!("researcher-{}#mcp-{}", number % 7, Uuid::new_v4());
            }
            apply(&mut index, number, &caller);
            if is_measured {
                let stats = before.change();
                let used = stats.bytes_allocated - stats.bytes_deallocated;
                let per_call = used / index.len();
                println!("{calls_per_caller} calls per caller, {} calls: {per_call} bytes per call", index.len());
                assert!(per_call <= LIMIT, "{per_call} bytes per call, with {} calls", index.len());
            }
        }
        assert_eq!(index.len() as u64, CALLS);
    }
}
