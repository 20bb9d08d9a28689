//! `cargo xtask mutants`: changes the code of the crates that decide or store in small ways, one at a time, and counts
//! which changes their tests notice. A change that no test notices is a rule without a test.

mod sample;

use crate::child::Running;
use crate::run::{Step, StepError, root, target_folder};
use crate::tools;
use clap::Args;
use sample::Seed;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Crates without I/O: every decision can be tested by itself, so nearly all changes must be noticed.
const DECISION_CRATES: [&str; 3] = ["engine", "call", "policy"];
const OTHER_CRATES: [&str; 5] = ["wal", "journal", "store", "identity", "audit"];
/// Percentage of the viable mutants of a decision crate that its tests must catch.
const MIN_CAUGHT: usize = 90;
/// Mutants that one job builds and tests per minute on a small machine, the first build included.
const PER_MINUTE: u64 = 10;
/// Without `--minutes`, a run of all mutants ends by itself.
const NO_LIMIT: Duration = Duration::from_secs(7 * 24 * 3600);

#[derive(Args)]
pub struct MutantsArgs {
    /// Tests a random sample of the mutants, for this many minutes at most.
    #[arg(long, default_value_t = 10, conflicts_with = "all")]
    minutes: u64,
    /// Tests all mutants, which takes hours.
    #[arg(long)]
    all: bool,
    /// Only this crate, without the prefix `toolbus-`; may be repeated.
    #[arg(long = "crate", value_name = "CRATE")]
    crates: Vec<String>,
    /// Repeats the sample of an earlier run of the same source.
    #[arg(long)]
    seed: Option<u64>,
    /// Number of mutants that are built and tested at the same time.
    #[arg(long, default_value_t = 1)]
    jobs: usize,
}

pub fn run(args: &MutantsArgs) -> Result<(), StepError> {
    let tool = tools::cargo_mutants()?;
    let folder = target_folder().join("mutants");
    fs::create_dir_all(&folder).map_err(|source| StepError::File { path: folder.clone(), source })?;
    let all = [&DECISION_CRATES[..], &OTHER_CRATES].concat();
    let crates = if args.crates.is_empty() { all } else { args.crates.iter().map(String::as_str).collect() };
    let config = folder.join("config.toml");
    let chosen = choose(args, &list(&tool, &crates)?);
    let text = format!("examine_re = {}\n", json!(chosen));
    fs::write(&config, text).map_err(|source| StepError::File { path: config.clone(), source })?;
    let outcomes = Outcomes::read(&test(&tool, &crates, args, &config, &folder)?)?;
    outcomes.print(chosen.len());
    outcomes.verdict()
}

/// The names of all mutants.
fn list(tool: &Path, crates: &[&str]) -> Result<Vec<String>, StepError> {
    let list = Step::of("list of mutants", command(tool, crates)).args(["--list", "--json", "--no-config"]).output()?;
    let unreadable = || StepError::Unreadable { path: tool.to_owned(), problem: "its list of mutants is not JSON" };
    let mutants: Vec<Value> = serde_json::from_str(&list).map_err(|_| unreadable())?;
    mutants.iter().map(|mutant| mutant["name"].as_str().map(str::to_owned).ok_or_else(unreadable)).collect()
}

/// The mutants to test, as regular expressions of their names.
fn choose(args: &MutantsArgs, mutants: &[String]) -> Vec<String> {
    let count = usize::try_from(args.minutes * PER_MINUTE).unwrap_or(usize::MAX).saturating_mul(args.jobs);
    let mut chosen: Vec<&String> = mutants.iter().collect();
    if !args.all && count < mutants.len() {
        let seed = args.seed.map_or_else(Seed::random, Seed);
        println!("{count} of {} mutants, --seed {}", mutants.len(), seed.0);
        chosen = seed.sample(chosen, count);
    }
    chosen.into_iter().map(|name| format!("^{}$", escaped(name))).collect()
}

fn escaped(name: &str) -> String {
    // A backslash gives `<` and `>` a meaning that they don't have without it.
    let special = |letter: char| r"\.+*?()|[]{}^$#&-~".contains(letter);
    name.chars().flat_map(|letter| special(letter).then_some('\\').into_iter().chain([letter])).collect()
}

/// Tests the mutants of the configuration until the time is over. Returns the file with the outcomes.
fn test(tool: &Path, crates: &[&str], args: &MutantsArgs, config: &Path, folder: &Path) -> Result<PathBuf, StepError> {
    let mut command = command(tool, crates);
    command.arg("--config").arg(config).arg("--output").arg(folder);
    // In random order, so that the mutants that are left at the end of the time are no particular ones.
    command.arg("--shuffle").arg("--jobs").arg(args.jobs.to_string());
    // The rest of the workspace is built once, the crates themselves for every mutant.
    for name in crates {
        command.arg("--cargo-arg=--config");
        command.arg(format!("--cargo-arg=profile.dev.package.toolbus-{name}.opt-level=0"));
    }
    command.args(["--minimum-test-timeout", "10", "--", "--tests"]);
    command.env("CARGO_PROFILE_DEV_OPT_LEVEL", "2").env("CARGO_PROFILE_DEV_DEBUG", "0");
    let log = folder.join("log.txt");
    eprintln!("\n── mutants (progress is in {})", log.display());
    let mut running = Running::start("cargo mutants", &mut command, &log)?;
    let limit = if args.all { NO_LIMIT } else { Duration::from_secs(args.minutes * 60) };
    if let Ok(status) = running.wait_for_exit(limit) {
        // 0: all caught, 2: some missed, 3: some timed out. Anything else concerns the unchanged code.
        if !matches!(status.code(), Some(0 | 2 | 3)) {
            return Err(StepError::Failed { step: format!("cargo mutants (its output is in {})", log.display()) });
        }
    }
    Ok(folder.join("mutants.out/outcomes.json"))
}

fn command(tool: &Path, crates: &[&str]) -> Command {
    let mut command = Command::new(tool);
    command.current_dir(root()).args(["mutants", "--all-features", "--exclude", "**/planted.rs", "--colors", "never"]);
    command.args(crates.iter().map(|name| format!("--package=toolbus-{name}")));
    command
}

/// What the tests made of the mutants, by crate.
#[derive(Debug, Default, PartialEq)]
struct Outcomes(BTreeMap<String, Tally>);

#[derive(Debug, Default, PartialEq)]
struct Tally {
    caught: usize,
    unviable: usize,
    missed: Vec<String>,
}

impl Outcomes {
    fn read(path: &Path) -> Result<Self, StepError> {
        let text = fs::read_to_string(path).map_err(|source| StepError::File { path: path.to_owned(), source })?;
        let unreadable = StepError::Unreadable { path: path.to_owned(), problem: "it is not JSON" };
        serde_json::from_str(&text).map(|file| Self::of(&file)).map_err(|_| unreadable)
    }

    fn of(file: &Value) -> Self {
        let mut outcomes = Self::default();
        for outcome in file["outcomes"].as_array().into_iter().flatten() {
            let mutant = &outcome["scenario"]["Mutant"];
            let (Some(package), Some(name)) = (mutant["package"].as_str(), mutant["name"].as_str()) else { continue };
            let tally = outcomes.0.entry(package.trim_start_matches("toolbus-").to_owned()).or_default();
            match outcome["summary"].as_str() {
                // A test that does not end has noticed the change too.
                Some("CaughtMutant" | "Timeout") => tally.caught += 1,
                Some("MissedMutant") => tally.missed.push(name.to_owned()),
                _ => tally.unviable += 1,
            }
        }
        outcomes
    }

    fn print(&self, chosen: usize) {
        for missed in self.0.values().flat_map(|tally| &tally.missed) {
            println!("missed {missed}");
        }
        println!("\n{:10} {:>7} {:>7} {:>9}", "crate", "caught", "missed", "unviable");
        for (name, tally) in &self.0 {
            println!("{name:10} {:>7} {:>7} {:>9}", tally.caught, tally.missed.len(), tally.unviable);
        }
        let tested: usize = self.0.values().map(|tally| tally.caught + tally.missed.len() + tally.unviable).sum();
        if tested < chosen {
            println!("the time was over after {tested} of {chosen} mutants");
        }
    }

    fn verdict(&self) -> Result<(), StepError> {
        let is_weak = |(name, tally): &(&String, &Tally)| {
            let viable = tally.caught + tally.missed.len();
            DECISION_CRATES.contains(&name.as_str()) && tally.caught * 100 < viable * MIN_CAUGHT
        };
        let weak: Vec<&str> = self.0.iter().filter(is_weak).map(|(name, _)| name.as_str()).collect();
        if weak.is_empty() { Ok(()) } else { Err(StepError::Mutants { crates: weak.join(", "), min: MIN_CAUGHT }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcomes(package: &str, summaries: &[(&str, usize)]) -> Outcomes {
        let mutant = json!({ "package": package, "name": "src/a.rs:1:2: replace f with ()" });
        let all = summaries.iter().flat_map(|(summary, count)| vec![*summary; *count]);
        let all = all.map(|summary| json!({ "scenario": { "Mutant": mutant }, "summary": summary }));
        let baseline = json!({ "scenario": "Baseline", "summary": "Success" });
        Outcomes::of(&json!({ "outcomes": all.chain([baseline]).collect::<Vec<_>>() }))
    }

    #[test]
    fn outcomes_are_counted_by_crate_and_a_timeout_is_caught() {
        let seen =
            outcomes("toolbus-call", &[("CaughtMutant", 3), ("Timeout", 1), ("MissedMutant", 1), ("Unviable", 2)]);
        let missed = vec!["src/a.rs:1:2: replace f with ()".to_owned()];
        assert_eq!(seen, Outcomes(BTreeMap::from([("call".to_owned(), Tally { caught: 4, unviable: 2, missed })])));
    }

    #[test]
    fn nine_of_ten_viable_mutants_of_a_decision_crate_must_be_caught() {
        let verdict = |package, caught, missed| {
            let summaries = [("CaughtMutant", caught), ("MissedMutant", missed), ("Unviable", 50)];
            outcomes(package, &summaries).verdict().is_ok()
        };
        assert!(verdict("toolbus-call", 90, 10) && !verdict("toolbus-call", 89, 10));
        assert!(verdict("toolbus-wal", 1, 10) && verdict("toolbus-policy", 0, 0));
    }

    #[test]
    fn a_name_is_matched_literally() {
        assert_eq!(escaped("a/b.rs:1:2: replace && with || in f<A>"), r"a/b\.rs:1:2: replace \&\& with \|\| in f<A>");
    }
}
