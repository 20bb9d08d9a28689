//! The catalog: the merged lists of all servers, the owners of names, problems, and the manifests per role.

mod lists;
pub mod names;
pub mod page;
mod reader;
mod remembered;
mod watch;

pub use lists::Lists;
pub use names::collision;
pub use reader::{KnownTools, Reader};
pub use remembered::CATALOG_FILE;
pub use watch::{refresh_lists, watch_server};

use crate::pins::{ListedTools, PinnedServer, Pins};
use crate::replay;
use names::{Owners, assign_names, is_prefixed, refusing_clients, visible_name};
use page::Viewer;
use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::Notify;
use toolbus_mcp::{
    Down, Era, HostManifest, ListKind, Members, Raw, ServerManifest, ServerState, SomeTools, member_text,
};
use toolbus_policy::{Item, PolicySet};
use toolbus_upstream::{CallSettings, Eras, Offline, PinMode, ServerConfig, SessionMode};

const MAX_HELD_NAMES: usize = 10;
/// Limits the memory and the log for names that some clients refuse.
const MAX_REPORTED_NAMES: usize = 100;

struct Entry {
    name: String,
    /// A hash of where it comes from, which tells whether remembered lists are of this server.
    origin: String,
    prefix: Option<String>,
    state: ServerState,
    down: Option<Down>,
    eras: Option<Arc<Eras>>,
    /// The lists that were read last. They are kept while the server is down, so that its names stay taken.
    lists: Lists,
    /// The definitions of these tools.
    listed: ListedTools,
    /// Problems with the lists.
    remarks: Vec<String>,
    pin: Option<PinMode>,
    /// All clients share one session.
    shared: bool,
    /// Tools whose definitions are not approved.
    held_back: Vec<String>,
    /// Under the names that workers see.
    fail_fast: SomeTools,
    calls: CallSettings,
    /// Why the circuit breaker is open.
    tripped: Option<String>,
}

struct State {
    entries: Vec<Entry>,
    owners: Arc<Owners>,
    problems: Vec<String>,
    /// A problem of the host as a whole.
    host_problem: Option<String>,
    /// Names of tools that some clients refuse, which the log has.
    reported_names: HashSet<String>,
}

pub struct Catalog {
    state: Mutex<State>,
    changed: Notify,
    pins: Arc<Pins>,
}

impl Catalog {
    pub fn new<'a>(servers: impl IntoIterator<Item = &'a ServerConfig>) -> Self {
        let entries = servers.into_iter().map(Entry::starting).collect();
        let state = State {
            entries,
            owners: Arc::default(),
            problems: Vec::new(),
            host_problem: None,
            reported_names: HashSet::new(),
        };
        Self { state: Mutex::new(state), changed: Notify::new(), pins: Arc::new(Pins::in_memory()) }
    }

    pub fn with_pins(mut self, pins: Arc<Pins>) -> Self {
        self.pins = pins;
        self
    }

    pub fn set_up(&self, server: usize, eras: Arc<Eras>, lists: Lists, remarks: Vec<String>) {
        self.change(server, |entry| {
            (entry.state, entry.down) = (ServerState::Up, None);
            (entry.eras, entry.lists, entry.remarks) = (Some(eras), lists, remarks);
            entry.listed = self.pins.inspect(entry.pinned(), entry.era(), &entry.lists.tools);
        });
        for (tool, why) in self.lock().newly_refused_names(server) {
            tracing::warn!(tool, "{why}");
        }
    }

    /// Sets the eras that were found out since the lists were read.
    pub fn set_eras(&self, server: usize, eras: Arc<Eras>) {
        self.change(server, |entry| entry.eras = Some(eras));
    }

    pub fn set_down(&self, server: usize, reason: String, stderr: Vec<String>) {
        self.change(server, |entry| {
            entry.state = ServerState::Down;
            entry.down = Some(Down { reason, stderr });
        });
    }

    /// Returns when something has changed since this last returned.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    pub fn owners(&self) -> Arc<Owners> {
        Arc::clone(&self.lock().owners)
    }

    /// The index of the server that owns this tool.
    pub fn tool(&self, visible: &str) -> Option<usize> {
        self.lock().owners.owner(ListKind::Tools, visible)
    }

    /// The manifest for workers of that role.
    pub fn manifest(&self, role: Option<&str>, policy: &PolicySet) -> HostManifest {
        let state = self.lock();
        let sees_all = policy.may_use_everything(role);
        let mut incomplete = false;
        let servers = state.entries.iter().enumerate().map(|(index, entry)| {
            let prefix = entry.prefix.as_deref();
            let viewer = Viewer {
                role,
                policy,
                owners: &state.owners,
                server: &entry.name,
                index,
                prefix,
                pins: &self.pins,
                pin: entry.pin,
                era: entry.era(),
            };
            // A role that may use nothing of a server must not learn that it exists.
            let manifest = viewer.may_use(Item::Server).then(|| entry.manifest(&viewer))?;
            let is_of_use = ListKind::ALL.iter().any(|kind| !manifest.items(*kind).is_empty());
            incomplete |= entry.has_no_items();
            let may_be = entry.has_no_items() && policy.speaks_of_server(role, &entry.name);
            (is_of_use || may_be || sees_all).then_some(manifest)
        });
        let servers: Vec<_> = servers.flatten().collect();
        incomplete &= servers.is_empty();
        // Problems name servers and tools that other roles may not see.
        let problems = || state.host_problem.iter().chain(&state.problems).cloned().collect();
        let problems = if sees_all { problems() } else { Vec::new() };
        HostManifest { servers, incomplete, problems, ..HostManifest::default() }
    }

    /// Server and visible name of every item; `None` unless all servers are up.
    pub fn names(&self) -> Option<Vec<(String, String)>> {
        let state = self.lock();
        if state.entries.iter().any(|entry| entry.state != ServerState::Up) {
            return None;
        }
        let mut names = Vec::new();
        for (entry, kind) in state.entries.iter().flat_map(|entry| ListKind::ALL.map(|kind| (entry, kind))) {
            let prefix = entry.prefix.as_deref().filter(|_| is_prefixed(kind));
            let own = |item: &Raw| Members::parse(item.text()).ok()?.text(kind.key());
            let own = entry.lists.of(kind).iter().filter_map(own);
            names.extend(own.map(|own| (entry.name.clone(), visible_name(prefix, &own))));
        }
        Some(names)
    }

    /// The items of a list, the other members of its result, and the era in which it was read.
    pub fn list(&self, server: usize, kind: ListKind) -> (Vec<Raw>, Option<Raw>, Option<Era>) {
        let entry = &self.lock().entries[server];
        (entry.lists.of(kind).to_vec(), entry.lists.rest.get(&kind).cloned(), entry.era())
    }

    /// Whether a connection lists the same tools as the catalog.
    pub fn lists_same(&self, server: usize, listed: &ListedTools) -> bool {
        self.lock().entries[server].listed == *listed
    }

    /// Whether the server listed the tool last, by the server's own name.
    pub fn lists_tool(&self, server: usize, own: &str) -> bool {
        self.lock().entries[server].listed.contains(own)
    }

    /// The annotations of a tool, by the server's own name; `None` while the server's tools are not known.
    pub fn annotations(&self, server: usize, own: &str) -> Option<Option<Raw>> {
        let state = self.lock();
        let entry = &state.entries[server];
        entry.eras.as_ref()?;
        let mut tools = entry.lists.of(ListKind::Tools).iter();
        let named = tools.find(|tool| member_text(tool, "name").is_some_and(|name| name == own));
        Some(named.and_then(|tool| Members::parse(tool.text()).ok()?.remove("annotations")))
    }

    /// Sets why the circuit breaker is open, or `None` if it is closed.
    pub fn set_tripped(&self, server: usize, why: Option<String>) {
        self.change(server, |entry| entry.tripped = why);
    }

    /// Sets a problem of the whole host. Returns false if one was set before.
    pub fn set_host_problem(&self, host_problem: String) -> bool {
        let is_new = self.lock().host_problem.replace(host_problem).is_none();
        self.changed.notify_one();
        is_new
    }

    fn change(&self, server: usize, change: impl FnOnce(&mut Entry)) {
        let mut state = self.lock();
        let entry = &mut state.entries[server];
        change(entry);
        entry.held_back = self.held_back(entry);
        let (owners, problems) = assign_names(&state.entries);
        (state.owners, state.problems) = (Arc::new(owners), problems);
        drop(state);
        self.changed.notify_one();
    }

    /// Checks all lists again after the approved definitions have changed.
    pub fn recheck_pins(&self) {
        let mut state = self.lock();
        for entry in &mut state.entries {
            self.pins.release_approved(entry.pinned());
            entry.held_back = self.held_back(entry);
        }
        let (owners, problems) = assign_names(&state.entries);
        (state.owners, state.problems) = (Arc::new(owners), problems);
        drop(state);
        self.changed.notify_one();
    }

    fn held_back(&self, entry: &Entry) -> Vec<String> {
        self.pins.hidden_of(entry.pinned(), entry.era(), &entry.lists.tools)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no code panics while it holds this lock")
    }
}

impl State {
    /// The tools of a server whose names some clients refuse, each with the reason, if they were not reported before.
    fn newly_refused_names(&mut self, server: usize) -> Vec<(String, String)> {
        let entry = &self.entries[server];
        let mut refused = Vec::new();
        for tool in &entry.lists.tools {
            let Some(own) = member_text(tool, "name") else { continue };
            let visible = visible_name(entry.prefix.as_deref(), &own);
            let Some(why) = refusing_clients(&visible) else { continue };
            if self.reported_names.len() < MAX_REPORTED_NAMES && self.reported_names.insert(visible.clone()) {
                refused.push((visible, why));
            }
        }
        refused
    }
}

impl Entry {
    fn starting(config: &ServerConfig) -> Self {
        Self {
            name: config.name.clone(),
            origin: remembered::origin_of(&config.transport),
            prefix: config.prefix.clone(),
            state: ServerState::Starting,
            down: None,
            eras: None,
            lists: Lists::default(),
            listed: ListedTools::default(),
            remarks: Vec::new(),
            pin: config.pin,
            shared: config.session == SessionMode::Shared,
            held_back: Vec::new(),
            fail_fast: fail_fast(config),
            calls: config.calls.clone(),
            tripped: None,
        }
    }

    fn pinned(&self) -> PinnedServer<'_> {
        PinnedServer { name: &self.name, mode: self.pin }
    }

    /// It has none, or its lists are not known yet.
    fn has_no_items(&self) -> bool {
        ListKind::ALL.iter().all(|kind| self.lists.of(*kind).is_empty())
    }

    /// The era in which the lists were read: modern if the server supports it.
    fn era(&self) -> Option<Era> {
        let eras = self.eras.as_deref()?;
        Some(if eras.speaks(Era::Modern) { Era::Modern } else { Era::Legacy })
    }

    /// Only names, because the definitions must not be shown before they are approved.
    fn held_back_problem(&self) -> Option<String> {
        let (first, more) = self.held_back.split_at(self.held_back.len().min(MAX_HELD_NAMES));
        let mut names: Vec<String> = first.iter().map(|name| format!("{name:?}")).collect();
        if !more.is_empty() {
            names.push(format!("{} more", more.len()));
        }
        (!names.is_empty()).then(|| {
            let (server, names) = (&self.name, names.join(", "));
            format!(
                "server {server:?}: tools held back because their definitions are not approved: {names}; \
                 see `toolbus pin diff`"
            )
        })
    }

    /// The tools that are held back, as far as the viewer may use them: their calls get the reason instead of an unknown name.
    fn withheld(&self, viewer: &Viewer<'_>) -> Vec<String> {
        let visible = self.held_back.iter().map(|own| visible_name(self.prefix.as_deref(), own));
        visible.filter(|name| viewer.owns_usable(ListKind::Tools, name)).collect()
    }

    fn manifest(&self, viewer: &Viewer<'_>) -> ServerManifest {
        let eras = self.eras.as_deref();
        let spoken = |era| {
            eras.is_some_and(|eras| match era {
                Era::Legacy => eras.legacy.is_some(),
                Era::Modern => eras.modern.is_some(),
            })
        };
        let tools = self.lists.of(ListKind::Tools).iter();
        let seen: Vec<&Raw> = tools.filter(|tool| viewer.shown(ListKind::Tools, tool).is_some()).collect();
        let mut manifest = ServerManifest {
            name: self.name.clone(),
            state: self.state,
            down: self.down.clone(),
            eras: [Era::Legacy, Era::Modern].into_iter().filter(|era| spoken(*era)).collect(),
            initialize: eras.and_then(|eras| eras.legacy.clone()),
            discover: eras.and_then(|eras| eras.modern.clone()),
            tools: Vec::new(),
            resources: Vec::new(),
            resource_templates: Vec::new(),
            prompts: Vec::new(),
            withheld: self.withheld(viewer),
            fail_fast: self.fail_fast.clone(),
            alone: replay::never_joined(&self.calls, self.prefix.as_deref(), &seen),
            shared: self.shared,
            replay_safe: replay::replay_safe(&self.calls, self.prefix.as_deref(), &seen),
        };
        for kind in ListKind::ALL {
            let shown = self.lists.of(kind).iter().filter_map(|item| viewer.shown(kind, item));
            *manifest.items_mut(kind) = shown.map(|item| item.into_owned()).collect();
        }
        manifest
    }
}

/// Tools whose calls fail at once while the host is away, under the names that workers see.
fn fail_fast(config: &ServerConfig) -> SomeTools {
    let named = |wanted: Offline| {
        let tools = config.calls.tool_offline.iter().filter(|(_, offline)| **offline == wanted);
        tools.map(|(own, _)| visible_name(config.prefix.as_deref(), own)).collect()
    };
    match config.calls.offline {
        Offline::Fail => SomeTools::new(true, named(Offline::Wait)),
        Offline::Wait => SomeTools::new(false, named(Offline::Fail)),
    }
}

#[cfg(test)]
#[path = "catalog_tests.rs"]
mod tests;
