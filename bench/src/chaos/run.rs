//! One run against one system: everything is started, hit from all sides under load, left in peace until every call has
//! its answer, ended, and counted.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};

use super::{
    ChaosOptions,
    client::Client,
    cutter::{Cuts, Cutter},
    dice::Dice,
    keeper::{Keeper, Kill, Trigger},
    recovery::{Blow, Recoveries},
    site::{Site, System},
    tally::{Record, Tally},
    verdict::Verdict,
    warden, warm_up,
};

const START_LIMIT: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(20);
const PROGRESS: Duration = Duration::from_secs(5);
/// How long a kill waits for the cuts that should have come before it.
const CATCH_UP_LIMIT: Duration = Duration::from_secs(3);
/// What the end may take: the longest patience of a client and a little more.
const DRAIN_LIMIT: Duration = Duration::from_secs(120);

pub struct Run<'a> {
    options: &'a ChaosOptions,
    folder: PathBuf,
    site: Arc<Site>,
    dice: Dice,
    cuts: Arc<Cuts>,
    recoveries: Arc<Recoveries>,
    tally: Arc<Tally>,
    began: Instant,
    _cutters: Vec<Cutter>,
}

impl<'a> Run<'a> {
    /// Runs it all. What went wrong with the run itself is an error; what the system did wrong is in the verdict.
    pub async fn execute(
        options: &'a ChaosOptions,
        system: System,
        bench: PathBuf,
        folder: &Path,
    ) -> anyhow::Result<Verdict> {
        let mut dice = Dice::new(options.seed());
        let mut site = Site::new(system, bench, folder, &mut dice)?;
        let recoveries = Arc::new(Recoveries::new(options.workers));
        let cuts = Cuts::new(dice.fork());
        let mut cutters = Vec::new();
        for worker in (0..options.workers).map(Some).chain([None]) {
            cutters.push(Cutter::start(site.port(), worker, Arc::clone(&cuts), Arc::clone(&recoveries)).await?);
        }
        let (host, workers) = cutters.split_last().context("a link for the host")?;
        site.link(host, workers);
        let began = Instant::now();
        let (site, tally) = (Arc::new(site), Arc::default());
        Run { options, folder: folder.to_owned(), site, dice, cuts, recoveries, tally, began, _cutters: cutters }
            .play()
            .await
    }

    async fn play(mut self) -> anyhow::Result<Verdict> {
        let (stop, stopped) = watch::channel(false);
        let site = Arc::clone(&self.site);
        let make = Arc::new(move || site.broker());
        let broker = Keeper::start("broker", make, self.site.log("broker"), self.dice.fork(), stopped.clone());
        self.until_the_broker_listens().await?;
        let site = Arc::clone(&self.site);
        let make = Arc::new(move || site.host());
        let host = Keeper::start("host", make, self.site.log("host"), self.dice.fork(), stopped);
        warm_up::until_all_tools_answer(&self.site).await?;
        self.began = Instant::now();

        let (enough, is_enough) = watch::channel(false);
        let (mut clients, triggers) = self.start_clients(&is_enough);
        let targets = Targets { broker: &broker.trigger, host: &host.trigger, workers: triggers };
        let in_time = tokio::select! {
            stormed = tokio::time::timeout(self.storm_limit(), self.storm(&targets)) => stormed.is_ok(),
            never = self.say_how_it_goes() => never,
        };
        enough.send_replace(true);
        let mut records = Vec::new();
        let drained = tokio::time::timeout(DRAIN_LIMIT, collect(&mut clients, &mut records)).await;
        let took = self.began.elapsed();
        stop.send_replace(true);
        let mut complaints = Vec::new();
        if !in_time && self.options.minutes.is_none() {
            complaints.push(format!("the kills and cuts were not done within {:?}", self.storm_limit()));
        }
        match drained {
            Ok(done) => done?,
            Err(_) => complaints.push(format!("the clients were not done {DRAIN_LIMIT:?} after the storm")),
        }
        for keeper in [broker.keeping, host.keeping] {
            complaints.extend(keeper.await.context("a keeper")?);
        }
        drop(clients);
        // Servers may outlive their host for a moment; their effects count.
        let folder = self.folder.clone();
        let left = tokio::task::spawn_blocking(move || warden::sweep(&folder)).await.context("sweep")?;
        std::fs::write(self.folder.join("story.log"), self.recoveries.story()).context("write the story")?;
        complaints.extend(left.into_iter().map(|command| format!("left behind: {command}")));
        Verdict::of(&self.site, records, &self.recoveries, &self.tally, complaints, took)
    }

    async fn until_the_broker_listens(&self) -> anyhow::Result<()> {
        let until = Instant::now() + START_LIMIT;
        let listens = async || tokio::net::TcpStream::connect(("127.0.0.1", self.site.port())).await.is_ok();
        while !(self.site.has_token() && listens().await) {
            if Instant::now() > until {
                bail!("the broker does not listen; its log is {}", self.site.log("broker").display());
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    fn start_clients(&mut self, is_enough: &watch::Receiver<bool>) -> (Clients, Vec<Trigger>) {
        let mut clients = JoinSet::new();
        let mut triggers = Vec::new();
        for number in 0..self.options.workers {
            let (trigger, kills): (Trigger, mpsc::Receiver<Kill>) = Trigger::new();
            triggers.push(trigger);
            let client = Client {
                number,
                kills,
                site: Arc::clone(&self.site),
                in_flight: self.options.in_flight,
                dice: self.dice.fork(),
                enough: is_enough.clone(),
                recoveries: Arc::clone(&self.recoveries),
                tally: Arc::clone(&self.tally),
            };
            clients.spawn(async move { client.run().await.map(|records| (number, records)) });
        }
        (clients, triggers)
    }

    /// Kills at random times, and as many cuts as go with them; then the rest of the cuts.
    async fn storm(&self, targets: &Targets<'_>) {
        let mut dice = Dice::new(self.options.seed() ^ 0x5707_3141);
        let (kills, cuts) = (self.options.kills, self.options.cuts);
        let mut killed = 0;
        while killed < kills {
            self.cuts.allow(cuts * (killed + 1) / (kills + 1));
            tokio::time::sleep(dice.millis(self.options.pace / 4, self.options.pace * 7 / 4)).await;
            self.let_cuts_catch_up(cuts * killed / (kills + 1)).await;
            if targets.kill_one(&mut dice, &self.recoveries).await {
                killed += 1;
            }
        }
        self.cuts.allow(cuts);
        while self.cuts.made() < cuts {
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Both are to happen over the whole run. A system that is down for long is not cut, so this waits only so long.
    async fn let_cuts_catch_up(&self, due: u64) {
        let until = Instant::now() + CATCH_UP_LIMIT;
        while self.cuts.made() < due && Instant::now() < until {
            tokio::time::sleep(LOOK).await;
        }
    }

    fn storm_limit(&self) -> Duration {
        if let Some(minutes) = self.options.minutes {
            return Duration::from_secs(minutes * 60);
        }
        let kills = Duration::from_millis(self.options.kills * (self.options.pace * 2 + 3_000));
        kills + Duration::from_millis(self.options.cuts * 300) + Duration::from_secs(60)
    }

    async fn say_how_it_goes(&self) -> bool {
        loop {
            tokio::time::sleep(PROGRESS).await;
            let kills: u64 = [Blow::KillBroker, Blow::KillHost, Blow::KillWorker]
                .map(|blow| self.recoveries.blows(blow))
                .iter()
                .sum();
            let counts = self.tally.counts();
            eprintln!(
                "{:8} {:4.0} s: {kills} of {} kills, {} of {} cuts; {} results, {} errors, {} unknown",
                self.site.system.name(),
                self.began.elapsed().as_secs_f64(),
                self.options.kills,
                self.cuts.made(),
                self.options.cuts,
                counts.results,
                counts.errors,
                counts.unknown,
            );
        }
    }
}

type Clients = JoinSet<anyhow::Result<(usize, Vec<Record>)>>;

async fn collect(clients: &mut Clients, records: &mut Vec<(usize, Vec<Record>)>) -> anyhow::Result<()> {
    while let Some(client) = clients.join_next().await {
        records.push(client.context("a client")??);
    }
    Ok(())
}

struct Targets<'a> {
    broker: &'a Trigger,
    host: &'a Trigger,
    workers: Vec<Trigger>,
}

impl Targets<'_> {
    /// Kills the broker, the host or, half of the times, a worker. False if that one was down already.
    async fn kill_one(&self, dice: &mut Dice, recoveries: &Recoveries) -> bool {
        let (trigger, blow, worker) = match dice.below(4) {
            0 => (self.broker, Blow::KillBroker, None),
            1 => (self.host, Blow::KillHost, None),
            _ => {
                let worker = dice.below(self.workers.len() as u64) as usize;
                (&self.workers[worker], Blow::KillWorker, Some(worker))
            }
        };
        let killed = trigger.kill().await;
        if killed {
            recoveries.hit(blow, worker);
        }
        killed
    }
}
