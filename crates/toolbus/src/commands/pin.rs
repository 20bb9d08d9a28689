//! `toolbus pin`: lists the approved tool definitions, shows the changes of tools that are held back, and approves
//! them.

use crate::config::ConfigFile;
use crate::failure::Failure;
use crate::host_state::StateArgs;
use crate::output::print_line;
use crate::table::table;
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use toolbus_base::{Trust, escaped};
use toolbus_host::pins::diff::{self, Change};
use toolbus_host::pins::{LOCK_FILE, LockFile, PINS_FILE, Pin, PinFile};

/// Digits of a hash that are enough to recognise it.
const SHORT: usize = 12;
/// Digits of a hash that make a second definition with the same digits infeasible.
const COLLISION_FREE: usize = 32;

#[derive(Args)]
#[command(after_help = "\
Examples:
  toolbus pin                     write the approved definitions to toolbus.lock
  toolbus pin diff                show the changes of the tools that are held back
  toolbus pin approve read_file   approve the changed tool
  toolbus pin approve files/read_file@0123456789abcdef
                                  only if it still has the hash shown by `pin diff`
  toolbus pin approve --all")]
pub struct PinArgs {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    state: StateArgs,
    /// The lock file. Default: toolbus.lock in the folder of the toolbus.toml that is used, or in the working folder.
    #[arg(long, value_name = "FILE", global = true)]
    lock: Option<PathBuf>,
    /// Print JSON.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand)]
enum Action {
    /// List all known tools with their approved and held-back definitions.
    List,
    /// Show the changes of held-back tools, field by field.
    Diff {
        /// TOOL or SERVER/TOOL. Default: all tools that are held back.
        names: Vec<String>,
    },
    /// Approve the definitions that are held back.
    Approve {
        /// TOOL or SERVER/TOOL; with @HASH, as printed by `pin diff`, only if the definition has that hash.
        #[arg(required_unless_present = "all")]
        names: Vec<String>,
        /// Approve all tools that are held back.
        #[arg(long, conflicts_with = "names")]
        all: bool,
    },
}

pub async fn run(args: PinArgs) -> Result<(), Failure> {
    let files: Vec<PathBuf> =
        args.state.hosts()?.into_iter().map(|state| state.join(PINS_FILE)).filter(|file| file.is_file()).collect();
    if files.is_empty() {
        return Err(Failure::NoPins { folder: args.state.root()? });
    }
    match &args.action {
        None => args.write_lock(&files),
        Some(Action::List) => args.list(&files),
        Some(Action::Diff { names }) => args.diff(&files, names),
        Some(Action::Approve { names, all }) => args.approve(&files, if *all { None } else { Some(names) }),
    }
}

impl PinArgs {
    fn lock_file(&self) -> Result<PathBuf, Failure> {
        if let Some(file) = &self.lock {
            return Ok(file.clone());
        }
        Ok(ConfigFile::found()?.map_or_else(|| PathBuf::from(LOCK_FILE), |file| file.lock_file()))
    }

    fn write_lock(&self, files: &[PathBuf]) -> Result<(), Failure> {
        let path = self.lock_file()?;
        let pins = files.iter().map(|file| PinFile::read(file)).collect::<Result<Vec<_>, _>>()?;
        let is_empty = |lock: &LockFile| lock.servers.is_empty();
        let has_held = pins.iter().any(|pins| pins.held().next().is_some());
        if has_held && pins.iter().map(LockFile::of).all(|lock| is_empty(&lock)) {
            // With `pin = "lock"` an empty file would refuse every tool.
            let known = LockFile::read(&path, Trust::default())?;
            if is_empty(&known) {
                return Err(Failure::NothingApproved { file: path });
            }
        }
        let lock = LockFile::edit(&path, |lock| {
            // A server that no host has any more could come back with the approved name and another program.
            lock.servers.retain(|server, _| pins.iter().any(|pins| pins.is_configured(server)));
            lock.servers.extend(pins.iter().flat_map(|pins| LockFile::of(pins).servers));
            lock.clone()
        })?;
        let tools: usize = lock.servers.values().map(|tools| tools.len()).sum();
        let path = path.display();
        match self.json {
            true => print_line(&json!({"lock": path.to_string(), "tools": tools}).to_string()),
            false => print_line(&format!("wrote {tools} tools of {} servers to {path}", lock.servers.len())),
        }
    }

    fn list(&self, files: &[PathBuf]) -> Result<(), Failure> {
        let mut rows = vec![["HOST", "SERVER", "TOOL", "APPROVED", "HELD BACK"].map(str::to_owned)];
        let mut all = Vec::new();
        for file in files {
            let pins = PinFile::read(file)?;
            for (server, tool, pin) in pins.all() {
                let approved: Vec<&str> = pin.approved.iter().map(|approved| approved.hash.as_str()).collect();
                let held = pin.held.as_ref().map(|held| held.hash.as_str());
                rows.push([
                    host_of(file),
                    escaped(server),
                    escaped(tool),
                    approved.iter().map(|hash| short(hash)).collect::<Vec<_>>().join(" "),
                    held.map_or("-", short).to_owned(),
                ]);
                all.push(
                    json!({"host": host_of(file), "server": server, "tool": tool, "approved": approved, "held": held}),
                );
            }
        }
        print_line(&if self.json { Value::from(all).to_string() } else { table(&rows, None) })
    }

    fn diff(&self, files: &[PathBuf], names: &[String]) -> Result<(), Failure> {
        let mut all = Vec::new();
        let mut unknown: Vec<&String> = names.iter().collect();
        for file in files {
            let pins = PinFile::read(file)?;
            for (server, tool, pin) in pins.held() {
                if !names.is_empty() && !names.iter().any(|name| matches_name(name, server, tool)) {
                    continue;
                }
                unknown.retain(|name| !matches_name(name, server, tool));
                all.push((host_of(file), server.to_owned(), tool.to_owned(), pin.clone()));
            }
        }
        if let Some(name) = unknown.first() {
            return Err(Failure::NotHeldBack { tool: (*name).clone() });
        }
        if self.json {
            let all: Vec<Value> =
                all.iter().map(|(host, server, tool, pin)| as_json(host, server, tool, pin)).collect();
            return print_line(&Value::from(all).to_string());
        }
        if all.is_empty() {
            return print_line("nothing is held back");
        }
        for (host, server, tool, pin) in &all {
            print_line(&as_text(host, server, tool, pin))?;
        }
        Ok(())
    }

    fn approve(&self, files: &[PathBuf], names: Option<&Vec<String>>) -> Result<(), Failure> {
        let mut approved = Vec::new();
        for file in files {
            approved.extend(PinFile::edit(file, |pins| approve_in(pins, names.map(Vec::as_slice)))??);
        }
        let is_missing = |name: &&String| !approved.iter().any(|(server, tool, _)| matches_name(name, server, tool));
        if let Some(name) = names.into_iter().flatten().find(is_missing) {
            return Err(Failure::NotHeldBack { tool: name.clone() });
        }
        self.approve_in_lock(&approved)?;
        for (server, tool, hashes) in &approved {
            print_line(&match self.json {
                true => json!({"server": server, "tool": tool, "approved": hashes}).to_string(),
                false => format!("{}/{} is approved", escaped(server), escaped(tool)),
            })?;
        }
        if approved.is_empty() && !self.json { print_line("nothing is held back") } else { Ok(()) }
    }

    /// Keeps an existing lock file in step, because it takes precedence over the pins.
    fn approve_in_lock(&self, approved: &[ApprovedTool]) -> Result<(), Failure> {
        let path = self.lock_file()?;
        if approved.is_empty() || !path.is_file() {
            return Ok(());
        }
        Ok(LockFile::edit(&path, |lock| {
            for (server, tool, hashes) in approved {
                lock.servers.entry(server.clone()).or_default().insert(tool.clone(), hashes.clone());
            }
        })?)
    }
}

/// Server, tool, and all approved hashes of the tool.
type ApprovedTool = (String, String, Vec<String>);

/// Approves all tools that match, or none if the hash of one differs.
fn approve_in(pins: &mut PinFile, names: Option<&[String]>) -> Result<Vec<ApprovedTool>, Failure> {
    let wanted = |server: &str, tool: &str| match names {
        None => Some(None),
        Some(names) => names.iter().find(|name| matches_name(name, server, tool)).map(Some),
    };
    for (server, tool, pin) in pins.held() {
        let shown = wanted(server, tool).flatten().filter(|name| !is_name_of(name, server, tool));
        let hash = shown.and_then(|name| split_hash(name)).map(|(_, hash)| hash);
        let is_other = |hash: &str| pin.held.as_ref().is_some_and(|held| !held.hash.starts_with(hash));
        if hash.is_some_and(is_other) {
            return Err(Failure::PinHashMismatch { server: server.to_owned(), tool: tool.to_owned() });
        }
    }
    let mut approved = Vec::new();
    for (server, tools) in &mut pins.servers {
        for (tool, pin) in tools.iter_mut().filter(|(tool, _)| wanted(server, tool).is_some()) {
            if pin.approve() {
                let hashes = pin.approved.iter().map(|approved| approved.hash.clone()).collect();
                approved.push((server.clone(), tool.clone(), hashes));
            }
        }
    }
    Ok(approved)
}

/// Whether the name matches the tool, with or without a hash.
fn matches_name(name: &str, server: &str, tool: &str) -> bool {
    is_name_of(name, server, tool) || split_hash(name).is_some_and(|(name, _)| is_name_of(name, server, tool))
}

fn is_name_of(name: &str, server: &str, tool: &str) -> bool {
    name == tool || name.strip_prefix(server).and_then(|rest| rest.strip_prefix('/')) == Some(tool)
}

/// Splits `NAME@HASH` if the hash is long enough to identify one definition.
fn split_hash(name: &str) -> Option<(&str, &str)> {
    let is_hash = |hash: &str| hash.len() >= SHORT && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
    name.rsplit_once('@').filter(|(_, hash)| is_hash(hash))
}

/// The name of the host, which is the name of its state folder.
fn host_of(file: &Path) -> String {
    file.parent().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

fn short(hash: &str) -> &str {
    hash.get(..SHORT).unwrap_or(hash)
}

fn changes_of(pin: &Pin) -> Vec<Change> {
    let value = |text: &str| serde_json::from_str(text).unwrap_or(Value::Null);
    let held = pin.held.as_ref().map(|held| value(held.definition.get())).unwrap_or_default();
    let before = pin.approved_before().map(|approved| value(approved.definition.get()));
    diff::changes(&before.unwrap_or(Value::Object(serde_json::Map::new())), &held)
}

fn as_text(host: &str, server: &str, tool: &str, pin: &Pin) -> String {
    let held = pin.held.as_ref();
    let mut text = format!("{}/{} on host {host}", escaped(server), escaped(tool));
    match pin.approved_before() {
        Some(approved) => {
            text.push_str(&format!("\n  approved {}, first seen {}", short(&approved.hash), approved.since));
        }
        None => text.push_str("\n  never approved: not in the lock file"),
    }
    if let Some(held) = held {
        text.push_str(&format!("\n  held back {}, since {}", short(&held.hash), held.since));
    }
    for line in changes_of(pin).iter().flat_map(diff::lines) {
        text.push('\n');
        text.push_str(&line);
    }
    let hash = held.map(|held| held.hash.get(..COLLISION_FREE).unwrap_or(&held.hash)).unwrap_or_default();
    text.push_str(&format!("\n  to approve: toolbus pin approve {}/{}@{hash}", escaped(server), escaped(tool)));
    text
}

fn as_json(host: &str, server: &str, tool: &str, pin: &Pin) -> Value {
    json!({
        "host": host, "server": server, "tool": tool,
        "approved": pin.approved_before().map(|approved| &approved.hash),
        "held": pin.held.as_ref().map(|held| &held.hash),
        "changes": changes_of(pin),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn approval_by_hash_requires_the_same_definition() {
        let hash = "0123456789abcdef".repeat(4);
        let definition = json!({"name": "t"});
        let held = json!({"hash": hash, "era": "modern", "since": "x", "definition": definition});
        let pins = json!({"version": 1, "servers": {"s": {"t": {"approved": [], "held": held}}}});
        let pins: PinFile = serde_json::from_value(pins).expect("pins");
        let approve = |name: String| approve_in(&mut pins.clone(), Some(&[name])).map(|approved| approved.len());
        for name in ["t", "s/t", "t@0123456789abcdef", &format!("s/t@{hash}")] {
            assert_eq!(approve(name.to_owned()).ok(), Some(1), "{name}");
        }
        assert!(matches!(approve("s/t@f123456789abcdef".to_owned()), Err(Failure::PinHashMismatch { .. })));
        assert_eq!(approve("t@0123".to_owned()).ok(), Some(0), "too short to identify a definition");
        assert!(
            as_text("h", "s", "t", &pins.servers["s"]["t"]).contains("approve s/t@0123456789abcdef0123456789abcdef")
        );
    }
}
