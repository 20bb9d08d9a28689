//! Detects which eras a server supports. A stdio server may support only the era of its first message, so each era is
//! probed in a process of its own, which is then discarded.

use crate::config::{ServerConfig, TransportConfig};
use crate::connection::ServerConnection;
use crate::error::ServerError;
use crate::options::ConnectionOptions;
use serde_json::json;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;
use toolbus_mcp::{Era, LATEST_LEGACY, MODERN_VERSION, Members, Outcome, Raw, meta, raw};

/// Usually a running server rejects `server/discover` at once if it doesn't know it; some don't answer at all. A server
/// that is slow to start gets more time.
const DISCOVER_TIMEOUT: Duration = Duration::from_secs(5);
const MAX_EVENTS: usize = 64;

/// The eras that a server supports, each with the server's description of itself. At least one is set.
#[derive(Debug, Clone)]
pub struct Eras {
    /// The result of `server/discover`.
    pub modern: Option<Raw>,
    /// The result of `initialize`, for a client without capabilities.
    pub legacy: Option<Raw>,
}

impl Eras {
    /// Whether the server supports the era.
    pub fn speaks(&self, era: Era) -> bool {
        match era {
            Era::Modern => self.modern.is_some(),
            Era::Legacy => self.legacy.is_some(),
        }
    }
}

/// Probes the server within the start timeout of the options (slightly longer if starting took most of it). If the
/// configuration sets an era, only that one is probed.
pub async fn probe(config: &ServerConfig, options: &ConnectionOptions) -> Result<Eras, ServerError> {
    let deadline = Instant::now() + options.start_timeout;
    let mut eras = Eras { modern: None, legacy: None };
    let mut failed = None;
    let mut answered_after = None;
    // Legacy first: its start and response times bound the wait for a `server/discover` response that may never come.
    for era in [Era::Legacy, Era::Modern] {
        if config.era.is_some_and(|only| only != era) {
            continue;
        }
        let started = Instant::now();
        let era_deadline = match (answered_after, &config.transport) {
            (Some(startup), TransportConfig::Stdio { .. }) => {
                deadline.max(started + startup).min(started + DISCOVER_TIMEOUT.max(startup * 3))
            }
            _ => deadline,
        };
        match probe_era(config, era, options, era_deadline).await {
            Ok(Some(info)) => match era {
                Era::Legacy => {
                    eras.legacy = Some(info);
                    answered_after = Some(started.elapsed());
                }
                Era::Modern => eras.modern = Some(info),
            },
            Ok(None) => {}
            Err(error @ ServerError::Start { .. }) => return Err(error),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    match (&eras.modern, &eras.legacy) {
        (None, None) => Err(failed.unwrap_or_else(|| no_known_era(config))),
        _ => Ok(eras),
    }
}

/// The server's description of itself in this era; `None` if it doesn't support the era.
async fn probe_era(
    config: &ServerConfig,
    era: Era,
    options: &ConnectionOptions,
    deadline: Instant,
) -> Result<Option<Raw>, ServerError> {
    let (events, mut ignored) = mpsc::channel(MAX_EVENTS);
    let drain = tokio::spawn(async move { while ignored.recv().await.is_some() {} });
    let connection = ServerConnection::open(config, era, options, events).await?;
    let (method, params) = match era {
        Era::Legacy => ("initialize", initialize()),
        Era::Modern => ("server/discover", discover()),
    };
    let request = async { connection.start(method, Some(params)).await?.outcome().await };
    let answer = tokio::time::timeout_at(deadline, request).await;
    let silent = || ServerError::Silent {
        server: config.name.clone(),
        after: options.start_timeout,
        stderr: connection.stderr_tail(),
    };
    let answer = answer.unwrap_or_else(|_| Err(silent()));
    // The probe doesn't wait for the process to exit, but it must be reaped.
    tokio::spawn(async move {
        connection.close().await;
        drain.abort();
    });
    Ok(match answer? {
        Outcome::Result(info) if is_valid_answer(era, &info) => Some(info),
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
