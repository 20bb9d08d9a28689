//! `cargo xtask deploy`: checks the files in `deploy/` with the linters of their formats, and the flags in them against the
//! help of the programs. The image is not built: that takes a Docker daemon.

use crate::parts::Parts;
use crate::run::{Step, StepError, root, target_folder};
use crate::{shipped_binaries, tools};
use clap::Args;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The files with flags of `toolbus`, and the command that gets them.
const FLAGS: [(&str, &str); 4] = [
    ("compose.yaml", "broker"),
    ("kubernetes/brokers.yaml", "broker"),
    ("systemd/toolbus-broker.service", "broker"),
    ("systemd/toolbus-host.service", "host"),
];
const UNITS: [&str; 3] = ["nats-server.service", "toolbus-broker.service", "toolbus-host.service"];
/// The highest exposure that `systemd-analyze security` may find, of 100. A unit without any hardening has 96.
const MAX_EXPOSURE: &str = "30";
/// The variables that the configuration files of NATS take from their environment.
const NATS_VARIABLES: [&str; 3] = ["NATS_NAME", "NATS_STORE", "POD_NAME"];
/// Stands for the file that nsc generates.
const AUTH: &str = "accounts { TOOLBUS { jetstream: enabled, users: [{ user: a, password: b }] } }\n";
/// Brokers refuse a server without it.
const SYNC: &str = "  sync_interval: always\n";
/// Prints the configuration file in a ConfigMap.
const PRINT_CONFIG: &str = "import sys, yaml\nfor part in yaml.safe_load_all(open(sys.argv[1])):\n    \
                            if part['kind'] == 'ConfigMap': print(part['data']['nats.conf'])";

#[derive(Args)]
pub struct DeployArgs {
    /// The toolbus binary whose flags are compared. Default: the build of the sources.
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
}

impl DeployArgs {
    pub fn of_binary(binary: PathBuf) -> Self {
        Self { binary: Some(binary) }
    }
}

pub fn run(args: &DeployArgs) -> Result<(), StepError> {
    let folder = root().join("deploy");
    let parts = Parts::install()?;
    Step::new("deploy/compose.yaml", parts.python_program("check-jsonschema"))
        .args(["--builtin-schema", "vendor.compose-spec"])
        .arg(folder.join("compose.yaml"))
        .run()?;
    Step::new("deploy/kubernetes", parts.python_program("kubernetes-validate"))
        .args(["--strict", "--quiet"])
        .args(["nats.yaml", "brokers.yaml"].map(|name| folder.join("kubernetes").join(name)))
        .run()?;
    Step::new("deploy/Dockerfile", parts.python_program("hadolint")).arg(folder.join("Dockerfile")).run()?;
    check_nats(&parts, &folder)?;
    check_units(&folder.join("systemd"))?;
    let binary = match &args.binary {
        Some(binary) => binary.clone(),
        None => {
            shipped_binaries()?;
            target_folder().join("debug/toolbus")
        }
    };
    check_flags(&binary, &folder)
}

/// The server itself checks its configurations, with a file in place of the generated one.
fn check_nats(parts: &Parts, folder: &Path) -> Result<(), StepError> {
    let map = folder.join("kubernetes/nats.yaml");
    let in_map = Step::new("read the ConfigMap", parts.python()).args(["-c", PRINT_CONFIG]).arg(map).output()?;
    for (name, text) in [("deploy/nats.conf", read(&folder.join("nats.conf"))?), ("the ConfigMap of NATS", in_map)] {
        if !text.contains(SYNC) {
            return Err(StepError::Tidy(format!("{name} has no `{}`", SYNC.trim())));
        }
        let copies = temporary()?;
        let file = copies.path().join("nats.conf");
        write(&file, &text)?;
        fs::create_dir(copies.path().join("auth")).map_err(failed(copies.path()))?;
        ["auth.conf", "auth/auth.conf"].iter().try_for_each(|auth| write(&copies.path().join(auth), AUTH))?;
        let check = Step::new(name, parts.python_program("nats-server")).args(["-t", "-c"]).arg(&file);
        NATS_VARIABLES.iter().fold(check, |check, variable| check.env(variable, "name")).run()?;
    }
    Ok(())
}

/// `systemd-analyze verify` wants the programs to exist; those of the copies do.
fn check_units(folder: &Path) -> Result<(), StepError> {
    tools::systemd_analyze()?;
    let copies = temporary()?;
    for name in UNITS {
        let text = read(&folder.join(name))?;
        let copy = copies.path().join(name);
        write(&copy, &text.replace("ExecStart=/usr/bin/nats-server", "ExecStart=/bin/true"))?;
        write(&copy, &read(&copy)?.replace("ExecStart=/usr/bin/toolbus", "ExecStart=/bin/true"))?;
        let verify = Step::new(name, "systemd-analyze").args(["verify", "--man=no"]).arg(&copy);
        let complaints = verify.errors()?;
        if !complaints.is_empty() {
            return Err(StepError::Tidy(complaints));
        }
        let security = ["security", "--offline=yes", "--no-pager", "--threshold", MAX_EXPOSURE];
        Step::new(&format!("exposure of {name}"), "systemd-analyze").args(security).arg(&copy).output()?;
    }
    Ok(())
}

/// Fails if a file has a flag that its command doesn't know, also in a comment.
fn check_flags(binary: &Path, folder: &Path) -> Result<(), StepError> {
    eprintln!("\n── flags in deploy/");
    let mut problems = Vec::new();
    for (name, command) in FLAGS {
        let help = Step::new("toolbus --help", binary).args([command, "--help"]).output()?;
        let known: BTreeSet<&str> = help.lines().filter_map(flag_of_help).collect();
        let text = read(&folder.join(name))?;
        let used: BTreeSet<&str> = text.lines().filter_map(flag_of_line).collect();
        if used.is_empty() {
            problems.push(format!("deploy/{name}: no flags found"));
        }
        let unknown = used.difference(&known);
        problems.extend(unknown.map(|flag| format!("deploy/{name}: `toolbus {command}` has no flag {flag}")));
    }
    if problems.is_empty() { Ok(()) } else { Err(StepError::Tidy(problems.join("\n"))) }
}

/// The flag that a line of the help describes.
fn flag_of_help(line: &str) -> Option<&str> {
    let line = line.trim_start();
    line.starts_with('-').then(|| line.split([' ', ',']).find(|word| word.starts_with("--"))).flatten()
}

/// The flag with which a line begins, after the mark of a list item or a comment.
fn flag_of_line(line: &str) -> Option<&str> {
    let line = line.trim_start_matches(['#', ' ']);
    let line = line.strip_prefix("- ").unwrap_or(line);
    let flag = line.split([' ', '=']).next()?;
    // Not the line between two documents.
    (flag.starts_with("--") && flag != "---").then_some(flag)
}

fn temporary() -> Result<tempfile::TempDir, StepError> {
    tempfile::tempdir().map_err(failed(&std::env::temp_dir()))
}

fn read(path: &Path) -> Result<String, StepError> {
    fs::read_to_string(path).map_err(failed(path))
}

fn write(path: &Path, text: &str) -> Result<(), StepError> {
    fs::write(path, text).map_err(failed(path))
}

fn failed(path: &Path) -> impl Fn(std::io::Error) -> StepError {
    let path = path.to_owned();
    move |source| StepError::File { path: path.clone(), source }
}
