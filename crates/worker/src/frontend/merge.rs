//! Merged lists of several servers. All servers are queried concurrently; an unavailable or slow server is listed from
//! its manifest. Lists are merged page by page, and the cursor holds the cursors of the servers. Other members of the
//! pages, and of their `_meta`, are kept; if servers give different values, that of the first one.

use super::Frontend;
use super::call::Work;
use super::initialize::{SERVER_INFO, own_info};
use super::tasks::offer;
use super::upstream_call::{Purpose, UpstreamCall};
use crate::view::{Upstream, View};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures_util::future::join_all;
use serde_json::{Value, json};
use std::sync::Arc;
use toolbus_mcp::{Era, ListKind, Members, Outcome, Raw, RpcError, meta, raw};

/// A list method that can be merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listing {
    Items(ListKind),
    Tasks,
}

impl Listing {
    pub fn of_method(method: &str, era: Era) -> Option<Self> {
        let kind = ListKind::of_method(method).map(Self::Items);
        kind.or((method == "tasks/list" && era == Era::Legacy).then_some(Self::Tasks))
    }

    fn method(self) -> &'static str {
        match self {
            Self::Items(kind) => kind.method(),
            Self::Tasks => "tasks/list",
        }
    }

    fn items(self) -> &'static str {
        match self {
            Self::Items(kind) => kind.items(),
            Self::Tasks => "tasks",
        }
    }

    fn capability(self) -> &'static str {
        match self {
            Self::Items(kind) => kind.capability(),
            Self::Tasks => "tasks",
        }
    }
}

pub fn list(frontend: &Arc<Frontend>, view: &Arc<View>, era: Era, listing: Listing, params: Option<Raw>) -> Work {
    let (frontend, view) = (Arc::clone(frontend), Arc::clone(view));
    Work::Gather(Box::pin(async move {
        let requested = match decode_cursor(params.as_ref()) {
            Ok(Some(cursors)) => resumed_pages(&view, &cursors),
            Ok(None) => first_pages(&view, era, listing.capability()),
            Err(error) => return error.into(),
        };
        let pages = fetch_pages(&frontend, requested, era, listing, params.as_ref()).await;
        let ttl_ms = pages.iter().map(|(_, page)| page.ttl_ms.unwrap_or(0)).min();
        let rest = merge_rest(&pages);
        let (items, next) = merge_pages(&frontend, &view, listing, pages);
        Outcome::Result(to_result(era, listing, rest, &items, encode_cursor(&next), ttl_ms.unwrap_or(0), true))
    }))
}

/// The whole list of a server that is unavailable.
pub fn from_manifest(upstream: &Upstream, era: Era, kind: ListKind) -> Raw {
    let items = upstream.manifest().items(kind).to_vec();
    to_result(era, Listing::Items(kind), Members::default(), &items, None, 0, false)
}

#[derive(Default)]
pub struct Page {
    items: Vec<Raw>,
    next: Option<Raw>,
    ttl_ms: Option<u64>,
    /// The members that are not the page's own.
    rest: Members,
}

/// The members of a page that are merged by their meaning.
const MERGED: [&str; 4] = ["nextCursor", "ttlMs", "resultType", "cacheScope"];

/// A page to fetch: the server and the cursor of the page, `None` for the first.
pub type ServerPage = (Arc<Upstream>, Option<Raw>);
/// A page to fetch as encoded in a merged cursor: host, server, and the server's own cursor.
pub type ServerCursor = (String, String, Raw);

/// Decodes the client's cursor; `None` if the request has none.
pub fn decode_cursor(params: Option<&Raw>) -> Result<Option<Vec<ServerCursor>>, RpcError> {
    let invalid = || RpcError::invalid_params("Invalid cursor");
    let params = Members::of(params).map_err(|error| RpcError::invalid_params(error.to_string()))?;
    if !params.contains("cursor") {
        return Ok(None);
    }
    let text = params.text("cursor").ok_or_else(invalid)?;
    let decoded = URL_SAFE_NO_PAD.decode(text).map_err(|_| invalid())?;
    serde_json::from_slice(&decoded).map(Some).map_err(|_| invalid())
}

pub fn encode_cursor(cursors: &[ServerCursor]) -> Option<String> {
    (!cursors.is_empty()).then(|| URL_SAFE_NO_PAD.encode(raw(cursors).get()))
}

pub fn resumed_pages(view: &View, cursors: &[ServerCursor]) -> Vec<ServerPage> {
    let known = cursors.iter().filter_map(|(host, server, cursor)| {
        let upstream = view.find(host, server)?;
        Some((Arc::clone(upstream), Some(cursor.clone())))
    });
    known.collect()
}

fn first_pages(view: &View, era: Era, capability: &str) -> Vec<ServerPage> {
    let can = view.upstreams().iter().filter(|upstream| upstream.has_capability(era, capability));
    can.map(|upstream| (Arc::clone(upstream), None)).collect()
}

pub async fn fetch_pages(
    frontend: &Arc<Frontend>,
    requested: Vec<ServerPage>,
    era: Era,
    listing: Listing,
    params: Option<&Raw>,
) -> Vec<(Arc<Upstream>, Page)> {
    let pages = requested.into_iter().map(|(upstream, cursor)| async move {
        let mut page = fetch_page(frontend, &upstream, era, listing, params, cursor).await;
        if listing == Listing::Items(ListKind::Tools) && frontend.marks_tools(era, &upstream) {
            page.items = page.items.into_iter().map(offer::mark_task_support).collect();
        }
        (upstream, page)
    });
    join_all(pages).await
}

async fn fetch_page(
    frontend: &Arc<Frontend>,
    upstream: &Arc<Upstream>,
    era: Era,
    listing: Listing,
    params: Option<&Raw>,
    cursor: Option<Raw>,
) -> Page {
    let is_first = cursor.is_none();
    let fetched = async {
        let mut members = Members::of(params).unwrap_or_default().clone();
        match cursor {
            Some(cursor) => members.set("cursor", cursor),
            None => drop(members.remove("cursor")),
        }
        let params = (!members.is_empty()).then(|| members.into_raw());
        let call = UpstreamCall::start(frontend, None, upstream, era, (listing.method(), params), Purpose::Plain)
            .await
            .ok()?;
        match call.outcome(frontend).await {
            Outcome::Result(result) => parse_page(listing, &result),
            Outcome::Error(_) => None,
        }
    };
    let options = &frontend.worker.options;
    let timeout = if listing == Listing::Tasks { options.gather_patience } else { options.list_patience };
    let page = match upstream.lists_from_manifest() {
        true => None,
        false => tokio::time::timeout(timeout, fetched).await.ok().flatten(),
    };
    page.unwrap_or_else(|| match listing {
        Listing::Items(kind) if is_first => Page { items: upstream.manifest().items(kind).to_vec(), ..Page::default() },
        _ => Page::default(),
    })
}

fn parse_page(listing: Listing, result: &Raw) -> Option<Page> {
    let (result, items) = Members::with_items(result, listing.items()).ok()?;
    let items = items?;
    let next = result.get("nextCursor").filter(|next| next.get() != "null").map(ToOwned::to_owned);
    let ttl_ms = result.get("ttlMs").and_then(|ttl| ttl.get().parse().ok());
    let mut rest = result;
    MERGED.iter().chain(&[listing.items()]).for_each(|name| drop(rest.remove(name)));
    Some(Page { items, next, ttl_ms, rest })
}

/// The other members of all pages.
fn merge_rest(pages: &[(Arc<Upstream>, Page)]) -> Members {
    let (mut merged, mut merged_meta) = (Members::default(), Members::default());
    for (_, page) in pages {
        add_missing(&mut merged, &page.rest);
        add_missing(&mut merged_meta, Members::of(page.rest.get(meta::META)).unwrap_or_default());
    }
    merged.remove(meta::META);
    if !merged_meta.is_empty() {
        merged.set(meta::META, merged_meta.into_raw());
    }
    merged
}

fn add_missing(into: &mut Members, from: &Members) {
    for (name, value) in from.iter().filter(|(name, _)| !into.contains(name)).collect::<Vec<_>>() {
        into.set(name, value.clone());
    }
}

/// The visible items of all pages, and the cursors of the next pages.
pub fn merge_pages(
    frontend: &Frontend,
    view: &View,
    listing: Listing,
    pages: Vec<(Arc<Upstream>, Page)>,
) -> (Vec<Raw>, Vec<ServerCursor>) {
    let (mut items, mut next) = (Vec::new(), Vec::new());
    for (upstream, page) in pages {
        items.extend(page.items.into_iter().filter(|item| is_visible(frontend, view, listing, &upstream, item)));
        next.extend(page.next.map(|cursor| (upstream.host.clone(), upstream.server().to_owned(), cursor)));
    }
    (items, next)
}

fn is_visible(frontend: &Frontend, view: &View, listing: Listing, upstream: &Upstream, item: &Raw) -> bool {
    let members = Members::of(Some(item)).unwrap_or_default();
    match listing {
        Listing::Items(kind) => {
            let key = members.text(kind.key());
            key.is_some_and(|key| frontend.worker.claim(view, kind, key, upstream))
        }
        Listing::Tasks => {
            members.text("taskId").into_iter().for_each(|task| frontend.worker.remember_task(task, upstream));
            true
        }
    }
}

fn to_result(
    era: Era,
    listing: Listing,
    rest: Members,
    items: &[Raw],
    next: Option<String>,
    ttl_ms: u64,
    own: bool,
) -> Raw {
    let mut result = rest;
    result.set(listing.items(), raw(items));
    if let Some(next) = next {
        result.set("nextCursor", raw(&next));
    }
    if era == Era::Modern {
        let members = [("resultType", json!("complete")), ("ttlMs", ttl_ms.into()), ("cacheScope", json!("private"))];
        members.into_iter().for_each(|(name, value): (_, Value)| result.set(name, raw(&value)));
        if own {
            // An object, because it was merged from objects.
            result.edit(meta::META, |meta| meta.set(SERVER_INFO, raw(&own_info()))).ok();
        }
    }
    result.into_raw()
}
