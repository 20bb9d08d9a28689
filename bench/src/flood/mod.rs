//! `flood`: honest agents call tools at a modest rate while hostile agents misbehave in one way after the other. Honest
//! agents must stay served, memory must stay bounded, and nothing may be left over when the hostile agents are gone.
//! Every way has a broker and a host of its own, so that one way can't affect the measurement of another.

mod control;
mod deployment;
mod honest;
mod hostile;
mod pacer;
mod report;
mod tally;
mod usage;
mod ways;

use std::{process::ExitCode, time::Duration};

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use tokio::process::Command;

use self::{
    deployment::{Deployment, hostile_agent},
    honest::Honest,
    hostile::Outcome,
    report::{Beside, Measured},
    usage::Usage,
    ways::{Role, Way},
};
use crate::{process::Running, quiet, tools::Tools};

pub use control::{ControlOptions, burn};
pub use hostile::{HostileOptions, misbehave};

/// How long the hostile agents run before and after a measurement.
const RAMP: Duration = Duration::from_millis(500);
/// How long the hostile process may take to print its outcome.
const OUTCOME_LIMIT: Duration = Duration::from_secs(60);
/// Limit of the steps without hostile agents: nothing accumulates in them, so more time gives no other percentiles.
const REFERENCE_LIMIT: Duration = Duration::from_secs(20);
/// How long to wait for the machine to be idle before each way.
const IDLE_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Args)]
pub struct FloodOptions {
    /// Only these ways, separated by commas.
    #[arg(long = "way", value_delimiter = ',', value_name = "NAME")]
    ways: Vec<Way>,
    /// Seconds per way and step: alone, beside one hostile agent, beside ten, beside the control. Without hostile agents a
    /// step takes at most 20 s.
    #[arg(long, default_value_t = 4.0)]
    seconds: f64,
    /// Maximum requests per second of each hostile agent.
    #[arg(long, default_value_t = 2_000.0)]
    rate: f64,
    /// Calls per second of all honest agents together.
    #[arg(long, default_value_t = 100.0)]
    honest_rate: f64,
    /// Hostile agents may use one tool in all ways, not only in those that need it.
    #[arg(long)]
    allowed: bool,
    /// Half-second steps beside three hostile agents, without the control; latencies are not judged.
    #[arg(long, conflicts_with = "seconds")]
    short: bool,
}

impl FloodOptions {
    fn ways(&self) -> Vec<Way> {
        let chosen = |way: &&Way| self.ways.is_empty() || self.ways.contains(way);
        Way::value_variants().iter().filter(chosen).copied().collect()
    }

    fn agents(&self) -> &'static [usize] {
        if self.short { &[3] } else { &[1, 10] }
    }

    fn time(&self) -> Duration {
        Duration::from_secs_f64(if self.short { 0.5 } else { self.seconds })
    }

    fn reference_time(&self) -> Duration {
        self.time().min(REFERENCE_LIMIT)
    }

    fn role(&self, way: Way) -> Role {
        if self.allowed { Role::OneTool } else { way.role() }
    }
}

pub async fn run(options: FloodOptions) -> anyhow::Result<ExitCode> {
    let tools = Tools::locate(None)?;
    println!("{}", report::heading(options.agents()));
    let mut missed = Vec::new();
    for way in options.ways() {
        let measured = match measure(&options, &tools, way).await {
            Ok(measured) => measured,
            Err(error) => {
                println!("{:<18}failed: {error:#}", way.name());
                missed.push(format!("{}: not measured: {error:#}", way.name()));
                continue;
            }
        };
        println!("{}\n{}", report::row(&measured), report::details(&measured));
        missed.extend(measured.problems(!options.short).iter().map(|problem| format!("{}: {problem}", way.name())));
    }
    if missed.is_empty() {
        println!("all goals reached");
        return Ok(ExitCode::SUCCESS);
    }
    println!("MISSED:\n  {}", missed.join("\n  "));
    Ok(ExitCode::FAILURE)
}

async fn measure(options: &FloodOptions, tools: &Tools, way: Way) -> anyhow::Result<Measured> {
    let role = options.role(way);
    let most = options.agents().iter().copied().max().unwrap_or_default();
    let deployment = Deployment::start(tools, honest::COUNT, most, role).await?;
    let honest = Honest::join(&deployment).await?;
    let was_busy = !options.short && !quiet::wait(IDLE_TIMEOUT).await;
    let (rate, time) = (options.honest_rate, options.reference_time());
    let undisturbed = honest.measure(&deployment, rate, time).await?;
    let before = Usage::of(&deployment).await?;
    let mut beside = Vec::new();
    for agents in options.agents() {
        beside.push(flood(options, tools, way, &deployment, &honest, *agents).await?);
    }
    let flooded = Usage::of(&deployment).await.unwrap_or_else(|_| before.clone());
    // The connections that honest agents opened while calls were slow must not count as left over.
    drop(honest);
    let (after, mut left_over) = Usage::released(&deployment, &before).await?;
    let newcomers = honest::newcomers(&deployment).await;
    let refused: Vec<_> = newcomers.into_iter().filter_map(|(_, outcome)| outcome.err()).collect();
    // Honest agents that are refused a session can't be measured again.
    let control = match beside.last() {
        Some(last) if !options.short && refused.is_empty() => {
            Some(beside_control(options, tools, &deployment, last.outcome.cores).await?)
        }
        _ => None,
    };
    left_over.extend(refused.iter().map(|error| format!("a new session is refused: {error:#}")));
    deployment.stop().await?;
    Ok(Measured { way, role, undisturbed, beside, control, before, flooded, after, left_over, was_busy })
}

async fn flood(
    options: &FloodOptions,
    tools: &Tools,
    way: Way,
    deployment: &Deployment,
    honest: &Honest,
    agents: usize,
) -> anyhow::Result<Beside> {
    honest.warm_up().await?;
    let time = options.time() + 2 * RAMP;
    let mut command = Command::new(&tools.bench);
    command.args(["flood-hostile", "--way", &way.name(), "--url", &deployment.url]);
    command.args(["--rate", &options.rate.to_string(), "--seconds", &time.as_secs_f64().to_string(), "--tokens"]);
    command.args((0..agents).map(|number| deployment.token_file(&hostile_agent(number))));
    let mut hostile = Running::spawn("hostile", command, deployment.path())?;
    tokio::time::sleep(RAMP).await;
    let sample = honest.measure(deployment, options.honest_rate, options.time()).await?;
    let outcome = hostile.line_after("outcome ", OUTCOME_LIMIT).await.context("the hostile agents")?;
    hostile.stop().await?;
    let outcome: Outcome = serde_json::from_str(&outcome).context("parse the hostile agents' outcome")?;
    if !outcome.counts.contains_key(tally::SENT) {
        bail!("the hostile agents did nothing: {:?}", outcome.counts);
    }
    Ok(Beside { agents, sample, outcome })
}

async fn beside_control(
    options: &FloodOptions,
    tools: &Tools,
    deployment: &Deployment,
    cores: f64,
) -> anyhow::Result<honest::Sample> {
    let honest = Honest::join(deployment).await?;
    let mut command = Command::new(&tools.bench);
    command.args(["flood-control", "--cores", &cores.to_string()]);
    let control = Running::spawn("control", command, deployment.path())?;
    tokio::time::sleep(RAMP).await;
    let sample = honest.measure(deployment, options.honest_rate, options.reference_time()).await?;
    control.stop().await?;
    Ok(sample)
}
