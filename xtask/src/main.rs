//! The project's own commands: `cargo xtask test` is everything that has to hold, the others are its parts and tools.

mod checks;
mod child;
mod conformance;
mod fresh;
mod parts;
mod run;
mod tidy;
mod tools;

use clap::{Parser, Subcommand};
use conformance::ConformanceArgs;
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
    /// All checks and tests; installs what it needs.
    Test,
    /// Clones HEAD and runs the README's commands with an empty home and empty caches; prints how long each took.
    Fresh,
    /// Format, lints, licences, house rules.
    Check,
    /// The original's client and host against our broker, and ours against its broker.
    Interop,
    /// The protocol's conformance suite, directly and through toolbus.
    Conformance(ConformanceArgs),
    /// Installs the real servers, clients and the suite, and says where.
    Parts,
    /// Real processes under load, killed and cut off at random: no call lost, none with two effects. `--kills 1000 --cuts
    /// 10000` is the long run, `--original` the same against the original, `--seed N` what was tried before.
    Chaos {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        options: Vec<String>,
    },
    /// Speed, as ratios against other systems in the same run; `bench mcp` measures tool calls, `bench policy` decisions,
    /// `bench journal` what a host's journal costs.
    Bench {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        options: Vec<String>,
    },
    /// The simulation: `--seed N` replays one, `--seeds FROM..TO` runs many.
    Sim {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        options: Vec<String>,
    },
    /// What idle connections and mailboxes cost.
    Idle {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        options: Vec<String>,
    },
    /// 100,000 peers with bad credentials: all refused, memory flat.
    Strangers {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        options: Vec<String>,
    },
    /// A backlog of a million messages: memory, restart, drain.
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
        Task::Chaos { options } => chaos(options),
        Task::Bench { options } => match options.split_first() {
            Some((first, rest)) if first == "mcp" => bench("mcp", rest.to_vec()),
            Some((first, rest)) if first == "journal" => bench("journal", rest.to_vec()),
            Some((first, _)) if first == "policy" => bench_policy(),
            _ => bench("run", options),
        },
        Task::Backlog { options } => bench("backlog", options),
        Task::Idle { options } => bench("idle", options),
        Task::Strangers { options } => bench("strangers", options),
        Task::Sim { options } => simulate(options),
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
    // The tests have just built it.
    conformance::run(&ConformanceArgs::of_binary(target_folder().join("debug/toolbus")))?;
    chaos(["--kills", "20", "--cuts", "200"].map(String::from).to_vec())?;
    interop()
}

/// With the features of the tests, so that what they have built is used.
fn chaos(options: Vec<String>) -> Result<(), StepError> {
    cargo("build what is put under stress", ["build", "--workspace", "--all-features", "--bins"]).run()?;
    Step::new("chaos", target_folder().join("debug/toolbus-bench")).arg("chaos").args(options).run()
}

fn interop() -> Result<(), StepError> {
    cargo("interoperability with the original", ["test", "--manifest-path", "interop/Cargo.toml"]).run()
}

fn bench(command: &str, options: Vec<String>) -> Result<(), StepError> {
    cargo("build the contenders", ["build", "--release", "--package", "toolbus", "--package", "toolbus-bench"])
        .run()?;
    Step::new("bench", target_folder().join("release/toolbus-bench")).arg(command).args(options).run()
}

fn bench_policy() -> Result<(), StepError> {
    cargo("cost of decisions", ["bench", "--package", "toolbus-host", "--bench", "policy"]).run()
}

fn simulate(options: Vec<String>) -> Result<(), StepError> {
    let build = ["run", "--release", "--quiet", "--package", "toolbus-testkit", "--bin", "simulate", "--"];
    cargo("simulation", build).args(options).run()
}
