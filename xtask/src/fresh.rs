//! `cargo xtask fresh`: the two commands of the README in a clone of HEAD, as they run on a machine that has a toolchain
//! and nothing else of ours. What a build or a cache of this machine provides is hidden from them, because it also hides
//! missing install steps.

use crate::child::Running;
use crate::run::{Step, StepError, root};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The port of `toolbus up` without options.
const UP_ADDRESS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 7420);
const BUILD_LIMIT: Duration = Duration::from_secs(30 * 60);
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// How the machine reaches the package registries. Everything else in the environment is this user's.
const NETWORK_VARIABLES: [&str; 14] = [
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "no_proxy",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "CURL_CA_BUNDLE",
    "REQUESTS_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
    "PIP_CERT",
];

pub fn run() -> Result<(), StepError> {
    let machine = FreshMachine::prepare()?;
    let up = timed(|| machine.start_up())?;
    println!("`cargo run --release -- up` answers a call after {} s", up.as_secs());
    let test = timed(|| machine.run_tests())?;
    println!("\nfresh clone, empty caches:");
    println!("  cargo run --release -- up   {:>5} s until a tool call was answered", up.as_secs());
    println!("  cargo xtask test            {:>5} s", test.as_secs());
    Ok(())
}

fn timed(step: impl FnOnce() -> Result<(), StepError>) -> Result<Duration, StepError> {
    let start = Instant::now();
    step()?;
    Ok(start.elapsed())
}

struct FreshMachine {
    /// Removed at the end, with everything that was built and downloaded.
    folder: TempDir,
    environment: BTreeMap<&'static str, OsString>,
}

impl FreshMachine {
    fn prepare() -> Result<Self, StepError> {
        if !git(&["status", "--porcelain"])?.is_empty() {
            eprintln!("uncommitted changes are not part of this run; it clones HEAD");
        }
        let folder = tempfile::tempdir().map_err(in_folder(&std::env::temp_dir()))?;
        for name in ["home", "cargo", "tmp"] {
            fs::create_dir(folder.path().join(name)).map_err(in_folder(folder.path()))?;
        }
        let mut environment = BTreeMap::from([
            ("PATH", path_without_ours(folder.path())?),
            ("HOME", folder.path().join("home").into()),
            ("CARGO_HOME", folder.path().join("cargo").into()),
            ("TMPDIR", folder.path().join("tmp").into()),
            ("LANG", "C.UTF-8".into()),
        ]);
        environment.extend(NETWORK_VARIABLES.iter().filter_map(|name| Some((*name, std::env::var_os(name)?))));
        let machine = Self { folder, environment };
        Step::new("clone HEAD", "git").args(["clone", "--quiet"]).arg(root()).arg(machine.clone_folder()).run()?;
        Ok(machine)
    }

    fn clone_folder(&self) -> PathBuf {
        self.folder.path().join("toolbus")
    }

    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command.env_clear().envs(&self.environment).current_dir(self.clone_folder());
        command
    }

    /// `cargo run --release -- up`, until a tool call through it is answered.
    fn start_up(&self) -> Result<(), StepError> {
        let busy = |source| StepError::NotStarted { step: format!("`toolbus up` on {UP_ADDRESS}"), source };
        drop(TcpListener::bind(UP_ADDRESS).map_err(busy)?);
        eprintln!("\n── cargo run --release -- up");
        let log = self.folder.path().join("up.log");
        let mut cargo = self.command("cargo");
        let mut up = Running::start("cargo run --release -- up", cargo.args(["run", "--release", "--", "up"]), &log)?;
        up.wait_until(BUILD_LIMIT, is_ready).inspect_err(|_| show_end(&log))?;
        let mut call = self.command(self.clone_folder().join("target/release/toolbus"));
        call.args(["call", "now", "--arg", "zone=Asia/Tokyo"]);
        Step::of("toolbus call now", call).run()
    }

    fn run_tests(&self) -> Result<(), StepError> {
        let mut cargo = self.command("cargo");
        cargo.args(["xtask", "test"]);
        Step::of("cargo xtask test", cargo).run()
    }
}

/// The toolchain itself, then the search path without this user's folders and without cargo's subcommands in the others:
/// the commands have to install those.
fn path_without_ours(folder: &Path) -> Result<OsString, StepError> {
    let toolchain = Step::new("rustc", "rustc").args(["--print", "sysroot"]).output()?;
    let toolchain = Path::new(toolchain.trim()).join("bin");
    let home = std::env::var_os("HOME").map(PathBuf::from).filter(|home| home != Path::new("/"));
    let mut folders = vec![toolchain];
    let path = std::env::var_os("PATH").unwrap_or_default();
    for (index, entry) in std::env::split_paths(&path).enumerate() {
        if home.as_ref().is_some_and(|home| entry.starts_with(home)) {
            continue;
        }
        folders.push(without_cargo_commands(&entry, &folder.join(format!("bin-{index}")))?);
    }
    std::env::join_paths(folders).map_err(|_| StepError::Failed { step: "reading PATH".to_owned() })
}

/// The folder itself, or one with links to everything in it but cargo, rustc and cargo's subcommands.
fn without_cargo_commands(entry: &Path, filtered: &Path) -> Result<PathBuf, StepError> {
    let is_ours = |name: &str| name.starts_with("cargo") || name.starts_with("rustc");
    let programs: Vec<PathBuf> = fs::read_dir(entry).into_iter().flatten().flatten().map(|file| file.path()).collect();
    let name_of = |program: &Path| program.file_name().unwrap_or_default().to_string_lossy().into_owned();
    if !programs.iter().any(|program| is_ours(&name_of(program))) {
        return Ok(entry.to_owned());
    }
    fs::create_dir(filtered).map_err(in_folder(filtered))?;
    for program in programs.iter().filter(|program| !is_ours(&name_of(program))) {
        symlink(program, filtered.join(name_of(program))).map_err(in_folder(filtered))?;
    }
    Ok(filtered.to_owned())
}

fn git(args: &[&str]) -> Result<String, StepError> {
    Step::new("git", "git").args(args).output()
}

fn is_ready() -> bool {
    let ask = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&UP_ADDRESS, ANSWER_LIMIT)?;
        stream.set_read_timeout(Some(ANSWER_LIMIT))?;
        write!(stream, "GET /readyz HTTP/1.1\r\nHost: {UP_ADDRESS}\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.take(4096).read_to_string(&mut answer)?;
        Ok(answer)
    };
    ask().is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
}

/// The folder goes with the run, so the reason has to be seen now.
fn show_end(log: &Path) {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    eprintln!("{}", lines[lines.len().saturating_sub(30)..].join("\n"));
}

fn in_folder(path: &Path) -> impl Fn(std::io::Error) -> StepError {
    let path = path.to_owned();
    move |source| StepError::File { path: path.clone(), source }
}
