//! Fuzzing with libFuzzer. All targets are in one program (`fuzz`), which is built once with coverage counters. These
//! are compiler flags that the stable toolchain has, so neither cargo-fuzz nor a nightly toolchain is needed.

use crate::child::Running;
use crate::run::{Step, StepError, cargo, root, target_folder};
use crate::tools;
use clap::Args;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

#[derive(Args)]
pub struct FuzzArgs {
    /// The target; without it, all of them run one after the other.
    target: Option<String>,
    /// Duration per target.
    #[arg(long, default_value_t = 1.0)]
    minutes: f64,
    /// Ends a target after this many executions, if its time is not over before.
    #[arg(long)]
    runs: Option<u64>,
    /// Number of targets that run at the same time.
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    /// Repeats the search of another run; without it, every run tries other inputs.
    #[arg(long)]
    seed: Option<u32>,
}

impl FuzzArgs {
    /// The part of the test run: the corpus and ten seconds of search per target. The seed is always the same, so that an
    /// old bug doesn't fail the tests of an unrelated change.
    pub fn short() -> Self {
        let jobs = std::thread::available_parallelism().map_or(1, usize::from);
        Self { target: None, minutes: 10.0 / 60.0, runs: None, jobs, seed: Some(1) }
    }
}

const COVERAGE: [&str; 7] = [
    "--cfg",
    "fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
];
/// An input that takes more than a minute or 2 GiB is a finding. A busy machine may stop a process for seconds.
const LIMITS: [&str; 3] = ["-timeout=60", "-rss_limit_mb=2048", "-print_final_stats=1"];
/// Maximum size of an input. Where larger ones reach nothing new, they only cost executions: `store` reads about 900 bytes,
/// and `redaction` nests its input in JSON strings, which doubles the escapes on each level.
fn max_len(target: &str) -> u32 {
    match target {
        "redaction" => 512,
        "store" => 1024,
        _ => 4096,
    }
}

/// How much longer than its time a target may take: libFuzzer looks at the clock between inputs, and reads its corpus first.
const GRACE: Duration = Duration::from_secs(120);

pub fn run(args: &FuzzArgs) -> Result<(), StepError> {
    let (program, targets) = (build()?, targets(args.target.as_deref())?);
    eprintln!("\n── fuzzing, {} s per target", (args.minutes * 60.0).round());
    let (waiting, findings) = (Mutex::new(targets.into_iter()), Mutex::new(Vec::new()));
    let next = || waiting.lock().expect("no code panics while holding the lock").next();
    let work = || {
        while let Some(target) = next() {
            match fuzz(&program, &target, args) {
                Ok(line) => println!("{line}"),
                Err(error) => findings.lock().expect("no code panics while holding the lock").push(error.to_string()),
            }
        }
    };
    std::thread::scope(|scope| {
        (0..args.jobs.max(1)).for_each(|_| drop(scope.spawn(work)));
    });
    let findings = findings.into_inner().expect("no thread panics");
    if findings.is_empty() { Ok(()) } else { Err(StepError::Fuzz(findings.join("\n"))) }
}

/// Builds the program in a target folder of its own, because other flags would rebuild everything in the usual one.
fn build() -> Result<PathBuf, StepError> {
    tools::cpp_compiler()?;
    let version = Step::new("rustc", "rustc").arg("-vV").output()?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).unwrap_or_default().to_owned();
    let folder = target_folder().join("fuzz");
    // With a target, the flags don't apply to build scripts and procedural macros.
    cargo("build the fuzz targets", ["build", "--package", "toolbus-fuzz", "--profile", "fuzz"])
        .args(["--target", &host])
        .arg("--target-dir")
        .arg(&folder)
        .env("CARGO_ENCODED_RUSTFLAGS", COVERAGE.join("\u{1f}"))
        .run()?;
    Ok(folder.join(host).join("fuzz/toolbus-fuzz"))
}

/// Each target has a folder with its seeds.
fn targets(wanted: Option<&str>) -> Result<Vec<String>, StepError> {
    let corpus = root().join("fuzz/corpus");
    let folders = fs::read_dir(&corpus).map_err(|source| StepError::File { path: corpus.clone(), source })?;
    let mut names: Vec<String> =
        folders.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    let Some(wanted) = wanted else { return Ok(names) };
    names.retain(|name| name == wanted);
    if names.is_empty() {
        return Err(StepError::Unreadable { path: corpus.join(wanted), problem: "there is no such target" });
    }
    Ok(names)
}

/// Runs one target and returns a line about it. Inputs that reach new code are kept for the next run.
fn fuzz(program: &Path, target: &str, args: &FuzzArgs) -> Result<String, StepError> {
    let folder = target_folder().join("fuzz");
    let (found, artifacts) = (folder.join("corpus").join(target), folder.join("artifacts").join(target));
    for path in [&found, &artifacts] {
        fs::create_dir_all(path).map_err(|source| StepError::File { path: path.clone(), source })?;
    }
    let time = Duration::from_secs_f64(args.minutes * 60.0);
    let mut command = Command::new(program);
    command.env("TOOLBUS_FUZZ_TARGET", target).args(LIMITS);
    command.arg(format!("-max_len={}", max_len(target)));
    command.arg(format!("-max_total_time={}", time.as_secs().max(1)));
    command.args(args.runs.map(|runs| format!("-runs={runs}")));
    command.args(args.seed.map(|seed| format!("-seed={seed}")));
    command.arg(format!("-artifact_prefix={}/", artifacts.display()));
    command.arg(&found).arg(root().join("fuzz/corpus").join(target));
    let log = folder.join(format!("{target}.log"));
    let status = Running::start(target, &mut command, &log)?.wait_for_exit(time + GRACE)?;
    let output = fs::read(&log).map_err(|source| StepError::File { path: log.clone(), source })?;
    let output = String::from_utf8_lossy(&output);
    if !status.success() {
        return Err(StepError::Failed { step: finding(target, &output, &log) });
    }
    let stat = |name: &str| output.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("?").trim().to_owned();
    let (runs, rate) = (stat("stat::number_of_executed_units:"), stat("stat::average_exec_per_sec:"));
    Ok(format!("{target:<16} {runs:>12} executions {rate:>8} per second"))
}

fn finding(target: &str, output: &str, log: &Path) -> String {
    let panic = output.lines().skip_while(|line| !line.contains("panicked at")).take(3).collect::<Vec<_>>().join("\n");
    let input = output.lines().find_map(|line| line.split("Test unit written to ").nth(1)).unwrap_or("FILE");
    format!(
        "{target}: {panic}\nall output is in {}\nrepeat with: TOOLBUS_FUZZ_TARGET={target} cargo run -p toolbus-fuzz -- {input}\n{target}",
        log.display()
    )
}
