//! Common parts of the tests that inject faults: stock MCP clients with their workers, a tool whose effects are counted,
//! processes that are killed and restarted, and the verdict on answers and effects.

pub mod answer;
pub mod client;
pub mod clients;
pub mod effect;
pub mod guard;
pub mod recovery;
pub mod relay;
pub mod rng;
pub mod supervisor;
pub mod table;
pub mod tally;
pub mod verdict;
pub mod warm_up;
pub mod watchdog;

use std::{
    fs::{File, OpenOptions},
    net::TcpListener,
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context, bail};
use tokio::process::Command;

use self::rng::Rng;

/// Deadline of a call on the bus.
pub const DEADLINE_SECONDS: u64 = 60;
/// Below the ephemeral ports, so that no outgoing connection takes the port of a process while it is down.
const PORTS: std::ops::Range<u64> = 18_000..30_000;

/// A tool of the system under test, with its own server and effects file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tool {
    pub name: &'static str,
    /// Whether it is replay-safe: then a call may have several effects.
    pub is_safe: bool,
}

/// The worker processes of a system under test.
pub trait Workers: Send + Sync {
    /// The command that an MCP client has in its configuration, with stdin and stdout piped to the client.
    fn worker(&self, number: usize) -> anyhow::Result<Command>;

    /// The tools to call, each as often as it is listed.
    fn tools(&self) -> &[Tool];
}

/// The folder of a run: the logs of its processes, and the effects of its tools.
pub struct RunFolder(PathBuf);

impl RunFolder {
    pub fn create(folder: &Path) -> anyhow::Result<Self> {
        for part in ["logs", "empty"] {
            std::fs::create_dir_all(folder.join(part)).context("make a folder")?;
        }
        Ok(Self(folder.to_owned()))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn log(&self, name: &str) -> PathBuf {
        self.0.join("logs").join(format!("{name}.log"))
    }

    pub fn effects(&self, tool: Tool) -> PathBuf {
        self.0.join(format!("{}.effects", tool.name))
    }

    /// Runs the command in an empty folder without variables of toolbus, and appends its stderr to one log file.
    pub fn isolated(&self, mut command: Command, name: &str, stdout: Stdio) -> anyhow::Result<Command> {
        let log: File = OpenOptions::new().append(true).create(true).open(self.log(name)).context("open a log file")?;
        for variable in ["TOOLBUS_CONFIG", "TOOLBUS_BROKER", "TOOLBUS_TOKEN", "TOOLBUS_DATA", "TOOLBUS_ROLE"] {
            command.env_remove(variable);
        }
        let empty = self.0.join("empty");
        command.env("XDG_CONFIG_HOME", &empty).env("HOME", &empty).env("TOOLBUS_LOG", "info").current_dir(&empty);
        command.stdin(Stdio::null()).stdout(stdout).stderr(log).kill_on_drop(true);
        Ok(command)
    }

    /// The configuration of a host with a server for each tool; `more` are further lines for each server.
    pub fn host_config(&self, bench: &Path, tools: &[Tool], more: &str) -> String {
        let server = |tool: &Tool| {
            let args = ["effect-server", "--tool", tool.name, "--effects"].map(|arg| format!("{arg:?}")).join(", ");
            let effects = self.effects(*tool);
            let safe = if tool.is_safe { "replay = \"safe\"\n" } else { "" };
            format!("[servers.{}]\ncommand = {bench:?}\nargs = [{args}, {effects:?}]\n{safe}{more}\n", tool.name)
        };
        tools.iter().map(server).collect()
    }
}

pub fn free_port(rng: &mut Rng) -> anyhow::Result<u16> {
    for _ in 0..100 {
        let port = u16::try_from(PORTS.start + rng.below(PORTS.end - PORTS.start))?;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no port between {} and {} is free", PORTS.start, PORTS.end)
}
