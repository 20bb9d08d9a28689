//! Many seeds, each a run of a broker with crashes, torn writes, full disks and retransmitting clients.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;
use toolbus_testkit::simulation::{Options, Report, Tally, run};

const SEEDS: u64 = 20_000;
/// With credentials and a forger.
const RESTRICTED_SEEDS: u64 = 5_000;

/// Of tool calls end to end.
const CALL_SEEDS: u64 = 5_000;
/// Of the brokers of a partition.
const CLUSTER_SEEDS: u64 = 10_000;

#[test]
fn no_seed_violates_an_invariant() {
    run_all(SEEDS, Options::default());
}

#[test]
fn no_crash_loses_a_call_or_makes_it_have_two_effects() {
    let reports = run_all(CALL_SEEDS, Options { calls: true, ..Options::default() });
    let mut calls = Tally::default();
    reports.iter().for_each(|report| calls += report.calls);
    println!("{calls:?}");
    // An outcome that never occurs is not tested.
    let Tally { unknown, joined, expired, poisoned, refused, cancelled, sent_again, tasks, withdrawn, unsure, .. } =
        calls;
    let rare = [unknown, joined, expired, poisoned, refused, cancelled, sent_again, tasks, withdrawn, unsure];
    assert!(rare.iter().all(|count| *count > 20), "{calls:?}");
}

#[test]
fn no_takeover_loses_a_message() {
    run_all(CLUSTER_SEEDS, Options { cluster: true, ..Options::default() });
}

#[test]
fn forged_messages_are_refused_and_violate_no_invariant() {
    let reports = run_all(RESTRICTED_SEEDS, Options { restricted: true, ..Options::default() });
    let forgeries: u64 = reports.iter().map(|report| report.forgeries).sum();
    assert!(forgeries > RESTRICTED_SEEDS, "{forgeries}");
}

fn run_all(count: u64, options: Options) -> Vec<Report> {
    let started = Instant::now();
    let next = AtomicU64::new(0);
    let workers = thread::available_parallelism().map_or(1, usize::from);
    // A simulation is single-threaded, and runs share no state.
    let reports = thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(|| run_some(&next, count, options))).collect();
        workers
            .into_iter()
            .flat_map(|worker| worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect::<Vec<Report>>()
    });
    let sum = |field: fn(&Report) -> u64| reports.iter().map(field).sum::<u64>();
    let (steps, sent, crashes) = (sum(|it| it.steps), sum(|it| it.sent), sum(|it| it.crashes));
    let forgeries = sum(|it| it.forgeries);
    let took = started.elapsed();
    println!("{count} seeds, {steps} steps, {sent} sent, {crashes} crashes, {forgeries} forgeries in {took:.1?}");
    assert!(crashes > count, "too few crashes to be a test: {crashes}");
    reports
}

/// Runs seeds until none is left.
fn run_some(next: &AtomicU64, count: u64, options: Options) -> Vec<Report> {
    let seeds = std::iter::repeat_with(|| next.fetch_add(1, Ordering::Relaxed)).take_while(|seed| *seed < count);
    seeds.map(|seed| run(seed, options).unwrap_or_else(|failure| panic!("{failure}"))).collect()
}

#[test]
fn the_same_seed_gives_the_same_run_and_another_seed_another() {
    check_repeatable(Options::default());
    check_repeatable(Options { calls: true, ..Options::default() });
    check_repeatable(Options { cluster: true, ..Options::default() });
}

fn check_repeatable(options: Options) {
    let run = |seed| run(seed, options).unwrap_or_else(|failure| panic!("{failure}"));
    let mut hashes = Vec::new();
    for seed in 0..100 {
        let (first, second) = (run(seed), run(seed));
        assert_eq!(first, second, "seed {seed}");
        hashes.push(first.trace_hash);
    }
    hashes.sort_unstable();
    hashes.dedup();
    assert_eq!(hashes.len(), 100);
}
