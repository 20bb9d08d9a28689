//! Sets `TOOLBUS_VERSION`: the version of the package with the commit and its date, if they are known. They come from
//! git, or from `commit.txt`, which `git archive` fills in for source archives.

use std::path::Path;
use std::process::Command;

const COMMIT_FILE: &str = "commit.txt";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={COMMIT_FILE}");
    let version = env!("CARGO_PKG_VERSION");
    let version = match archived_commit().or_else(git_commit) {
        Some(commit) => format!("{version} ({commit})"),
        None => version.to_owned(),
    };
    println!("cargo::rustc-env=TOOLBUS_VERSION={version}");
}

fn archived_commit() -> Option<String> {
    let text = std::fs::read_to_string(COMMIT_FILE).ok()?;
    let commit = text.trim();
    (!commit.is_empty() && !commit.starts_with('$')).then(|| commit.to_owned())
}

fn git_commit() -> Option<String> {
    // Changes with every commit and checkout; only this package is built again then.
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"])?;
    if Path::new(&log).exists() {
        println!("cargo::rerun-if-changed={log}");
    }
    // Without this, sources without a repository of their own would get the commit of one around them.
    git(&["ls-files", "--error-unmatch", "build.rs"])?;
    git(&["log", "-1", "--format=%h %cs"])
}

fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    (output.status.success() && !text.trim().is_empty()).then(|| text.trim().to_owned())
}
