//! The project's own commands: `cargo xtask test` runs all checks and tests, the others are its parts and tools.

mod checks;
mod child;
mod conformance;
mod deploy;
mod fresh;
mod fuzz;
mod mutants;
mod parts;
mod run;
mod tidy;
mod tools;

use clap::{Parser, Subcommand};
use conformance::ConformanceArgs;
use deploy::DeployArgs;
use fuzz::FuzzArgs;
use mutants::MutantsArgs;
use parts::Parts;
use run::{Step, StepError, cargo, target_folder};
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "cargo xtask")]
struct Args {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Runs all checks and tests; installs missing tools.
    Test,
    /// Clones HEAD and runs the README's commands with an empty home and empty caches; prints how long each took.
    Fresh,
    /// Checks format, lints, licences and house rules.
    Check,
    /// Tests the original's client and host against our broker, and ours against its broker.
    Interop,
    /// Runs the MCP conformance suite, directly and through toolbus.
    Conformance(ConformanceArgs),
    /// Installs the real MCP servers, the clients and the conformance suite, and prints their folder.
    Parts,
    /// Checks the files in `deploy/` with the linters of their formats, and their flags against those of the programs.
    Deploy(DeployArgs),
    /// Kills processes and cuts links at random under load; no call may be lost or have two effects. `--kills 1000
    /// --cuts 10000` is the long run, `--original` also tests the original system, `--seed N` repeats the choices of a
    /// run.
    Chaos {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        options: Vec<String>,
    },
    /// Kills, stops, pauses and cuts off each broker and each NATS server of a cluster in turn, under load: nothing may be
    /// lost or have two effects, and no waiting caller may get an error. `--blows N`, `--minutes N`, `--seed N`, `--short`.
    Cluster {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        options: Vec<String>,
    },
    /// Floods broker, host and endpoint with hostile agents in many ways; honest agents must stay served, memory bounded,
    /// and nothing left over. `--way NAME` runs one way, `--short` runs all without judging latencies.
    Flood {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        options: Vec<String>,
    },
    /// Measures rates and latencies as ratios to other systems in the same run; `bench mcp` measures tool calls, `bench
    /// cluster` a cluster of brokers, `bench policy` policy decisions, `bench journal` the overhead of a host's journal, `bench instructions` the instructions per
    /// call.
    Bench {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        options: Vec<String>,
    },
    /// Runs the simulation: `--seed N` replays one seed, `--seeds FROM..TO` runs many.
    Sim {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        options: Vec<String>,
    },
    /// Changes the code in small ways and counts which changes the tests notice: a random sample within `--minutes`, or
    /// `--all`. Fails if the tests of a crate without I/O notice less than 90 %.
    Mutants(MutantsArgs),
    /// Searches for inputs that violate a property of a decoder, parser or rule, with libFuzzer: `fuzz [TARGET] --minutes
    /// N`.
    Fuzz(FuzzArgs),
    /// Measures the memory use of idle connections and mailboxes.
    Idle {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        options: Vec<String>,
    },
    /// Connects 100,000 times with bad credentials: all are refused, and memory stays flat.
    Strangers {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        options: Vec<String>,
    },
    /// Measures a backlog of a million messages: memory, restart, drain.
    Backlog {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        options: Vec<String>,
    },
}

fn main() -> ExitCode {
    let outcome = match Args::parse().task {
        Task::Test => test(),
        Task::Fresh => fresh::run(),
        Task::Check => checks::all(),
        Task::Interop => interop(),
        Task::Conformance(args) => conformance::run(&args),
        Task::Parts => Parts::install().map(|parts| println!("{}", parts.folder().display())),
        Task::Deploy(args) => deploy::run(&args),
        Task::Chaos { options } => chaos(options),
        Task::Cluster { options } => bench("cluster", options),
        Task::Flood { options } => bench("flood", options),
        Task::Bench { options } => match options.split_first() {
            Some((first, rest)) if first == "mcp" => bench("mcp", rest.to_vec()),
            Some((first, rest)) if first == "cluster" => bench("cluster-speed", rest.to_vec()),
            Some((first, rest)) if first == "journal" => bench("journal", rest.to_vec()),
            Some((first, rest)) if first == "instructions" => {
                tools::valgrind().and_then(|()| bench("instructions", rest.to_vec()))
            }
            Some((first, _)) if first == "policy" => bench_policy(),
            _ => bench("run", options),
        },
        Task::Backlog { options } => bench("backlog", options),
        Task::Idle { options } => bench("idle", options),
        Task::Strangers { options } => bench("strangers", options),
        Task::Sim { options } => simulate(options),
        Task::Mutants(args) => mutants::run(&args),
        Task::Fuzz(args) => fuzz::run(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("\nxtask: {error}");
            ExitCode::FAILURE
        }
    }
}

fn test() -> Result<(), StepError> {
    checks::all()?;
    tools::cargo_nextest()?;
    let parts = Parts::install()?;
    cargo("tests", ["nextest", "run", "--workspace", "--all-features", "--no-fail-fast"])
        .env(parts::FOLDER_VARIABLE, parts.folder())
        .run()?;
    cargo("documentation tests", ["test", "--doc", "--workspace", "--quiet"]).run()?;
    fuzz::run(&FuzzArgs::short())?;
    shipped_binaries()?;
    let toolbus = target_folder().join("debug/toolbus");
    deploy::run(&DeployArgs::of_binary(toolbus.clone()))?;
    conformance::run(&ConformanceArgs::of_binary(toolbus))?;
    chaos(["--kills", "20", "--cuts", "200", "--terms", "20"].map(String::from).to_vec())?;
    // The short forms judge no speed, but fail if a path of this build has no figure.
    tools::valgrind()?;
    for benchmark in ["cluster", "flood", "run", "mcp", "instructions", "journal", "backlog", "idle", "strangers"] {
        Step::new(benchmark, target_folder().join("debug/toolbus-bench"))
            .args([benchmark, "--short"])
            .env(parts::FOLDER_VARIABLE, parts.folder())
            .run()?;
    }
    interop()
}

/// Builds the programs as they are shipped: the simulation's build of the workspace contains planted defects.
fn shipped_binaries() -> Result<(), StepError> {
    cargo("build the shipped programs", ["build", "--package", "toolbus", "--package", "toolbus-bench", "--bins"]).run()
}

fn chaos(options: Vec<String>) -> Result<(), StepError> {
    shipped_binaries()?;
    Step::new("chaos", target_folder().join("debug/toolbus-bench")).arg("chaos").args(options).run()
}

fn interop() -> Result<(), StepError> {
    cargo("interoperability with the original", ["test", "--manifest-path", "interop/Cargo.toml"]).run()
}

fn bench(command: &str, options: Vec<String>) -> Result<(), StepError> {
    cargo(
        "build toolbus and its benchmarks",
        ["build", "--release", "--package", "toolbus", "--package", "toolbus-bench"],
    )
    .run()?;
    Step::new("bench", target_folder().join("release/toolbus-bench")).arg(command).args(options).run()
}

fn bench_policy() -> Result<(), StepError> {
    cargo("policy benchmark", ["bench", "--package", "toolbus-host", "--bench", "policy"]).run()
}

fn simulate(options: Vec<String>) -> Result<(), StepError> {
    let build = ["run", "--release", "--quiet", "--package", "toolbus-testkit", "--bin", "simulate", "--"];
    cargo("simulation", build).args(options).run()
}
