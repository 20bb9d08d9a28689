//! Pins: which tool definitions are approved. A definition is identified by the hash of its canonical JSON. One that is
//! not approved is held back: it is hidden from workers and its calls are refused until it is approved.

pub mod diff;
mod files;
mod listed;
mod watch;

pub use files::{Approved, Held, LockFile, Pin, PinFile, PinFileError};
pub use listed::{CallRefusal, ListedTools};
pub use watch::watch;

use hashbrown::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;
use toolbus_audit::{AuditLog, Record, canonical::canonical, sha256_hex};
use toolbus_base::Trust;
use toolbus_mcp::{Era, Members, Raw};
use toolbus_upstream::{PinMode, ServerConfig};

/// Name of the pin file in the host's state folder.
pub const PINS_FILE: &str = "pins.json";
/// Name of the lock file beside toolbus.toml.
pub const LOCK_FILE: &str = "toolbus.lock";

/// Members of a definition that only one era has; they say how the tool may run as a task.
const ERA_MEMBERS: &[&str] = &["execution"];

/// Where pins are stored, and how they are checked.
#[derive(Debug, Clone, Default)]
pub struct PinOptions {
    /// The host's state folder. `None`: pins are kept in memory only.
    pub state: Option<PathBuf>,
    /// The lock file, for servers in mode `lock`.
    pub lock_file: Option<PathBuf>,
    /// Whose lock file is used.
    pub lock_trust: Trust,
    /// The mode of servers without their own.
    pub mode: PinMode,
    /// The audit log of first-seen and held definitions.
    pub audit: Option<AuditLog>,
}

/// The pins of one host. Outlives its connections to the broker.
pub struct Pins {
    options: PinOptions,
    state: Mutex<State>,
    /// Wakes the task that writes the file.
    dirty: Notify,
}

#[derive(Default)]
struct State {
    known: PinFile,
    lock: LockFile,
    unwritten: bool,
    /// By server and tool: the last definition per era, so that an unchanged one is compared and not hashed.
    seen: HashMap<String, HashMap<String, Vec<Seen>>>,
}

struct Seen {
    text: Box<str>,
    era: Option<Era>,
    examined: Examined,
}

/// The hash of a definition, and whether it is held back.
#[derive(Clone)]
struct Examined {
    hash: String,
    held: bool,
}

/// A server and its pin mode.
#[derive(Clone, Copy)]
pub struct PinnedServer<'a> {
    /// The server's name.
    pub name: &'a str,
    /// Its own mode, if it has one.
    pub mode: Option<PinMode>,
}

impl<'a> From<&'a ServerConfig> for PinnedServer<'a> {
    fn from(config: &'a ServerConfig) -> Self {
        Self { name: &config.name, mode: config.pin }
    }
}

impl Pins {
    /// Pins that are not stored.
    pub fn in_memory() -> Self {
        Self { options: PinOptions::default(), state: Mutex::default(), dirty: Notify::new() }
    }

    /// Reads the pins. An unreadable file is an error, because starting without it would approve every definition anew.
    pub fn open(options: PinOptions) -> Result<Self, PinFileError> {
        let known = options.state.as_deref().map(|state| PinFile::read(&state.join(PINS_FILE))).transpose()?;
        let lock = options.lock_file.as_deref().map(|file| LockFile::read(file, options.lock_trust)).transpose()?;
        let state = State { known: known.unwrap_or_default(), lock: lock.unwrap_or_default(), ..State::default() };
        Ok(Self { options, state: Mutex::new(state), dirty: Notify::new() })
    }

    /// The file, if pins are stored.
    fn file(&self) -> Option<PathBuf> {
        self.options.state.as_deref().map(|state| state.join(PINS_FILE))
    }

    fn lock_file(&self) -> Option<&Path> {
        self.options.lock_file.as_deref()
    }

    /// Sets which servers the host has.
    pub(crate) fn set_configured<'a>(&self, servers: impl IntoIterator<Item = &'a str>) {
        let configured = Some(servers.into_iter().map(str::to_owned).collect());
        let mut state = self.lock();
        state.unwritten |= state.known.configured != configured;
        state.known.configured = configured;
        drop(state);
        self.dirty.notify_one();
    }

    /// Checks a definition that the server has just sent; returns true if it is held back. Only this function sets
    /// holds, or lifts them without an approval.
    pub fn holds_back(&self, server: PinnedServer<'_>, era: Option<Era>, tool: &str, definition: &Raw) -> bool {
        self.examine(server, era, tool, definition).is_some_and(|examined| examined.held)
    }

    /// The same with the hash of the definition; `None` if the server's definitions are not pinned.
    fn examine(&self, server: PinnedServer<'_>, era: Option<Era>, tool: &str, definition: &Raw) -> Option<Examined> {
        let mode = self.mode_of(server);
        if mode == PinMode::Off {
            return None;
        }
        let mut state = self.lock();
        if let Some(examined) = state.last_seen(server.name, era, tool, definition) {
            return Some(examined);
        }
        let text = canonical(definition.get());
        let hash = sha256_hex(text.as_bytes());
        let verdict = state.judge((server.name, mode), era, tool, (&text, &hash));
        let held = !matches!(verdict, Verdict::Approved | Verdict::FirstSeen);
        let examined = Examined { hash, held };
        state.remember(server.name, era, tool, definition, examined.clone());
        let unwritten = state.unwritten;
        drop(state);
        if unwritten {
            self.dirty.notify_one();
        }
        self.report(server.name, tool, verdict, &examined.hash);
        Some(examined)
    }

    /// Whether the definitions of this server are compared at all.
    pub(crate) fn apply_to(&self, server: PinnedServer<'_>) -> bool {
        self.mode_of(server) != PinMode::Off
    }

    fn mode_of(&self, server: PinnedServer<'_>) -> PinMode {
        server.mode.unwrap_or(self.options.mode)
    }

    /// Whether a previously checked definition is hidden. It may be outdated, so it neither sets nor lifts a hold.
    pub fn hides(&self, server: PinnedServer<'_>, era: Option<Era>, tool: &str, definition: &Raw) -> bool {
        let mode = self.mode_of(server);
        if mode == PinMode::Off {
            return false;
        }
        let mut state = self.lock();
        if state.is_held(server.name, mode, tool) {
            return true;
        }
        if let Some(examined) = state.last_seen(server.name, era, tool, definition) {
            return examined.held;
        }
        let hash = sha256_hex(canonical(definition.get()).as_bytes());
        let approved = state.approves(server.name, mode, tool, &hash);
        // An unapproved one is not remembered, so that `holds_back` still judges it when the server sends it.
        if approved {
            state.remember(server.name, era, tool, definition, Examined { hash, held: false });
        }
        !approved
    }

    /// The hidden tools of a list, by the server's own names.
    pub fn hidden_of(&self, server: PinnedServer<'_>, era: Option<Era>, tools: &[Raw]) -> Vec<String> {
        let hidden = tools.iter().filter_map(|tool| {
            let name = name_of(tool)?;
            self.hides(server, era, &name, tool).then_some(name)
        });
        hidden.collect()
    }

    /// Whether calls of that tool are refused, by its last known definition.
    pub fn is_held(&self, server: PinnedServer<'_>, tool: &str) -> bool {
        let mode = self.mode_of(server);
        self.lock().is_held(server.name, mode, tool)
    }

    /// Lifts the holds of definitions that have been approved since.
    pub fn release_approved(&self, server: PinnedServer<'_>) {
        let mode = self.mode_of(server);
        if mode != PinMode::Off && self.lock().release_approved(server.name, mode) {
            self.dirty.notify_one();
        }
    }

    fn report(&self, server: &str, tool: &str, verdict: Verdict, hash: &str) {
        let state = match verdict {
            Verdict::FirstSeen => "first_seen",
            Verdict::HeldBack => "held_back",
            Verdict::Approved | Verdict::StillHeld => return,
        };
        if state == "held_back" {
            tracing::warn!(
                server,
                tool,
                "a tool is held back until `toolbus pin approve`: its definition is not approved"
            );
        }
        if let Some(audit) = &self.options.audit {
            let (server, tool) = (server.to_owned(), tool.to_owned());
            audit.note(Record::Pin { server, tool, state, definition: hash.to_owned() });
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Approved,
    FirstSeen,
    HeldBack,
    StillHeld,
}

/// Compares definitions without the members that only one era has.
fn is_equal_except_era(one: &Raw, other: &str) -> bool {
    let without = |text: &str| {
        let mut value: serde_json::Value = serde_json::from_str(text).ok()?;
        let members = value.as_object_mut()?;
        ERA_MEMBERS.iter().for_each(|name| drop(members.remove(*name)));
        Some(canonical(&value.to_string()).into_owned())
    };
    without(one.get()).is_some_and(|one| without(other).is_some_and(|other| one == other))
}

fn name_of(tool: &Raw) -> Option<String> {
    Members::parse(tool.text()).ok()?.text("name")
}

impl State {
    /// What is known about exactly this text, if it is the last one seen in its era.
    fn last_seen(&self, server: &str, era: Option<Era>, tool: &str, definition: &Raw) -> Option<Examined> {
        let seen = self.seen.get(server)?.get(tool)?;
        seen.iter().find(|seen| seen.era == era && *seen.text == *definition.get()).map(|seen| seen.examined.clone())
    }

    fn remember(&mut self, server: &str, era: Option<Era>, tool: &str, definition: &Raw, examined: Examined) {
        let seen = self.seen.entry(server.to_owned()).or_default().entry(tool.to_owned()).or_default();
        seen.retain(|seen| seen.era != era);
        seen.push(Seen { text: definition.get().into(), era, examined });
    }

    fn approves(&self, server: &str, mode: PinMode, tool: &str, hash: &str) -> bool {
        match mode {
            PinMode::Lock => self.lock.approves(server, tool, hash),
            _ => self.known.pin(server, tool).is_some_and(|pin| pin.approves(hash)),
        }
    }

    fn is_held(&self, server: &str, mode: PinMode, tool: &str) -> bool {
        let pin = self.known.pin(server, tool);
        match mode {
            PinMode::Off => false,
            PinMode::FirstUse => pin.is_some_and(|pin| pin.held.is_some()),
            // A tool that was never listed is not in the lock file either.
            PinMode::Lock => pin.is_none_or(|pin| pin.held.is_some()) || !self.lock.has(server, tool),
        }
    }

    /// Returns true if any hold was lifted.
    fn release_approved(&mut self, server: &str, mode: PinMode) -> bool {
        let held = self.known.held().filter(|(of, _, _)| *of == server);
        let hash = |pin: &Pin| pin.held.as_ref().map(|held| held.hash.clone());
        let held: Vec<_> = held.filter_map(|(_, tool, pin)| Some((tool.to_owned(), hash(pin)?))).collect();
        let mut any = false;
        for (tool, hash) in held {
            if self.approves(server, mode, &tool, &hash) {
                any |= self.known.pin_mut(server, &tool).approve();
            }
        }
        self.unwritten |= any;
        any
    }

    /// Judges a definition, given by its canonical text and its hash.
    fn judge(
        &mut self,
        (server, mode): (&str, PinMode),
        era: Option<Era>,
        tool: &str,
        (text, hash): (&str, &str),
    ) -> Verdict {
        let approved = self.approves(server, mode, tool, hash);
        let pin = self.known.pin_mut(server, tool);
        let since = jiff::Timestamp::now().to_string();
        let definition = || Raw::parse(text.to_owned()).expect("canonical JSON is JSON");
        if approved {
            let known = pin.approves(hash);
            if !known {
                pin.approved.retain(|approved| approved.era != era);
                pin.approved.push(Approved { hash: hash.to_owned(), era, since, definition: definition() });
            }
            let was_held = pin.held.take_if(|held| held.era == era || era.is_none()).is_some();
            self.unwritten |= was_held || !known;
            return Verdict::Approved;
        }
        // Another era's definition is approved automatically only if it is otherwise equal to an approved one.
        let is_same = || pin.approved.iter().any(|known| is_equal_except_era(&known.definition, text));
        let is_new_era = era.is_some() && pin.approved.iter().all(|known| known.era != era);
        let is_first = pin.approved.is_empty() || (is_new_era && is_same());
        if mode == PinMode::FirstUse && is_first && pin.held.is_none() {
            pin.approved.push(Approved { hash: hash.to_owned(), era, since, definition: definition() });
            self.unwritten = true;
            return Verdict::FirstSeen;
        }
        if pin.held.as_ref().is_some_and(|held| held.hash == hash) {
            return Verdict::StillHeld;
        }
        pin.held = Some(Held { hash: hash.to_owned(), era, since, definition: definition() });
        self.unwritten = true;
        Verdict::HeldBack
    }
}

#[cfg(test)]
#[path = "pins_tests.rs"]
mod tests;
