//! The orchestrator: for every round and shape it measures all contenders one after the
//! other, each with a fresh broker, host and worker process, and reports at the end.

use std::{io::IsTerminal, process::ExitCode, time::Duration};

use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressStyle};
use tokio::{
    process::Command,
    signal::unix::{SignalKind, signal},
};

use crate::{
    cli::RunOptions,
    contenders::{Contender, broker, original_host},
    figures::Figures,
    goals,
    load::Sample,
    process::Running,
    quiet,
    report::{self, number::grouped},
    results::{Failure, Results},
    shape::Shape,
    tools::Tools,
};

const HOST_TIMEOUT: Duration = Duration::from_secs(15);
/// Time that a worker may need beyond its window: connecting, warm-up, outstanding operations, and filling the mailbox
/// before a drain.
const WORKER_SLACK: Duration = Duration::from_secs(60);
/// Minimum window if every message is synced: acknowledging all outstanding messages may take seconds.
const SYNC_ALWAYS_SECONDS: f64 = 4.0;

pub async fn run(options: RunOptions) -> anyhow::Result<ExitCode> {
    interruptible(measure_and_report(options)).await
}

/// Compares a cluster with one embedded broker and with bare JetStream.
pub async fn run_cluster(options: RunOptions) -> anyhow::Result<ExitCode> {
    interruptible(measure_cluster(options)).await
}

async fn interruptible(work: impl Future<Output = anyhow::Result<ExitCode>>) -> anyhow::Result<ExitCode> {
    let mut terminated = signal(SignalKind::terminate()).context("watch for SIGTERM")?;
    tokio::select! {
        done = work => done,
        _ = tokio::signal::ctrl_c() => bail!("interrupted"),
        _ = terminated.recv() => bail!("terminated"),
    }
}

async fn measure_and_report(options: RunOptions) -> anyhow::Result<ExitCode> {
    let mut tools = Tools::locate(options.out.clone())?;
    let results = measure_all(&options, &mut tools).await;
    let run = report::RunFacts::collect(&options, &tools).await;
    let verdicts = if options.short { Vec::new() } else { goals::judge(&results) };
    if !options.short {
        report::write(&tools.out, &results, &verdicts, &run)?;
    }
    finish(&options, &results, &verdicts, &run)
}

async fn measure_cluster(mut options: RunOptions) -> anyhow::Result<ExitCode> {
    let mut tools = Tools::locate(options.out.clone())?;
    tools.prepare(Contender::NatsCore).await.map_err(anyhow::Error::msg)?;
    if options.only.is_empty() {
        options.only = goals::cluster::CONTENDERS.to_vec();
    }
    if options.shapes.is_empty() {
        options.shapes = goals::cluster::SHAPES.to_vec();
    }
    let results = measure_all(&options, &mut tools).await;
    let run = report::RunFacts::collect(&options, &tools).await;
    finish(&options, &results, &goals::cluster::judge(&results), &run)
}

/// Prints the report. Fails if a figure is missing, or with `check` if a goal is missed.
fn finish(
    options: &RunOptions,
    results: &Results,
    verdicts: &[goals::Verdict],
    run: &report::RunFacts,
) -> anyhow::Result<ExitCode> {
    report::print(results, verdicts, run);
    figures(results, options).ensure_complete()?;
    let missed = verdicts.iter().any(|verdict| verdict.reached != Some(true));
    let failed = options.check && (missed || !results.failures.is_empty());
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

async fn measure_all(options: &RunOptions, tools: &mut Tools) -> Results {
    let shapes = options.shapes();
    let mut results = Results::default();
    let contenders = prepare(tools, options.contenders(), &mut results).await;
    let plan = schedule(options.rounds(), &shapes, &contenders);
    let progress = Progress::new(plan.len(), options.rounds());
    for step in &plan {
        progress.begin(step);
        if !quiet::wait(options.idle_timeout()).await {
            results.disturbed += 1;
        }
        match measure(tools, step.contender, step.shape, options.seconds()).await {
            Ok(sample) => {
                progress.measured(step, &sample);
                results.add(step.contender, step.shape, sample);
            }
            Err(error) => {
                let reason = format!("{error:#}");
                progress.failed(step, &reason);
                results.failures.push(Failure {
                    contender: step.contender,
                    shape: step.shape,
                    round: step.round,
                    reason,
                });
            }
        }
    }
    progress.finish();
    results
}

/// A contender may be missing only if it could not be installed.
fn figures(results: &Results, options: &RunOptions) -> Figures {
    let mut figures = Figures::default();
    let skipped = |contender| results.skipped.iter().any(|(skipped, _)| *skipped == contender);
    for contender in options.contenders() {
        if contender.needs_installation() && skipped(contender) {
            continue;
        }
        for shape in options.shapes().into_iter().filter(|shape| contender.supports(*shape)) {
            let rate = results.summary(contender, shape).map(|summary| summary.rate);
            figures.require(format!("{contender} in {shape}"), rate);
        }
    }
    figures
}

/// Builds or installs the contenders' programs; skips contenders for which that fails.
async fn prepare(tools: &mut Tools, contenders: Vec<Contender>, results: &mut Results) -> Vec<Contender> {
    let spinner = ProgressBar::new_spinner();
    spinner.enable_steady_tick(Duration::from_millis(120));
    let mut ready = Vec::new();
    for contender in contenders {
        spinner.set_message(format!("preparing {contender}"));
        match tools.prepare(contender).await {
            Ok(()) => ready.push(contender),
            Err(reason) => results.skipped.push((contender, reason)),
        }
    }
    spinner.finish_and_clear();
    ready
}

struct Step {
    round: u32,
    shape: Shape,
    contender: Contender,
}

/// All measurements in order. Within a shape the contenders follow each other, and their order rotates with each round,
/// so that drift of the machine affects all of them equally.
fn schedule(rounds: u32, shapes: &[Shape], contenders: &[Contender]) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut order = contenders.to_vec();
    for round in 1..=rounds {
        for &shape in shapes {
            let able = order.iter().filter(|contender| contender.supports(shape));
            steps.extend(able.map(|&contender| Step { round, shape, contender }));
        }
        if !order.is_empty() {
            order.rotate_left(1);
        }
    }
    steps
}

/// Measures a contender in one shape, with processes of its own.
pub async fn measure(tools: &Tools, contender: Contender, shape: Shape, seconds: f64) -> anyhow::Result<Sample> {
    let folder = tempfile::tempdir_in(&tools.out).context("create a data folder")?;
    let folder = folder.path();
    let broker = broker::start(contender, tools, folder).await?;
    let peer = |role: &str| {
        let mut command = Command::new(&tools.bench);
        command.args([role, "--contender", contender.name()]);
        command.args(["--url", &broker.url]);
        command
    };
    let host = match (shape, contender) {
        (Shape::Call { .. }, Contender::BambooHost) => {
            let programs = tools.original_programs().await?;
            Some(Running::spawn("host", original_host::command(&programs, &broker.url, folder), folder)?)
        }
        (Shape::Call { .. }, _) => {
            let mut host = Running::spawn("host", peer("host"), folder)?;
            host.line_after("ready", HOST_TIMEOUT).await?;
            Some(host)
        }
        _ => None,
    };
    let seconds = match (contender, shape) {
        (Contender::JetStreamAlways | Contender::JetStreamReplicatedAlways, Shape::OneWay) => {
            seconds.max(SYNC_ALWAYS_SECONDS)
        }
        _ => seconds,
    };
    let mut command = peer("worker");
    command.args(["--shape", &shape.key()]);
    command.args(["--seconds", &seconds.to_string()]);
    let mut worker = Running::spawn("worker", command, folder)?;
    let limit = Duration::from_secs_f64(seconds) + WORKER_SLACK;
    let line = worker.line_after("sample ", limit).await?;
    worker.stop().await?;
    if let Some(host) = host {
        host.id().context("the host exited during the measurement")?;
        host.stop().await?;
    }
    for process in broker.processes {
        process.stop().await?;
    }
    serde_json::from_str(&line).context("read the worker's sample")
}

/// A progress bar on a terminal, a line per measurement elsewhere.
struct Progress {
    bar: ProgressBar,
    rounds: u32,
    plain: bool,
}

impl Progress {
    fn new(steps: usize, rounds: u32) -> Self {
        let style = ProgressStyle::with_template("[{elapsed_precise}] {bar:30} {pos}/{len} {msg}")
            .expect("the template is valid");
        let bar = ProgressBar::new(steps as u64).with_style(style);
        bar.enable_steady_tick(Duration::from_millis(200));
        Self { bar, rounds, plain: !std::io::stderr().is_terminal() }
    }

    fn begin(&self, step: &Step) {
        self.bar.set_message(self.describe(step));
    }

    fn measured(&self, step: &Step, sample: &Sample) {
        let rate = grouped(sample.rate);
        self.end(step, &format!("{rate} {}", step.shape.unit()));
    }

    fn failed(&self, step: &Step, reason: &str) {
        self.end(step, &format!("FAILED: {reason}"));
    }

    fn end(&self, step: &Step, outcome: &str) {
        self.bar.inc(1);
        if self.plain {
            let (done, all) = (self.bar.position(), self.bar.length().unwrap_or_default());
            eprintln!("[{done}/{all}] {}: {outcome}", self.describe(step));
        }
    }

    fn finish(&self) {
        self.bar.finish_and_clear();
    }

    fn describe(&self, step: &Step) -> String {
        let Step { round, shape, contender } = step;
        format!("round {round}/{} · {shape} · {contender}", self.rounds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contenders_are_interleaved_and_their_order_rotates() {
        let shapes = [crate::shape::LONE_SMALL, Shape::OneWay];
        let steps = schedule(2, &shapes, &[Contender::NatsCore, Contender::JetStream]);
        let order: Vec<_> = steps.iter().map(|step| (step.round, step.contender)).collect();
        let expected = [
            (1, Contender::NatsCore),
            (1, Contender::JetStream),
            (1, Contender::JetStream),
            (2, Contender::JetStream),
            (2, Contender::NatsCore),
            (2, Contender::JetStream),
        ];
        assert_eq!(order, expected);
    }
}
