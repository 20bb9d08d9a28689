//! Where tokens are sent: a token found in a data folder only to that folder's broker on this machine, a given token
//! not in plain text to another machine. The address may come from a toolbus.toml of another author.

use crate::support::soon;
use crate::up::{CommandOutput, UpInstance, toolbus};
use futures_util::StreamExt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio_websockets::ServerBuilder;

/// An address in a documentation network (RFC 5737), where nothing answers.
const OTHER_MACHINE: &str = "203.0.113.5:7999";
const COMMANDS: [&[&str]; 5] =
    [&["ps"], &["tools"], &["call", "now"], &["send", "--to", "bob", "--body", "1"], &["calls"]];

/// A folder of another author, with a toolbus.toml that points to this address.
fn foreign_folder(listen: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    std::fs::write(folder.path().join("toolbus.toml"), format!("listen = \"{listen}\"\n")).expect("writable");
    folder
}

/// Runs a command in that folder, with the data folder of the user's own broker.
async fn run(folder: &Path, user: &UpInstance, args: &[&str]) -> CommandOutput {
    let mut command = toolbus(folder);
    command.args(args).env("XDG_DATA_HOME", user.folder.path().join("data"));
    CommandOutput::of(soon("the command ends", command.output()).await.expect("the binary starts"))
}

#[tokio::test]
async fn a_found_token_is_not_sent_to_another_machine() {
    let user = UpInstance::start(&[]).await.settled().await;
    let folder = foreign_folder(OTHER_MACHINE);
    for args in COMMANDS {
        let start = Instant::now();
        let output = run(folder.path(), &user, args).await;
        assert!(output.err.contains("error[TB0117]") && output.err.contains("hint:"), "{args:?}: {}", output.err);
        assert!(start.elapsed() < Duration::from_secs(5), "it must fail before it connects");
    }
    let url = format!("ws://{OTHER_MACHINE}/bus");
    let output = run(folder.path(), &user, &["ps", "--broker", &url]).await;
    assert!(output.err.contains("error[TB0117]"), "{}", output.err);
}

#[tokio::test]
async fn a_found_token_is_not_sent_to_another_program_on_the_port() {
    let user = UpInstance::start(&[]).await.settled().await;
    let squatter = Squatter::start(None).await;
    let folder = foreign_folder(&squatter.address);
    for args in COMMANDS {
        let output = run(folder.path(), &user, args).await;
        assert!(
            output.err.contains("error[TB0117]") && output.err.contains("does not prove"),
            "{args:?}: {}",
            output.err
        );
    }
    squatter.check_saw_no_token(user.folder.path());
}

#[tokio::test]
async fn a_found_token_is_not_sent_through_a_relay_of_the_challenge() {
    let user = UpInstance::start(&[]).await.settled().await;
    let relay = Squatter::start(Some(user.address().to_owned())).await;
    let folder = foreign_folder(&relay.address);
    let output = run(folder.path(), &user, &["ps"]).await;
    assert!(output.err.contains("error[TB0117]") && output.err.contains("belongs to another"), "{}", output.err);
    relay.check_saw_no_token(user.folder.path());
}

#[tokio::test]
async fn a_found_token_is_not_sent_to_the_broker_of_another_folder() {
    let (user, other) = (UpInstance::start(&[]).await.settled().await, UpInstance::start(&[]).await);
    let output = run(user.folder.path(), &user, &["ps", "--broker", other.url()]).await;
    assert!(output.err.contains("error[TB0117]") && output.err.contains("belongs to another"), "{}", output.err);
    run(user.folder.path(), &user, &["ps", "--broker", user.url()]).await.check(0, &["host"], &[]);
    let by_name = user.url().replace("127.0.0.1", "localhost");
    run(user.folder.path(), &user, &["ps", "--broker", &by_name]).await.check(0, &["host"], &[]);
}

#[tokio::test]
async fn a_reconnecting_worker_does_not_send_its_token_to_another_program_on_the_port() {
    let mut user = UpInstance::start(&[]).await.settled().await;
    let mut connect = user.command(&["connect"]);
    connect.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    let mut worker = connect.spawn().expect("the binary starts");
    soon("the worker is connected", async { while !user.run(&["ps"]).await.out.contains("local#connect") {} }).await;
    user.child.kill().await.expect("it was running");
    let squatter = Squatter::on(user.address(), None).await;
    soon("the worker tries again", async {
        while squatter.seen().matches("toolbus-challenge").count() < 2 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    assert!(worker.try_wait().expect("a status").is_none(), "it keeps waiting for its broker");
    squatter.check_saw_no_token(user.folder.path());
}

#[tokio::test]
async fn a_given_token_is_not_sent_in_plain_text_to_another_machine() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("bob.token");
    std::fs::write(&file, "tb_secret").expect("writable");
    let url = format!("ws://{OTHER_MACHINE}/bus");
    let mut by_file = toolbus(folder.path());
    by_file.args(["ps", "--broker", &url, "--token-file"]).arg(&file);
    let mut by_environment = toolbus(folder.path());
    by_environment.args(["ps", "--broker", &url]).env("TOOLBUS_TOKEN", "tb_secret");
    let mut host = toolbus(folder.path());
    std::fs::write(folder.path().join("mcp.json"), r#"{"mcpServers":{"x":{"command":"true"}}}"#).expect("writable");
    host.args(["host", "--mcp-config", "mcp.json", "--broker", &url, "--token-file"]).arg(&file);
    for mut command in [by_file, by_environment, host] {
        let output = CommandOutput::of(soon("exit", command.output()).await.expect("the binary starts"));
        output.check(1, &[], &["error[TB0118]", "is not encrypted", "--insecure"]);
    }
}

/// A program that listens at the address of a broker, accepts every WebSocket, and records what it receives. With the
/// address of a real broker it relays everything.
pub struct Squatter {
    address: String,
    seen: Arc<Mutex<String>>,
}

impl Squatter {
    async fn start(real: Option<String>) -> Self {
        Self::on("127.0.0.1:0", real).await
    }

    pub async fn on(address: &str, real: Option<String>) -> Self {
        let listener = soon("the port", async {
            loop {
                match TcpListener::bind(address).await {
                    Ok(listener) => break listener,
                    Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
                }
            }
        })
        .await;
        let address = listener.local_addr().expect("it is bound").to_string();
        let seen = Arc::<Mutex<String>>::default();
        let recorded = Arc::clone(&seen);
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                tokio::spawn(squat(socket, real.clone(), Arc::clone(&recorded)));
            }
        });
        Self { address, seen }
    }

    pub fn seen(&self) -> String {
        self.seen.lock().expect("not poisoned").clone()
    }

    pub fn check_saw_no_token(&self, folder: &Path) {
        let seen = self.seen();
        assert!(seen.contains("toolbus-challenge"), "it received a challenge: {seen}");
        assert!(!seen.contains("hello") && !seen.contains("tb_"), "{seen}");
        for file in ["token", "host.token", "operator.token", "broker.key"] {
            let secret = std::fs::read_to_string(folder.join("data/toolbus").join(file)).expect("a secret");
            assert!(!seen.contains(secret.trim()), "{file}");
        }
    }
}

async fn squat(mut socket: TcpStream, real: Option<String>, seen: Arc<Mutex<String>>) {
    let record = |text: &str| seen.lock().expect("not poisoned").push_str(text);
    if let Some(real) = real {
        let mut broker = TcpStream::connect(real).await.expect("the broker is there");
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            request.push(socket.read_u8().await.expect("a request"));
        }
        record(&String::from_utf8_lossy(&request));
        broker.write_all(&request).await.expect("it reads its input");
        // The client must close the connection as soon as it sees a wrong proof.
        let (from_client, _) = copy_bidirectional(&mut socket, &mut broker).await.unwrap_or_default();
        return if from_client > 0 {
            record("hello")
        };
    }
    let Ok((request, mut socket)) = ServerBuilder::new().accept(socket).await else { return };
    record(&format!("{:?}", request.headers()));
    while let Some(Ok(message)) = socket.next().await {
        record(message.as_text().unwrap_or_default());
    }
}
