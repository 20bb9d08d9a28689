//! House rules that the compiler and clippy don't check.

use crate::run::{StepError, root};
use std::fs;
use std::path::{Path, PathBuf};

/// Longer files have to be split.
const MAX_LINES: usize = 400;
/// Number of known defects of the original that lost, repeated or leaked messages.
const KNOWN_HOLES: u32 = 13;

pub fn all() -> Result<(), StepError> {
    eprintln!("\n── house rules");
    let mut problems = Vec::new();
    for file in rust_files() {
        let text = fs::read_to_string(&file).unwrap_or_default();
        let name = file.strip_prefix(root()).unwrap_or(&file).display().to_string();
        problems.extend(check_file(&name, &text));
    }
    problems.extend(check_is_pure("engine", "std::time"));
    problems.extend(check_is_pure("call", "Instant"));
    problems.extend(check_is_pure("cluster", "std::time"));
    problems.extend(check_holes_are_tested());
    if problems.is_empty() { Ok(()) } else { Err(StepError::Tidy(problems.join("\n"))) }
}

fn check_file(name: &str, text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    if !text.starts_with("//!") {
        problems.push(format!("{name}: the file does not start with a `//!` comment about its purpose"));
    }
    let lines = text.lines().count();
    if lines > MAX_LINES {
        problems.push(format!("{name}: {lines} lines; split files of more than {MAX_LINES}"));
    }
    // Only the load generators may use them: there, a closed loop bounds the queue.
    let unbounded = ["unbounded", "_channel("].concat();
    if name.starts_with("crates/") && text.contains(&unbounded) {
        problems.push(format!("{name}: unbounded channels are not allowed"));
    }
    problems
}

/// The machines must not use clocks, files, sockets, threads or randomness, nor the parts of `base` that do. `clock` is the
/// word for clocks that is banned beside `SystemTime`.
fn check_is_pure(name: &str, clock: &str) -> Vec<String> {
    let std =
        ["SystemTime", "std::fs", "std::net", "std::thread", "std::env", "RandomState", "tokio", "rand::", "getrandom"];
    let base = ["now_ms", "replace_file", "sync_folder", "Backoff", "_private", "private_"];
    let banned = [&std[..], &base, &[clock]].concat();
    let source = root().join("crates").join(name).join("src");
    let mut problems = Vec::new();
    for file in rust_files().into_iter().filter(|file| file.starts_with(&source)) {
        let text = fs::read_to_string(&file).unwrap_or_default();
        // A trait of the log has a method with the name of one of the banned functions.
        let is_code = |line: &&str| !line.trim_start().starts_with("//") && !line.contains("fn sync_folder(&self)");
        let code = text.lines().filter(is_code);
        for (number, line) in code.enumerate() {
            if let Some(word) = banned.iter().find(|word| line.contains(**word)) {
                problems.push(format!(
                    "{}: `{word}` near line {} is not allowed in a crate without I/O",
                    file.display(),
                    number + 1
                ));
            }
        }
    }
    problems
}

/// Each known hole of the original has a regression test with its number.
fn check_holes_are_tested() -> Vec<String> {
    let tests: String = rust_files().iter().map(|file| fs::read_to_string(file).unwrap_or_default()).collect();
    let missing = (1..=KNOWN_HOLES).filter(|number| !tests.contains(&format!("fn {}_{number:02}_", "hole")));
    missing.map(|number| format!("no test is named after hole {number}")).collect()
}

fn rust_files() -> Vec<PathBuf> {
    let mut files = Vec::new();
    for folder in ["crates", "bench", "fuzz", "interop", "xtask"] {
        collect(&root().join(folder), &mut files);
    }
    files
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() && !path.ends_with("target") {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}
