//! Many seeds, each a life of a broker with crashes, torn writes, full disks and impatient clients.

use toolbus_testkit::simulation::{self, Options};

const SEEDS: u64 = 10_000;

#[test]
fn no_seed_breaks_a_promise() {
    let (mut steps, mut crashes, mut letters) = (0, 0, 0);
    for seed in 0..SEEDS {
        match simulation::run(seed, Options::default()) {
            Ok(report) => {
                steps += report.steps;
                crashes += report.crashes;
                letters += report.letters;
            }
            Err(failure) => panic!("{failure}"),
        }
    }
    println!("{SEEDS} seeds, {steps} steps, {letters} letters, {crashes} crashes");
    assert!(crashes > SEEDS, "the simulation crashes too seldom to prove anything: {crashes}");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in [1, 77, 4_242] {
        let run = || simulation::run(seed, Options::default()).unwrap_or_else(|failure| panic!("{failure}"));
        assert_eq!(run(), run(), "seed {seed}");
    }
}
