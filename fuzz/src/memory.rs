//! Measures how much a decoder allocates.

use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use std::alloc::System;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Bytes that a decoder may allocate regardless of its input, for buffers and error messages.
const BASE: usize = 64 << 10;

/// Runs a decoder of `input` and checks that it allocates in total at most `factor` bytes per byte of input. All other
/// threads of the process have to be idle.
pub fn bounded<T>(input: &[u8], factor: usize, decode: impl FnOnce() -> T) -> T {
    let region = Region::new(ALLOCATOR);
    let decoded = decode();
    let stats = region.change();
    let growth = usize::try_from(stats.bytes_reallocated).unwrap_or_default();
    let limit = BASE + factor * input.len();
    assert!(
        stats.bytes_allocated + growth <= limit,
        "{} + {growth} bytes were allocated for {} bytes of input; the limit is {limit}",
        stats.bytes_allocated,
        input.len()
    );
    decoded
}
