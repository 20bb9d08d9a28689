//! Which definitions of tools are the approved ones. A definition is told by the hash of its canonical JSON; one that is
//! not approved is held back: hidden from workers, and calls of it are refused, until somebody has looked at it.

pub mod diff;
mod files;
mod watch;

pub use files::{Approved, Held, LockFile, Pin, PinFile, PinFileError};
pub use watch::watch;

use crate::catalog::Lists;
use serde_json::value::RawValue;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;
use toolbus_audit::{AuditLog, Record, canonical::canonical, sha256_hex};
use toolbus_mcp::{Era, Members};
use toolbus_upstream::PinMode;

pub const PINS_FILE: &str = "pins.json";
pub const LOCK_FILE: &str = "toolbus.lock";

/// Members of a tool's definition that one era has and the other has not: how it may be run as a task.
const ERA_MEMBERS: &[&str] = &["execution"];

/// Where pins are kept and what counts.
#[derive(Debug, Clone, Default)]
pub struct PinOptions {
    /// The host's state folder. Without one, pins last as long as the process.
    pub state: Option<PathBuf>,
    pub lock_file: Option<PathBuf>,
    /// For servers that say nothing else.
    pub mode: PinMode,
    pub audit: Option<AuditLog>,
}

/// The pins of one host. Outlives its connections to the broker.
pub struct Pins {
    options: PinOptions,
    state: Mutex<State>,
    /// There is something to be written.
    dirty: Notify,
}

#[derive(Default)]
struct State {
    known: PinFile,
    lock: LockFile,
    unwritten: bool,
    /// By server and tool: the last text of each era that was looked at, so that the same one costs a comparison and no hash.
    seen: HashMap<String, HashMap<String, Vec<Seen>>>,
}

struct Seen {
    text: Box<str>,
    era: Option<Era>,
    held: bool,
}

/// How one server is treated.
#[derive(Clone, Copy)]
pub struct PinnedServer<'a> {
    pub name: &'a str,
    pub mode: Option<PinMode>,
}

impl Pins {
    pub fn in_memory() -> Self {
        Self { options: PinOptions::default(), state: Mutex::default(), dirty: Notify::new() }
    }

    /// Reads what is known. A file that can't be read is an error: to go on without it would approve everything anew.
    pub fn open(options: PinOptions) -> Result<Self, PinFileError> {
        let known = options.state.as_deref().map(|state| PinFile::read(&state.join(PINS_FILE))).transpose()?;
        let lock = options.lock_file.as_deref().map(LockFile::read).transpose()?;
        let state = State { known: known.unwrap_or_default(), lock: lock.unwrap_or_default(), ..State::default() };
        Ok(Self { options, state: Mutex::new(state), dirty: Notify::new() })
    }

    /// The file, if pins are kept in one.
    fn file(&self) -> Option<PathBuf> {
        self.options.state.as_deref().map(|state| state.join(PINS_FILE))
    }

    fn lock_file(&self) -> Option<&Path> {
        self.options.lock_file.as_deref()
    }

    /// Looks at a definition as the server gives it just now. True if it has to be held back. Only this sets a hold, or
    /// lifts one without somebody's word.
    pub fn holds_back(&self, server: PinnedServer<'_>, era: Option<Era>, tool: &str, definition: &RawValue) -> bool {
        let mode = server.mode.unwrap_or(self.options.mode);
        if mode == PinMode::Off {
            return false;
        }
        let mut state = self.lock();
        if let Some(held) = state.verdict_on(server.name, era, tool, definition) {
            return held;
        }
        let verdict = state.judge(server.name, mode, era, tool, definition);
        let held = !matches!(verdict, Verdict::Approved | Verdict::FirstSeen(_));
        state.remember(server.name, era, tool, definition, held);
        let unwritten = state.unwritten;
        drop(state);
        if unwritten {
            self.dirty.notify_one();
        }
        self.tell(server.name, tool, &verdict);
        held
    }

    /// Looks at all tools of lists that were just read.
    pub fn look_at(&self, server: PinnedServer<'_>, era: Option<Era>, lists: &Lists) {
        for tool in &lists.tools {
            if let Some(name) = name_of(tool) {
                self.holds_back(server, era, &name, tool);
            }
        }
    }

    /// Whether a definition that was looked at before is to be hidden. It may be older than what the server has now, so
    /// it says nothing about a hold.
    pub fn hides(&self, server: PinnedServer<'_>, era: Option<Era>, tool: &str, definition: &RawValue) -> bool {
        let mode = server.mode.unwrap_or(self.options.mode);
        if mode == PinMode::Off {
            return false;
        }
        let mut state = self.lock();
        if state.is_held(server.name, mode, tool) {
            return true;
        }
        if let Some(held) = state.verdict_on(server.name, era, tool, definition) {
            return held;
        }
        let approved = state.approves(server.name, mode, tool, &sha256_hex(canonical(definition).as_bytes()));
        // What is not approved has to be held when the server says it; that must not be taken for done.
        if approved {
            state.remember(server.name, era, tool, definition, false);
        }
        !approved
    }

    /// The tools of a list that are hidden, by the server's own names.
    pub fn hidden_of(&self, server: PinnedServer<'_>, era: Option<Era>, lists: &Lists) -> Vec<String> {
        let hidden = lists.tools.iter().filter_map(|tool| {
            let name = name_of(tool)?;
            self.hides(server, era, &name, tool).then_some(name)
        });
        hidden.collect()
    }

    /// Whether calls of that tool are refused, by what was last seen of it.
    pub fn is_held(&self, server: PinnedServer<'_>, tool: &str) -> bool {
        let mode = server.mode.unwrap_or(self.options.mode);
        self.lock().is_held(server.name, mode, tool)
    }

    /// Lifts the holds of definitions that somebody has approved since.
    pub fn release_approved(&self, server: PinnedServer<'_>) {
        let mode = server.mode.unwrap_or(self.options.mode);
        if mode != PinMode::Off && self.lock().release_approved(server.name, mode) {
            self.dirty.notify_one();
        }
    }

    fn tell(&self, server: &str, tool: &str, verdict: &Verdict) {
        let (state, definition) = match verdict {
            Verdict::FirstSeen(hash) => ("first_seen", hash),
            Verdict::HeldBack(hash) => ("held_back", hash),
            Verdict::Approved | Verdict::StillHeld => return,
        };
        if state == "held_back" {
            tracing::warn!(
                server,
                tool,
                "a tool's definition is not the approved one; it is held back until `toolbus pin approve`"
            );
        }
        if let Some(audit) = &self.options.audit {
            let (server, tool) = (server.to_owned(), tool.to_owned());
            audit.note(Record::Pin { server, tool, state, definition: definition.clone() });
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Approved,
    FirstSeen(String),
    HeldBack(String),
    StillHeld,
}

/// Compares canonical texts, without the members that only one era knows.
fn is_same_but_for_the_era(one: &RawValue, other: &str) -> bool {
    let without = |text: &str| {
        let mut value: serde_json::Value = serde_json::from_str(text).ok()?;
        let members = value.as_object_mut()?;
        ERA_MEMBERS.iter().for_each(|name| drop(members.remove(*name)));
        let text = RawValue::from_string(value.to_string()).ok()?;
        Some(canonical(&text).to_string())
    };
    without(one.get()).is_some_and(|one| without(other).is_some_and(|other| one == other))
}

fn name_of(tool: &RawValue) -> Option<String> {
    Members::of(Some(tool)).ok()?.text("name")
}

impl State {
    /// What was said when this very text was last looked at; nothing, if another came after it.
    fn verdict_on(&self, server: &str, era: Option<Era>, tool: &str, definition: &RawValue) -> Option<bool> {
        let seen = self.seen.get(server)?.get(tool)?;
        seen.iter().find(|seen| seen.era == era && *seen.text == *definition.get()).map(|seen| seen.held)
    }

    fn remember(&mut self, server: &str, era: Option<Era>, tool: &str, definition: &RawValue, held: bool) {
        let seen = self.seen.entry(server.to_owned()).or_default().entry(tool.to_owned()).or_default();
        seen.retain(|seen| seen.era != era);
        seen.push(Seen { text: definition.get().into(), era, held });
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
            // What was never listed is not in the lock file either, whatever it is.
            PinMode::Lock => pin.is_none_or(|pin| pin.held.is_some()) || !self.lock.has(server, tool),
        }
    }

    /// True if there were any.
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

    fn judge(&mut self, server: &str, mode: PinMode, era: Option<Era>, tool: &str, definition: &RawValue) -> Verdict {
        let text = canonical(definition);
        let hash = sha256_hex(text.as_bytes());
        let approved = self.approves(server, mode, tool, &hash);
        let pin = self.known.pin_mut(server, tool);
        let since = jiff::Timestamp::now().to_string();
        let definition = || RawValue::from_string(text.to_string()).expect("canonical JSON is JSON");
        if approved {
            let known = pin.approves(&hash);
            if !known {
                pin.approved.retain(|approved| approved.era != era);
                pin.approved.push(Approved { hash, era, since, definition: definition() });
            }
            let was_held = pin.held.take_if(|held| held.era == era || era.is_none()).is_some();
            self.unwritten |= was_held || !known;
            return Verdict::Approved;
        }
        // What a server says in another era is pinned by itself only if it says the same: nobody has looked at it yet.
        let is_same = || pin.approved.iter().any(|known| is_same_but_for_the_era(&known.definition, &text));
        let is_new_era = era.is_some() && pin.approved.iter().all(|known| known.era != era);
        let is_first = pin.approved.is_empty() || (is_new_era && is_same());
        if mode == PinMode::FirstUse && is_first && pin.held.is_none() {
            pin.approved.push(Approved { hash: hash.clone(), era, since, definition: definition() });
            self.unwritten = true;
            return Verdict::FirstSeen(hash);
        }
        if pin.held.as_ref().is_some_and(|held| held.hash == hash) {
            return Verdict::StillHeld;
        }
        pin.held = Some(Held { hash: hash.clone(), era, since, definition: definition() });
        self.unwritten = true;
        Verdict::HeldBack(hash)
    }
}

#[cfg(test)]
#[path = "pins_tests.rs"]
mod tests;
