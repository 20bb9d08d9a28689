//! Many seeds, each a life of a broker with crashes, torn writes, full disks and impatient clients.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;
use toolbus_testkit::simulation::{Options, Report, Tally, run};

const SEEDS: u64 = 20_000;
/// With credentials, where somebody sends what it may not.
const RESTRICTED_SEEDS: u64 = 5_000;

/// Of calls from end to end.
const CALL_SEEDS: u64 = 3_000;

#[test]
fn no_seed_breaks_a_promise() {
    run_all(SEEDS, Options::default());
}

#[test]
fn no_call_is_lost_or_has_two_effects_whatever_crashes() {
    let reports = run_all(CALL_SEEDS, Options { calls: true, ..Options::default() });
    let mut calls = Tally::default();
    reports.iter().for_each(|report| calls += report.calls);
    println!("{calls:?}");
    // What never happens proves nothing.
    let rare = [calls.unknown, calls.joined, calls.expired, calls.poisoned, calls.sent_again, calls.tasks];
    assert!(rare.iter().all(|count| *count > 20), "{calls:?}");
}

#[test]
fn nothing_forged_is_ever_taken_and_no_promise_is_broken_meanwhile() {
    let reports = run_all(RESTRICTED_SEEDS, Options { restricted: true, ..Options::default() });
    let forgeries: u64 = reports.iter().map(|report| report.forgeries).sum();
    assert!(forgeries > RESTRICTED_SEEDS, "{forgeries}");
}

fn run_all(count: u64, options: Options) -> Vec<Report> {
    let started = Instant::now();
    let next = AtomicU64::new(0);
    let workers = thread::available_parallelism().map_or(1, usize::from);
    // A simulation has one thread; several of them don't know of each other.
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
    assert!(crashes > count, "the simulation crashes too seldom to prove anything: {crashes}");
    reports
}

/// Runs seeds until there are no more.
fn run_some(next: &AtomicU64, count: u64, options: Options) -> Vec<Report> {
    let seeds = std::iter::repeat_with(|| next.fetch_add(1, Ordering::Relaxed)).take_while(|seed| *seed < count);
    seeds.map(|seed| run(seed, options).unwrap_or_else(|failure| panic!("{failure}"))).collect()
}

#[test]
fn the_same_seed_gives_the_same_run_and_another_seed_another() {
    check_repeatable(Options::default());
    check_repeatable(Options { calls: true, ..Options::default() });
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
