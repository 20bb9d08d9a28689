//! The system under test: how its broker, host and workers are started, always on the same folder and port.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::Context;
use tokio::process::Command;

use super::cutter::Cutter;
use crate::faults::{DEADLINE_SECONDS, RunFolder, Tool, Workers, free_port, rng::Rng};

const NEVER: Tool = Tool { name: "effect", is_safe: false };
const SAFE: Tool = Tool { name: "effect_safe", is_safe: true };
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

pub struct Deployment {
    pub system: System,
    pub folder: RunFolder,
    port: u16,
    host_link: u16,
    worker_links: Vec<u16>,
}

impl Deployment {
    pub fn new(system: System, bench: &Path, folder: &Path, rng: &mut Rng) -> anyhow::Result<Self> {
        let (folder, port) = (RunFolder::create(folder)?, free_port(rng)?);
        let deployment = Self { system, folder, port, host_link: 0, worker_links: Vec::new() };
        let config = deployment.folder.host_config(bench, &deployment.distinct_tools(), "");
        fs::write(deployment.path("toolbus.toml"), config).context("write the configuration")?;
        Ok(deployment)
    }

    pub fn set_links(&mut self, host: &Cutter, workers: &[Cutter]) {
        self.host_link = host.port();
        self.worker_links = workers.iter().map(Cutter::port).collect();
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn distinct_tools(&self) -> Vec<Tool> {
        let mut tools = self.tools().to_vec();
        tools.dedup();
        tools
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
        self.folder.isolated(command, "broker", Stdio::null())
    }

    pub fn host(&self) -> anyhow::Result<Command> {
        let command = match &self.system {
            System::Toolbus { binary, .. } => {
                let mut command = Command::new(binary);
                command.args(["host", "--broker", &bus(self.host_link), "--config"]);
                command.arg(self.path("toolbus.toml"));
                command.arg("--token-file").arg(self.data().join("host.token"));
                command.arg("--state").arg(self.path("host"));
                command
            }
            System::Original { programs } => {
                let mut command = Command::new(programs.join("original_host"));
                command.args(["--broker", &address(self.host_link), "--token", TOKEN]);
                command.args(["--tool", NEVER.name, "--effects"]).arg(self.folder.effects(NEVER));
                command
            }
        };
        self.folder.isolated(command, "host", Stdio::null())
    }

    fn data(&self) -> PathBuf {
        self.path("data")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

impl Workers for Deployment {
    fn worker(&self, number: usize) -> anyhow::Result<Command> {
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
                command.arg("--folder").arg(self.folder.path());
                command
            }
        };
        let mut command = self.folder.isolated(command, &format!("worker-{number}"), Stdio::piped())?;
        command.stdin(Stdio::piped());
        Ok(command)
    }

    fn tools(&self) -> &[Tool] {
        match self.system {
            System::Toolbus { with_safe: true, .. } => &[NEVER, NEVER, NEVER, SAFE],
            _ => &[NEVER],
        }
    }
}

fn bus(port: u16) -> String {
    format!("{}/bus", address(port))
}

fn address(port: u16) -> String {
    format!("ws://127.0.0.1:{port}")
}
