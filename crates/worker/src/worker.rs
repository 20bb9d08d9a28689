//! What all client sessions of one identity share: the bus, the view of the hosts, and what was learned about names that
//! stand on no manifest.

use crate::bus::{Bus, Hosts};
use crate::options::WorkerOptions;
use crate::view::{Upstream, View};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;
use toolbus_mcp::{ListKind, NameKey, TaskName, TaskView};

/// Names of one kind that are remembered beside the manifests, and tasks.
const MAX_LEARNED: usize = 20_000;

pub struct Worker {
    pub(crate) bus: Arc<dyn Bus>,
    pub(crate) options: WorkerOptions,
    hosts: watch::Receiver<Hosts>,
    view: Mutex<(Hosts, Arc<View>)>,
    learned: Mutex<Learned>,
    /// Tasks that wait for hosts that are away.
    pub(crate) left_tasks: Mutex<HashMap<TaskName, TaskView>>,
}

impl Worker {
    pub fn new(bus: Arc<dyn Bus>, options: WorkerOptions) -> Arc<Self> {
        let hosts = bus.hosts();
        let snapshot = hosts.borrow().clone();
        let view = Arc::new(View::new(&snapshot, options.host.as_deref()));
        let (view, learned) = (Mutex::new((snapshot, view)), Mutex::default());
        Arc::new(Self { bus, options, hosts, view, learned, left_tasks: Mutex::default() })
    }

    pub fn bus(&self) -> &Arc<dyn Bus> {
        &self.bus
    }

    /// The hosts as they are now. It is built anew only when they changed.
    pub fn view(&self) -> Arc<View> {
        let snapshot = self.hosts.borrow().clone();
        let mut cached = lock(&self.view);
        if !Arc::ptr_eq(&cached.0, &snapshot) {
            let view = Arc::new(View::new(&snapshot, self.options.host.as_deref()));
            *cached = (snapshot, view);
        }
        Arc::clone(&cached.1)
    }

    /// The names of those that are here and that this worker uses.
    pub(crate) fn hosts_here(&self) -> Vec<String> {
        let only = self.options.host.as_deref();
        let hosts = self.hosts.borrow();
        let here = hosts.iter().filter(|host| host.away_since_ms.is_none());
        here.filter(|host| only.is_none_or(|only| only == host.name)).map(|host| host.name.clone()).collect()
    }

    pub(crate) fn hosts(&self) -> watch::Receiver<Hosts> {
        self.hosts.clone()
    }

    /// Whose name that is: by the manifests, or because its server listed it or made it.
    pub(crate) fn owner(&self, view: &View, name: &NameKey) -> Option<Arc<Upstream>> {
        if let Some(upstream) = view.owner(name) {
            return Some(Arc::clone(upstream));
        }
        let learned = lock(&self.learned);
        let (host, server) = match name {
            NameKey::Tool(name) => learned.items.get(&(ListKind::Tools, name.clone()))?,
            NameKey::Prompt(name) => learned.items.get(&(ListKind::Prompts, name.clone()))?,
            NameKey::Uri(uri) => learned.items.get(&(ListKind::Resources, uri.clone()))?,
            NameKey::Task(id) => learned.tasks.get(id)?,
        };
        view.find(host, server).cloned()
    }

    /// Whether that upstream may show the item under this name: whoever had it first keeps it.
    pub(crate) fn claim(&self, view: &View, kind: ListKind, key: String, upstream: &Upstream) -> bool {
        if let Some(owner) = view.owner_of_item(kind, &key) {
            return owner.index == upstream.index;
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

    pub(crate) fn remember_task(&self, task: String, upstream: &Upstream) {
        let mut learned = lock(&self.learned);
        if learned.tasks.len() >= MAX_LEARNED {
            learned.tasks.clear();
        }
        learned.tasks.insert(task, (upstream.host.clone(), upstream.server().to_owned()));
    }
}

#[derive(Default)]
struct Learned {
    items: HashMap<(ListKind, String), (String, String)>,
    tasks: HashMap<String, (String, String)>,
}

/// A panic while such a lock was held left nothing half done.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
