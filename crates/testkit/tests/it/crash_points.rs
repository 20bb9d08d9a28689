//! The machine stops at every call to the disk in turn, and in the recovery from it once more.

use toolbus_testkit::simulation::{CrashPoint, Ending, run_to_crash_point};

/// A recovery makes fewer calls that change the disk than this.
const RECOVERY_CALLS: u64 = 10;

#[test]
fn a_crash_at_any_call_to_the_disk_breaks_no_promise() {
    let calls = check_every_call(|call| (0..16).map(|seed| CrashPoint { call, recovery_call: None, seed }).collect());
    println!("{calls} crash points");
    assert!(calls > 100, "the story touches the disk only {calls} times");
}

#[test]
fn a_crash_in_the_recovery_from_a_crash_breaks_no_promise() {
    check_every_call(|call| {
        let recovery_calls = (0..RECOVERY_CALLS).map(Some);
        recovery_calls.map(|recovery_call| CrashPoint { call, recovery_call, seed: call }).collect()
    });
}

/// Returns at which call the story was over.
fn check_every_call(points: impl Fn(u64) -> Vec<CrashPoint>) -> u64 {
    let crashes = |call| points(call).into_iter().filter(|point| ending(*point) == Ending::Crashed).count();
    (0..).find(|call| crashes(*call) == 0).expect("the story ends")
}

fn ending(point: CrashPoint) -> Ending {
    run_to_crash_point(point).unwrap_or_else(|violation| panic!("{violation}"))
}
