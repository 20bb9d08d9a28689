//! The commands `send`, `recv`, `ps` and `ask`, and their errors.

use crate::support::{BrokerProcess, TOKEN, connect, soon};
use serde_json::Value;
use std::process::Output;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use toolbus_protocol::Framing;

struct Shell {
    _broker: BrokerProcess,
    folder: tempfile::TempDir,
    url: String,
}

impl Shell {
    async fn start() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let broker = BrokerProcess::start(folder.path(), "127.0.0.1:0").await;
        let url = broker.url();
        Self { _broker: broker, folder, url }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_toolbus"));
        command.args(args).env("TOOLBUS_BROKER", &self.url).env("TOOLBUS_TOKEN", TOKEN).kill_on_drop(true);
        command
    }

    async fn run(&self, args: &[&str]) -> Output {
        soon("the command ends", self.command(args).output()).await.expect("the binary starts")
    }

    async fn stdout_of(&self, args: &[&str]) -> String {
        let output = self.run(args).await;
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    }
}

#[tokio::test]
async fn a_sent_message_is_shown_by_ps_and_read_by_recv() {
    let shell = Shell::start().await;
    let sent = shell.stdout_of(&["send", "--to", "bob", "--body", r#"{"big":9007199254740993}"#, "--json"]).await;
    let sent: Value = serde_json::from_str(&sent).expect("JSON");
    let status: Value = serde_json::from_str(&shell.stdout_of(&["ps", "--json"]).await).expect("JSON");
    assert_eq!(status["mailboxes"][0]["name"], "bob");
    assert_eq!(status["mailboxes"][0]["messages"], 1);
    let left = shell.stdout_of(&["recv", "--as", "bob", "--no-ack", "--json", "--max", "1"]).await;
    assert!(left.contains(r#""body":{"big":9007199254740993}"#), "{left}");
    let taken: Value =
        serde_json::from_str(&shell.stdout_of(&["recv", "--as", "bob", "--json"]).await).expect("one line of JSON");
    assert_eq!(taken["id"], sent["delivered"]);
    assert_eq!(shell.stdout_of(&["recv", "--as", "bob", "--wait", "50ms"]).await, "");
    let table = shell.stdout_of(&["ps"]).await;
    assert!(table.contains("AGENT") && table.contains("MAILBOX"), "{table}");
}

#[tokio::test]
async fn a_dash_reads_the_body_from_standard_input() {
    let shell = Shell::start().await;
    let mut child = shell
        .command(&["send", "--to", "bob", "--kind", "note", "--body", "-"])
        .stdin(std::process::Stdio::piped())
        .spawn()
        .expect("the binary starts");
    child.stdin.take().expect("piped").write_all(b"[1, 2]\n").await.expect("it reads its input");
    assert!(soon("exit", child.wait()).await.expect("it ends").success());
    let got = shell.stdout_of(&["recv", "--as", "bob"]).await;
    assert!(got.contains("note from") && got.contains("[1, 2]"), "{got}");
}

#[tokio::test]
async fn ask_prints_the_answer() {
    let shell = Shell::start().await;
    let oracle = connect(&shell.url, "oracle", Framing::Compact).await;
    oracle.subscribe().await.expect("open");
    let answering = tokio::spawn(async move {
        let question = oracle.next_message().await.expect("open");
        assert_eq!(question.body.to::<toolbus::Ask>().expect("an ask").question, "six times seven?");
        oracle.answer(&question, "42").await.expect("delivered");
    });
    assert_eq!(shell.stdout_of(&["ask", "oracle", "six times seven?"]).await, "42\n");
    soon("the answer's receipt", answering).await.expect("answered");
}

#[tokio::test]
async fn errors_have_a_reason_a_code_and_a_hint() {
    let shell = Shell::start().await;
    let check = async |args: &[&str], parts: &[&str]| {
        let output = shell.run(args).await;
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        for part in parts {
            assert!(stderr.contains(part), "{args:?} should print {part:?}, but prints: {stderr}");
        }
    };
    check(&["send", "--to", "bob", "--body", "hello"], &["not valid JSON", "hint: quote"]).await;
    check(&["send", "--to", "../bob"], &["slash"]).await;
    check(&["ps", "--broker", "ws://127.0.0.1:1/bus"], &["can't reach", "toolbus up"]).await;
    check(&["ps", "--broker", "http://127.0.0.1:1"], &["ws://"]).await;
    check(&["ask", "nobody", "?", "--timeout", "100ms"], &["no answer within 100ms", "toolbus ps"]).await;
    let wrong = shell.folder.path().join("wrong");
    std::fs::write(&wrong, "wrong-token").expect("writable");
    let wrong = wrong.display().to_string();
    check(&["ps", "--token-file", &wrong], &["error[TB0103]", "invalid token", "hint:"]).await;
    check(&["ps", "--token-file", "/does/not/exist"], &["/does/not/exist", "hint:"]).await;
}

#[tokio::test]
async fn a_broker_creates_a_private_token_file_that_commands_find() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut command = Command::new(env!("CARGO_BIN_EXE_toolbus"));
    command.args(["up", "--listen", "127.0.0.1:0", "--data"]).arg(folder.path());
    let broker = BrokerProcess::spawn(command).await;
    let token = folder.path().join("token");
    let mode = std::fs::metadata(&token).expect("a token file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let output = Command::new(env!("CARGO_BIN_EXE_toolbus"))
        .args(["ps", "--broker", &broker.url()])
        .env("TOOLBUS_DATA", folder.path())
        .env_remove("TOOLBUS_TOKEN")
        .output();
    assert!(soon("ps", output).await.expect("it starts").status.success(), "it finds the token");
}
