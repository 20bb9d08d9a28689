//! One run: starts all processes, strikes one node after the other under load, waits until every call has its answer and
//! every message has arrived, and checks the effects.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context;
use serde::Serialize;
use tokio::sync::watch;

use super::{
    ClusterOptions,
    layout::{Layout, Programs, TOOLS},
    messages::{MessageCounts, Messages},
    plan::{self, Blow},
    running::RunningCluster,
    timing::{self, BlowTimes, Costs},
};
use crate::faults::{
    client::Client,
    clients::Clients,
    effect,
    recovery::Recoveries,
    rng::Rng,
    supervisor::KillHandle,
    tally::Tally,
    verdict::{Evidence, Verdict},
    warm_up, watchdog,
};

const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// How long the cluster may take after a blow until it is ready, and then until calls of all workers succeed.
const RECOVERY_LIMIT: Duration = Duration::from_secs(60);
/// Maximum time for the clients to drain: longer than a client waits for a lost call.
const DRAIN_LIMIT: Duration = Duration::from_secs(120);

#[derive(Serialize)]
pub struct ClusterVerdict {
    #[serde(flatten)]
    pub calls: Verdict,
    pub costs: Costs,
    pub messages: MessageCounts,
}

pub struct Run<'a> {
    options: &'a ClusterOptions,
    layout: Arc<Layout>,
    rng: Rng,
    recoveries: Arc<Recoveries>,
    tally: Arc<Tally>,
}

impl<'a> Run<'a> {
    /// A failure of the run itself is an error; failures of the system under test are in the verdict.
    pub async fn execute(
        options: &'a ClusterOptions,
        programs: Programs,
        bench: &Path,
        folder: &Path,
    ) -> anyhow::Result<ClusterVerdict> {
        let mut rng = Rng::new(options.seed());
        let layout = Layout::new(programs, bench, folder, options.nodes(), &mut rng)?;
        let recoveries = Arc::new(Recoveries::new(options.workers()));
        Run { options, layout: Arc::new(layout), rng, recoveries, tally: Arc::default() }.run(folder).await
    }

    async fn run(mut self, folder: &Path) -> anyhow::Result<ClusterVerdict> {
        let begun = Instant::now();
        let cluster = RunningCluster::start(Arc::clone(&self.layout), self.options.down(), self.rng.fork()).await?;
        warm_up::wait_for_all_tools(&*self.layout).await?;
        let (draining, is_draining) = watch::channel(false);
        let url = format!("ws://127.0.0.1:{}/bus", self.layout.front);
        let messages = Messages::start(&url, self.options.pairs(), &is_draining).await?;
        let mut clients = self.start_clients(&is_draining);
        let mut problems = Vec::new();
        problems.extend(
            self.wait_for_all_workers(Instant::now()).await.err().map(|error| format!("at the start: {error}")),
        );
        eprintln!("{} workers call tools after {:.1} s", self.options.workers(), begun.elapsed().as_secs_f64());

        let started = Instant::now();
        let blows = tokio::select! {
            blows = self.strike_all(&cluster, &mut problems) => blows,
            never = self.report_progress(started) => never,
        };
        draining.send_replace(true);
        let mut records = Vec::new();
        match tokio::time::timeout(DRAIN_LIMIT, clients.collect(&mut records)).await {
            Ok(done) => done?,
            Err(_) => problems.push(format!("the clients did not drain within {DRAIN_LIMIT:?}")),
        }
        let took = started.elapsed();
        let (messages, message_problems) = messages.finish().await;
        problems.extend(message_problems);
        problems.extend(cluster.stop().await?);
        drop(clients);
        // Servers may outlive their hosts briefly; their effects count too.
        let swept = folder.to_owned();
        let left = tokio::task::spawn_blocking(move || watchdog::sweep(&swept)).await.context("sweep")?;
        problems.extend(left.into_iter().map(|command| format!("process left behind: {command}")));
        std::fs::write(folder.join("timeline.log"), self.recoveries.timeline()).context("write the timeline")?;
        let costs = timing::costs(&timing::calls(&records), &blows, &plan::KINDS, started + took);
        let mut calls = Verdict::of(Evidence {
            system: if self.options.embedded { "one broker" } else { "cluster" },
            records: &records,
            effects: effect::count_all(&self.layout.folder, &TOOLS)?,
            recoveries: &self.recoveries,
            tally: &self.tally,
            problems,
            took,
        });
        if calls.errors > 0 {
            calls.problems.push(format!("{} callers got an error", calls.errors));
        }
        Ok(ClusterVerdict { calls, costs, messages })
    }

    fn start_clients(&mut self, is_draining: &watch::Receiver<bool>) -> Clients {
        let mut clients = Clients::default();
        for number in 0..self.options.workers() {
            // Workers are not struck.
            let (_, kills) = KillHandle::new();
            clients.start(Client {
                number,
                kills,
                workers: Arc::clone(&self.layout) as _,
                in_flight: 1,
                pause: super::PAUSE,
                rng: self.rng.fork(),
                draining: is_draining.clone(),
                recoveries: Arc::clone(&self.recoveries),
                tally: Arc::clone(&self.tally),
            });
        }
        clients
    }

    async fn strike_all(&self, cluster: &RunningCluster, problems: &mut Vec<String>) -> Vec<BlowTimes> {
        let mut rng = Rng::new(self.options.seed() ^ 0x5707_3141);
        let blows = plan::draw(&mut rng, self.options.nodes(), self.options.blows(), self.options.outages());
        let until = Instant::now() + self.options.time_limit();
        let mut times = Vec::new();
        for (number, blow) in blows.iter().enumerate() {
            tokio::time::sleep(self.options.calm()).await;
            if Instant::now() > until {
                eprintln!("the time is up after {number} of {} blows", blows.len());
                break;
            }
            let at = Instant::now();
            if let Err(error) = self.strike(cluster, blow, &mut times).await {
                let problem =
                    format!("{error:#}, {:.0} s after {} ({})", at.elapsed().as_secs_f64(), blow.kind(), blow.node);
                self.recoveries.log_event(&problem);
                problems.push(problem);
            }
        }
        tokio::time::sleep(self.options.calm()).await;
        times
    }

    async fn strike(&self, cluster: &RunningCluster, blow: &Blow, times: &mut Vec<BlowTimes>) -> anyhow::Result<()> {
        let at = Instant::now();
        self.recoveries.log_event(&format!("{:?} at {}", blow.action, blow.node));
        self.recoveries.record_fault(blow.kind(), None);
        let struck = async {
            cluster.strike(blow).await?;
            self.recoveries.log_event("the blow is over");
            cluster.wait_until_ready(blow.node, RECOVERY_LIMIT).await?;
            self.recoveries.log_event("the node is ready");
            self.wait_for_all_workers(Instant::now()).await
        };
        let outcome = struck.await;
        self.recoveries.log_event("calls of all workers succeed");
        times.push(BlowTimes { kind: blow.kind(), at, recovered: Instant::now() });
        outcome
    }

    /// Waits until each worker got the result of a call that was sent after this time.
    async fn wait_for_all_workers(&self, since: Instant) -> anyhow::Result<()> {
        let all = async {
            while !self.recoveries.all_succeeded_since(since) {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        };
        let limit = RECOVERY_LIMIT;
        tokio::time::timeout(limit, all).await.with_context(|| format!("no result for some workers within {limit:?}"))
    }

    async fn report_progress<T>(&self, started: Instant) -> T {
        loop {
            tokio::time::sleep(PROGRESS_INTERVAL).await;
            let blows: u64 = self.recoveries.counts().values().sum();
            let counts = self.tally.counts();
            eprintln!(
                "{:4.0} s: {blows} of {} blows; {} results, {} errors, {} unknown",
                started.elapsed().as_secs_f64(),
                self.options.blows(),
                counts.results,
                counts.errors,
                counts.unknown,
            );
        }
    }
}
