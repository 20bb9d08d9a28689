//! `toolbus audit verify`: verifies the chain of each log and, with a key, its seals.

use super::FolderArgs;
use crate::failure::Failure;
use crate::output::print_line;
use clap::Args;
use serde_json::json;
use std::path::{Path, PathBuf};
use toolbus_audit::{MOST_SCARS, Problem, Report, VerificationKey, VerifyOptions, verify};

#[derive(Args)]
pub struct VerifyArgs {
    #[command(flatten)]
    folder: FolderArgs,
    /// Key that `init-seal` printed: also verify the seals. Can be repeated; each log must be sealed with one of the
    /// keys. Whoever reads it can forge seals, so verify a copy of the folder on another machine.
    #[arg(long, env = "TOOLBUS_AUDIT_KEY", hide_env_values = true, value_delimiter = ',', value_name = "KEY")]
    #[arg(value_parser = parse_key)]
    key: Vec<VerificationKey>,
    /// Fail unless one of the logs contains a line with this hash, noted earlier.
    #[arg(long, value_name = "HASH")]
    expect: Option<String>,
}

fn parse_key(text: &str) -> Result<VerificationKey, &'static str> {
    VerificationKey::parse(text.trim()).ok_or("a key is 64 hexadecimal digits")
}

pub fn run(args: &VerifyArgs) -> Result<(), Failure> {
    let folders = args.folder.state.audit_logs()?;
    let mut reports = check_all(&folders, &args.key, None)?;
    if let Some(hash) = &args.expect {
        // One of the logs must have the line. If none has it, the reports of all logs say so.
        let with_line = check_all(&folders, &args.key, Some(hash))?;
        if with_line.iter().all(|report| report.problem.is_some()) {
            reports = with_line;
        }
    }
    for (folder, report) in folders.iter().zip(&reports) {
        let has_key = !args.key.is_empty();
        print_line(&if args.folder.json {
            as_json(folder, report, has_key)
        } else {
            as_text(folder, report, has_key)
        })?;
    }
    match reports.iter().filter(|report| report.problem.is_some()).count() {
        0 => Ok(()),
        count => Err(Failure::AuditProblems { count, checked: folders.len() }),
    }
}

fn check_all(folders: &[PathBuf], keys: &[VerificationKey], hash: Option<&str>) -> Result<Vec<Report>, Failure> {
    let (keys, expect) = (keys.to_vec(), hash.map(str::to_owned));
    let options = VerifyOptions { keys, expect, ..VerifyOptions::default() };
    folders.iter().map(|folder| Ok(verify(folder, &options)?)).collect()
}

fn as_text(folder: &Path, report: &Report, has_key: bool) -> String {
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
    if let Some(first) = &report.rotated_before {
        text.push_str(&format!("\n  rotation removed the files before {first}"));
    }
    text.push_str(&match &report.sealed {
        Some(sealed) if has_key => format!(
            "\n  sealed until {}: {} seals are valid; {} lines behind the last seal are not protected",
            sealed.time, sealed.seals, sealed.unsealed
        ),
        Some(_) => "\n  sealed; without --key, a log that was rewritten as a whole is not detected".to_owned(),
        None => "\n  not sealed: a log that was rewritten as a whole is detected only by --expect".to_owned(),
    });
    text.push_str(&format!("\n  last hash (note it for --expect): {}", report.last_hash));
    text
}

fn as_json(folder: &Path, report: &Report, has_key: bool) -> String {
    let shown = |p: &Problem| json!({"file": p.file, "line": p.line, "what": p.what});
    let problem = report.problem.as_ref().map(shown);
    let sealed = report.sealed.as_ref().map(|sealed| {
        json!({"seals": sealed.seals, "until": sealed.time, "unsealed_lines": sealed.unsealed, "verified": has_key})
    });
    let others: Vec<_> = report.others.iter().map(shown).collect();
    json!({
        "folder": folder, "lines": report.lines, "files": report.files, "last_hash": report.last_hash,
        "repairs": report.repairs, "missed": report.missed, "problem": problem, "others": others,
        "scars": report.scars, "sealed": sealed, "rotated_before": report.rotated_before,
    })
    .to_string()
}
