//! Keeps the catalog entry of one server up to date: starts the server, reads its lists, reads them again when they
//! change, and restarts the server with backoff. Each server has its own task, so none delays another.

use super::Lists;
use crate::host::Host;
use crate::server::{Availability, Server};
use crate::translate::legacy_on_modern::ClientIdentity;
use crate::translate::{listen, server_has};
use crate::upstream::{Upstream, host_listen};
use serde_json::json;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use toolbus_mcp::{Era, ListKind, Members, Outcome, Raw, codes, empty_object, raw};
use toolbus_upstream::{CallEvent, Eras, ServerCall, ServerError, TransportConfig, probe};

/// After a run of this length, the backoff starts again at its minimum.
const GOOD_RUN: Duration = Duration::from_secs(30);

/// Why a server is down, with its last lines on stderr.
struct Failure {
    reason: String,
    stderr: Vec<String>,
}

impl From<ServerError> for Failure {
    fn from(error: ServerError) -> Self {
        let stderr = match &error {
            ServerError::Died { stderr, .. } | ServerError::Silent { stderr, .. } => stderr.clone(),
            _ => Vec::new(),
        };
        Self { reason: error.to_string(), stderr }
    }
}

/// Runs until the host shuts down.
pub async fn watch_server(host: Arc<Host>, server: Arc<Server>) {
    let limits = &host.options.limits;
    let mut backoff = limits.backoff;
    let mut last_reason = None;
    loop {
        let begun = Instant::now();
        let failure = tokio::select! {
            failure = watch_once(&host, &server) => failure,
            () = host.shutdown.cancelled() => return,
        };
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
                if let Err(failure) = reader.store_lists(&eras).await {
                    tracing::warn!(server = server.name(), reason = failure.reason, "could not read the lists");
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
async fn watch_once(host: &Arc<Host>, server: &Arc<Server>) -> Failure {
    match follow(host, server).await {
        Ok(never) => match never {},
        Err(failure) => failure,
    }
}

async fn follow(host: &Arc<Host>, server: &Arc<Server>) -> Result<std::convert::Infallible, Failure> {
    let known = match &*server.availability.borrow() {
        Availability::Known(eras) => Some(Arc::clone(eras)),
        _ => None,
    };
    let eras = match known {
        Some(eras) => eras,
        None => Arc::new(probe(&server.config, &host.options.connection).await?),
    };
    let (era, upstream) = open(host, server, &eras).await?;
    let mut changes = upstream.list_changes();
    let mut listening = Listening::start(&upstream, era).await;
    let reader = Reader { host, server, upstream: &upstream, era };
    loop {
        let read_at = Instant::now();
        changes.borrow_and_update();
        reader.store_lists(&eras).await?;
        server.availability.send_if_modified(|now| {
            let new = !matches!(now, Availability::Known(_));
            *now = Availability::Known(Arc::clone(&eras));
            new
        });
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return Err(ended(&upstream)) },
            changed = listening.changed(&upstream) => changed?,
            () = upstream.closed() => return Err(ended(&upstream)),
        }
        // Limits how often the lists of a server that keeps changing them are read.
        tokio::time::sleep_until(read_at + host.options.limits.list_interval).await;
    }
}

/// The host's own connection to a server: the shared one if there is one.
async fn open(host: &Arc<Host>, server: &Server, eras: &Eras) -> Result<(Era, Arc<Upstream>), Failure> {
    let (era, upstream) = if eras.speaks(Era::Modern) {
        (Era::Modern, server.modern_upstream(host, eras).await)
    } else if server.is_shared() {
        (Era::Legacy, server.shared_upstream(host).await)
    } else {
        (Era::Legacy, server.catalog_upstream(host).await)
    };
    match upstream {
        Ok(upstream) => Ok((era, upstream)),
        Err(crate::upstream::OpenError::Server(error)) => Err(error.into()),
        Err(refused) => Err(Failure { reason: refused.reason(), stderr: Vec::new() }),
    }
}

fn ended(upstream: &Upstream) -> Failure {
    let stderr = upstream.connection.stderr_tail();
    match upstream.connection.closed() {
        Some(error) => Failure { reason: error.to_string(), stderr },
        None => Failure { reason: "the connection ended".to_owned(), stderr },
    }
}

/// The host's own `subscriptions/listen`, if the server is modern and reports changes.
struct Listening(Option<ServerCall>);

impl Listening {
    async fn start(upstream: &Upstream, era: Era) -> Self {
        let params = (era == Era::Modern).then(|| host_listen(&upstream.handshake())).flatten();
        match params {
            Some(params) => Self(upstream.connection.start(listen::LISTEN, Some(params)).await.ok()),
            None => Self(None),
        }
    }

    /// Returns when a list has changed, or with the server's failure.
    async fn changed(&mut self, upstream: &Upstream) -> Result<(), Failure> {
        let Some(call) = &mut self.0 else { return std::future::pending().await };
        loop {
            match call.next().await {
                CallEvent::Notification { method, .. } if listen::is_listen_notification(&method) => return Ok(()),
                CallEvent::Notification { .. } => {}
                CallEvent::Request { id, method, .. } => upstream.answer_or_refuse(&id, &method).await,
                CallEvent::Done(Err(error)) => return Err(error.into()),
                // The server ended the stream in order. Listen again, and read the lists for changes in between.
                CallEvent::Done(Ok(Outcome::Result(_))) => {
                    *self = Self::start(upstream, Era::Modern).await;
                    return Ok(());
                }
                CallEvent::Done(Ok(Outcome::Error(_))) => {
                    self.0 = None;
                    return std::future::pending().await;
                }
            }
        }
    }
}

/// Reads lists page by page.
struct Reader<'a> {
    host: &'a Host,
    server: &'a Server,
    upstream: &'a Upstream,
    era: Era,
}

impl Reader<'_> {
    /// Reads all lists and puts them into the catalog.
    async fn store_lists(&self, eras: &Arc<Eras>) -> Result<(), Failure> {
        let _reading = self.server.reading.lock().await;
        let (lists, remarks) = self.read_all().await?;
        self.host.catalog.set_up(self.server.index, Arc::clone(eras), lists, remarks);
        Ok(())
    }

    async fn read_all(&self) -> Result<(Lists, Vec<String>), Failure> {
        let handshake = self.upstream.handshake();
        let (mut lists, mut remarks) = (Lists::default(), Vec::new());
        for kind in ListKind::ALL {
            if server_has(&handshake, kind.capability()) {
                let mut pages = Pages::new(kind, self.host.options.limits.max_items);
                self.read(&mut pages).await?;
                *lists.of_mut(kind) = pages.items;
                remarks.extend(pages.remark);
            }
        }
        Ok((lists, remarks))
    }

    async fn read(&self, pages: &mut Pages) -> Result<(), Failure> {
        while let Some(params) = pages.next_params() {
            match self.ask(pages.kind.method(), params).await? {
                Outcome::Result(page) => pages.take(&page),
                Outcome::Error(error) => pages.fail(&error),
            }
        }
        Ok(())
    }

    async fn ask(&self, method: &str, params: Raw) -> Result<Outcome, Failure> {
        let params = match self.era {
            Era::Legacy => params,
            Era::Modern => ClientIdentity::of_host().add_envelope(Some(&params), None).unwrap_or(params),
        };
        let limit = self.host.options.connection.start_timeout;
        let answer = async {
            let mut call = self.upstream.connection.start(method, Some(params)).await?;
            loop {
                match call.next().await {
                    CallEvent::Done(outcome) => return outcome,
                    CallEvent::Request { id, method, .. } => self.upstream.answer_or_refuse(&id, &method).await,
                    CallEvent::Notification { method, .. } => self.upstream.count_list_change(&method),
                }
            }
        };
        let silent = || {
            let stderr = self.upstream.connection.stderr_tail();
            ServerError::Silent { server: self.server.name().to_owned(), after: limit, stderr }
        };
        Ok(tokio::time::timeout(limit, answer).await.map_err(|_| silent())??)
    }
}

/// Maximum pages of one list. Empty pages would never reach the limit of items.
const MAX_PAGES: usize = 1000;

/// The pages of one list that have been read so far.
struct Pages {
    kind: ListKind,
    items: Vec<Raw>,
    max: usize,
    cursors: HashSet<String>,
    next: Option<Raw>,
    remark: Option<String>,
}

impl Pages {
    fn new(kind: ListKind, max: usize) -> Self {
        let next = Some(empty_object());
        Self { kind, items: Vec::new(), max, cursors: HashSet::new(), next, remark: None }
    }

    fn next_params(&mut self) -> Option<Raw> {
        self.next.take()
    }

    fn take(&mut self, page: &Raw) {
        let read = || {
            let members = Members::of(Some(page)).ok()?;
            let items: Vec<Raw> = serde_json::from_str(members.get(self.kind.items())?.get()).ok()?;
            let cursor = members.get("nextCursor").filter(|cursor| cursor.get() != "null").map(ToOwned::to_owned);
            Some((items, cursor))
        };
        let Some((items, cursor)) = read() else {
            return self.stop(format!("{} returned a malformed page", self.kind.method()));
        };
        self.items.extend(items);
        if self.items.len() > self.max {
            self.items.truncate(self.max);
            return self.stop(format!("{} has more than {} items; the rest is ignored", self.kind.method(), self.max));
        }
        let Some(cursor) = cursor else { return };
        if self.cursors.len() == MAX_PAGES {
            return self.stop(format!("{} has more than {MAX_PAGES} pages; the rest is ignored", self.kind.method()));
        }
        if !self.cursors.insert(cursor.get().to_owned()) {
            return self.stop(format!("{} returned the same cursor twice", self.kind.method()));
        }
        self.next = Some(raw(&json!({"cursor": cursor})));
    }

    /// A server may have resources without having resource templates.
    fn fail(&mut self, error: &Raw) {
        let code = Members::of(Some(error)).ok().and_then(|error| error.get("code")?.get().parse::<i64>().ok());
        if code != Some(codes::METHOD_NOT_FOUND) {
            self.stop(format!("{} failed: {error}", self.kind.method()));
        }
    }

    fn stop(&mut self, remark: String) {
        self.remark = Some(remark);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(from: usize, to: usize, cursor: Option<&str>) -> Raw {
        let tools: Vec<_> = (from..to).map(|n| json!({"name": format!("t{n}")})).collect();
        match cursor {
            Some(cursor) => raw(&json!({"tools": tools, "nextCursor": cursor})),
            None => raw(&json!({"tools": tools})),
        }
    }

    #[test]
    fn all_pages_are_read() {
        let mut pages = Pages::new(ListKind::Tools, 100);
        assert_eq!(pages.next_params().expect("a first page").get(), "{}");
        pages.take(&page(0, 2, Some("c1")));
        assert_eq!(pages.next_params().expect("a second page").get(), r#"{"cursor":"c1"}"#);
        pages.take(&page(2, 3, None));
        assert!(pages.next_params().is_none());
        assert_eq!((pages.items.len(), pages.remark), (3, None));
    }

    #[test]
    fn repeated_cursors_and_too_many_items_end_the_list() {
        let mut pages = Pages::new(ListKind::Tools, 100);
        let mut asked = 0;
        while pages.next_params().is_some() {
            asked += 1;
            pages.take(&page(0, 1, Some("same")));
        }
        assert_eq!(asked, 2);
        assert!(pages.remark.expect("a remark").contains("same cursor"));

        let mut pages = Pages::new(ListKind::Tools, 100);
        let mut asked = 0;
        while pages.next_params().is_some() {
            asked += 1;
            pages.take(&page(0, 60, Some(&asked.to_string())));
        }
        assert_eq!((asked, pages.items.len()), (2, 100));
    }

    #[test]
    fn the_number_of_pages_is_limited() {
        let mut pages = Pages::new(ListKind::Tools, 100);
        let mut read = 0;
        while pages.next_params().is_some() {
            pages.take(&raw(&json!({"tools": [], "nextCursor": read.to_string()})));
            read += 1;
            assert!(read <= MAX_PAGES + 1);
        }
        assert!(pages.remark.is_some_and(|remark| remark.contains("pages")));
    }

    #[test]
    fn a_missing_list_is_empty_and_a_malformed_one_is_reported() {
        let mut pages = Pages::new(ListKind::ResourceTemplates, 100);
        pages.next_params();
        pages.fail(&raw(&json!({"code": -32601, "message": "no"})));
        assert_eq!(pages.remark, None);
        pages.take(&raw(&json!({"resourceTemplates": 5})));
        assert!(pages.remark.is_some());
    }
}
