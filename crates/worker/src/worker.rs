//! State shared by all MCP sessions of one identity: the bus, the view of the hosts, and the owners of unlisted names.

use crate::bus::{Bus, HostEntry, Hosts};
use crate::options::WorkerOptions;
use crate::pools::Pools;
use crate::taken_routes::{RouteKey, TakenRoutes};
use crate::view::{Upstream, View, scheme};
use hashbrown::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;
use tokio::time::Instant;
use toolbus_mcp::{ListKind, NameKey, Raw, TaskName, TaskView};

/// Maximum number of remembered names that are in no manifest, and of remembered tasks. A full table is cleared.
const MAX_LEARNED: usize = 20_000;

/// The shared part of all MCP sessions of one identity.
pub struct Worker {
    pub(crate) bus: Arc<dyn Bus>,
    pub(crate) options: WorkerOptions,
    hosts: watch::Receiver<Hosts>,
    view: Mutex<(Hosts, Arc<View>)>,
    learned: Mutex<Learned>,
    /// Tasks that were queued in the mailbox of an absent host, including those that were withdrawn from there.
    pub(crate) queued_tasks: Mutex<HashMap<TaskName, TaskView>>,
    pub(crate) pools: Arc<Pools>,
    started: Instant,
    is_detached: AtomicBool,
}

impl Worker {
    /// A worker on the given connection to the bus.
    pub fn new(bus: Arc<dyn Bus>, options: WorkerOptions) -> Arc<Self> {
        let hosts = bus.hosts();
        let snapshot = hosts.borrow().clone();
        let view = Arc::new(View::new(&snapshot, options.host.as_deref()));
        let (view, learned) = (Mutex::new((snapshot, view)), Mutex::default());
        let (queued_tasks, is_detached) = (Mutex::default(), AtomicBool::new(false));
        Arc::new(Self {
            bus,
            options,
            hosts,
            view,
            learned,
            queued_tasks,
            pools: Arc::default(),
            started: Instant::now(),
            is_detached,
        })
    }

    /// From now on a dropped call is not cancelled at its host. For a worker that is stopped: its clients cancelled
    /// nothing, and may repeat their calls through another worker.
    pub fn detach(&self) {
        self.is_detached.store(true, Ordering::Relaxed);
    }

    /// Whether the clients of earlier workers have repeated their calls by now.
    pub(crate) fn asks_no_more(&self) -> bool {
        self.options.asks_for.is_some_and(|time| self.started.elapsed() > time)
    }

    pub(crate) fn is_detached(&self) -> bool {
        self.is_detached.load(Ordering::Relaxed)
    }

    /// The connection to the bus.
    pub fn bus(&self) -> &Arc<dyn Bus> {
        &self.bus
    }

    /// The current view of the hosts, cached until the hosts change.
    pub fn view(&self) -> Arc<View> {
        let snapshot = self.hosts.borrow().clone();
        let mut cached = lock(&self.view);
        if !Arc::ptr_eq(&cached.0, &snapshot) {
            let view = Arc::new(View::new(&snapshot, self.options.host.as_deref()));
            for problem in view.problems.iter().filter(|problem| !cached.1.problems.contains(problem)) {
                tracing::warn!("{problem}");
            }
            *cached = (snapshot, view);
        }
        Arc::clone(&cached.1)
    }

    /// The names of the connected hosts that this worker may use.
    pub(crate) fn connected_hosts(&self) -> Vec<String> {
        let only = self.options.host.as_deref();
        let hosts = self.hosts.borrow();
        let connected = hosts.iter().filter(|host| host.away_since_ms.is_none());
        let is_used = |host: &&HostEntry| {
            only.is_none_or(|only| host.name == only || host.manifest.pool.as_deref() == Some(only))
        };
        connected.filter(is_used).map(|host| host.name.clone()).collect()
    }

    pub(crate) fn hosts(&self) -> watch::Receiver<Hosts> {
        self.hosts.clone()
    }

    /// The upstream that owns the name: by the manifests, or because its server listed or created the item. A URI stays with
    /// the server that answered before, unless the operator gives it to another host.
    pub(crate) fn owner(&self, view: &View, name: &NameKey) -> Option<Arc<Upstream>> {
        let learned = lock(&self.learned);
        let (kind, text) = match name {
            NameKey::Tool(name) => (ListKind::Tools, name),
            NameKey::Prompt(name) => (ListKind::Prompts, name),
            NameKey::Uri(uri) => {
                let upstream = learned.owner_of_uri(view, uri).or_else(|| learned.owner_of_scheme(view, uri));
                return upstream.cloned();
            }
            NameKey::Task(id) => {
                let (host, server) = learned.tasks.get(id)?;
                return view.find(host, server).cloned();
            }
        };
        view.owner(name).or_else(|| learned.owner_of_item(view, kind, text)).cloned()
    }

    /// The server that answered requests of this unknown method before, or the only one that can be meant.
    pub(crate) fn meant(&self, view: &View, method: &str, params: Option<&Raw>) -> Option<Arc<Upstream>> {
        let learned = lock(&self.learned);
        let taken = RouteKey::of(method, params).and_then(|key| learned.routes.get(view, &key));
        let taken = taken.filter(|upstream| upstream.may_have_method(method));
        taken.or_else(|| view.meant(method, params)).cloned()
    }

    /// Remembers the server that has answered a request.
    pub(crate) fn remember_route(&self, key: &RouteKey, upstream: &Upstream) {
        let view = self.view();
        let mut learned = lock(&self.learned);
        learned.routes.insert(key, upstream);
        if let RouteKey::Uri(uri) = key
            && view.owner(&NameKey::Uri(uri.clone())).is_none()
            && let Some(scheme) = scheme(uri)
        {
            learned.routes.insert(&RouteKey::Scheme(scheme), upstream);
        }
    }

    /// Whether the upstream may list the item under this name. The first owner of a name keeps it.
    pub(crate) fn claim(&self, view: &View, kind: ListKind, key: String, upstream: &Upstream) -> bool {
        if kind == ListKind::Resources
            && lock(&self.learned).owner_of_uri(view, &key).is_some_and(|owner| owner.host != upstream.host)
        {
            return false;
        }
        if let Some(owner) = view.owner_of_item(kind, &key) {
            return owner.index == upstream.index;
        }
        if !upstream.may_offer_unlisted(&key) {
            return false;
        }
        let mut learned = lock(&self.learned);
        if let Some((host, server)) = learned.items.get(&(kind, key.clone()))
            && view.find(host, server).is_some()
        {
            return upstream.is(host, server);
        }
        if learned.items.len() >= MAX_LEARNED {
            learned.items.clear();
        }
        learned.items.insert((kind, key), (upstream.host.clone(), upstream.server().to_owned()));
        true
    }

    /// The first server with a task of that id keeps it.
    pub(crate) fn remember_task(&self, task: String, upstream: &Upstream) {
        let mut learned = lock(&self.learned);
        if learned.tasks.len() >= MAX_LEARNED {
            learned.tasks.clear();
        }
        learned.tasks.entry(task).or_insert_with(|| (upstream.host.clone(), upstream.server().to_owned()));
    }
}

#[derive(Default)]
struct Learned {
    items: HashMap<(ListKind, String), (String, String)>,
    tasks: HashMap<String, (String, String)>,
    routes: TakenRoutes,
}

impl Learned {
    fn owner_of_item<'a>(&self, view: &'a View, kind: ListKind, key: &str) -> Option<&'a Arc<Upstream>> {
        let (host, server) = self.items.get(&(kind, key.to_owned()))?;
        view.find(host, server)
    }

    fn owner_of_uri<'a>(&self, view: &'a View, uri: &str) -> Option<&'a Arc<Upstream>> {
        let listed = view.owner(&NameKey::Uri(uri.to_owned()));
        let taken = self.routes.get(view, &RouteKey::Uri(uri.to_owned()));
        let taken = taken.filter(|taken| {
            let is_decided = listed.is_some_and(|listed| listed.is_granted() || listed.host == taken.host);
            !is_decided && taken.may_offer_unlisted(uri)
        });
        taken.or(listed).or_else(|| self.owner_of_item(view, ListKind::Resources, uri))
    }

    fn owner_of_scheme<'a>(&self, view: &'a View, uri: &str) -> Option<&'a Arc<Upstream>> {
        let taken = self.routes.get(view, &RouteKey::Scheme(scheme(uri)?));
        taken.filter(|taken| taken.may_offer_unlisted(uri)).or_else(|| view.owner_of_scheme(uri))
    }
}

/// Ignores poisoning: no critical section leaves its data inconsistent when it panics.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
