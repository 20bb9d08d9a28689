//! Detects which eras a server supports, and keeps the process that answered: it is the first connection.

use crate::config::{ServerConfig, SessionMode, TransportConfig};
use crate::connection::{ServerConnection, ServerEvent};
use crate::error::ServerError;
use crate::options::ConnectionOptions;
use serde_json::json;
use std::pin::pin;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};
use toolbus_mcp::{Era, MODERN_VERSION, Members, Outcome, Raw, meta, raw};

/// Usually a running server rejects `server/discover` at once if it doesn't know it; some don't answer at all, and others
/// take long to start. After this time `initialize` is sent as well.
const DISCOVER_TIMEOUT: Duration = Duration::from_secs(2);
/// A server that answered `initialize` first gets this much longer for `server/discover`: it may answer out of order.
const REORDER_TIMEOUT: Duration = Duration::from_millis(200);
/// When a start that takes long is logged first, and how often after that.
const FIRST_REPORT: Duration = Duration::from_secs(5);
const REPORT_INTERVAL: Duration = Duration::from_secs(30);
/// Server events that wait for the owner of the connection.
const MAX_EVENTS: usize = 256;

/// The eras that a server supports, each with the server's description of itself. At least one is set.
#[derive(Debug, Clone)]
pub struct Eras {
    /// The result of `server/discover`.
    pub modern: Option<Raw>,
    /// The result of `initialize`.
    pub legacy: Option<Raw>,
    /// Whether the legacy era was not tried: a process serves one era, and this one serves the modern era.
    pub legacy_untried: bool,
}

impl Eras {
    /// Whether the server supports the era, or may do so.
    pub fn speaks(&self, era: Era) -> bool {
        match era {
            Era::Modern => self.modern.is_some(),
            Era::Legacy => self.legacy.is_some() || self.legacy_untried,
        }
    }

    fn of(era: Era, info: Raw) -> Self {
        match era {
            Era::Modern => Self { modern: Some(info), legacy: None, legacy_untried: false },
            Era::Legacy => Self { modern: None, legacy: Some(info), legacy_untried: false },
        }
    }
}

/// The result of a probe.
pub struct Probed {
    /// The eras that were found.
    pub eras: Eras,
    /// The connection that answered, after its handshake but before `notifications/initialized`. `None` over HTTP.
    pub connection: Option<ProbedConnection>,
}

/// A connection that can be used after the probe, in the modern era if the server supports it.
pub struct ProbedConnection {
    /// The connection.
    pub connection: ServerConnection,
    /// Its messages outside of any call.
    pub events: mpsc::Receiver<ServerEvent>,
}

/// Probes the server within the start timeout of the options, with these params of `initialize`. If the configuration
/// sets an era, only that one is probed.
pub async fn probe(config: &ServerConfig, options: &ConnectionOptions, initialize: Raw) -> Result<Probed, ServerError> {
    let deadline = Instant::now() + options.start_timeout_of(config);
    if matches!(config.transport, TransportConfig::Http { .. }) {
        return probe_http(config, options, initialize, deadline).await;
    }
    let first = Probing::open(config, options, config.era.unwrap_or(Era::Modern)).await?;
    let found = match config.era {
        Some(era) => first.ask_only(era, &initialize, deadline).await,
        None => first.find_era(&initialize, deadline).await,
    };
    let (probing, found) = match found {
        Ok(Some(found)) => (first, Some(found)),
        Err(error @ ServerError::SlowStart { .. }) => return Err(error),
        Err(error) if config.era.is_some() => return Err(error),
        Ok(None) if config.era.is_some() => (first, None),
        // Some servers exit, or refuse everything, after a first message that is not `initialize`.
        Ok(None) | Err(_) => {
            first.discard();
            let second = Probing::open(config, options, Era::Legacy).await?;
            let found = second.ask_only(Era::Legacy, &initialize, deadline).await?;
            (second, found)
        }
    };
    let Some((era, info)) = found else { return Err(no_known_era(config)) };
    let mut eras = Eras::of(era, info);
    eras.legacy_untried = era == Era::Modern && config.era.is_none();
    Ok(Probed { eras, connection: Some(probing.keep(era)) })
}

/// Over HTTP each request is independent, so both eras are probed.
async fn probe_http(
    config: &ServerConfig,
    options: &ConnectionOptions,
    initialize: Raw,
    deadline: Instant,
) -> Result<Probed, ServerError> {
    let mut eras = Eras { modern: None, legacy: None, legacy_untried: false };
    let mut failed = None;
    for era in [Era::Legacy, Era::Modern] {
        if config.era.is_some_and(|only| only != era) {
            continue;
        }
        let probing = Probing::open(config, options, era).await?;
        let found = probing.ask_only(era, &initialize, deadline).await;
        probing.discard();
        match found {
            Ok(Some((Era::Legacy, info))) => eras.legacy = Some(info),
            Ok(Some((Era::Modern, info))) => eras.modern = Some(info),
            Ok(None) => {}
            Err(error @ ServerError::Start { .. }) => return Err(error),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    match (&eras.modern, &eras.legacy) {
        (None, None) => Err(failed.unwrap_or_else(|| no_known_era(config))),
        _ => Ok(Probed { eras, connection: None }),
    }
}

/// An era with the server's description of itself in it.
type Found = (Era, Raw);

/// A connection whose era is being found out.
struct Probing<'a> {
    config: &'a ServerConfig,
    options: &'a ConnectionOptions,
    connection: ServerConnection,
    events: tokio::sync::Mutex<mpsc::Receiver<ServerEvent>>,
}

impl<'a> Probing<'a> {
    async fn open(config: &'a ServerConfig, options: &'a ConnectionOptions, era: Era) -> Result<Self, ServerError> {
        let (sender, events) = mpsc::channel(MAX_EVENTS);
        let connection = ServerConnection::open(config, era, options, sender).await?;
        Ok(Self { config, options, connection, events: tokio::sync::Mutex::new(events) })
    }

    /// Asks for one era; `None` if the server doesn't support it.
    async fn ask_only(&self, era: Era, initialize: &Raw, deadline: Instant) -> Result<Option<Found>, ServerError> {
        let ask = async { Ok(self.ask(era, initialize).await?.map(|info| (era, info))) };
        self.until(deadline, ask).await
    }

    /// Asks for the modern era, and then for the legacy era in the same process.
    async fn find_era(&self, initialize: &Raw, deadline: Instant) -> Result<Option<Found>, ServerError> {
        self.until(deadline, async {
            let mut discover = pin!(self.ask(Era::Modern, initialize));
            let early = timeout(DISCOVER_TIMEOUT, &mut discover).await;
            let mut initialize = pin!(self.ask(Era::Legacy, initialize));
            let modern = |info| Some((Era::Modern, info));
            let legacy = |info| Some((Era::Legacy, info));
            match early {
                Ok(Ok(None)) => return Ok(initialize.await?.and_then(legacy)),
                Ok(answer) => return Ok(answer?.and_then(modern)),
                Err(_) => {}
            }
            tokio::select! {
                biased;
                answer = &mut discover => match answer? {
                    Some(info) => Ok(modern(info)),
                    None => Ok(initialize.await?.and_then(legacy)),
                },
                answer = &mut initialize => match answer? {
                    Some(info) => match timeout(REORDER_TIMEOUT, discover).await {
                        Ok(Ok(Some(info))) => Ok(modern(info)),
                        _ => Ok(legacy(info)),
                    },
                    None => Ok(discover.await?.and_then(modern)),
                },
            }
        })
        .await
    }

    /// The server's description of itself in this era; `None` if it doesn't support the era.
    async fn ask(&self, era: Era, initialize: &Raw) -> Result<Option<Raw>, ServerError> {
        let (method, params) = match era {
            Era::Legacy => ("initialize", initialize.clone()),
            Era::Modern => ("server/discover", discover()),
        };
        let outcome = self.connection.start(method, Some(params)).await?.outcome().await?;
        Ok(match outcome {
            Outcome::Result(info) if is_valid_answer(era, &info) => Some(info),
            Outcome::Result(_) | Outcome::Error(_) => None,
        })
    }

    /// Runs the questions until the deadline. Messages outside of them have no recipient yet.
    async fn until<T>(
        &self,
        deadline: Instant,
        questions: impl Future<Output = Result<T, ServerError>>,
    ) -> Result<T, ServerError> {
        let mut events = self.events.lock().await;
        let answers = timeout_at(deadline, questions);
        let ignore = async {
            while events.recv().await.is_some() {}
            std::future::pending::<()>().await;
        };
        tokio::select! {
            biased;
            answer = answers => answer.unwrap_or_else(|_| Err(self.silent())),
            () = ignore => Err(self.silent()),
            () = self.report_start() => Err(self.silent()),
        }
    }

    /// Logs that the server is still starting, with what it printed last. Doesn't return.
    async fn report_start(&self) {
        let begun = Instant::now();
        let mut wait = FIRST_REPORT;
        loop {
            tokio::time::sleep(wait).await;
            let (server, limit) = (&self.config.name, self.options.start_timeout_of(self.config));
            let seconds = begun.elapsed().as_secs();
            let stderr = self.connection.stderr_tail().pop().unwrap_or_default();
            match self.config.package_runner() {
                Some(runner) => tracing::info!(
                    server,
                    stderr,
                    "still starting after {seconds} s: {runner} may be downloading it (limit: {limit:?})"
                ),
                None => tracing::info!(server, stderr, "still starting after {seconds} s (limit: {limit:?})"),
            }
            wait = REPORT_INTERVAL;
        }
    }

    fn silent(&self) -> ServerError {
        ServerError::SlowStart {
            server: self.config.name.clone(),
            after: self.options.start_timeout_of(self.config),
            runner: self.config.package_runner().map(str::to_owned),
            stderr: self.connection.stderr_tail(),
        }
    }

    fn keep(self, era: Era) -> ProbedConnection {
        self.connection.set_use(era, era == Era::Modern || self.config.session == SessionMode::Shared);
        ProbedConnection { connection: self.connection, events: self.events.into_inner() }
    }

    /// Closes the connection without waiting for the process to exit, but it must be reaped.
    fn discard(self) {
        let (connection, mut events) = (self.connection, self.events.into_inner());
        tokio::spawn(async move {
            tokio::join!(connection.close(), async { while events.recv().await.is_some() {} });
        });
    }
}

fn discover() -> Raw {
    raw(&json!({"_meta": {
        meta::PROTOCOL_VERSION: MODERN_VERSION,
        meta::CLIENT_CAPABILITIES: {},
        meta::CLIENT_INFO: client_info(),
    }}))
}

fn client_info() -> serde_json::Value {
    json!({"name": "toolbus", "version": env!("CARGO_PKG_VERSION")})
}

fn is_valid_answer(era: Era, info: &Raw) -> bool {
    let Ok(info) = Members::parse(info.get()) else { return false };
    match era {
        Era::Legacy => info.text("protocolVersion").is_some(),
        Era::Modern => {
            let versions = info.get("supportedVersions").map(|versions| versions.get());
            let versions: Option<Vec<String>> = versions.and_then(|versions| serde_json::from_str(versions).ok());
            versions.is_some_and(|versions| versions.iter().any(|version| version == MODERN_VERSION))
        }
    }
}

fn no_known_era(config: &ServerConfig) -> ServerError {
    let reason = format!("no valid response to `initialize` or to `server/discover` of {MODERN_VERSION}");
    ServerError::BadMessage { server: config.name.clone(), reason }
}
