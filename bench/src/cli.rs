//! The command line.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand};

use crate::{
    contenders::Contender,
    shape::{DRAIN_MANY, Shape},
};

/// Benchmarks the bus against its contenders.
#[derive(Parser)]
#[command(name = "toolbus-bench", version)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Measure the contenders and compare them with the goals.
    Run(RunOptions),
    /// Speed of a cluster of brokers, compared with one embedded broker and with bare JetStream on the same servers.
    ClusterSpeed(RunOptions),
    /// A large backlog in one mailbox: memory, restart, drain.
    Backlog(crate::backlog::BacklogOptions),
    /// Memory use of idle connections and mailboxes.
    Idle(crate::idle::IdleOptions),
    /// Memory that refused connections with bad credentials leave behind.
    Strangers(crate::strangers::StrangersOptions),
    /// Tool calls through toolbus and other proxies, compared with direct calls to the server.
    Mcp(crate::mcp::McpOptions),
    /// Instructions of `toolbus up` per tool call, counted by valgrind and compared with a budget.
    Instructions(crate::mcp::instructions::InstructionsOptions),
    /// Kill processes and cut links under load, and check that no call is lost or has two effects.
    Chaos(crate::chaos::ChaosOptions),
    /// Strike brokers and NATS servers of a cluster under load, and check that nothing is lost or has two effects.
    Cluster(crate::cluster::ClusterOptions),
    /// Hostile agents misbehave in many ways; honest agents must stay served, and nothing may be left over.
    Flood(crate::flood::FloodOptions),
    /// The hostile agents of `flood`.
    #[command(hide = true)]
    FloodHostile(crate::flood::HostileOptions),
    /// Uses as much CPU as the hostile agents did.
    #[command(hide = true)]
    FloodControl(crate::flood::ControlOptions),
    /// Overhead of a host's journal per call.
    Journal(crate::journal::JournalOptions),
    /// The host process of the journal benchmark.
    #[command(hide = true)]
    JournalHost(crate::journal::host::JournalHostOptions),
    /// The MCP server whose effects the tests with faults count.
    #[command(hide = true)]
    EffectServer(crate::faults::effect::EffectOptions),
    /// Kills the processes that a killed run left behind.
    #[command(hide = true)]
    FaultWatchdog { folder: PathBuf },
    /// The MCP server of a measurement.
    #[command(hide = true)]
    McpServer(crate::mcp::server::McpServerOptions),
    /// A process that forwards bytes, for `mcp`.
    #[command(hide = true)]
    McpRelay(crate::mcp::relay::McpRelayOptions),
    /// A relay process of a measurement.
    #[command(hide = true)]
    Relay {
        #[arg(long)]
        contender: Contender,
    },
    /// The host process of a measurement.
    #[command(hide = true)]
    Host(Peer),
    /// The worker process of a measurement.
    #[command(hide = true)]
    Worker(WorkerOptions),
}

#[derive(Args)]
pub struct RunOptions {
    /// Number of rounds; the report shows medians over the rounds.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// Seconds per measurement, warm-up not included.
    #[arg(long, default_value_t = 2.0, value_parser = seconds)]
    pub seconds: f64,
    /// Only these contenders, separated by commas.
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    pub only: Vec<Contender>,
    /// Only these shapes, separated by commas (1x1-100, 1x64-100, …, one-way, drain-1000).
    #[arg(long, value_delimiter = ',', value_name = "SHAPE")]
    pub shapes: Vec<Shape>,
    /// One short round of the contenders that need no installation, without verdicts: fails if one has no figure.
    #[arg(long, conflicts_with_all = ["rounds", "seconds", "check"])]
    pub short: bool,
    /// Maximum seconds to wait before each measurement for the machine to be idle.
    #[arg(long, default_value_t = 1, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(0..=60))]
    patience: u64,
    /// Fail if a goal is missed or a measurement failed.
    #[arg(long)]
    pub check: bool,
    /// Folder for results and tools [default: bench, in the target folder].
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

impl RunOptions {
    pub fn rounds(&self) -> u32 {
        if self.short { 1 } else { self.rounds }
    }

    pub fn seconds(&self) -> f64 {
        if self.short { 0.2 } else { self.seconds }
    }

    pub fn idle_timeout(&self) -> Duration {
        Duration::from_secs(if self.short { 0 } else { self.patience })
    }

    pub fn contenders(&self) -> Vec<Contender> {
        let chosen = |contender: &Contender| match self.only.as_slice() {
            [] if self.short => !contender.needs_installation(),
            [] => contender.by_default(),
            only => only.contains(contender),
        };
        Contender::ALL.into_iter().filter(chosen).collect()
    }

    pub fn shapes(&self) -> Vec<Shape> {
        let chosen = |shape: &Shape| match self.shapes.as_slice() {
            // It differs from the small drain only in the number of messages, which take long to fill in.
            [] => !(self.short && *shape == DRAIN_MANY),
            only => only.contains(shape),
        };
        Shape::ALL.into_iter().filter(chosen).collect()
    }
}

#[derive(Args)]
pub struct Peer {
    #[arg(long)]
    pub contender: Contender,
    #[arg(long)]
    pub url: String,
}

#[derive(Args)]
pub struct WorkerOptions {
    #[command(flatten)]
    pub peer: Peer,
    #[arg(long)]
    pub shape: Shape,
    #[arg(long, value_parser = seconds)]
    pub seconds: f64,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.1..=60.0).contains(&seconds) => Ok(seconds),
        _ => Err("expected between 0.1 and 60 seconds".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_selection_keeps_the_canonical_order() {
        let cli = Cli::parse_from(["bench", "run", "--only", "nats-core,toolbus"]);
        let Command::Run(options) = cli.command else {
            panic!("expected the command `run`");
        };
        assert_eq!(options.contenders(), [Contender::Toolbus, Contender::NatsCore]);
    }
}
