//! Texts that people read, compared with the files in `tests/snapshots`, so that a review of a change shows the words.
//! `TOOLBUS_SNAPSHOTS=rewrite` accepts new texts.

use crate::snapshot_file::{check_snapshot, is_rewriting, snapshot_folder};
use crate::support::soon;
use crate::up::{CommandOutput, toolbus};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::process::Stdio;

/// Runs a command in a folder with one file.
async fn run_with(file: &str, text: &str, args: &[&str]) -> CommandOutput {
    let folder = tempfile::tempdir().expect("a temporary folder");
    std::fs::write(folder.path().join(file), text).expect("writable");
    let output = toolbus(folder.path()).args(args).output();
    CommandOutput::of(soon("the command ends", output).await.expect("the binary starts"))
}

/// A file with one error in each section, and the errors that every section can have.
const BAD_TOML: &[&str] = &[
    "listen = ",
    "lisen = 1",
    "zzz = 1",
    "listen = 7420",
    "data = []",
    "pin = 'always'",
    "caller_grace = 'soon'",
    "journal = 1",
    "[journal]\nkep = '1h'",
    "[journal]\nkeep = '59m'",
    "[journal]\nmax_size = '1KiB'",
    "[journal]\nsync_results = 'yes'",
    "[audit]\nship = 'tcp:here'",
    "servers = 5",
    "[servers.a]",
    "[servers.a]\ncomand = 'x'",
    "[servers.a]\ncommand = 'x'\nurl = 'http://x'",
    "[servers.a]\ncommand = 'x'\n[servers.a]\ncommand = 'y'",
    "[servers.'a/b']\ncommand = 'x'",
    "[servers.a]\nurl = 'http://x'\nheaders = { A = '${NO_SUCH_VARIABLE}' }",
    "[servers.a]\ncommand = 'x'\ncwd = '${file:/x}'",
    "[servers.a]\ncommand = 'x'\nargs = ['ok', 5]",
    "[servers.a]\ncommand = 'x'\ntool_timeouts = { slow = 'soon' }",
    "roles = 5",
    "[roles.reader]\nallw = []",
    "[roles.reader]\nallow = ['ok', 1]",
    "[roles.reader]\nallow = ['a[']",
    "[roles.reader]\nrate = 'fast'",
    "[[roles.reader.rules]]\neffect = 'allow'",
    "[[roles.reader.rules]]\neffect = 'allow'\nmatch = ['x']\nwhen = [{ pointer = '/x', prefx = 'a' }]",
    "[limits.'files/*']\nconcurrency = 0",
    "[limits.x]\nallow = []",
    "[auth.jwd]",
    "[auth.jwt]\nissuer = 'i'",
    "[auth.jwt]\nissuer = 'i'\naudience = 'a'\njwks_url = 'http://id.example'",
    "[auth.certificates]\nname = 'sn'",
];

const BAD_JSON: &[&str] = &[
    "{",
    "{\"server\": {}}",
    "{ // VS Code\n  \"servers\": {\"a\": {\"command\": \"x\", \"args\": [\"${input:key}\"],}}}",
    "{\"mcpServers\": {\n  \"a\": {\"comand\": \"x\"}}}",
    "{\"mcpServers\": {\n  \"a\": {\"args\": []}}}",
    "{\"mcpServers\": {\n  \"a\": {\"command\": \"x\"},\n  \"a\": {\"command\": \"y\"}}}",
    "{\"mcpServers\": {\n  \"a\": {\"command\": \"${NO_SUCH_VARIABLE}\"}}}",
    "{\"mcpServers\": {\n  \"a\": {\"command\": \"x\",\n    \"timeout\": \"soon\"}}}",
];

#[tokio::test]
async fn every_configuration_error_names_file_position_key_and_remedy() {
    let mut shown = String::new();
    for text in BAD_TOML {
        let output = run_with("toolbus.toml", text, &["up", "--listen", "127.0.0.1:0"]).await;
        output.check(1, &[], &["error[TB0411]: toolbus.toml: line ", "\nhint: "]);
        writeln!(shown, "{text}\n---\n{}", output.err).expect("a string");
    }
    for text in BAD_JSON {
        let output = run_with("mcp.json", text, &["host", "--mcp-config", "mcp.json"]).await;
        output.check(1, &[], &["error[TB0411]: mcp.json: line ", "\nhint: "]);
        writeln!(shown, "{text}\n---\n{}", output.err).expect("a string");
    }
    check_snapshot("configuration-errors.txt", &shown);
}

/// The names under `Commands:` in a help text.
fn subcommands(help: &str) -> Vec<String> {
    let section = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    // Descriptions that continue on another line are indented further.
    let names = section.filter_map(|line| line.strip_prefix("  ").filter(|line| !line.starts_with(' ')));
    names.filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

#[tokio::test]
async fn the_help_of_every_command_is_as_reviewed() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut pending = vec![Vec::<String>::new()];
    let mut files = BTreeSet::new();
    while let Some(command) = pending.pop() {
        // The help shows the values of variables, and fits the terminal.
        let mut process = toolbus(folder.path());
        process.args(&command).arg("--help").env_clear().env("COLUMNS", "100").stdin(Stdio::null());
        let help = CommandOutput::of(soon("the help", process.output()).await.expect("the binary starts"));
        help.check(0, &["Usage: toolbus"], &[]);
        let file = format!("toolbus {}", command.join(" ")).trim_end().replace(' ', "-") + ".txt";
        check_snapshot(&format!("help/{file}"), &help.out);
        files.insert(file);
        let inner = subcommands(&help.out).into_iter().filter(|name| name != "help");
        pending.extend(inner.map(|name| [&command[..], &[name]].concat()));
    }
    assert!(files.len() > 20, "{files:?}");
    let entries = std::fs::read_dir(snapshot_folder().join("help")).expect("a folder");
    for entry in entries.map(|entry| entry.expect("an entry")) {
        if !files.contains(&*entry.file_name().to_string_lossy()) {
            assert!(is_rewriting(), "{} belongs to no command", entry.path().display());
            std::fs::remove_file(entry.path()).expect("removable");
        }
    }
}

#[tokio::test]
async fn the_version_has_the_commit_and_its_date() {
    let version = run_with("file", "", &["--version"]).await;
    version.check(0, &[concat!("toolbus ", env!("CARGO_PKG_VERSION"))], &[]);
    // Sources without git have no commit.
    let git = std::process::Command::new("git").args(["log", "-1", "--format=%h %cs"]).output();
    let commit = git.ok().filter(|git| git.status.success()).map(|git| String::from_utf8(git.stdout).expect("text"));
    if let Some(commit) = commit {
        let date = commit.trim().rsplit(' ').next().expect("a date").len();
        assert!(version.out.trim().ends_with(')') && date == "2026-11-18".len(), "{}", version.out);
    }
}
