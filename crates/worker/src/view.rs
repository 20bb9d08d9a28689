//! What a client sees: the servers of all hosts that the worker may use, in a fixed order. With one server the worker is
//! invisible; with several it merges them and routes by name.

pub mod params;
mod routes;
mod template;

use crate::bus::HostEntry;
use routes::Routes;
use std::sync::{Arc, OnceLock};
use toolbus_mcp::{Era, HostManifest, ListKind, Members, NameKey, Raw, ServerManifest, ServerState, meta};

/// Hosts in the order of their names, servers in the order of their host's configuration.
pub struct View {
    upstreams: Vec<Arc<Upstream>>,
    routes: OnceLock<Routes>,
}

/// One server behind one host.
#[derive(Debug)]
pub struct Upstream {
    pub host: String,
    pub away_since_ms: Option<u64>,
    manifest: Arc<HostManifest>,
    /// The server's place in the manifest, and the upstream's in the view.
    place: usize,
    pub index: usize,
}

impl View {
    pub fn new(hosts: &[HostEntry], only: Option<&str>) -> Self {
        let mut hosts: Vec<&HostEntry> =
            hosts.iter().filter(|host| only.is_none_or(|only| only == host.name)).collect();
        hosts.sort_by(|a, b| a.name.cmp(&b.name));
        let servers = hosts.iter().flat_map(|host| (0..host.manifest.servers.len()).map(move |place| (host, place)));
        let upstreams = servers.enumerate().map(|(index, (host, place))| {
            let (manifest, away_since_ms) = (Arc::clone(&host.manifest), host.away_since_ms);
            Arc::new(Upstream { host: host.name.clone(), away_since_ms, manifest, place, index })
        });
        Self { upstreams: upstreams.collect(), routes: OnceLock::new() }
    }

    /// The one server before which the worker is invisible.
    pub fn sole(&self) -> Option<&Arc<Upstream>> {
        match &self.upstreams[..] {
            [sole] => Some(sole),
            _ => None,
        }
    }

    pub fn upstreams(&self) -> &[Arc<Upstream>] {
        &self.upstreams
    }

    pub fn find(&self, host: &str, server: &str) -> Option<&Arc<Upstream>> {
        self.upstreams.iter().find(|upstream| upstream.host == host && upstream.server() == server)
    }

    /// Whose name that is, by the manifests. Tasks are on no manifest.
    pub fn owner(&self, name: &NameKey) -> Option<&Arc<Upstream>> {
        self.routes().owner(name).map(|index| &self.upstreams[index])
    }

    /// Whose item of a list that is, by the manifests.
    pub fn owner_of_item(&self, kind: ListKind, key: &str) -> Option<&Arc<Upstream>> {
        self.routes().owner_of_item(kind, key).map(|index| &self.upstreams[index])
    }

    /// The arguments of a tool that a modern HTTP client repeats in headers.
    pub fn param_headers(&self, tool: &str) -> Option<&[params::ParamHeader]> {
        self.routes().param_headers(tool)
    }

    /// Whether a client would see the same list of that kind there.
    pub fn same_list(&self, other: &Self, kind: ListKind) -> bool {
        fn list(view: &View, kind: ListKind) -> impl Iterator<Item = &str> {
            view.upstreams.iter().flat_map(move |upstream| upstream.manifest().items(kind)).map(|item| item.get())
        }
        list(self, kind).eq(list(other, kind))
    }

    fn routes(&self) -> &Routes {
        self.routes.get_or_init(|| Routes::new(&self.upstreams))
    }
}

impl Upstream {
    pub fn manifest(&self) -> &ServerManifest {
        &self.manifest.servers[self.place]
    }

    pub fn server(&self) -> &str {
        &self.manifest().name
    }

    /// Nobody is there to answer: what the manifest says has to do.
    pub fn is_out(&self) -> bool {
        self.away_since_ms.is_some() || self.manifest().state == ServerState::Down
    }

    /// The server's word about itself, in the client's era if it has one in that era.
    pub fn greeting(&self, era: Era) -> Option<&Raw> {
        let manifest = self.manifest();
        match era {
            Era::Legacy => manifest.initialize.as_ref().or(manifest.discover.as_ref()),
            Era::Modern => manifest.discover.as_ref().or(manifest.initialize.as_ref()),
        }
    }

    /// Whether the server declares that capability. One that never told is taken to have all.
    pub fn has_capability(&self, era: Era, name: &str) -> bool {
        let Some(greeting) = self.greeting(era) else { return true };
        let declared = || {
            let greeting = Members::of(Some(greeting)).ok()?;
            Members::of(greeting.get("capabilities")).ok()?.contains(name).then_some(())
        };
        declared().is_some()
    }

    /// Whether the server speaks of tasks itself, in that era's way. One that never told is taken to.
    pub fn has_own_tasks(&self, era: Era) -> bool {
        self.greeting(era).is_none() || self.declares_tasks(era)
    }

    /// The same, but only if it said so.
    pub fn declares_tasks(&self, era: Era) -> bool {
        let Some(greeting) = self.greeting(era) else { return false };
        let declared = || {
            let greeting = Members::of(Some(greeting)).ok()?;
            let capabilities = Members::of(greeting.get("capabilities")).ok()?;
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

    pub fn is(&self, host: &str, server: &str) -> bool {
        self.host == host && self.server() == server
    }
}
