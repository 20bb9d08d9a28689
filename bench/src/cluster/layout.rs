//! How the NATS servers, brokers, hosts and workers of a run are started, always on the same folders and ports.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::Context;
use tokio::process::Command;

use super::{nats, plan::Nodes};
use crate::faults::{DEADLINE_SECONDS, RunFolder, Tool, Workers, free_port, rng::Rng};

/// Two tools of the pool and one of each other host; two of them are replay-safe.
pub const TOOLS: [Tool; 4] = [
    Tool { name: "effect_0", is_safe: false },
    Tool { name: "effect_safe_1", is_safe: true },
    Tool { name: "effect_2", is_safe: false },
    Tool { name: "effect_safe_3", is_safe: true },
];
/// The tools of each host. The first two are a pool.
pub const HOSTS: [&[Tool]; 4] = [POOLED, POOLED, &[TOOLS[2]], &[TOOLS[3]]];
const POOLED: &[Tool] = &[TOOLS[0], TOOLS[1]];
const POOL: &str = "pair";
/// How long workers wait for a member of the pool: shorter than the longest outages.
const POOL_GRACE: &str = "2s";
/// The token that hosts, workers and brokers share: each broker has credentials of its own otherwise.
pub const TOKEN: &str = "cluster-token";
/// One process per tool serves all workers; a process for each would exceed the limit of a server.
const SESSION: &str = "session = \"shared\"\n";
const NAME: &str = "faults";

/// The port of a node, and the one at which the others reach it.
#[derive(Clone, Copy, Debug)]
pub struct Ports {
    pub own: u16,
    pub gate: u16,
}

/// The ports of a NATS server.
#[derive(Clone, Copy, Debug)]
pub struct NatsPorts {
    pub clients: Ports,
    pub routes: Ports,
    pub monitor: u16,
}

pub struct Programs {
    pub toolbus: PathBuf,
    pub nats_server: Option<PathBuf>,
}

pub struct Layout {
    pub folder: RunFolder,
    programs: Programs,
    pub nats: Vec<NatsPorts>,
    pub brokers: Vec<Ports>,
    /// The load balancer.
    pub front: u16,
}

impl Layout {
    pub fn new(programs: Programs, bench: &Path, folder: &Path, nodes: Nodes, rng: &mut Rng) -> anyhow::Result<Self> {
        let folder = RunFolder::create(folder)?;
        let mut taken = Vec::new();
        let mut port = || loop {
            let port = free_port(rng)?;
            if !taken.contains(&port) {
                taken.push(port);
                return anyhow::Ok(port);
            }
        };
        let mut ports = || Ok(Ports { own: port()?, gate: port()? });
        let brokers = (0..nodes.brokers).map(|_| ports()).collect::<anyhow::Result<_>>()?;
        let pairs = (0..nodes.nats).map(|_| Ok((ports()?, ports()?))).collect::<anyhow::Result<Vec<_>>>()?;
        let nats = pairs.into_iter().map(|(clients, routes)| Ok(NatsPorts { clients, routes, monitor: port()? }));
        let nats = nats.collect::<anyhow::Result<Vec<_>>>()?;
        let layout = Self { folder, programs, nats, brokers, front: port()? };
        layout.write_files(bench)?;
        Ok(layout)
    }

    fn write_files(&self, bench: &Path) -> anyhow::Result<()> {
        let token = self.path("token");
        fs::write(&token, TOKEN).context("write the token")?;
        fs::set_permissions(&token, Permissions::from_mode(0o600)).context("protect the token")?;
        let member = |number: usize| format!("[hosts.host-{number}]\npool = \"{POOL}\"\n");
        let members: String = (0..HOSTS.len()).filter(|number| is_pooled(*number)).map(member).collect();
        fs::write(self.path("brokers.toml"), members).context("write the brokers' configuration")?;
        for (host, tools) in HOSTS.into_iter().enumerate() {
            let config = self.folder.host_config(bench, tools, SESSION);
            fs::write(self.path(&format!("host-{host}.toml")), config).context("write a host's configuration")?;
        }
        for number in 0..self.nats.len() {
            let config = self.nats_config(number);
            fs::write(self.path(&format!("nats-{number}.conf")), config).context("write a configuration of NATS")?;
        }
        Ok(())
    }

    fn nats_config(&self, number: usize) -> String {
        let ports = &self.nats[number];
        nats::config(&nats::Server {
            name: format!("nats-{number}"),
            clients: ports.clients.own,
            routes: ports.routes.own,
            advertised: ports.routes.gate,
            monitor: ports.monitor,
            store: self.path(&format!("store-{number}")),
            sync_always: true,
            others: (0..self.nats.len())
                .filter(|other| *other != number)
                .map(|other| self.nats[other].routes.gate)
                .collect(),
        })
    }

    pub fn nats_server(&self, number: usize) -> anyhow::Result<Command> {
        let program = self.programs.nats_server.as_ref().context("nats-server was not prepared")?;
        let mut command = Command::new(program);
        command.arg("--config").arg(self.path(&format!("nats-{number}.conf")));
        self.folder.isolated(command, &format!("nats-{number}"), Stdio::null())
    }

    pub fn broker(&self, number: usize) -> anyhow::Result<Command> {
        let ports = self.brokers[number];
        let mut command = Command::new(&self.programs.toolbus);
        command.args(["broker", "--listen", &address(ports.own), "--data"]);
        command.arg(self.path(&format!("broker-{number}"))).arg("--shared-token-file").arg(self.path("token"));
        command.arg("--config").arg(self.path("brokers.toml"));
        if !self.nats.is_empty() {
            let servers: Vec<u16> = self.nats.iter().map(|server| server.clients.gate).collect();
            let monitors: Vec<u16> = self.nats.iter().map(|server| server.monitor).collect();
            command.args(nats::broker_options(&servers, &monitors, NAME)).args(["--advertise", &address(ports.gate)]);
        }
        self.folder.isolated(command, &format!("broker-{number}"), Stdio::null())
    }

    pub fn host(&self, number: usize) -> anyhow::Result<Command> {
        let name = format!("host-{number}");
        let mut command = Command::new(&self.programs.toolbus);
        command.args(["host", "--everyone", "--id", &name, "--broker", &address(self.front), "--token-file"]);
        command.arg(self.path("token")).arg("--config").arg(self.path(&format!("{name}.toml")));
        command.arg("--state").arg(self.path(&name));
        if is_pooled(number) {
            command.args(["--pool", POOL]);
        }
        self.folder.isolated(command, &name, Stdio::null())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

impl Workers for Layout {
    fn worker(&self, number: usize) -> anyhow::Result<Command> {
        let (name, deadline) = (format!("worker-{number}"), format!("{DEADLINE_SECONDS}s"));
        let mut command = Command::new(&self.programs.toolbus);
        command.args(["connect", "--id", &name, "--broker", &address(self.front), "--deadline", &deadline]);
        command.arg("--token-file").arg(self.path("token")).args(["--pool-grace", POOL_GRACE]);
        let mut command = self.folder.isolated(command, &name, Stdio::piped())?;
        command.stdin(Stdio::piped());
        Ok(command)
    }

    fn tools(&self) -> &[Tool] {
        &TOOLS
    }
}

fn is_pooled(host: usize) -> bool {
    HOSTS[host].len() > 1
}

fn address(port: u16) -> String {
    format!("127.0.0.1:{port}")
}
