//! The real clients as processes: each runs its checks against a target and must report that all of them passed.

use crate::installed::{Installed, script};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;

const TIMEOUT: Duration = Duration::from_secs(100);

#[derive(Clone, Copy, Debug)]
pub enum Client {
    PythonLegacy,
    /// Tries the modern era first.
    PythonAuto,
    /// The SDK that supports only the legacy era.
    TypeScript1,
    /// Its successor with the default options: legacy.
    TypeScript2,
    TypeScript2Auto,
}

impl Client {
    pub const PYTHON: [Self; 2] = [Self::PythonLegacy, Self::PythonAuto];
    pub const TYPESCRIPT: [Self; 3] = [Self::TypeScript1, Self::TypeScript2, Self::TypeScript2Auto];

    pub fn prefers_modern(self) -> bool {
        matches!(self, Self::PythonAuto | Self::TypeScript2Auto)
    }

    fn command(self, installed: &Installed, target: &Value) -> Command {
        let target = target.to_string();
        let (program, file, arguments) = match self {
            Self::PythonLegacy => (installed.python(), "clients/checks.py", [target.as_str(), "legacy"]),
            Self::PythonAuto => (installed.python(), "clients/checks.py", [target.as_str(), "auto"]),
            Self::TypeScript1 => (installed.node(), "clients/checks.mjs", ["v1", target.as_str()]),
            Self::TypeScript2 => (installed.node(), "clients/checks.mjs", ["v2", target.as_str()]),
            Self::TypeScript2Auto => (installed.node(), "clients/checks.mjs", ["v2-auto", target.as_str()]),
        };
        let mut command = Command::new(program);
        command.arg(script(file)).args(arguments).env("TOOLBUS_PARTS", installed.folder());
        command
    }

    /// Runs the checks of these profiles, and checks the era that the client negotiated.
    pub async fn check(self, installed: &Installed, target: &Value, profiles: &[&str], modern: bool) {
        let mut command = self.command(installed, target);
        command.args(profiles);
        let stdout = run(&format!("{self:?} against {target}"), command).await;
        let spoken = stdout.lines().find_map(|line| line.strip_prefix("speaks ")).unwrap_or("nothing");
        let is_modern = matches!(spoken, "modern" | "2026-07-28");
        assert_eq!(is_modern, modern, "{self:?} speaks {spoken}:\n{stdout}");
        assert!(stdout.trim_end().ends_with("checks passed"), "{self:?} stopped early:\n{stdout}");
    }
}

/// Makes one tool call with the inspector's command line.
pub async fn inspect_echo(installed: &Installed, target: &[&str]) {
    let mut command = Command::new(installed.node());
    command.arg(installed.inspector()).arg("--cli").args(target);
    command.args(["--method", "tools/call", "--tool-name", "echo", "--tool-arg", "message=hello"]);
    let stdout = run("the inspector", command).await;
    let result: Value = serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}:\n{stdout}"));
    assert_eq!(result["content"], json!([{ "type": "text", "text": "Echo: hello" }]), "{stdout}");
}

async fn run(what: &str, mut command: Command) -> String {
    let errors = tempfile::NamedTempFile::new().expect("a temporary file");
    let error_file = errors.reopen().expect("the temporary file exists");
    // A file, not a pipe: servers that briefly outlive the client would keep a pipe open.
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(error_file).kill_on_drop(true).spawn();
    let output = child.expect("the parts are installed").wait_with_output();
    let output = tokio::time::timeout(TIMEOUT, output).await;
    let stderr = read(errors.path());
    let output = output.unwrap_or_else(|_| panic!("{what}: not within {TIMEOUT:?}\n{stderr}"));
    let output = output.expect("an exit status");
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{what}: {}\n{stdout}\n{stderr}", output.status);
    stdout
}

fn read(path: &Path) -> String {
    String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
}
