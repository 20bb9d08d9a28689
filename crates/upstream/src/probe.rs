//! Which eras a server speaks. A stdio server may serve only the era of the first message that it gets, so each era is
//! asked of a process of its own, which is thrown away.

use crate::config::{ServerConfig, TransportConfig};
use crate::connection::ServerConnection;
use crate::error::ServerError;
use crate::options::ConnectionOptions;
use serde_json::json;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;
use toolbus_mcp::{Era, LATEST_LEGACY, MODERN_VERSION, Members, Outcome, Raw, meta, raw};

/// A server that is up answers at once that it does not know `server/discover`; some don't answer at all. One that is
/// slow to start gets more time.
const DISCOVER_PATIENCE: Duration = Duration::from_secs(5);
const MAX_EVENTS: usize = 64;

/// The eras of a server, each with the server's own words about itself. At least one is there.
#[derive(Debug, Clone)]
pub struct Eras {
    /// The result of `server/discover`.
    pub modern: Option<Raw>,
    /// The result of `initialize`, as it was answered to a client without capabilities.
    pub legacy: Option<Raw>,
}

impl Eras {
    pub fn speaks(&self, era: Era) -> bool {
        match era {
            Era::Modern => self.modern.is_some(),
            Era::Legacy => self.legacy.is_some(),
        }
    }
}

/// Asks the server, within the start timeout of the options (a little longer if it took most of it
/// to start). If the configuration names an era, only that one is asked.
pub async fn probe(config: &ServerConfig, options: &ConnectionOptions) -> Result<Eras, ServerError> {
    let deadline = Instant::now() + options.start_timeout;
    let mut eras = Eras { modern: None, legacy: None };
    let mut failed = None;
    let mut answered_after = None;
    // Legacy first: by how it starts and answers is seen how long to wait for an answer that may never come.
    for era in [Era::Legacy, Era::Modern] {
        if config.era.is_some_and(|only| only != era) {
            continue;
        }
        let started = Instant::now();
        let patience = match (answered_after, &config.transport) {
            (Some(usual), TransportConfig::Stdio { .. }) => {
                deadline.max(started + usual).min(started + DISCOVER_PATIENCE.max(usual * 3))
            }
            _ => deadline,
        };
        match ask(config, era, options, patience).await {
            Ok(Some(words)) => match era {
                Era::Legacy => {
                    eras.legacy = Some(words);
                    answered_after = Some(started.elapsed());
                }
                Era::Modern => eras.modern = Some(words),
            },
            Ok(None) => {}
            Err(error @ ServerError::Start { .. }) => return Err(error),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    match (&eras.modern, &eras.legacy) {
        (None, None) => Err(failed.unwrap_or_else(|| speaks_nothing(config))),
        _ => Ok(eras),
    }
}

/// What the server says about itself in that era; None if it declines.
async fn ask(
    config: &ServerConfig,
    era: Era,
    options: &ConnectionOptions,
    deadline: Instant,
) -> Result<Option<Raw>, ServerError> {
    let (events, mut ignored) = mpsc::channel(MAX_EVENTS);
    let ignoring = tokio::spawn(async move { while ignored.recv().await.is_some() {} });
    let connection = ServerConnection::open(config, era, options, events).await?;
    let (method, params) = match era {
        Era::Legacy => ("initialize", initialize()),
        Era::Modern => ("server/discover", discover()),
    };
    let asked = async { connection.start(method, Some(params)).await?.outcome().await };
    let answer = tokio::time::timeout_at(deadline, asked).await;
    let silent = || ServerError::Silent {
        server: config.name.clone(),
        after: options.start_timeout,
        stderr: connection.stderr_tail(),
    };
    let answer = answer.unwrap_or_else(|_| Err(silent()));
    // Nobody has to wait until the process is gone, but somebody has to see to it.
    tokio::spawn(async move {
        connection.close().await;
        ignoring.abort();
    });
    Ok(match answer? {
        Outcome::Result(words) if fits(era, &words) => Some(words),
        Outcome::Result(_) | Outcome::Error(_) => None,
    })
}

fn initialize() -> Raw {
    raw(&json!({"protocolVersion": LATEST_LEGACY, "capabilities": {}, "clientInfo": client_info()}))
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

fn fits(era: Era, words: &Raw) -> bool {
    let Ok(words) = Members::parse(words.get()) else { return false };
    match era {
        Era::Legacy => words.text("protocolVersion").is_some(),
        Era::Modern => {
            let versions = words.get("supportedVersions").map(|versions| versions.get());
            let versions: Option<Vec<String>> = versions.and_then(|versions| serde_json::from_str(versions).ok());
            versions.is_some_and(|versions| versions.iter().any(|version| version == MODERN_VERSION))
        }
    }
}

fn speaks_nothing(config: &ServerConfig) -> ServerError {
    let reason = format!("it answers neither `initialize` nor `server/discover` of {MODERN_VERSION}");
    ServerError::BadMessage { server: config.name.clone(), reason }
}
