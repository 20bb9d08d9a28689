//! `toolbus pin`: which definitions of tools are approved, what has changed in those that are held back, and the word that
//! lets them through.

use super::print_line;
use crate::config;
use crate::failure::Failure;
use crate::host_state::{StateArgs, lock_file};
use crate::table::table;
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use toolbus_host::pins::diff::{self, Change, escaped};
use toolbus_host::pins::{LOCK_FILE, LockFile, PINS_FILE, Pin, PinFile};

#[derive(Args)]
#[command(after_help = "\
Examples:
  toolbus pin                     write toolbus.lock from what is approved
  toolbus pin diff                what has changed in the tools that are held back
  toolbus pin approve read_file   let the changed tool through
  toolbus pin approve --all")]
pub struct PinArgs {
    #[command(subcommand)]
    what: Option<What>,
    #[command(flatten)]
    state: StateArgs,
    /// The lock file. Default: toolbus.lock beside the toolbus.toml that counts, or in this folder.
    #[arg(long, value_name = "FILE", global = true)]
    lock: Option<PathBuf>,
    /// Print JSON.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand)]
enum What {
    /// Show every tool that was seen, and whether it is held back.
    List,
    /// Show what has changed, field by field.
    Diff {
        /// TOOL or SERVER/TOOL; all that are held back, if none is named.
        names: Vec<String>,
    },
    /// Take the definitions that are held back as the approved ones.
    Approve {
        /// TOOL or SERVER/TOOL.
        #[arg(required_unless_present = "all")]
        names: Vec<String>,
        /// Everything that is held back.
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
    match &args.what {
        None => args.write_lock(&files),
        Some(What::List) => args.list(&files),
        Some(What::Diff { names }) => args.diff(&files, names),
        Some(What::Approve { names, all }) => args.approve(&files, if *all { None } else { Some(names) }),
    }
}

impl PinArgs {
    fn lock_file(&self) -> PathBuf {
        let beside = || lock_file(config::usual_file().as_deref());
        self.lock.clone().or_else(beside).unwrap_or_else(|| PathBuf::from(LOCK_FILE))
    }

    fn write_lock(&self, files: &[PathBuf]) -> Result<(), Failure> {
        let path = self.lock_file();
        let mut lock = LockFile::read(&path)?;
        for file in files {
            lock.servers.extend(LockFile::of(&PinFile::read(file)?).servers);
        }
        lock.write(&path)?;
        let tools: usize = lock.servers.values().map(|tools| tools.len()).sum();
        let path = path.display();
        match self.json {
            true => print_line(&json!({"lock": path.to_string(), "tools": tools}).to_string()),
            false => print_line(&format!("{tools} tools of {} servers are locked in {path}", lock.servers.len())),
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
                if !names.is_empty() && !names.iter().any(|name| is_meant(name, server, tool)) {
                    continue;
                }
                unknown.retain(|name| !is_meant(name, server, tool));
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
            print_line(&in_words(host, server, tool, pin))?;
        }
        Ok(())
    }

    fn approve(&self, files: &[PathBuf], names: Option<&Vec<String>>) -> Result<(), Failure> {
        let mut approved = Vec::new();
        for file in files {
            let meant = |server: &str, tool: &str| {
                names.is_none_or(|names| names.iter().any(|name| is_meant(name, server, tool)))
            };
            let of_file = PinFile::edit(file, |pins| {
                let mut approved = Vec::new();
                for (server, tools) in &mut pins.servers {
                    for (tool, pin) in tools.iter_mut().filter(|(tool, _)| meant(server, tool)) {
                        if pin.approve() {
                            let hashes: Vec<String> =
                                pin.approved.iter().map(|approved| approved.hash.clone()).collect();
                            approved.push((server.clone(), tool.clone(), hashes));
                        }
                    }
                }
                approved
            })?;
            approved.extend(of_file);
        }
        let is_missing = |name: &&String| !approved.iter().any(|(server, tool, _)| is_meant(name, server, tool));
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

    /// Where there is a lock file, it counts; so it has to say the same.
    fn approve_in_lock(&self, approved: &[(String, String, Vec<String>)]) -> Result<(), Failure> {
        let path = self.lock_file();
        if approved.is_empty() || !path.is_file() {
            return Ok(());
        }
        let mut lock = LockFile::read(&path)?;
        for (server, tool, hashes) in approved {
            lock.servers.entry(server.clone()).or_default().insert(tool.clone(), hashes.clone());
        }
        Ok(lock.write(&path)?)
    }
}

fn is_meant(name: &str, server: &str, tool: &str) -> bool {
    name == tool || name.strip_prefix(server).and_then(|rest| rest.strip_prefix('/')) == Some(tool)
}

/// A host's state folder has the host's name.
fn host_of(file: &Path) -> String {
    file.parent().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

fn short(hash: &str) -> &str {
    hash.get(..12).unwrap_or(hash)
}

fn changes_of(pin: &Pin) -> Vec<Change> {
    let value = |text: &str| serde_json::from_str(text).unwrap_or(Value::Null);
    let held = pin.held.as_ref().map(|held| value(held.definition.get())).unwrap_or_default();
    let before = pin.approved_before().map(|approved| value(approved.definition.get()));
    diff::changes(&before.unwrap_or(Value::Object(serde_json::Map::new())), &held)
}

fn in_words(host: &str, server: &str, tool: &str, pin: &Pin) -> String {
    let held = pin.held.as_ref();
    let mut text = format!("{}/{} on host {host}", escaped(server), escaped(tool));
    match pin.approved_before() {
        Some(approved) => {
            text.push_str(&format!("\n  approved {}, first seen {}", short(&approved.hash), approved.since));
        }
        None => text.push_str("\n  never approved: it is not in the lock file"),
    }
    if let Some(held) = held {
        text.push_str(&format!("\n  held back {}, since {}", short(&held.hash), held.since));
    }
    for line in changes_of(pin).iter().flat_map(diff::lines) {
        text.push('\n');
        text.push_str(&line);
    }
    text.push_str(&format!("\n  to accept it: toolbus pin approve {}/{}", escaped(server), escaped(tool)));
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
