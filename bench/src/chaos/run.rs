//! One run against one system: starts all processes, injects faults under load, waits until every call has its answer,
//! stops the processes and checks the effects.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use tokio::sync::{mpsc, watch};

use super::{
    ChaosOptions,
    cutter::{Cuts, Cutter},
    deployment::{Deployment, System},
    fault::Fault,
};
use crate::faults::{
    client::Client,
    clients::Clients,
    effect,
    recovery::Recoveries,
    rng::Rng,
    supervisor::{Blow, KillHandle, KillRequest, MakeCommand, Service, Supervisor},
    tally::Tally,
    verdict::{Evidence, Verdict},
    warm_up, watchdog,
};

const START_LIMIT: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Milliseconds between an answer and the next call of a client.
const PAUSE_MS: (u64, u64) = (0, 20);
/// Milliseconds before broker or host is restarted.
const DOWN_MS: (u64, u64) = (0, 300);
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);
/// How long a kill waits for the cuts that should have come before it.
const CATCH_UP_LIMIT: Duration = Duration::from_secs(3);
/// Maximum time for the clients to drain: longer than a client waits for a lost call.
const DRAIN_LIMIT: Duration = Duration::from_secs(120);

pub struct Run<'a> {
    options: &'a ChaosOptions,
    folder: PathBuf,
    deployment: Arc<Deployment>,
    rng: Rng,
    cuts: Arc<Cuts>,
    recoveries: Arc<Recoveries>,
    tally: Arc<Tally>,
    started: Instant,
    _cutters: Vec<Cutter>,
}

impl<'a> Run<'a> {
    /// A failure of the run itself is an error; failures of the system under test are in the verdict.
    pub async fn execute(
        options: &'a ChaosOptions,
        system: System,
        bench: &Path,
        folder: &Path,
    ) -> anyhow::Result<Verdict> {
        let mut rng = Rng::new(options.seed());
        let mut deployment = Deployment::new(system, bench, folder, &mut rng)?;
        let recoveries = Arc::new(Recoveries::new(options.workers));
        let cuts = Cuts::new(rng.fork());
        let mut cutters = Vec::new();
        for worker in (0..options.workers).map(Some).chain([None]) {
            cutters.push(Cutter::start(deployment.port(), worker, Arc::clone(&cuts), Arc::clone(&recoveries)).await?);
        }
        let (host, workers) = cutters.split_last().context("the host's link")?;
        deployment.set_links(host, workers);
        let started = Instant::now();
        let (deployment, tally) = (Arc::new(deployment), Arc::default());
        Run { options, folder: folder.to_owned(), deployment, rng, cuts, recoveries, tally, started, _cutters: cutters }
            .run()
            .await
    }

    async fn run(mut self) -> anyhow::Result<Verdict> {
        let (stop, stopped) = watch::channel(false);
        let deployment = Arc::clone(&self.deployment);
        let broker = self.supervise("broker", Arc::new(move || deployment.broker()), stopped.clone());
        self.wait_for_broker().await?;
        let deployment = Arc::clone(&self.deployment);
        let host = self.supervise("host", Arc::new(move || deployment.host()), stopped);
        warm_up::wait_for_all_tools(&*self.deployment).await?;
        self.started = Instant::now();

        let (draining, is_draining) = watch::channel(false);
        let (mut clients, handles) = self.start_clients(&is_draining);
        let targets = Targets { broker: &broker.kill_handle, host: &host.kill_handle, workers: handles };
        let in_time = tokio::select! {
            done = tokio::time::timeout(self.fault_time_limit(), self.inject_faults(&targets)) => done.is_ok(),
            never = self.report_progress() => never,
        };
        draining.send_replace(true);
        let mut records = Vec::new();
        let drained = tokio::time::timeout(DRAIN_LIMIT, clients.collect(&mut records)).await;
        let took = self.started.elapsed();
        stop.send_replace(true);
        let mut problems = Vec::new();
        if !in_time && self.options.minutes.is_none() {
            problems.push(format!("the kills and cuts were not done within {:?}", self.fault_time_limit()));
        }
        match drained {
            Ok(done) => done?,
            Err(_) => problems.push(format!("the clients did not drain within {DRAIN_LIMIT:?}")),
        }
        for supervisor in [broker.task, host.task] {
            problems.extend(supervisor.await.context("a supervisor panicked")?);
        }
        drop(clients);
        // Servers may outlive their host briefly; their effects count too.
        let folder = self.folder.clone();
        let left = tokio::task::spawn_blocking(move || watchdog::sweep(&folder)).await.context("sweep")?;
        std::fs::write(self.folder.join("timeline.log"), self.recoveries.timeline()).context("write the timeline")?;
        problems.extend(left.into_iter().map(|command| format!("process left behind: {command}")));
        Ok(Verdict::of(Evidence {
            system: self.deployment.system.name(),
            records: &records,
            effects: effect::count_all(&self.deployment.folder, &self.deployment.distinct_tools())?,
            recoveries: &self.recoveries,
            tally: &self.tally,
            problems,
            took,
        }))
    }

    fn supervise(&mut self, name: &str, make: MakeCommand, stop: watch::Receiver<bool>) -> Supervisor {
        let log = self.deployment.folder.log(name);
        Supervisor::start(Service { name: name.to_owned(), make, log, down: DOWN_MS }, self.rng.fork(), stop)
    }

    async fn wait_for_broker(&self) -> anyhow::Result<()> {
        let until = Instant::now() + START_LIMIT;
        let listens = async || tokio::net::TcpStream::connect(("127.0.0.1", self.deployment.port())).await.is_ok();
        while !(self.deployment.has_token() && listens().await) {
            if Instant::now() > until {
                bail!("the broker does not listen; its log is {}", self.deployment.folder.log("broker").display());
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    fn start_clients(&mut self, is_draining: &watch::Receiver<bool>) -> (Clients, Vec<KillHandle>) {
        let mut clients = Clients::default();
        let mut handles = Vec::new();
        for number in 0..self.options.workers {
            let (handle, kills): (KillHandle, mpsc::Receiver<KillRequest>) = KillHandle::new();
            handles.push(handle);
            let client = Client {
                number,
                kills,
                workers: Arc::clone(&self.deployment) as _,
                in_flight: self.options.in_flight,
                pause: PAUSE_MS,
                rng: self.rng.fork(),
                draining: is_draining.clone(),
                recoveries: Arc::clone(&self.recoveries),
                tally: Arc::clone(&self.tally),
            };
            clients.start(client);
        }
        (clients, handles)
    }

    /// Kills at random times, and allows a proportional number of cuts; then waits for the remaining cuts.
    async fn inject_faults(&self, targets: &Targets<'_>) {
        let mut rng = Rng::new(self.options.seed() ^ 0x5707_3141);
        let (kills, terms, cuts) = (self.options.kills, self.options.terms, self.options.cuts);
        let (mut killed, mut stopped) = (0, 0);
        while killed + stopped < kills + terms {
            let (done, all) = (killed + stopped, kills + terms);
            self.cuts.allow(cuts * (done + 1) / (all + 1));
            tokio::time::sleep(rng.millis(self.options.pace / 4, self.options.pace * 7 / 4)).await;
            self.let_cuts_catch_up(cuts * done / (all + 1)).await;
            // Both kinds in proportion to what is left of them.
            let stops = rng.below(all - done) < terms - stopped;
            if targets.hit_one(&mut rng, stops, &self.recoveries).await {
                *if stops { &mut stopped } else { &mut killed } += 1;
            }
        }
        self.cuts.allow(cuts);
        while self.cuts.made() < cuts {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Keeps kills and cuts in proportion. The wait is limited: a system that is down has no links to cut.
    async fn let_cuts_catch_up(&self, due: u64) {
        let until = Instant::now() + CATCH_UP_LIMIT;
        while self.cuts.made() < due && Instant::now() < until {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    fn fault_time_limit(&self) -> Duration {
        if let Some(minutes) = self.options.minutes {
            return Duration::from_secs(minutes * 60);
        }
        let kills = Duration::from_millis(self.options.kills * (self.options.pace * 2 + 3_000))
            + Duration::from_millis(self.options.terms * (self.options.pace * 2 + 12_000));
        kills + Duration::from_millis(self.options.cuts * 300) + Duration::from_secs(60)
    }

    async fn report_progress(&self) -> bool {
        loop {
            tokio::time::sleep(PROGRESS_INTERVAL).await;
            let faults = self.recoveries.counts();
            let count = |chosen: &[Fault]| chosen.iter().filter_map(|fault| faults.get(fault.name())).sum::<u64>();
            let kills = count(&[Fault::KillBroker, Fault::KillHost, Fault::KillWorker]);
            let stops = count(&Fault::STOPS);
            let counts = self.tally.counts();
            eprintln!(
                "{:8} {:4.0} s: {kills} of {} kills, {stops} of {} stops, {} of {} cuts; {} results, {} errors, {} unknown",
                self.deployment.system.name(),
                self.started.elapsed().as_secs_f64(),
                self.options.kills,
                self.options.terms,
                self.cuts.made(),
                self.options.cuts,
                counts.results,
                counts.errors,
                counts.unknown,
            );
        }
    }
}

/// How long a paused process stays so: shorter and longer than a heartbeat allows.
const STOPPED_MS: (u64, u64) = (200, 4_000);

struct Targets<'a> {
    broker: &'a KillHandle,
    host: &'a KillHandle,
    workers: Vec<KillHandle>,
}

impl Targets<'_> {
    /// Kills, or stops or pauses, the broker, the host or, half of the time, a worker. Returns false if the process was
    /// already down.
    async fn hit_one(&self, rng: &mut Rng, stops: bool, recoveries: &Recoveries) -> bool {
        let target = rng.below(4);
        let pauses = stops && target < 2 && rng.below(3) == 0;
        let blow = match (stops, pauses) {
            (false, _) => Blow::Kill,
            (true, false) => Blow::Stop,
            (true, true) => Blow::Pause(rng.millis(STOPPED_MS.0, STOPPED_MS.1)),
        };
        let fault = |kill, stop, pause| match blow {
            Blow::Kill => kill,
            Blow::Stop => stop,
            Blow::Pause(_) => pause,
        };
        let (handle, fault, worker) = match target {
            0 => (self.broker, fault(Fault::KillBroker, Fault::StopBroker, Fault::PauseBroker), None),
            1 => (self.host, fault(Fault::KillHost, Fault::StopHost, Fault::PauseHost), None),
            _ => {
                let worker = rng.below(self.workers.len() as u64) as usize;
                (&self.workers[worker], fault(Fault::KillWorker, Fault::StopWorker, Fault::StopWorker), Some(worker))
            }
        };
        let hit = handle.hit(blow).await;
        if hit {
            recoveries.record_fault(fault.name(), worker);
        }
        hit
    }
}
