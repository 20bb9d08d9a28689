//! House rules that a compiler does not know.

use crate::run::{StepError, root};
use std::fs;
use std::path::{Path, PathBuf};

/// Past this a file hides a seam.
const MAX_LINES: usize = 420;
/// Ways in which the original lost, repeated or gave away what it should not have.
const KNOWN_HOLES: u32 = 13;

pub fn all() -> Result<(), StepError> {
    eprintln!("\n── house rules");
    let mut complaints = Vec::new();
    for file in rust_files() {
        let text = fs::read_to_string(&file).unwrap_or_default();
        let name = file.strip_prefix(root()).unwrap_or(&file).display().to_string();
        complaints.extend(check_file(&name, &text));
    }
    complaints.extend(check_engine_is_pure());
    complaints.extend(check_holes_are_tested());
    if complaints.is_empty() { Ok(()) } else { Err(StepError::Tidy(complaints.join("\n"))) }
}

fn check_file(name: &str, text: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    if !text.starts_with("//!") {
        complaints.push(format!("{name}: it does not open with what it is for (`//!`)"));
    }
    let lines = text.lines().count();
    if lines > MAX_LINES {
        complaints.push(format!("{name}: {lines} lines; look for the seam"));
    }
    // Load generators are closed loops; the product has no such excuse.
    let unbounded = ["unbounded", "_channel("].concat();
    if name.starts_with("crates/") && text.contains(&unbounded) {
        complaints.push(format!("{name}: a queue without a limit"));
    }
    complaints
}

/// The engine decides; it does not look at clocks, files, sockets or dice.
fn check_engine_is_pure() -> Vec<String> {
    let banned = ["std::time", "std::fs", "std::net", "std::thread", "std::env", "tokio", "rand::", "getrandom"];
    let mut complaints = Vec::new();
    for file in rust_files().into_iter().filter(|file| file.starts_with(root().join("crates/engine/src"))) {
        let text = fs::read_to_string(&file).unwrap_or_default();
        let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        for (number, line) in code.enumerate() {
            if let Some(word) = banned.iter().find(|word| line.contains(**word)) {
                complaints.push(format!(
                    "{}: `{word}` near line {} has no place in the engine",
                    file.display(),
                    number + 1
                ));
            }
        }
    }
    complaints
}

/// Each known hole of the system that this one follows has a test with its number, so that none comes back unnoticed.
fn check_holes_are_tested() -> Vec<String> {
    let tests: String = rust_files().iter().map(|file| fs::read_to_string(file).unwrap_or_default()).collect();
    let missing = (1..=KNOWN_HOLES).filter(|number| !tests.contains(&format!("fn {}_{number:02}_", "hole")));
    missing.map(|number| format!("no test has the name of hole {number}")).collect()
}

fn rust_files() -> Vec<PathBuf> {
    let mut files = Vec::new();
    for folder in ["crates", "bench", "interop", "xtask"] {
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
