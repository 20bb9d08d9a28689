//! The servers of all hosts that the worker may use, in a fixed order. With a single server the worker is transparent;
//! with several it merges their lists and routes requests by name. The hosts of a pool count as one host.

mod meant;
pub mod params;
pub mod pool;
mod routes;

pub use routes::scheme;

use crate::bus::HostEntry;
use pool::Pool;
use routes::Routes;
use std::sync::{Arc, OnceLock};
use toolbus_mcp::{Era, HostManifest, ListKind, Members, NameKey, Raw, ServerManifest, ServerState, meta};

/// The known servers, in the broker's order of hosts (by their first announcement), then in the order of the host's
/// configuration.
pub struct View {
    upstreams: Vec<Arc<Upstream>>,
    /// Differences between the members of pools, one sentence each.
    pub problems: Vec<String>,
    routes: OnceLock<Routes>,
}

/// One server behind one host, or behind the hosts of a pool.
#[derive(Debug)]
pub struct Upstream {
    /// The name of the host or pool.
    pub host: String,
    /// When the host disconnected, in milliseconds since the Unix epoch; `None` while it is connected.
    pub away_since_ms: Option<u64>,
    manifest: Arc<HostManifest>,
    /// The index of the server in the manifest.
    server_index: usize,
    /// The index of the upstream in the view.
    pub index: usize,
    /// Whether the worker was started for this host alone.
    is_chosen: bool,
    /// The pool that the host is a member of.
    pub member_of: Option<String>,
    /// The hosts behind the server of a pool.
    pub pool: Option<Pool>,
}

impl View {
    /// A view of all hosts, or of the host or pool named `only`.
    pub fn new(hosts: &[HostEntry], only: Option<&str>) -> Self {
        let is_chosen = only.is_some();
        let mut view = Self { upstreams: Vec::new(), problems: Vec::new(), routes: OnceLock::new() };
        let is_alone = |host: &HostEntry| host.manifest.pool.is_none() || only == Some(&*host.name);
        for (position, host) in hosts.iter().enumerate() {
            if is_alone(host) {
                if only.is_none_or(|only| only == host.name) {
                    let servers = 0..host.manifest.servers.len();
                    let first = view.upstreams.len();
                    let of_host =
                        servers.map(|server| Arc::new(Upstream::of_host(host, server, first + server, is_chosen)));
                    view.upstreams.extend(of_host);
                }
                continue;
            }
            let Some(pool) = host.manifest.pool.as_deref().filter(|pool| only.is_none_or(|only| only == *pool)) else {
                continue;
            };
            let is_member = |host: &&HostEntry| host.manifest.pool.as_deref() == Some(pool);
            // The pool stands at the place of its first host.
            if !hosts[..position].iter().any(|earlier| is_member(&earlier)) {
                let members: Vec<&HostEntry> = hosts.iter().filter(is_member).collect();
                let (upstreams, problems) = pool::upstreams(pool, &members, view.upstreams.len(), is_chosen);
                view.upstreams.extend(upstreams);
                view.problems.extend(problems);
            }
        }
        view
    }

    /// The only server, for which the worker is a transparent proxy; `None` if there are none or several, or if the
    /// names of the server are limited, because then its lists have to be filtered.
    pub fn sole(&self) -> Option<&Arc<Upstream>> {
        match &self.upstreams[..] {
            [sole] if sole.may_offer_everything() => Some(sole),
            _ => None,
        }
    }

    /// All servers.
    pub fn upstreams(&self) -> &[Arc<Upstream>] {
        &self.upstreams
    }

    /// The server with this name at this host or pool.
    pub fn find(&self, host: &str, server: &str) -> Option<&Arc<Upstream>> {
        let members = self.upstreams.iter().filter_map(|upstream| upstream.pool.as_ref()).flat_map(Pool::members);
        self.upstreams.iter().chain(members).find(|upstream| upstream.is(host, server))
    }

    /// The server that owns the name according to the manifests. Always `None` for tasks, which no manifest lists.
    pub fn owner(&self, name: &NameKey) -> Option<&Arc<Upstream>> {
        self.routes().owner(name).map(|index| &self.upstreams[index])
    }

    /// The first server with URIs of the same scheme, for a URI that no manifest speaks of.
    pub fn owner_of_scheme(&self, uri: &str) -> Option<&Arc<Upstream>> {
        self.routes().owner_of_scheme(uri).map(|index| &self.upstreams[index])
    }

    /// The server that owns the list item according to the manifests.
    pub fn owner_of_item(&self, kind: ListKind, key: &str) -> Option<&Arc<Upstream>> {
        self.routes().owner_of_item(kind, key).map(|index| &self.upstreams[index])
    }

    /// The arguments of the tool that a modern HTTP client has to mirror in headers.
    pub fn param_headers(&self, tool: &str) -> Option<&[params::ParamHeader]> {
        self.routes().param_headers(tool)
    }

    /// The servers whose list of that kind differs from the earlier view, also those that it lacks or that are gone.
    pub fn changed_servers<'a>(&'a self, earlier: &'a Self, kind: ListKind) -> Vec<&'a Arc<Upstream>> {
        let items = |view: &'a Self, upstream: &Upstream| {
            let known = view.find(&upstream.host, upstream.server());
            known.into_iter().flat_map(move |known| known.manifest().items(kind)).map(|item| item.get())
        };
        let is_gone = |upstream: &&Arc<Upstream>| self.find(&upstream.host, upstream.server()).is_none();
        let all = self.upstreams.iter().chain(earlier.upstreams.iter().filter(is_gone));
        all.filter(|upstream| !items(self, upstream).eq(items(earlier, upstream))).collect()
    }

    fn routes(&self) -> &Routes {
        self.routes.get_or_init(|| Routes::new(&self.upstreams))
    }
}

impl Upstream {
    fn of_host(host: &HostEntry, server_index: usize, index: usize, is_chosen: bool) -> Self {
        let (manifest, away_since_ms) = (Arc::clone(&host.manifest), host.away_since_ms);
        let (host, member_of) = (host.name.clone(), None);
        Self { host, away_since_ms, manifest, server_index, index, is_chosen, member_of, pool: None }
    }

    /// The name under which the client's view has the server: that of the pool, if the host is a member of one.
    pub fn shown_host(&self) -> &str {
        self.member_of.as_deref().unwrap_or(&self.host)
    }

    /// Whether the host stops.
    pub fn is_draining(&self) -> bool {
        self.manifest.draining
    }

    /// Whether its lists are answered from the manifest: it can't answer now, or the members of the pool have different
    /// lists.
    pub fn lists_from_manifest(&self) -> bool {
        self.is_out() || self.is_mixed()
    }

    fn is_mixed(&self) -> bool {
        self.pool.as_ref().is_some_and(|pool| !pool.is_uniform())
    }

    /// The server's part of the host manifest.
    pub fn manifest(&self) -> &ServerManifest {
        &self.manifest.servers[self.server_index]
    }

    /// The name of the server.
    pub fn server(&self) -> &str {
        &self.manifest().name
    }

    /// True if the server can't answer now, because its host is away, or the server is down or starting. Lists are then
    /// answered from the manifest.
    pub fn is_out(&self) -> bool {
        self.away_since_ms.is_some() || self.manifest().state != ServerState::Up
    }

    /// Whether the server is being started, and nothing is known about it from earlier.
    pub fn is_unknown(&self) -> bool {
        self.manifest().state == ServerState::Starting && self.greeting(Era::Modern).is_none()
    }

    /// Whether the server is known to speak only the legacy era.
    pub fn is_legacy_only(&self) -> bool {
        self.manifest().discover.is_none() && self.manifest().initialize.is_some()
    }

    /// The server's `initialize` or `server/discover` result, preferably of the given era.
    pub fn greeting(&self, era: Era) -> Option<&Raw> {
        let manifest = self.manifest();
        match era {
            Era::Legacy => manifest.initialize.as_ref().or(manifest.discover.as_ref()),
            Era::Modern => manifest.discover.as_ref().or(manifest.initialize.as_ref()),
        }
    }

    /// Whether the server declares the capability. Assumed if its capabilities are unknown.
    pub fn has_capability(&self, era: Era, name: &str) -> bool {
        let Some(handshake) = self.greeting(era) else { return true };
        let declared = || {
            let handshake = Members::of(Some(handshake)).ok()?;
            Members::of(handshake.get("capabilities")).ok()?.contains(name).then_some(())
        };
        declared().is_some()
    }

    /// Whether the server has tasks of its own in that era. Assumed if its capabilities are unknown.
    pub fn has_own_tasks(&self, era: Era) -> bool {
        self.greeting(era).is_none() || self.declares_tasks(era)
    }

    /// Whether the server explicitly declares tasks of its own in that era.
    pub fn declares_tasks(&self, era: Era) -> bool {
        let Some(handshake) = self.greeting(era) else { return false };
        let declared = || {
            let handshake = Members::of(Some(handshake)).ok()?;
            let capabilities = Members::of(handshake.get("capabilities")).ok()?;
            match era {
                Era::Legacy => capabilities.contains("tasks").then_some(()),
                Era::Modern => {
                    let extensions = Members::of(capabilities.get("extensions")).ok()?;
                    extensions.contains(meta::TASKS_EXTENSION).then_some(())
                }
            }
        };
        declared().is_some()
    }

    /// Whether the lists of the server need no filter. Another host that owns a name is no concern of a worker that was
    /// started for this host alone; rules of the operator are.
    fn may_offer_everything(&self) -> bool {
        !self.is_mixed() && !self.manifest.listed_only && (self.is_chosen || self.manifest.held_back.is_empty())
    }

    /// Whether the server may offer a name that its manifest doesn't list.
    pub fn may_offer_unlisted(&self, name: &str) -> bool {
        self.may_offer_everything()
            || (!self.manifest.listed_only && !self.manifest.held_back.iter().any(|held| held == name))
    }

    /// Whether the operator gave the host the names that it lists.
    pub fn is_granted(&self) -> bool {
        self.manifest.granted
    }

    /// Whether no namespace of the method belongs to another host.
    pub fn may_have_method(&self, method: &str) -> bool {
        let parts = method.match_indices('/').map(|(at, _)| &method[..at]);
        parts.chain([method]).all(|namespace| self.may_have_namespace(namespace))
    }

    /// Whether messages of a method in this namespace may be meant for the server: no other host has it.
    pub fn may_have_namespace(&self, methods: &str) -> bool {
        self.is_chosen || !self.manifest.held_back_namespaces.iter().any(|held| held == methods)
    }

    /// Whether this is the server with this name at this host.
    pub fn is(&self, host: &str, server: &str) -> bool {
        self.host == host && self.server() == server
    }
}
