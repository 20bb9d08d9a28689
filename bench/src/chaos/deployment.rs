//! The system under test: how its broker, host and workers are started, always on the same folder and port, and the
//! files in which the effects of its tools are counted.

use std::{
    fs::{self, File, OpenOptions},
    net::TcpListener,
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context, bail};
use tokio::process::Command;

use super::{cutter::Cutter, rng::Rng};

/// Below the ephemeral ports, so that no outgoing connection takes the broker's port while it is down.
const PORTS: std::ops::Range<u64> = 18_000..30_000;
/// Deadline of a call on the bus.
pub const DEADLINE_SECONDS: u64 = 60;
const TOKEN: &str = "chaos-token";

#[derive(Clone, Debug)]
pub enum System {
    Toolbus {
        binary: PathBuf,
        /// Whether the replay-safe tool is called as well.
        with_safe: bool,
    },
    /// The original system, whose binaries are in this folder.
    Original { programs: PathBuf },
}

impl System {
    pub fn name(&self) -> &'static str {
        match self {
            System::Toolbus { .. } => "toolbus",
            System::Original { .. } => "original",
        }
    }
}

/// The tools, each with its own server and effects file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tool {
    Never,
    Safe,
}

impl Tool {
    pub fn name(self) -> &'static str {
        match self {
            Tool::Never => "effect",
            Tool::Safe => "effect_safe",
        }
    }
}

pub struct Deployment {
    pub system: System,
    bench: PathBuf,
    folder: PathBuf,
    port: u16,
    host_link: u16,
    worker_links: Vec<u16>,
}

impl Deployment {
    pub fn new(system: System, bench: PathBuf, folder: &Path, rng: &mut Rng) -> anyhow::Result<Self> {
        for part in ["logs", "empty"] {
            fs::create_dir_all(folder.join(part)).context("make a folder")?;
        }
        let port = free_port(rng)?;
        let deployment =
            Self { system, bench, folder: folder.to_owned(), port, host_link: 0, worker_links: Vec::new() };
        fs::write(deployment.folder.join("toolbus.toml"), deployment.config()).context("write the configuration")?;
        Ok(deployment)
    }

    pub fn set_links(&mut self, host: &Cutter, workers: &[Cutter]) {
        self.host_link = host.port();
        self.worker_links = workers.iter().map(Cutter::port).collect();
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn effects(&self, tool: Tool) -> PathBuf {
        self.folder.join(format!("{}.effects", tool.name()))
    }

    pub fn tools(&self) -> &'static [Tool] {
        match self.system {
            System::Toolbus { with_safe: true, .. } => &[Tool::Never, Tool::Never, Tool::Never, Tool::Safe],
            _ => &[Tool::Never],
        }
    }

    /// Whether the broker has written the token files.
    pub fn has_token(&self) -> bool {
        match self.system {
            System::Toolbus { .. } => ["token", "host.token"].iter().all(|file| self.data().join(file).exists()),
            System::Original { .. } => true,
        }
    }

    pub fn broker(&self) -> anyhow::Result<Command> {
        let listen = format!("127.0.0.1:{}", self.port);
        let mut command = match &self.system {
            System::Toolbus { binary, .. } => {
                let mut command = Command::new(binary);
                command.arg("broker");
                command
            }
            System::Original { programs } => {
                let mut command = Command::new(programs.join("original_broker"));
                command.args(["--token", TOKEN]);
                command
            }
        };
        command.args(["--listen", &listen, "--data"]).arg(self.data());
        self.isolated(command, "broker", Stdio::null())
    }

    pub fn host(&self) -> anyhow::Result<Command> {
        let command = match &self.system {
            System::Toolbus { binary, .. } => {
                let mut command = Command::new(binary);
                command.args(["host", "--broker", &bus(self.host_link), "--config"]);
                command.arg(self.folder.join("toolbus.toml"));
                command.arg("--token-file").arg(self.data().join("host.token"));
                command.arg("--state").arg(self.folder.join("host"));
                command
            }
            System::Original { programs } => {
                let mut command = Command::new(programs.join("original_host"));
                command.args(["--broker", &address(self.host_link), "--token", TOKEN]);
                command.args(["--tool", Tool::Never.name(), "--effects"]).arg(self.effects(Tool::Never));
                command
            }
        };
        self.isolated(command, "host", Stdio::null())
    }

    /// The command that an MCP client has in its configuration, with stdin and stdout piped to the client.
    pub fn worker(&self, number: usize) -> anyhow::Result<Command> {
        let link = self.worker_links[number];
        let deadline = format!("{DEADLINE_SECONDS}s");
        let command = match &self.system {
            System::Toolbus { binary, .. } => {
                let mut command = Command::new(binary);
                command.args(["connect", "--broker", &bus(link), "--deadline", &deadline, "--token-file"]);
                command.arg(self.data().join("token"));
                command
            }
            System::Original { programs } => {
                let mut command = Command::new(programs.join("original_worker"));
                command.args(["--broker", &address(link), "--token", TOKEN, "--deadline", &deadline]);
                command.args(["--name", &format!("worker-{number}")]);
                // Unused; the folder in the command line marks the process as part of this run.
                command.arg("--folder").arg(&self.folder);
                command
            }
        };
        let mut command = self.isolated(command, &format!("worker-{number}"), Stdio::piped())?;
        command.stdin(Stdio::piped());
        Ok(command)
    }

    pub fn log(&self, name: &str) -> PathBuf {
        self.folder.join("logs").join(format!("{name}.log"))
    }

    fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// Runs the command in an empty folder without variables of toolbus, and appends its stderr to one log file.
    fn isolated(&self, mut command: Command, name: &str, stdout: Stdio) -> anyhow::Result<Command> {
        let log = self.log(name);
        let log: File = OpenOptions::new().append(true).create(true).open(log).context("open a log file")?;
        for variable in ["TOOLBUS_CONFIG", "TOOLBUS_BROKER", "TOOLBUS_TOKEN", "TOOLBUS_DATA", "TOOLBUS_ROLE"] {
            command.env_remove(variable);
        }
        let empty = self.folder.join("empty");
        command.env("XDG_CONFIG_HOME", &empty).env("HOME", &empty).env("TOOLBUS_LOG", "info").current_dir(&empty);
        command.stdin(Stdio::null()).stdout(stdout).stderr(log).kill_on_drop(true);
        Ok(command)
    }

    fn config(&self) -> String {
        let mut tools = self.tools().to_vec();
        tools.dedup();
        let server = |tool: &Tool| {
            let args = ["effect-server", "--tool", tool.name(), "--effects"].map(|arg| format!("{arg:?}")).join(", ");
            let effects = self.effects(*tool);
            let safe = if *tool == Tool::Safe { "replay = \"safe\"\n" } else { "" };
            format!("[servers.{}]\ncommand = {:?}\nargs = [{args}, {effects:?}]\n{safe}\n", tool.name(), self.bench)
        };
        tools.iter().map(server).collect()
    }
}

fn bus(port: u16) -> String {
    format!("{}/bus", address(port))
}

fn address(port: u16) -> String {
    format!("ws://127.0.0.1:{port}")
}

fn free_port(rng: &mut Rng) -> anyhow::Result<u16> {
    for _ in 0..100 {
        let port = u16::try_from(PORTS.start + rng.below(PORTS.end - PORTS.start))?;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no port between {} and {} is free", PORTS.start, PORTS.end)
}
