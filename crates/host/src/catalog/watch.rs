//! Keeps the catalog's view of one server true: brings the server up, reads its lists, reads them again when they change,
//! and tries again when the server is down. Nothing that one server does here can hold up another.

use super::Lists;
use crate::host::Host;
use crate::link::{Link, host_listen};
use crate::server::{Availability, Server};
use crate::translate::legacy_on_modern::Introduction;
use crate::translate::{listen, server_has};
use serde_json::json;
use serde_json::value::RawValue;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use toolbus_mcp::{Era, ListKind, Members, Outcome, Raw, codes, empty_object, raw};
use toolbus_upstream::{CallEvent, Eras, ServerCall, ServerError, probe};

/// A run that lasted this long was a good one; the next failure starts with the shortest wait again.
const GOOD_RUN: Duration = Duration::from_secs(30);

/// Why a server is down, with its last words.
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
        // Said once, and again when there is something new to say.
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

/// Brings the server up and follows its changes until it is down.
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
    let (era, link) = open(host, server, &eras).await?;
    let mut changes = link.list_changes();
    let mut listening = Listening::start(&link, era).await;
    let reader = Reader { host, server, link: &link, era };
    loop {
        let read_at = Instant::now();
        changes.borrow_and_update();
        let (lists, remarks) = reader.read_all().await?;
        host.catalog.set_up(server.index, Arc::clone(&eras), lists, remarks);
        server.availability.send_if_modified(|now| {
            let new = !matches!(now, Availability::Known(_));
            *now = Availability::Known(Arc::clone(&eras));
            new
        });
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return Err(ended(&link)) },
            news = listening.changed(&link) => news?,
            () = link.closed() => return Err(ended(&link)),
        }
        // A server that changes its lists in a loop is read once a second all the same.
        tokio::time::sleep_until(read_at + host.options.limits.list_interval).await;
    }
}

/// The connection on which the host itself looks at a server: a shared one where that is as good.
async fn open(host: &Arc<Host>, server: &Server, eras: &Eras) -> Result<(Era, Arc<Link>), Failure> {
    let (era, link) = if eras.speaks(Era::Modern) {
        (Era::Modern, server.modern_link(host, eras).await)
    } else if server.is_shared() {
        (Era::Legacy, server.shared_link(host).await)
    } else {
        (Era::Legacy, server.catalog_link(host).await)
    };
    match link {
        Ok(link) => Ok((era, link)),
        Err(crate::link::OpenError::Server(error)) => Err(error.into()),
        Err(refused) => Err(Failure { reason: refused.reason(), stderr: Vec::new() }),
    }
}

fn ended(link: &Link) -> Failure {
    let stderr = link.connection.stderr_tail();
    match link.connection.closed() {
        Some(error) => Failure { reason: error.to_string(), stderr },
        None => Failure { reason: "the connection ended".to_owned(), stderr },
    }
}

/// The host's own `subscriptions/listen`, where the server is modern and has something to tell.
struct Listening(Option<ServerCall>);

impl Listening {
    async fn start(link: &Link, era: Era) -> Self {
        let params = (era == Era::Modern).then(|| host_listen(&link.hello())).flatten();
        match params {
            Some(params) => Self(link.connection.start(listen::LISTEN, Some(params)).await.ok()),
            None => Self(None),
        }
    }

    /// Returns when a list has changed, or with the failure of the server.
    async fn changed(&mut self, link: &Link) -> Result<(), Failure> {
        let Some(call) = &mut self.0 else { return std::future::pending().await };
        loop {
            match call.next().await {
                CallEvent::Notification { method, .. } if listen::is_news(&method) => return Ok(()),
                CallEvent::Notification { .. } => {}
                CallEvent::Request { id, method, .. } => link.answer_or_refuse(&id, &method).await,
                CallEvent::Done(Err(error)) => return Err(error.into()),
                // The server has ended the stream in order; what changed meanwhile is read, and listened to anew.
                CallEvent::Done(Ok(Outcome::Result(_))) => {
                    *self = Self::start(link, Era::Modern).await;
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
    link: &'a Link,
    era: Era,
}

impl Reader<'_> {
    async fn read_all(&self) -> Result<(Lists, Vec<String>), Failure> {
        let hello = self.link.hello();
        let (mut lists, mut remarks) = (Lists::default(), Vec::new());
        for kind in ListKind::ALL {
            if server_has(&hello, kind.capability()) {
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
            Era::Modern => Introduction::of_host().envelop(Some(&params), None).unwrap_or(params),
        };
        let limit = self.host.options.connection.start_timeout;
        let answer = async {
            let mut call = self.link.connection.start(method, Some(params)).await?;
            loop {
                match call.next().await {
                    CallEvent::Done(outcome) => return outcome,
                    CallEvent::Request { id, method, .. } => self.link.answer_or_refuse(&id, &method).await,
                    CallEvent::Notification { method, .. } => self.link.count_list_change(&method),
                }
            }
        };
        let silent = || {
            let stderr = self.link.connection.stderr_tail();
            ServerError::Silent { server: self.server.name().to_owned(), after: limit, stderr }
        };
        Ok(tokio::time::timeout(limit, answer).await.map_err(|_| silent())??)
    }
}

/// The pages of one list, as far as they are read.
/// Pages of one list. Empty ones never reach the limit of items.
const MOST_PAGES: usize = 1000;

struct Pages {
    kind: ListKind,
    items: Vec<Raw>,
    most: usize,
    cursors: HashSet<String>,
    next: Option<Raw>,
    remark: Option<String>,
}

impl Pages {
    fn new(kind: ListKind, most: usize) -> Self {
        let next = Some(empty_object());
        Self { kind, items: Vec::new(), most, cursors: HashSet::new(), next, remark: None }
    }

    fn next_params(&mut self) -> Option<Raw> {
        self.next.take()
    }

    fn take(&mut self, page: &RawValue) {
        let read = || {
            let members = Members::of(Some(page)).ok()?;
            let items: Vec<Raw> = serde_json::from_str(members.get(self.kind.items())?.get()).ok()?;
            let cursor = members.get("nextCursor").filter(|cursor| cursor.get() != "null").map(ToOwned::to_owned);
            Some((items, cursor))
        };
        let Some((items, cursor)) = read() else {
            return self.stop(format!("a page of {} makes no sense", self.kind.method()));
        };
        self.items.extend(items);
        if self.items.len() > self.most {
            self.items.truncate(self.most);
            return self.stop(format!(
                "{} has more than {} items; the rest is left out",
                self.kind.method(),
                self.most
            ));
        }
        let Some(cursor) = cursor else { return };
        if self.cursors.len() == MOST_PAGES {
            return self.stop(format!("{} has more than {MOST_PAGES} pages; the rest is left out", self.kind.method()));
        }
        if !self.cursors.insert(cursor.get().to_owned()) {
            return self.stop(format!("{} gave the same cursor twice", self.kind.method()));
        }
        self.next = Some(raw(&json!({"cursor": cursor})));
    }

    /// A server may well have resources and no templates of them.
    fn fail(&mut self, error: &RawValue) {
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
    fn a_server_that_pages_for_ever_is_stopped() {
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
    fn pages_without_end_come_to_an_end() {
        let mut pages = Pages::new(ListKind::Tools, 100);
        let mut read = 0;
        while pages.next_params().is_some() {
            pages.take(&raw(&json!({"tools": [], "nextCursor": read.to_string()})));
            read += 1;
            assert!(read <= MOST_PAGES + 1);
        }
        assert!(pages.remark.is_some_and(|remark| remark.contains("pages")));
    }

    #[test]
    fn a_list_that_is_not_there_is_empty_and_a_broken_one_is_told() {
        let mut pages = Pages::new(ListKind::ResourceTemplates, 100);
        pages.next_params();
        pages.fail(&raw(&json!({"code": -32601, "message": "no"})));
        assert_eq!(pages.remark, None);
        pages.take(&raw(&json!({"resourceTemplates": 5})));
        assert!(pages.remark.is_some());
    }
}
