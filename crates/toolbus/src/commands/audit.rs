//! `toolbus audit`: verifies the audit logs and prints their lines.

use super::print_line;
use crate::failure::Failure;
use crate::host_state::StateArgs;
use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use std::time::Duration;
use toolbus_audit::{MOST_SCARS, Problem, Report, Tail, verify};

#[derive(Args)]
#[command(after_help = "\
Examples:
  toolbus audit verify
  toolbus audit verify --expect 6f0e…       (a hash printed by an earlier run)
  toolbus audit tail -f")]
pub struct AuditArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Verify the hash chain: detects changed, removed, reordered and truncated lines.
    Verify(VerifyArgs),
    /// Print the last lines.
    Tail(TailArgs),
}

#[derive(Args)]
struct FolderArgs {
    #[command(flatten)]
    state: StateArgs,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct VerifyArgs {
    #[command(flatten)]
    folder: FolderArgs,
    /// Fail unless one of the logs contains a line with this hash, noted earlier.
    #[arg(long, value_name = "HASH")]
    expect: Option<String>,
}

#[derive(Args)]
struct TailArgs {
    #[command(flatten)]
    folder: FolderArgs,
    /// Keep printing new lines.
    #[arg(short, long)]
    follow: bool,
    /// How many existing lines to print.
    #[arg(short = 'n', long, default_value = "20", value_name = "COUNT")]
    lines: usize,
}

const POLL: Duration = Duration::from_millis(200);

pub async fn run(args: AuditArgs) -> Result<(), Failure> {
    match args.action {
        Action::Verify(args) => verify_all(&args),
        Action::Tail(args) => tail(&args).await,
    }
}

fn verify_all(args: &VerifyArgs) -> Result<(), Failure> {
    let folders = args.folder.state.audit_logs()?;
    let mut reports = Vec::new();
    for folder in &folders {
        reports.push(verify(folder, None)?);
    }
    if let Some(hash) = &args.expect {
        expect(&folders, &mut reports, hash)?;
    }
    for (folder, report) in folders.iter().zip(&reports) {
        print_line(&if args.folder.json { as_json(folder, report) } else { as_text(folder, report) })?;
    }
    match reports.iter().filter(|report| report.problem.is_some()).count() {
        0 => Ok(()),
        count => Err(Failure::AuditProblems { count, checked: folders.len() }),
    }
}

/// Requires the line in one of the logs. If none has it, the reports of all logs say so.
fn expect(folders: &[PathBuf], reports: &mut [Report], hash: &str) -> Result<(), Failure> {
    let mut without = Vec::new();
    for folder in folders {
        let report = verify(folder, Some(hash))?;
        if report.problem.is_none() {
            return Ok(());
        }
        without.push(report);
    }
    reports.clone_from_slice(&without);
    Ok(())
}

fn as_text(folder: &Path, report: &Report) -> String {
    let folder = folder.display();
    if let Some(problem) = &report.problem {
        let mut text = format!("{folder}: PROBLEM");
        for problem in [problem].into_iter().chain(&report.others) {
            text.push_str(&format!("\n  {problem}"));
        }
        if report.scars > MOST_SCARS {
            text.push_str(&format!("\n  {} more losses recorded in the log itself", report.scars - MOST_SCARS));
        }
        return text;
    }
    let mut text = format!("{folder}: {} lines in {} files, unchanged", report.lines, report.files);
    if report.repairs > 0 {
        text.push_str(&format!("\n  repaired {} times after a crash, no line was lost", report.repairs));
    }
    if report.missed > 0 {
        text.push_str(&format!("\n  {} events were dropped because they came too fast", report.missed));
    }
    text.push_str(&format!("\n  last hash (note it for --expect): {}", report.last_hash));
    text
}

fn as_json(folder: &Path, report: &Report) -> String {
    let shown = |p: &Problem| json!({"file": p.file, "line": p.line, "what": p.what});
    let problem = report.problem.as_ref().map(shown);
    let others: Vec<_> = report.others.iter().map(shown).collect();
    json!({
        "folder": folder, "lines": report.lines, "files": report.files, "last_hash": report.last_hash,
        "repairs": report.repairs, "missed": report.missed, "problem": problem, "others": others,
        "scars": report.scars,
    })
    .to_string()
}

async fn tail(args: &TailArgs) -> Result<(), Failure> {
    let mut tails = Vec::new();
    let mut lines = Vec::new();
    for folder in args.folder.state.audit_logs()? {
        let (tail, read) = Tail::open(&folder, args.lines)?;
        tails.push(tail);
        lines.extend(read);
    }
    in_order(&mut lines);
    for line in &lines[lines.len().saturating_sub(args.lines)..] {
        print_line(&shown(line, args.folder.json))?;
    }
    if !args.follow {
        return Ok(());
    }
    loop {
        tokio::time::sleep(POLL).await;
        let mut lines = Vec::new();
        for tail in &mut tails {
            lines.extend(tail.more()?);
        }
        in_order(&mut lines);
        for line in &lines {
            print_line(&shown(line, args.folder.json))?;
        }
    }
}

/// Sorts the lines of several logs by time.
fn in_order(lines: &mut [String]) {
    let time = |line: &String| {
        let line: Option<Map<String, Value>> = serde_json::from_str(line).ok();
        line.and_then(|line| Some(line.get("time")?.as_str()?.to_owned()))
    };
    lines.sort_by_cached_key(time);
}

/// Formats a line for a terminal. Names in a log come from peers, so control characters are escaped.
fn shown(line: &str, as_json: bool) -> String {
    let parsed: Result<Map<String, Value>, _> = serde_json::from_str(line);
    let Ok(mut members) = parsed.map_err(drop) else { return format!("{line:?}") };
    if as_json {
        return line.to_owned();
    }
    for chain in ["seq", "prev", "hash"] {
        members.remove(chain);
    }
    let mut take = |name: &str| members.remove(name).map(|value| bare(&value)).unwrap_or_default();
    let mut text = format!("{} {}", take("time"), take("event"));
    for (name, value) in members.iter().filter(|(_, value)| !value.is_null()) {
        text.push_str(&format!(" {name}={}", bare(value)));
    }
    text
}

fn bare(value: &Value) -> String {
    match value {
        Value::String(text) if !text.is_empty() && text.chars().all(|c| c.is_ascii_graphic() && c != '"') => {
            text.clone()
        }
        Value::String(text) => format!("{text:?}"),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_in_names_are_escaped() {
        let line = "{\"seq\":1,\"time\":\"t\",\"event\":\"call\",\"name\":\"a\\u001b[31m\\u202e\",\"prev\":\"\",\"hash\":\"\"}";
        assert_eq!(shown(line, false), "t call name=\"a\\u{1b}[31m\\u{202e}\"");
    }
}
