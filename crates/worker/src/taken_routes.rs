//! The servers that have answered requests for a URI or a method that no other server could be meant for. The next request for
//! the same goes to the same server, also when the manifest of another host speaks of it meanwhile.

use crate::view::{Upstream, View};
use hashbrown::HashMap;
use std::sync::Arc;
use toolbus_mcp::{Members, NameKey, Raw, routed_name};

/// Maximum number of remembered routes. A full table is cleared.
const MAX_ROUTES: usize = 20_000;

/// What a route leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RouteKey {
    /// A resource.
    Uri(String),
    /// URIs of the scheme that no manifest speaks of.
    Scheme(String),
    /// A method that the protocol does not define.
    Method(String),
}

impl RouteKey {
    /// The key of a request; `None` if it names neither.
    pub fn of(method: &str, params: Option<&Raw>) -> Option<Self> {
        match method.split('/').next().unwrap_or_default() {
            "resources" | "completion" => match routed_name(method, params) {
                Some(NameKey::Uri(uri)) => Some(Self::Uri(uri)),
                _ => None,
            },
            area if STANDARD_AREAS.contains(&area) => None,
            // The owner of a named item decides about a message of such a method.
            _ if Members::of(params).is_ok_and(|params| params.contains("name") || params.contains("uri")) => None,
            _ => Some(Self::Method(method.to_owned())),
        }
    }

    /// A hash, because a URI may be long.
    fn hash(&self) -> u128 {
        let (kind, text) = match self {
            Self::Uri(uri) => (0, uri),
            Self::Scheme(scheme) => (1, scheme),
            Self::Method(method) => (2, method),
        };
        xxhash_rust::xxh3::xxh3_128_with_seed(text.as_bytes(), kind)
    }
}

/// The first part of the methods that the protocol defines.
const STANDARD_AREAS: [&str; 8] =
    ["initialize", "ping", "server", "tools", "prompts", "logging", "tasks", "subscriptions"];

/// The routes that were taken.
#[derive(Default)]
pub struct TakenRoutes {
    servers: HashMap<u128, (String, String)>,
}

impl TakenRoutes {
    /// The server that was reached before, if it is still known.
    pub fn get<'a>(&self, view: &'a View, key: &RouteKey) -> Option<&'a Arc<Upstream>> {
        let (host, server) = self.servers.get(&key.hash())?;
        view.find(host, server)
    }

    /// Remembers that the server has answered. Of a pool, every member may answer the next request.
    pub fn insert(&mut self, key: &RouteKey, upstream: &Upstream) {
        if self.servers.len() >= MAX_ROUTES {
            self.servers.clear();
        }
        self.servers.insert(key.hash(), (upstream.shown_host().to_owned(), upstream.server().to_owned()));
    }
}
