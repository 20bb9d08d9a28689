//! Runs the simulation for one seed or a range of them, and stops at the first failure.

use clap::Parser;
use std::ops::Range;
use std::process::ExitCode;
use std::time::Instant;
use toolbus_testkit::planted::Planted;
use toolbus_testkit::simulation::{self, Options, Tally};

#[derive(Debug, Parser)]
#[command(about = "Run the deterministic simulation of broker, disks, hosts and clients")]
struct Args {
    /// Seed to run
    #[arg(long, conflicts_with = "seeds", required_unless_present = "seeds")]
    seed: Option<u64>,
    /// Range of seeds to run, FROM..TO
    #[arg(long, value_parser = parse_range)]
    seeds: Option<Range<u64>>,
    /// Print every event
    #[arg(long)]
    trace: bool,
    /// Use credentials, and let a forger send messages that it may not send
    #[arg(long)]
    restricted: bool,
    /// Simulate tool calls end to end, with workers, hosts and their journals
    #[arg(long, conflicts_with = "restricted")]
    calls: bool,
    /// Simulate the brokers of one partition of a cluster
    #[arg(long, conflicts_with_all = ["restricted", "calls"])]
    cluster: bool,
    /// Plant a known defect
    #[arg(long)]
    planted: Option<Planted>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let seeds = match (args.seed, args.seeds) {
        (Some(seed), _) => seed..seed.saturating_add(1),
        (None, seeds) => seeds.unwrap_or_default(),
    };
    let Args { planted, restricted, calls, cluster, trace, .. } = args;
    let options = Options { planted, restricted, calls, cluster, trace };
    let started = Instant::now();
    let (mut steps, mut crashes, mut sent) = (0, 0, 0);
    let mut tally = Tally::default();
    for seed in seeds.clone() {
        match simulation::run(seed, options) {
            Ok(report) => {
                steps += report.steps;
                crashes += report.crashes;
                sent += report.sent;
                tally += report.calls;
            }
            Err(failure) => {
                eprintln!("{failure}");
                return ExitCode::FAILURE;
            }
        }
    }
    let count = seeds.end - seeds.start;
    println!("{count} seeds, {steps} steps, {sent} sent, {crashes} crashes in {:.1?}", started.elapsed());
    if calls {
        println!("{tally:?}");
    }
    ExitCode::SUCCESS
}

fn parse_range(text: &str) -> Result<Range<u64>, String> {
    let (from, to) = text.split_once("..").ok_or("expected FROM..TO")?;
    let number = |text: &str| text.parse::<u64>().map_err(|error| format!("'{text}': {error}"));
    let (from, to) = (number(from)?, number(to)?);
    if from < to { Ok(from..to) } else { Err("the range is empty".into()) }
}
