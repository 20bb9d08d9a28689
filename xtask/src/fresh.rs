//! `cargo xtask fresh`: runs the two commands of the README in a clone of HEAD, as on a machine that has only a
//! toolchain. Builds and caches of this machine are hidden from them, because they would hide missing install steps.

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
/// The variables needed to reach the package registries. All others are removed from the environment.
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
    /// Holds all builds and downloads; removed at the end.
    folder: TempDir,
    environment: BTreeMap<&'static str, OsString>,
}

impl FreshMachine {
    fn prepare() -> Result<Self, StepError> {
        if !git(&["status", "--porcelain"])?.is_empty() {
            eprintln!("uncommitted changes are not tested: this run clones HEAD");
        }
        let folder = tempfile::tempdir().map_err(in_folder(&std::env::temp_dir()))?;
        for name in ["home", "cargo", "tmp"] {
            fs::create_dir(folder.path().join(name)).map_err(in_folder(folder.path()))?;
        }
        let mut environment = BTreeMap::from([
            ("PATH", clean_path(folder.path())?),
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

/// PATH with the toolchain first, without this user's folders and without cargo's subcommands in the others: the
/// commands have to install those.
fn clean_path(folder: &Path) -> Result<OsString, StepError> {
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

/// The folder itself, or one with links to its programs except cargo, rustc and cargo's subcommands.
fn without_cargo_commands(entry: &Path, filtered: &Path) -> Result<PathBuf, StepError> {
    let is_rust_tool = |name: &str| name.starts_with("cargo") || name.starts_with("rustc");
    let programs: Vec<PathBuf> = fs::read_dir(entry).into_iter().flatten().flatten().map(|file| file.path()).collect();
    let name_of = |program: &Path| program.file_name().unwrap_or_default().to_string_lossy().into_owned();
    if !programs.iter().any(|program| is_rust_tool(&name_of(program))) {
        return Ok(entry.to_owned());
    }
    fs::create_dir(filtered).map_err(in_folder(filtered))?;
    for program in programs.iter().filter(|program| !is_rust_tool(&name_of(program))) {
        symlink(program, filtered.join(name_of(program))).map_err(in_folder(filtered))?;
    }
    Ok(filtered.to_owned())
}

fn git(args: &[&str]) -> Result<String, StepError> {
    Step::new("git", "git").args(args).output()
}

fn is_ready() -> bool {
    let request = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&UP_ADDRESS, ANSWER_LIMIT)?;
        stream.set_read_timeout(Some(ANSWER_LIMIT))?;
        write!(stream, "GET /readyz HTTP/1.1\r\nHost: {UP_ADDRESS}\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.take(4096).read_to_string(&mut answer)?;
        Ok(answer)
    };
    request().is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
}

/// Prints the end of the log, because its folder is removed with the run.
fn show_end(log: &Path) {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    eprintln!("{}", lines[lines.len().saturating_sub(30)..].join("\n"));
}

fn in_folder(path: &Path) -> impl Fn(std::io::Error) -> StepError {
    let path = path.to_owned();
    move |source| StepError::File { path: path.clone(), source }
}
