//! `pins.json` of a host, and `toolbus.lock` beside toolbus.toml. Both are replaced atomically under a file lock,
//! because the host and CLI commands write them.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use toolbus_base::{Trust, open_private, private_folder, read_private_text};
use toolbus_mcp::{Era, Raw};

/// Why a pin file can't be used.
#[derive(Debug, thiserror::Error)]
pub enum PinFileError {
    /// The file can't be read, written or locked.
    #[error("cannot {what} {}: {source}", file.display())]
    Io {
        /// The operation that failed.
        what: &'static str,
        /// The file.
        file: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The file is not valid JSON of this kind.
    #[error("cannot parse {}: {source}", file.display())]
    Syntax {
        /// The file.
        file: PathBuf,
        /// The error of the parser.
        source: serde_json::Error,
    },
    /// The file was written by another version of toolbus.
    #[error("{} has version {version}, but this toolbus supports version {VERSION}", file.display())]
    Version {
        /// The file.
        file: PathBuf,
        /// The version in the file.
        version: u32,
    },
}

const VERSION: u32 = 1;

/// All pins, by server and by the server's own name of the tool.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PinFile {
    version: u32,
    /// The servers that the host has now. Pins of other servers are kept, in case they return. `None`: not known, because an
    /// earlier version wrote the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub configured: Option<BTreeSet<String>>,
    /// Pins by server and tool.
    pub servers: BTreeMap<String, BTreeMap<String, Pin>>,
}

/// What is known of one tool.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Pin {
    /// One definition per era in which the server was seen.
    pub approved: Vec<Approved>,
    /// The definition that waits for approval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<Held>,
}

/// An approved definition.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Approved {
    /// Hash of the canonical definition.
    pub hash: String,
    /// The era in which the server gave it.
    #[serde(default, with = "era", skip_serializing_if = "Option::is_none")]
    pub era: Option<Era>,
    /// When it was first seen.
    pub since: String,
    /// The canonical definition.
    pub definition: Raw,
}

/// A definition that is held back until it is approved.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Held {
    /// Hash of the canonical definition.
    pub hash: String,
    /// The era in which the server gave it.
    #[serde(default, with = "era", skip_serializing_if = "Option::is_none")]
    pub era: Option<Era>,
    /// When it was first seen.
    pub since: String,
    /// The canonical definition.
    pub definition: Raw,
}

/// The approved hashes, to be kept under version control.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockFile {
    version: u32,
    /// Hashes by server and tool.
    pub servers: BTreeMap<String, BTreeMap<String, Vec<String>>>,
}

impl PinFile {
    /// Reads the file; empty if it doesn't exist.
    pub fn read(file: &Path) -> Result<Self, PinFileError> {
        let read: Self = parse(file, read_private_text(file))?.unwrap_or_default();
        checked_version(read.version, file)?;
        Ok(read)
    }

    /// Reads, changes and writes the file under an exclusive lock.
    pub fn edit<T>(file: &Path, change: impl FnOnce(&mut Self) -> T) -> Result<T, PinFileError> {
        let _lock = lock(file)?;
        let mut pins = Self::read(file)?;
        let done = change(&mut pins);
        write(file, &pins, 0o600)?;
        Ok(done)
    }

    /// The pin of one tool.
    pub fn pin(&self, server: &str, tool: &str) -> Option<&Pin> {
        self.servers.get(server)?.get(tool)
    }

    pub(super) fn pin_mut(&mut self, server: &str, tool: &str) -> &mut Pin {
        self.servers.entry(server.to_owned()).or_default().entry(tool.to_owned()).or_default()
    }

    /// All tools that are held back: server, tool, pin.
    pub fn held(&self) -> impl Iterator<Item = (&str, &str, &Pin)> {
        self.all().filter(|(_, _, pin)| pin.held.is_some())
    }

    /// All pins: server, tool, pin.
    pub fn all(&self) -> impl Iterator<Item = (&str, &str, &Pin)> {
        self.servers
            .iter()
            .flat_map(|(server, tools)| tools.iter().map(move |(tool, pin)| (server.as_str(), tool.as_str(), pin)))
    }

    /// Whether the host has the server now, as far as is known.
    pub fn is_configured(&self, server: &str) -> bool {
        self.configured.as_ref().is_none_or(|configured| configured.contains(server))
    }

    /// Adds what the host has seen. Approvals in the file take precedence.
    pub(super) fn merge(&mut self, seen: &Self) {
        self.configured.clone_from(&seen.configured);
        for (server, tool, pin) in seen.all() {
            let known = self.pin_mut(server, tool);
            for approved in &pin.approved {
                if known.approved.iter().all(|other| other.era != approved.era) {
                    known.approved.push(approved.clone());
                }
            }
            known.held = pin.held.clone().filter(|held| !known.approves(&held.hash));
        }
    }
}

impl Pin {
    pub(super) fn approves(&self, hash: &str) -> bool {
        self.approved.iter().any(|approved| approved.hash == hash)
    }

    /// Approves the held definition for its era. Returns false if none is held.
    pub fn approve(&mut self) -> bool {
        let Some(Held { hash, era, since, definition }) = self.held.take() else { return false };
        self.approved.retain(|approved| approved.era != era);
        self.approved.push(Approved { hash, era, since, definition });
        true
    }

    /// The approved definition to compare the held one with.
    pub fn approved_before(&self) -> Option<&Approved> {
        let era = self.held.as_ref().and_then(|held| held.era);
        self.approved.iter().find(|approved| approved.era == era).or(self.approved.first())
    }
}

impl LockFile {
    /// Reads the file, which must be of a trusted owner; empty if it doesn't exist.
    pub fn read(file: &Path, trust: Trust) -> Result<Self, PinFileError> {
        let read: Self = parse(file, trust.read_text(file))?.unwrap_or_default();
        checked_version(read.version, file)?;
        Ok(read)
    }

    /// Replaces the file atomically.
    pub fn write(&self, file: &Path) -> Result<(), PinFileError> {
        write(file, self, 0o644)
    }

    /// Reads, changes and writes the file under an exclusive lock.
    pub fn edit<T>(file: &Path, change: impl FnOnce(&mut Self) -> T) -> Result<T, PinFileError> {
        // Locks the folder, because a separate lock file would remain beside toolbus.toml.
        let folder = folder_of(file);
        let io = |source| PinFileError::Io { what: "lock", file: folder.to_owned(), source };
        let folder_lock = File::open(folder).map_err(io)?;
        folder_lock.lock().map_err(io)?;
        let mut lock = Self::read(file, Trust::default())?;
        let done = change(&mut lock);
        lock.write(file)?;
        Ok(done)
    }

    /// The hashes of all approved definitions of the servers that the host has now.
    pub fn of(pins: &PinFile) -> Self {
        let mut lock = Self::default();
        for (server, tool, pin) in pins.all().filter(|(_, _, pin)| !pin.approved.is_empty()) {
            if !pins.is_configured(server) {
                continue;
            }
            let mut hashes: Vec<String> = pin.approved.iter().map(|approved| approved.hash.clone()).collect();
            hashes.sort();
            hashes.dedup();
            lock.servers.entry(server.to_owned()).or_default().insert(tool.to_owned(), hashes);
        }
        lock
    }

    /// Whether the tool is listed.
    pub fn has(&self, server: &str, tool: &str) -> bool {
        self.servers.get(server).is_some_and(|tools| tools.contains_key(tool))
    }

    /// Whether the hash is approved for the tool.
    pub fn approves(&self, server: &str, tool: &str, hash: &str) -> bool {
        let hashes = self.servers.get(server).and_then(|tools| tools.get(tool));
        hashes.is_some_and(|hashes| hashes.iter().any(|approved| approved == hash))
    }
}

impl Default for PinFile {
    fn default() -> Self {
        Self { version: VERSION, configured: None, servers: BTreeMap::new() }
    }
}

impl Default for LockFile {
    fn default() -> Self {
        Self { version: VERSION, servers: BTreeMap::new() }
    }
}

fn parse<T: for<'a> Deserialize<'a>>(file: &Path, text: io::Result<String>) -> Result<Option<T>, PinFileError> {
    match text {
        Ok(text) => serde_json::from_str(&text)
            .map(Some)
            .map_err(|source| PinFileError::Syntax { file: file.to_owned(), source }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(PinFileError::Io { what: "read", file: file.to_owned(), source }),
    }
}

fn checked_version(version: u32, file: &Path) -> Result<(), PinFileError> {
    if version == VERSION { Ok(()) } else { Err(PinFileError::Version { file: file.to_owned(), version }) }
}

fn lock(file: &Path) -> Result<File, PinFileError> {
    let beside = file.with_extension("lock");
    let io = |source| PinFileError::Io { what: "lock", file: beside.clone(), source };
    private_folder(folder_of(file)).map_err(io)?;
    let lock = open_private(&beside, OpenOptions::new().create(true).truncate(false).write(true)).map_err(io)?;
    lock.lock().map_err(io)?;
    Ok(lock)
}

fn write(file: &Path, content: &impl Serialize, mode: u32) -> Result<(), PinFileError> {
    let io = |source| PinFileError::Io { what: "write", file: file.to_owned(), source };
    let mut text = serde_json::to_string_pretty(content).map_err(|error| io(error.into()))?;
    text.push('\n');
    toolbus_base::replace_file_with_mode(file, text.as_bytes(), mode).map_err(io)
}

fn folder_of(file: &Path) -> &Path {
    file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Serialises an era as a word.
mod era {
    use serde::{Deserialize, Deserializer, Serializer};
    use toolbus_mcp::Era;

    pub fn serialize<S: Serializer>(era: &Option<Era>, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(match era {
            Some(Era::Legacy) => "legacy",
            Some(Era::Modern) => "modern",
            None => "",
        })
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Era>, D::Error> {
        let word = String::deserialize(deserializer)?;
        Ok(match word.as_str() {
            "legacy" => Some(Era::Legacy),
            "modern" => Some(Era::Modern),
            _ => None,
        })
    }
}
