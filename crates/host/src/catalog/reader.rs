//! Reads the lists of a server page by page, over one connection.

use super::Lists;
use crate::host::Host;
use crate::pins::ListedTools;
use crate::server::Server;
use crate::translate::legacy_on_modern::ClientIdentity;
use crate::translate::server_has;
use crate::upstream::Upstream;
use hashbrown::HashSet;
use serde_json::json;
use std::sync::Arc;
use tokio::time::Instant;
use toolbus_mcp::{Era, ListKind, Members, Outcome, Raw, codes, empty_object, raw};
use toolbus_upstream::{CallEvent, Eras, ServerError, ServerEvent};

/// Reads lists over a connection in its era.
pub struct Reader<'a> {
    pub host: &'a Host,
    pub server: &'a Server,
    pub upstream: &'a Upstream,
    pub era: Era,
}

/// What a connection listed, and what it has to be compared with.
pub struct KnownTools {
    listed: Arc<ListedTools>,
    read_at: Instant,
    /// The list changes that the server had reported when the list was requested.
    changes: u64,
    /// The transport connections that had been opened when the list was complete.
    opened: u64,
}

impl KnownTools {
    fn new(listed: ListedTools, changes: u64, upstream: &Upstream) -> Self {
        let (listed, read_at) = (Arc::new(listed), Instant::now());
        Self { listed, read_at, changes, opened: upstream.connection.connections_opened() }
    }

    /// Whether the next call reaches the process that gave the list, and the list has not changed as far as is known.
    fn is_current(&self, upstream: &Upstream) -> bool {
        let connection = &upstream.connection;
        self.changes == upstream.count_of_list_changes()
            && self.opened == connection.connections_opened()
            && !connection.would_connect()
    }
}

impl Reader<'_> {
    /// Reads all lists and puts them into the catalog.
    pub async fn store_lists(&self, eras: &Arc<Eras>) -> Result<(), ServerError> {
        let _reading = self.server.reading.lock().await;
        let (mut lists, mut remarks) = (Lists::default(), Vec::new());
        for kind in ListKind::ALL {
            if !server_has(&self.upstream.handshake(), kind.capability()) {
                continue;
            }
            let pages = match kind {
                ListKind::Tools => self.read_tools(&mut *self.upstream.tools.lock().await).await?,
                _ => self.read(kind).await?,
            };
            *lists.of_mut(kind) = pages.items;
            lists.rest.extend(pages.rest.map(|rest| (kind, rest)));
            remarks.extend(pages.remark);
        }
        self.host.catalog.set_up(self.server.index, Arc::clone(eras), lists, remarks);
        Ok(())
    }

    /// The tools that this connection lists, for a call of one of them. They are read before the first call on the
    /// connection and again after a change. A server need not report that it has a new tool, so a list without the tool is
    /// read again, but not more often than the catalog would.
    pub async fn listed_tools(&self, tool: &str) -> Result<Arc<ListedTools>, ServerError> {
        let mut known = self.upstream.tools.lock().await;
        let interval = self.host.options.limits.list_interval;
        let is_usable = |known: &&KnownTools| {
            known.is_current(self.upstream) && (known.listed.contains(tool) || known.read_at.elapsed() < interval)
        };
        if let Some(known) = known.as_ref().filter(is_usable) {
            return Ok(Arc::clone(&known.listed));
        }
        let limit = self.host.options.connection.start_timeout;
        match tokio::time::timeout(limit, self.read_tools(&mut known)).await {
            Ok(read) => read?,
            Err(_) => return Err(self.silent()),
        };
        Ok(known.as_ref().map(|known| Arc::clone(&known.listed)).unwrap_or_default())
    }

    /// Reads the tools, and has their definitions compared with the pins.
    async fn read_tools(&self, known: &mut Option<KnownTools>) -> Result<Pages, ServerError> {
        let changes = self.upstream.count_of_list_changes();
        let pages = self.read(ListKind::Tools).await?;
        let listed = self.host.options.pins.inspect((&self.server.config).into(), Some(self.era), &pages.items);
        *known = Some(KnownTools::new(listed, changes, self.upstream));
        Ok(pages)
    }

    async fn read(&self, kind: ListKind) -> Result<Pages, ServerError> {
        let mut pages = Pages::new(kind, self.host.options.limits.max_items);
        while let Some(params) = pages.next_params() {
            match self.ask(kind.method(), params).await? {
                Outcome::Result(page) => pages.take(&page),
                Outcome::Error(error) => pages.fail(&error),
            }
        }
        Ok(pages)
    }

    async fn ask(&self, method: &str, params: Raw) -> Result<Outcome, ServerError> {
        let params = match self.era {
            Era::Legacy => params,
            Era::Modern => ClientIdentity::of_host().add_envelope(Some(&params), None).unwrap_or(params),
        };
        let limit = self.host.options.connection.start_timeout;
        let answer = async {
            let mut call = self.upstream.connection.start(method, Some(params)).await?;
            loop {
                // A message of the server that names no call was not caused by this request: it is for the session.
                let event = match call.next().await {
                    CallEvent::Done(outcome) => return outcome,
                    CallEvent::Request { id, method, params } => ServerEvent::Request { id, method, params },
                    CallEvent::Notification { method, params } => ServerEvent::Notification { method, params },
                };
                self.upstream.on_event(self.host, self.server.name(), event).await;
            }
        };
        tokio::time::timeout(limit, answer).await.unwrap_or_else(|_| Err(self.silent()))
    }

    fn silent(&self) -> ServerError {
        let (server, after) = (self.server.name().to_owned(), self.host.options.connection.start_timeout);
        ServerError::Silent { server, after, stderr: self.upstream.connection.stderr_tail() }
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
    /// The other members of the first page.
    rest: Option<Raw>,
}

impl Pages {
    fn new(kind: ListKind, max: usize) -> Self {
        let next = Some(empty_object());
        Self { kind, items: Vec::new(), max, cursors: HashSet::new(), next, remark: None, rest: None }
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
        self.rest.get_or_insert_with(|| {
            let mut members = Members::of(Some(page)).unwrap_or_default().clone();
            [self.kind.items(), "nextCursor"].iter().for_each(|name| drop(members.remove(name)));
            members.into_raw()
        });
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
