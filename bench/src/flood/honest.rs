//! Honest agents: they call tools at a fixed rate, whatever the latency (an open loop), and new sessions join them. A
//! call's latency counts from the time at which it was due, so that a stall is not hidden by the calls that it held up.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::Context;
use hdrhistogram::Histogram;
use tokio::{task::JoinSet, time::Instant};

use super::deployment::{Deployment, LEGACY_TOOL, MODERN_TOOL, honest_agent};
use crate::mcp::{Era, connection::Connection};

/// The honest agents, each with its era and whether it uses HTTP instead of `toolbus connect`.
const AGENTS: [(Era, bool); 4] = [(Era::Modern, false), (Era::Legacy, false), (Era::Modern, true), (Era::Legacy, true)];
pub const COUNT: usize = AGENTS.len();
const TOOLS: [&str; 2] = [MODERN_TOOL, LEGACY_TOOL];
/// How long to wait for the host's tools, and for a session after the hostile agents are gone.
const READY_LIMIT: Duration = Duration::from_secs(30);
/// Longer latencies are cut to this; calls fail before.
const MAX_MICROS: u64 = 60_000_000;
const RETRY: Duration = Duration::from_millis(100);

pub struct Honest {
    callers: Vec<Arc<Connection>>,
}

/// Latencies in milliseconds, and errors by their text.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    pub p50: f64,
    pub p99: f64,
    pub max: f64,
    /// Time of the slowest new session to its first answer.
    pub newcomer: f64,
    pub errors: BTreeMap<String, u64>,
}

impl Honest {
    /// Opens a session of each agent and waits until both servers answer.
    pub async fn join(deployment: &Deployment) -> anyhow::Result<Self> {
        let mut callers = Vec::new();
        for number in 0..COUNT {
            let deadline = Instant::now() + READY_LIMIT;
            let session = loop {
                match new_session(deployment, number).await {
                    Ok(session) => break session,
                    Err(error) if Instant::now() > deadline => return Err(error).context("start the honest agents"),
                    Err(_) => tokio::time::sleep(RETRY).await,
                }
            };
            callers.push(Arc::new(session));
        }
        Ok(Self { callers })
    }

    /// Opens sessions at servers that ended during a pause. To be called before a flood, because a call that waits here
    /// would delay the measurement to its end.
    pub async fn warm_up(&self) -> anyhow::Result<()> {
        for caller in &self.callers {
            call_both(caller).await.context("call before a measurement")?;
        }
        Ok(())
    }

    /// Calls for some time at a total rate, and opens new sessions meanwhile.
    pub async fn measure(&self, deployment: &Deployment, rate: f64, time: Duration) -> anyhow::Result<Sample> {
        let mut sample = Sample::default();
        let newcomers = async {
            // Late, when the hostile agents have taken as much as they get.
            tokio::time::sleep(time.mul_f64(0.8)).await;
            newcomers(deployment).await
        };
        let (calls, newcomers) = tokio::join!(self.call_at(rate, time), newcomers);
        let mut times = Histogram::<u64>::new_with_bounds(1, MAX_MICROS, 3).context("a histogram")?;
        for (took, outcome) in calls {
            times.saturating_record(took.as_micros() as u64);
            sample.note(outcome);
        }
        for (took, outcome) in newcomers {
            sample.newcomer = sample.newcomer.max(took.as_secs_f64() * 1e3);
            sample.note(outcome.context("a new session"));
        }
        let ms = |micros: u64| micros as f64 / 1e3;
        sample.p50 = ms(times.value_at_quantile(0.5));
        sample.p99 = ms(times.value_at_quantile(0.99));
        sample.max = ms(times.max());
        Ok(sample)
    }

    async fn call_at(&self, rate: f64, time: Duration) -> Vec<Timed> {
        let begin = Instant::now();
        let count = (time.as_secs_f64() * rate) as u32;
        let mut calls = JoinSet::new();
        for number in 0..count {
            let due = begin + time * number / count;
            tokio::time::sleep_until(due).await;
            let caller = Arc::clone(&self.callers[number as usize % COUNT]);
            calls.spawn(async move {
                let tool = TOOLS[number as usize / COUNT % TOOLS.len()];
                let outcome = caller.echo_by(tool, &unique_text()).await;
                (due.elapsed(), outcome)
            });
        }
        calls.join_all().await
    }
}

impl Sample {
    fn note(&mut self, outcome: anyhow::Result<()>) {
        if let Err(error) = outcome {
            let text = format!("{error:#}").chars().take(160).collect();
            *self.errors.entry(text).or_default() += 1;
        }
    }
}

type Timed = (Duration, anyhow::Result<()>);

/// Opens one more session over each transport. They end with this function.
pub async fn newcomers(deployment: &Deployment) -> Vec<Timed> {
    let one = async |number| {
        let begin = Instant::now();
        let session = new_session(deployment, number).await;
        let took = begin.elapsed();
        let outcome = match session {
            Ok(session) => session.close().await,
            Err(error) => Err(error),
        };
        (took, outcome)
    };
    // The legacy agents, because they need a session at the endpoint and a process at the host.
    let (stdio, http) = tokio::join!(one(1), one(3));
    vec![stdio, http]
}

async fn new_session(deployment: &Deployment, number: usize) -> anyhow::Result<Connection> {
    let agent = honest_agent(number);
    let (era, is_http) = AGENTS[number];
    let connection = if is_http {
        let token = std::fs::read_to_string(deployment.token_file(&agent)).context("read a token")?;
        Connection::http(&deployment.endpoint(), Some(token.trim().to_owned()), era)
    } else {
        let log = deployment.path().join(format!("{agent}.log"));
        Connection::stdio(deployment.connect(&agent), era, &log)?
    };
    connection.open().await?;
    call_both(&connection).await?;
    Ok(connection)
}

async fn call_both(connection: &Connection) -> anyhow::Result<()> {
    for tool in TOOLS {
        connection.echo_by(tool, &unique_text()).await?;
    }
    Ok(())
}

/// Every call is different, so that the host never joins it to an earlier one.
fn unique_text() -> String {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    format!("a text that is said back {}", CALLS.fetch_add(1, Ordering::Relaxed))
}
