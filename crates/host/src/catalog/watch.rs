//! Keeps the catalog entry of one server up to date: starts the server, reads its lists, reads them again when they
//! change, and restarts the server with backoff. Each server has its own task, so none delays another.

use super::reader::Reader;
use crate::host::Host;
use crate::open_error::OpenError;
use crate::server::{Availability, Server};
use crate::translate::listen;
use crate::upstream::{Upstream, host_listen};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::Instant;
use toolbus_mcp::{Era, Outcome};
use toolbus_upstream::{CallEvent, Eras, ServerConfig, ServerError, TransportConfig};

/// After a run of this length, the backoff starts again at its minimum.
const GOOD_RUN: Duration = Duration::from_secs(30);

/// Why a server is down, with its last lines on stderr.
struct Failure {
    reason: String,
    stderr: Vec<String>,
    /// It did not answer in time.
    is_silent: bool,
}

impl From<ServerError> for Failure {
    fn from(error: ServerError) -> Self {
        let stderr = match &error {
            ServerError::Died { stderr, .. }
            | ServerError::Silent { stderr, .. }
            | ServerError::SlowStart { stderr, .. } => stderr.clone(),
            _ => Vec::new(),
        };
        let is_silent = matches!(error, ServerError::Silent { .. } | ServerError::SlowStart { .. });
        Self { reason: error.to_string(), stderr, is_silent }
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Server(error) => error.into(),
            refused => Self { reason: refused.reason(), stderr: Vec::new(), is_silent: false },
        }
    }
}

/// Runs until the host shuts down.
pub async fn watch_server(host: Arc<Host>, server: Arc<Server>) {
    let limits = &host.options.limits;
    let mut backoff = limits.backoff;
    let mut last_reason = None;
    // Some servers hang after a first message that is not `initialize`, and can't be told from slow ones.
    let mut initialize_only = false;
    loop {
        let begun = Instant::now();
        let failure = tokio::select! {
            failure = watch_once(&host, &server, initialize_only) => failure,
            () = host.shutdown.cancelled() => return,
        };
        initialize_only = failure.is_silent && !initialize_only;
        // Each reason is logged once until it changes.
        if last_reason.as_ref() != Some(&failure.reason) {
            tracing::warn!(server = server.name(), reason = failure.reason, "a server is down");
            last_reason = Some(failure.reason.clone());
        }
        server.availability.send_if_modified(|now| {
            let unknown = !matches!(now, Availability::Known(_));
            if unknown {
                *now = Availability::Down(failure.reason.clone());
            }
            unknown
        });
        host.catalog.set_down(server.index, failure.reason, failure.stderr);
        if begun.elapsed() >= GOOD_RUN {
            backoff = limits.backoff;
        }
        tokio::select! {
            () = tokio::time::sleep(backoff) => {}
            () = host.shutdown.cancelled() => return,
        }
        backoff = (backoff * 2).min(limits.longest_backoff);
    }
}

/// Waits until the lists of all servers are known, for a while, and reads those of in-process servers again: that is only
/// a function call, and the program may have changed its tools since.
pub async fn refresh_lists(host: &Arc<Host>) {
    let refresh = async {
        for server in &host.servers {
            let Ok(eras) = server.eras(host).await else { continue };
            if matches!(server.config.transport, TransportConfig::InProcess(_))
                && let Ok((era, upstream)) = open(host, server, &eras).await
            {
                let reader = Reader { host, server, upstream: &upstream, era };
                if let Err(error) = reader.store_lists(&eras).await {
                    tracing::warn!(server = server.name(), %error, "could not read the lists");
                }
            }
        }
    };
    tokio::select! {
        () = refresh => {}
        () = tokio::time::sleep(host.options.limits.start_quiet) => {}
    }
}

/// Starts the server and follows its changes until it fails.
async fn watch_once(host: &Arc<Host>, server: &Arc<Server>, initialize_only: bool) -> Failure {
    match follow(host, server, initialize_only).await {
        Ok(never) => match never {},
        Err(failure) => failure,
    }
}

async fn follow(
    host: &Arc<Host>,
    server: &Arc<Server>,
    initialize_only: bool,
) -> Result<std::convert::Infallible, Failure> {
    let eras = match server.known_eras() {
        Some(eras) => eras,
        None if initialize_only && server.config.era.is_none() => {
            let config = ServerConfig { era: Some(Era::Legacy), ..server.config.clone() };
            server.probe(host, &config).await?
        }
        None => server.probe(host, &server.config).await?,
    };
    loop {
        let (era, upstream) = open(host, server, &eras).await?;
        let reader = Reader { host, server, upstream: &upstream, era };
        tokio::select! {
            biased;
            failure = count_changes(&upstream, era) => return Err(failure),
            followed = keep_up_to_date(reader, &eras) => followed?,
        }
    }
}

/// Reads the lists whenever they have changed. Returns without a failure once the lists of a connection that a client has
/// taken over may differ from those of a new one: the client's calls may have changed them.
async fn keep_up_to_date(reader: Reader<'_>, eras: &Arc<Eras>) -> Result<(), Failure> {
    let Reader { host, server, upstream, .. } = reader;
    let mut changes = upstream.list_changes();
    loop {
        let read_at = Instant::now();
        changes.borrow_and_update();
        let eras = server.known_eras().unwrap_or_else(|| Arc::clone(eras));
        match reader.store_lists(&eras).await {
            Err(_) if upstream.is_taken_over() => return Ok(()),
            stored => stored?,
        }
        server.availability.send_if_modified(|now| {
            let new = !matches!(now, Availability::Known(_));
            if new {
                *now = Availability::Known(eras);
            }
            new
        });
        let is_open = tokio::select! {
            changed = changes.changed() => changed.is_ok(),
            () = upstream.closed() => false,
        };
        match (upstream.is_taken_over(), is_open) {
            (true, _) => return Ok(()),
            (false, true) => server.lists_vary.store(true, Ordering::Relaxed),
            (false, false) => return Err(ended(upstream)),
        }
        // Limits how often the lists of a server that keeps changing them are read.
        tokio::time::sleep_until(read_at + host.options.limits.list_interval).await;
    }
}

/// The host's own connection to a server: the shared one if there is one.
async fn open(host: &Arc<Host>, server: &Server, eras: &Eras) -> Result<(Era, Arc<Upstream>), Failure> {
    Ok(if eras.speaks(Era::Modern) {
        (Era::Modern, server.modern_upstream(host, eras).await?)
    } else if server.is_shared() {
        (Era::Legacy, server.shared_upstream(host).await?)
    } else {
        (Era::Legacy, server.spare_upstream(host).await?)
    })
}

fn ended(upstream: &Upstream) -> Failure {
    let stderr = upstream.connection.stderr_tail();
    match upstream.connection.closed() {
        Some(error) => Failure { reason: error.to_string(), stderr, is_silent: false },
        None => Failure { reason: "the connection ended".to_owned(), stderr, is_silent: false },
    }
}

/// Counts the changes that a modern server reports on the host's own `subscriptions/listen`, at once: a call must not be sent
/// by an outdated list while the catalog waits to read the next one. Returns when the server fails.
async fn count_changes(upstream: &Upstream, era: Era) -> Failure {
    let params = (era == Era::Modern).then(|| host_listen(&upstream.handshake())).flatten();
    let Some(params) = params else { return std::future::pending().await };
    while let Ok(mut call) = upstream.connection.start(listen::LISTEN, Some(params.clone())).await {
        loop {
            match call.next().await {
                CallEvent::Notification { method, .. } => upstream.count_list_change(&method),
                CallEvent::Request { id, method, .. } => upstream.answer_or_refuse(&id, &method).await,
                CallEvent::Done(Err(error)) => return error.into(),
                // The server ended the stream in order. Listen again, and read the lists for changes in between.
                CallEvent::Done(Ok(Outcome::Result(_))) => break,
                CallEvent::Done(Ok(Outcome::Error(_))) => return std::future::pending().await,
            }
        }
        upstream.assume_list_change();
    }
    std::future::pending().await
}
