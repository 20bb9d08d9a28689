//! What all servers of the host have, as one list: who keeps which name, what is wrong with it, and the manifests that tell
//! workers of each role what they may use.

pub mod names;
pub mod page;
mod watch;

pub use watch::watch_server;

use crate::pins::{PinnedServer, Pins};
use crate::replay;
use names::{LONGEST_TOOL_NAME, Owners, is_prefixed, visible_name};
use page::Viewer;
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::Notify;
use toolbus_mcp::{
    Down, Era, HostManifest, ListKind, Members, Raw, ServerManifest, ServerState, SomeTools, member_text,
};
use toolbus_policy::{Item, PolicySet};
use toolbus_upstream::{CallSettings, Eras, Offline, PinMode, ServerConfig};

/// Problems are for reading; a server with five thousand of them has one.
const MOST_PROBLEMS: usize = 20;
const MOST_HELD_NAMES: usize = 10;

/// Everything that one server has, under the server's own names.
#[derive(Debug, Clone, Default)]
pub struct Lists {
    pub tools: Vec<Raw>,
    pub resources: Vec<Raw>,
    pub resource_templates: Vec<Raw>,
    pub prompts: Vec<Raw>,
}

impl Lists {
    pub fn of(&self, kind: ListKind) -> &[Raw] {
        match kind {
            ListKind::Tools => &self.tools,
            ListKind::Resources => &self.resources,
            ListKind::ResourceTemplates => &self.resource_templates,
            ListKind::Prompts => &self.prompts,
        }
    }

    pub fn of_mut(&mut self, kind: ListKind) -> &mut Vec<Raw> {
        match kind {
            ListKind::Tools => &mut self.tools,
            ListKind::Resources => &mut self.resources,
            ListKind::ResourceTemplates => &mut self.resource_templates,
            ListKind::Prompts => &mut self.prompts,
        }
    }
}

struct Entry {
    name: String,
    prefix: Option<String>,
    state: ServerState,
    down: Option<Down>,
    eras: Option<Arc<Eras>>,
    /// The last lists that were read; they stay while the server is down, so that its names stay taken.
    lists: Lists,
    /// What was odd about the lists.
    remarks: Vec<String>,
    pin: Option<PinMode>,
    /// Tools whose definitions are not the approved ones.
    held_back: Vec<String>,
    /// Under the names that workers see.
    fail_fast: SomeTools,
    calls: CallSettings,
    /// Why the server gets no calls for a while.
    tripped: Option<String>,
}

struct State {
    entries: Vec<Entry>,
    owners: Arc<Owners>,
    problems: Vec<String>,
    /// What is wrong with the host as a whole.
    trouble: Option<String>,
}

pub struct Catalog {
    state: Mutex<State>,
    changed: Notify,
    pins: Arc<Pins>,
}

impl Catalog {
    pub fn new<'a>(servers: impl IntoIterator<Item = &'a ServerConfig>) -> Self {
        let entries = servers.into_iter().map(Entry::starting).collect();
        let state = State { entries, owners: Arc::default(), problems: Vec::new(), trouble: None };
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
            self.pins.look_at(entry.pinned(), entry.era(), &entry.lists);
        });
    }

    pub fn set_down(&self, server: usize, reason: String, stderr: Vec<String>) {
        self.change(server, |entry| {
            entry.state = ServerState::Down;
            entry.down = Some(Down { reason, stderr });
        });
    }

    /// Returns when something changed since the last time this returned.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Returns when every server is up or down.
    pub async fn settled(&self) {
        while self.lock().entries.iter().any(|entry| entry.state == ServerState::Starting) {
            self.changed().await;
        }
    }

    pub fn owners(&self) -> Arc<Owners> {
        Arc::clone(&self.lock().owners)
    }

    /// The index of the server that has this tool.
    pub fn tool(&self, visible: &str) -> Option<usize> {
        self.lock().owners.owner(ListKind::Tools, visible)
    }

    /// What workers of that role are told.
    pub fn manifest(&self, role: Option<&str>, policy: &PolicySet) -> HostManifest {
        let state = self.lock();
        let sees_all = policy.may_use_everything(role);
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
            // Who may use nothing of a server does not even learn that it is there.
            let manifest = viewer.may_use(Item::Server).then(|| entry.manifest(&viewer))?;
            let is_of_use = ListKind::ALL.iter().any(|kind| !manifest.items(*kind).is_empty());
            let may_be = entry.has_no_items() && policy.speaks_of_server(role, &entry.name);
            (is_of_use || may_be || sees_all).then_some(manifest)
        });
        let servers: Vec<_> = servers.flatten().collect();
        // Problems name servers and tools, and speak of all of them.
        let problems = || state.trouble.iter().chain(&state.problems).cloned().collect();
        let problems = if sees_all { problems() } else { Vec::new() };
        HostManifest { servers, problems }
    }

    /// The server and the visible name of everything that has one; none while a server's lists are not known.
    pub fn names(&self) -> Option<Vec<(String, String)>> {
        let state = self.lock();
        if state.entries.iter().any(|entry| entry.state != ServerState::Up) {
            return None;
        }
        let mut names = Vec::new();
        for (entry, kind) in state.entries.iter().flat_map(|entry| ListKind::ALL.map(|kind| (entry, kind))) {
            let prefix = entry.prefix.as_deref().filter(|_| is_prefixed(kind));
            let own = |item: &Raw| Members::of(Some(item)).ok()?.text(kind.key());
            let own = entry.lists.of(kind).iter().filter_map(own);
            names.extend(own.map(|own| (entry.name.clone(), visible_name(prefix, &own))));
        }
        Some(names)
    }

    /// What the server says of a tool, under the server's own name for it. None while its tools are not known.
    pub fn annotations(&self, server: usize, own: &str) -> Option<Option<Raw>> {
        let state = self.lock();
        let entry = &state.entries[server];
        entry.eras.as_ref()?;
        let mut tools = entry.lists.of(ListKind::Tools).iter();
        let named = tools.find(|tool| member_text(tool, "name").is_some_and(|name| name == own));
        Some(named.and_then(|tool| Members::of(Some(tool)).ok()?.remove("annotations")))
    }

    /// Says why the server gets no calls for a while, or that it gets them again.
    pub fn set_tripped(&self, server: usize, why: Option<String>) {
        self.change(server, |entry| entry.tripped = why);
    }

    /// Something about the whole host that its operator should know. False if the operator was told before.
    pub fn set_trouble(&self, trouble: String) -> bool {
        let is_news = self.lock().trouble.replace(trouble).is_none();
        self.changed.notify_one();
        is_news
    }

    fn change(&self, server: usize, change: impl FnOnce(&mut Entry)) {
        let mut state = self.lock();
        let entry = &mut state.entries[server];
        change(entry);
        entry.held_back = self.held_back(entry);
        let (owners, problems) = sort_out(&state.entries);
        (state.owners, state.problems) = (Arc::new(owners), problems);
        drop(state);
        self.changed.notify_one();
    }

    /// Something else is approved now.
    pub fn look_again(&self) {
        let mut state = self.lock();
        for entry in &mut state.entries {
            self.pins.release_approved(entry.pinned());
            entry.held_back = self.held_back(entry);
        }
        let (owners, problems) = sort_out(&state.entries);
        (state.owners, state.problems) = (Arc::new(owners), problems);
        drop(state);
        self.changed.notify_one();
    }

    fn held_back(&self, entry: &Entry) -> Vec<String> {
        self.pins.hidden_of(entry.pinned(), entry.era(), &entry.lists)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics while it holds this lock")
    }
}

impl Entry {
    fn starting(config: &ServerConfig) -> Self {
        Self {
            name: config.name.clone(),
            prefix: config.prefix.clone(),
            state: ServerState::Starting,
            down: None,
            eras: None,
            lists: Lists::default(),
            remarks: Vec::new(),
            pin: config.pin,
            held_back: Vec::new(),
            fail_fast: fail_fast(config),
            calls: config.calls.clone(),
            tripped: None,
        }
    }

    fn pinned(&self) -> PinnedServer<'_> {
        PinnedServer { name: &self.name, mode: self.pin }
    }

    /// It has none, or they are not known yet.
    fn has_no_items(&self) -> bool {
        ListKind::ALL.iter().all(|kind| self.lists.of(*kind).is_empty())
    }

    /// In which the lists were read: the later one, where the server has both.
    fn era(&self) -> Option<Era> {
        let eras = self.eras.as_deref()?;
        Some(if eras.speaks(Era::Modern) { Era::Modern } else { Era::Legacy })
    }

    /// Names only: the definitions are what nobody is to see yet.
    fn told_of_held_back(&self) -> Option<String> {
        let (first, more) = self.held_back.split_at(self.held_back.len().min(MOST_HELD_NAMES));
        let mut names: Vec<String> = first.iter().map(|name| format!("{name:?}")).collect();
        if !more.is_empty() {
            names.push(format!("{} more", more.len()));
        }
        (!names.is_empty()).then(|| {
            let (server, names) = (&self.name, names.join(", "));
            format!("server {server:?}: held back, because their definitions are not the approved ones: {names}; see `toolbus pin diff`")
        })
    }

    /// Of tools that the viewer does not see it is not said that they are there.
    fn alone(&self, viewer: &Viewer<'_>) -> SomeTools {
        let tools = self.lists.of(ListKind::Tools).iter();
        let seen: Vec<&Raw> = tools.filter(|tool| viewer.shown(ListKind::Tools, tool).is_some()).collect();
        replay::alone(&self.calls, self.prefix.as_deref(), &seen)
    }

    fn manifest(&self, viewer: &Viewer<'_>) -> ServerManifest {
        let eras = self.eras.as_deref();
        let spoken = |era| eras.is_some_and(|eras| eras.speaks(era));
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
            fail_fast: self.fail_fast.clone(),
            alone: self.alone(viewer),
        };
        for kind in ListKind::ALL {
            let shown = self.lists.of(kind).iter().filter_map(|item| viewer.shown(kind, item));
            *manifest.items_mut(kind) = shown.map(|item| item.into_owned()).collect();
        }
        manifest
    }
}

/// Which calls are not to wait for the host, as workers name them.
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

/// Gives each name to the first server that has it, and says what the operator should know.
fn sort_out(entries: &[Entry]) -> (Owners, Vec<String>) {
    let mut owners = Owners::default();
    let mut problems = Vec::new();
    for (index, entry) in entries.iter().enumerate() {
        problems.extend(entry.remarks.iter().map(|remark| format!("server {:?}: {remark}", entry.name)));
        problems.extend(entry.told_of_held_back());
        problems.extend(entry.tripped.clone());
        for kind in ListKind::ALL {
            let prefix = entry.prefix.as_deref().filter(|_| is_prefixed(kind));
            for item in entry.lists.of(kind) {
                let Some(own) = Members::of(Some(item)).ok().and_then(|item| item.text(kind.key())) else { continue };
                let visible = visible_name(prefix, &own);
                if let Some(owner) = owners.claim(kind, &visible, index) {
                    problems.push(collision(kind, &visible, &entries[owner].name, &entry.name));
                }
                let length = visible.chars().count();
                if kind == ListKind::Tools && length > LONGEST_TOOL_NAME && prefix.is_some() {
                    problems.push(format!(
                        "tool {visible:?} of server {:?} has a name of {length} characters with its prefix; most model \
                         APIs take {LONGEST_TOOL_NAME}. Choose a shorter `prefix`.",
                        entry.name
                    ));
                }
            }
        }
    }
    if problems.len() > MOST_PROBLEMS {
        let more = problems.len() - MOST_PROBLEMS;
        problems.truncate(MOST_PROBLEMS);
        problems.push(format!("and {more} more problems"));
    }
    (owners, problems)
}

/// Names both servers and the setting that helps.
pub fn collision(kind: ListKind, name: &str, owner: &str, other: &str) -> String {
    let noun = page::item_of(kind, name).noun();
    let advice = if is_prefixed(kind) {
        format!("set `prefix` for one of them, for example prefix = \"{other}_\"")
    } else {
        "a `prefix` does not change URIs, so only one of the two servers can offer it".to_owned()
    };
    format!("{noun} {name:?} is offered by servers {owner:?} and {other:?}; {owner:?} keeps it. {advice}")
}

#[cfg(test)]
#[path = "catalog_tests.rs"]
mod tests;
