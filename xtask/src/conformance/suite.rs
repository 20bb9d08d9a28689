//! One run of the suite in one era, and the parsing of its result files. A scenario's folder has a `checks.json`; the
//! list of scenarios that count for a revision is in the suite's package.

use crate::child::Running;
use crate::parts::Parts;
use crate::run::StepError;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const PACKAGE: &str = "@modelcontextprotocol/conformance";
const SCENARIO_MILLISECONDS: &str = "20000";
/// A run takes seconds; this allows for one in which every scenario times out.
const RUN_LIMIT: Duration = Duration::from_secs(20 * 60);
/// `-2026-11-16T01-48-14-785Z`, which the suite appends to a scenario's folder.
const TIMESTAMP_LENGTH: usize = 25;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Era {
    Legacy,
    Modern,
}

impl Era {
    pub const ALL: [Self; 2] = [Self::Legacy, Self::Modern];

    pub fn revision(self) -> &'static str {
        match self {
            Self::Legacy => "2025-11-25",
            Self::Modern => "2026-07-28",
        }
    }
}

pub struct Scenario {
    pub name: String,
    pub scored: bool,
    succeeded: BTreeSet<String>,
    failed: BTreeMap<String, String>,
    reported: bool,
}

impl Scenario {
    pub fn passed(&self) -> bool {
        self.reported && self.failed.is_empty()
    }
}

pub struct Report {
    pub scenarios: Vec<Scenario>,
}

impl Report {
    pub fn scored(&self) -> impl Iterator<Item = &Scenario> {
        self.scenarios.iter().filter(|scenario| scenario.scored)
    }

    pub fn passed(&self) -> usize {
        self.scored().filter(|scenario| scenario.passed()).count()
    }

    /// The checks that pass directly but not here. A check that is skipped here is lost too: the suite skips features
    /// that a server doesn't offer, but this server offers them directly.
    pub fn lost_against(&self, direct: &Self, not_compared: &[&str]) -> Vec<String> {
        let mut lost = Vec::new();
        let compared = direct.scenarios.iter().filter(|scenario| !not_compared.contains(&scenario.name.as_str()));
        for expected in compared.filter(|scenario| scenario.passed()) {
            let Some(here) = self.scenarios.iter().find(|scenario| scenario.name == expected.name) else {
                lost.push(format!("{} was not run", expected.name));
                continue;
            };
            if !here.reported {
                lost.push(format!("{} left no report", here.name));
            }
            lost.extend(here.failed.iter().map(|(check, problem)| format!("{}: {check}: {problem}", here.name)));
            let skipped = expected
                .succeeded
                .difference(&here.succeeded)
                .filter(|check| !here.failed.contains_key(*check) && !not_compared.contains(&check.as_str()));
            if here.reported {
                lost.extend(skipped.map(|check| format!("{}: {check} was skipped", here.name)));
            }
        }
        lost
    }
}

pub fn run(parts: &Parts, url: &str, era: Era, folder: &Path) -> Result<Report, StepError> {
    let package = parts.node_package(PACKAGE);
    let results = folder.join(era.revision());
    let mut command = Command::new(parts.node());
    command.arg(package.join("dist/index.js")).args(["server", "--url", url, "--requirements", era.revision()]);
    command.args(["--timeout", SCENARIO_MILLISECONDS, "--output-dir"]).arg(&results);
    let log = folder.join(format!("{}.log", era.revision()));
    // The exit status is ignored: the suite also fails for checks that don't count here.
    Running::start("the conformance suite", &mut command, &log)?.wait_for_exit(RUN_LIMIT)?;
    let requirements = package.join(format!("requirements/{}.yaml", era.revision()));
    let scored = required_scenarios(&read(&requirements)?);
    if scored.is_empty() {
        return Err(StepError::Unreadable { path: requirements, problem: "no required server scenarios" });
    }
    read_report(&results, &scored)
}

/// The entries of the list under the key `server`.
fn required_scenarios(yaml: &str) -> BTreeSet<String> {
    let section = yaml.lines().skip_while(|line| *line != "server:").skip(1);
    let section = section.take_while(|line| line.is_empty() || line.starts_with([' ', '#']));
    section.filter_map(|line| line.trim_start().strip_prefix("- ")).map(|name| name.trim().to_owned()).collect()
}

fn read_report(results: &Path, scored: &BTreeSet<String>) -> Result<Report, StepError> {
    let mut scenarios = BTreeMap::new();
    let entries = fs::read_dir(results).map_err(|source| StepError::File { path: results.to_owned(), source })?;
    for entry in entries.flatten() {
        let file_name = entry.file_name().to_string_lossy().into_owned();
        let name =
            file_name.strip_prefix("server-").and_then(|name| name.get(..name.len().checked_sub(TIMESTAMP_LENGTH)?));
        let Some(name) = name else { continue };
        let scenario = read_scenario(name, scored.contains(name), &entry.path().join("checks.json"))?;
        scenarios.insert(name.to_owned(), scenario);
    }
    for name in scored {
        // A scenario that broke before its first check leaves no folder.
        scenarios.entry(name.clone()).or_insert_with(|| Scenario {
            name: name.clone(),
            scored: true,
            succeeded: BTreeSet::new(),
            failed: BTreeMap::new(),
            reported: false,
        });
    }
    Ok(Report { scenarios: scenarios.into_values().collect() })
}

fn read_scenario(name: &str, scored: bool, path: &Path) -> Result<Scenario, StepError> {
    let unreadable = || StepError::Unreadable { path: path.to_owned(), problem: "not a list of checks" };
    let checks: Vec<Value> = serde_json::from_str(&read(path)?).map_err(|_| unreadable())?;
    let (mut succeeded, mut failed) = (BTreeSet::new(), BTreeMap::new());
    for check in &checks {
        let id = check["id"].as_str().ok_or_else(unreadable)?.to_owned();
        match check["status"].as_str() {
            Some("SUCCESS") => drop(succeeded.insert(id)),
            Some("FAILURE") => {
                let problem =
                    check["errorMessage"].as_str().or(check["description"].as_str()).unwrap_or("no reason given");
                failed.insert(id, problem.to_owned());
            }
            _ => {}
        }
    }
    Ok(Scenario { name: name.to_owned(), scored, succeeded, failed, reported: true })
}

fn read(path: &Path) -> Result<String, StepError> {
    fs::read_to_string(path).map_err(|source| StepError::File { path: PathBuf::from(path), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scenario(succeeded: &[&str], failed: &[&str], reported: bool) -> Report {
        let name = "tools-list".to_owned();
        let succeeded = succeeded.iter().map(|check| (*check).to_owned()).collect();
        let failed = failed.iter().map(|check| ((*check).to_owned(), "why".to_owned())).collect();
        Report { scenarios: vec![Scenario { name, scored: true, succeeded, failed, reported }] }
    }

    #[test]
    fn the_list_of_required_scenarios_ends_at_the_next_key() {
        let yaml = "# about\n\nserver:\n  - ping\n  # why\n  - tools-list\n\nclient:\n  - initialize\n";
        assert_eq!(required_scenarios(yaml), BTreeSet::from(["ping".to_owned(), "tools-list".to_owned()]));
    }

    #[test]
    fn a_failed_skipped_or_missing_check_is_a_loss() {
        let direct = scenario(&["a", "b"], &[], true);
        assert!(scenario(&["a", "b", "c"], &[], true).lost_against(&direct, &[]).is_empty());
        assert_eq!(scenario(&["a"], &["b"], true).lost_against(&direct, &[]), ["tools-list: b: why"]);
        assert_eq!(scenario(&["a"], &[], true).lost_against(&direct, &[]), ["tools-list: b was skipped"]);
        assert_eq!(scenario(&[], &[], false).lost_against(&direct, &[]), ["tools-list left no report"]);
        assert_eq!(Report { scenarios: vec![] }.lost_against(&direct, &[]), ["tools-list was not run"]);
    }

    #[test]
    fn checks_that_fail_directly_or_are_not_compared_are_not_lost() {
        let here = scenario(&[], &["a"], true);
        assert!(here.lost_against(&scenario(&[], &["a"], true), &[]).is_empty());
        assert!(here.lost_against(&scenario(&["a"], &[], true), &["tools-list"]).is_empty());
        let skips = scenario(&[], &[], true);
        assert!(skips.lost_against(&scenario(&["a"], &[], true), &["a"]).is_empty());
        assert_eq!(here.lost_against(&scenario(&["a"], &[], true), &["a"]), ["tools-list: a: why"]);
    }
}
