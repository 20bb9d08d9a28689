//! `toolbus policy check`, and reloading of the rules in toolbus.toml.

use crate::support::soon;
use crate::up::{CommandOutput, UpInstance, toolbus};
use serde_json::Value;
use std::fs::File;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tempfile::TempDir;

const RULES: &str = r#"
[servers.files]
command = "${NOT_SET}"
[servers.web]
url = "http://127.0.0.1:9/mcp"
[roles.reader]
allow = ["read_*", "file:///pub/**"]
deny = ["files/read_secret"]
ask = ["files/write_file"]
rate = "60/min"
[[roles.reader.rules]]
effect = "allow"
match = ["files/mkdir"]
when = [{ pointer = "/path", prefix = "/tmp/" }]
"#;

fn folder_with(text: &str) -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    std::fs::write(folder.path().join("toolbus.toml"), text).expect("writable");
    folder
}

async fn check(folder: &Path, args: &[&str]) -> CommandOutput {
    let mut command = toolbus(folder);
    command.args(["policy", "check"]).args(args);
    CommandOutput::of(soon("the command ends", command.output()).await.expect("the binary starts"))
}

#[tokio::test]
async fn a_decision_is_printed_with_its_rule_and_position() {
    let folder = folder_with(RULES);
    let check = async |args: &[&str], code, out: &[&str]| check(folder.path(), args).await.check(code, out, &[]);
    let reader = |rest: &[&'static str]| [&["--role", "reader"], rest].concat();
    check(&reader(&["--tool", "read_x"]), 0, &["allow: allow \"read_*\" in [roles.reader]", "at toolbus.toml:7:10"])
        .await;
    check(&reader(&["--tool", "read_secret", "--server", "files"]), 1, &["deny: deny", "toolbus.toml:8:9"]).await;
    check(&reader(&["--tool", "read_secret"]), 1, &["deny on server files", "allow on server web"]).await;
    check(&reader(&["--tool", "write_file", "--server", "files"]), 2, &["ask: ask", "toolbus.toml:9:8"]).await;
    check(&reader(&["--tool", "nothing"]), 1, &["no rule of the role allows it"]).await;
    check(&["--role", "stranger", "--tool", "read_x"], 1, &["no rules are known for this role"]).await;
    check(&reader(&["--resource", "file:///pub/../etc/passwd"]), 1, &["deny"]).await;
    check(&reader(&["--prompt", "read_me"]), 0, &["allow"]).await;
    let mkdir = |args: &'static str| reader(&["--tool", "mkdir", "--server", "files", "--args", args]);
    check(
        &mkdir(r#"{"path": "/tmp/x"}"#),
        0,
        &["when /path begins with \"/tmp/\"", "limit: [roles.reader] (line 6): 60/min"],
    )
    .await;
    check(&mkdir(r#"{"path": "/tmp/../etc"}"#), 1, &["no rule"]).await;
    check(&mkdir(r#"{"path": "/tmp/a", "path": "/etc"}"#), 1, &["a duplicate key"]).await;
    check(&reader(&["--tool", "mkdir", "--server", "files"]), 0, &["for some arguments"]).await;
}

#[tokio::test]
async fn decisions_are_printed_as_json_and_errors_have_their_own_exit_code() {
    let folder = folder_with(RULES);
    let output =
        check(folder.path(), &["--role", "reader", "--tool", "read_secret", "--server", "files", "--json"]).await;
    output.check(1, &[], &[]);
    let json: Value = serde_json::from_str(&output.out).expect("JSON");
    let decision = &json["decisions"][0];
    assert_eq!((&json["role"], &json["kind"], &decision["effect"]), (&"reader".into(), &"tool".into(), &"deny".into()));
    assert_eq!(decision["rule"]["line"], 8);
    assert_eq!(decision["rule"]["file"], "toolbus.toml");
    check(folder.path(), &["--role", "reader"]).await.check(3, &[], &["--tool"]);
    let output = check(folder.path(), &["--role", "reader", "--tool", "x", "--args", "{"]).await;
    output.check(3, &[], &["not JSON"]);
    let broken = folder_with("[roles.reader]\nallow = [\"a[\"]");
    let output = check(broken.path(), &["--role", "reader", "--tool", "x"]).await;
    output.check(3, &[], &["toolbus.toml: line 2, column 10", "a["]);
    let odd = folder_with("[roles.reader]\nallow = [\"a\"]\ndeny = [\"a\"]");
    check(odd.path(), &["--role", "reader", "--tool", "a"]).await.check(
        1,
        &["deny"],
        &["warning: toolbus.toml: line 2"],
    );
    let none = tempfile::tempdir().expect("a temporary folder");
    check(none.path(), &["--role", "local", "--tool", "x"]).await.check(0, &["(built in)"], &[]);
    check(none.path(), &["--role", "worker", "--tool", "x"]).await.check(1, &["deny"], &[]);
}

/// A running service whose rules the test changes.
struct ReloadingService {
    instance: UpInstance,
}

impl ReloadingService {
    async fn start(rules: &str) -> Self {
        let folder = folder_with(&Self::file(rules));
        let log = File::create(folder.path().join("log")).expect("writable");
        Self { instance: UpInstance::start_with_log(folder, &[], Stdio::from(log)).await }
    }

    fn file(rules: &str) -> String {
        let me = env!("CARGO_BIN_EXE_toolbus");
        format!("[servers.demo]\ncommand = {me:?}\nargs = [\"demo-server\"]\n{rules}\n")
    }

    /// Replaces the file by a rename, as editors do.
    fn change(&self, rules: &str) {
        let new = self.instance.folder.path().join("new");
        std::fs::write(&new, Self::file(rules)).expect("writable");
        std::fs::rename(new, self.instance.folder.path().join("toolbus.toml")).expect("renamed");
    }

    async fn until_tools(&self, there: &str, not_there: &str) {
        soon("the rules are in force", async {
            loop {
                let tools = self.instance.run(&["tools"]).await.out;
                if tools.contains(there) && !tools.contains(not_there) {
                    return;
                }
            }
        })
        .await;
    }

    async fn until_logged(&self, parts: &[&str]) {
        soon("the log lines", async {
            loop {
                let log = std::fs::read_to_string(self.instance.folder.path().join("log")).expect("a log");
                if parts.iter().all(|part| log.contains(part)) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
    }

    fn hang_up(&self) {
        let pid = self.instance.child.id().expect("it runs").to_string();
        let sent = std::process::Command::new("kill").args(["-HUP", &pid]).status().expect("kill starts");
        assert!(sent.success());
    }
}

#[tokio::test]
async fn changed_rules_apply_at_once_and_an_invalid_file_changes_nothing() {
    let service = ReloadingService::start("[roles.local]\nallow = [\"now\"]").await;
    service.until_tools("now", "chart").await;
    service.change("[roles.local]\nallow = [\"chart\"]");
    service.until_tools("chart", "now ").await;
    service.instance.run(&["call", "now", "--arg", "zone=UTC"]).await.check(2, &[], &[]);
    service.change("[roles.local]\nallow = [\"now\"]\nrats = 5");
    service.until_logged(&["toolbus.toml: line 6, column 1: unknown key roles.local.rats", "stay in force"]).await;
    service.until_tools("chart", "now ").await;
    std::fs::remove_file(service.instance.folder.path().join("toolbus.toml")).expect("it was there");
    service.until_logged(&["can't be read"]).await;
    service.until_tools("chart", "now ").await;
    service.change("name = \"other\"\n[roles.local]\nallow = [\"now\"]");
    service.until_logged(&["unknown key servers.demo.name"]).await;
    service.change("[servers.more]\nurl = \"http://127.0.0.1:9/\"\n[roles.local]\nallow = [\"now\"]");
    service.until_logged(&["changes of servers take effect after a restart"]).await;
    service.until_tools("now", "chart").await;
}

#[tokio::test]
async fn sighup_reloads_the_rules_without_ending_the_service() {
    let service = ReloadingService::start("[roles.local]\nallow = [\"now\"]").await;
    service.until_tools("now", "chart").await;
    service.hang_up();
    service.until_logged(&["reloaded the rules"]).await;
    service.change("[roles.local]\nallow = [\"chart\"]");
    service.hang_up();
    service.until_tools("chart", "now ").await;
}

#[tokio::test]
async fn patterns_that_match_nothing_cause_a_warning_with_a_suggestion() {
    let service = ReloadingService::start("[roles.local]\nallow = [\"now\", \"demo/chrat\"]").await;
    service.until_logged(&["\"demo/chrat\" matches no known name; did you mean demo/chart?"]).await;
}
