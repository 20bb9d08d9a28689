//! Runs a test in a folder of its own and kills all its processes at the end, also after an error or a signal.

use std::path::Path;

use anyhow::{Context, bail};
use tempfile::TempDir;
use tokio::signal::unix::{SignalKind, signal};

use super::watchdog;

/// Runs the test; a failed one keeps its folder.
pub async fn run_in_folder<T>(
    name: &str,
    bench: &Path,
    run: impl AsyncFnOnce(&Path) -> anyhow::Result<T>,
) -> anyhow::Result<(T, TempDir)> {
    let prefix = format!("toolbus-{name}-");
    let folder = tempfile::Builder::new().prefix(&prefix).tempdir().context("make a folder")?;
    let watchdog = watchdog::spawn(bench, folder.path())?;
    let mut terminated = signal(SignalKind::terminate()).context("listen for signals")?;
    let outcome = tokio::select! {
        outcome = run(folder.path()) => outcome,
        _ = tokio::signal::ctrl_c() => return interrupted(folder.path()),
        _ = terminated.recv() => return interrupted(folder.path()),
    };
    drop(watchdog);
    match outcome {
        Ok(outcome) => Ok((outcome, folder)),
        Err(error) => {
            watchdog::kill_all(folder.path());
            bail!("{error:#} (the run's folder: {})", folder.keep().display())
        }
    }
}

/// Must not await: a supervisor that gets to run could start a process again.
fn interrupted<T>(folder: &Path) -> anyhow::Result<T> {
    watchdog::kill_all(folder);
    bail!("interrupted")
}
