//! Texts that people read, compared with the files in `tests/snapshots`, so that a review of a change shows the words.
//! With `TOOLBUS_SNAPSHOTS=rewrite` the files are written instead.

use crate::support::soon;
use crate::up::{CommandOutput, toolbus};
use std::fmt::Write;
use std::path::{Path, PathBuf};

#[track_caller]
pub fn check_snapshot(name: &str, text: &str) {
    let file = snapshot_folder().join(name);
    if std::env::var_os("TOOLBUS_SNAPSHOTS").is_some_and(|mode| mode == "rewrite") {
        return std::fs::write(&file, text).expect("the snapshot is writable");
    }
    let expected = std::fs::read_to_string(&file).unwrap_or_default();
    assert_eq!(text, expected, "{} differs; TOOLBUS_SNAPSHOTS=rewrite accepts the text", file.display());
}

pub fn snapshot_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots")
}

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
    "{\"servers\": {}}",
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
