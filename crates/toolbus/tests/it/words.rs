//! What people read when something is wrong: each message says what happened, why, and what to do.

use crate::support::soon;
use crate::up::{CommandOutput, UpInstance, toolbus};
use std::process::Stdio;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::Command;
use toolbus::{AgentRef, BrokerClient, ClientOptions};

async fn output_of(command: &mut Command) -> CommandOutput {
    CommandOutput::of(soon("the command ends", command.output()).await.expect("the binary starts"))
}

#[tokio::test]
async fn a_wrong_token_is_named_with_its_origin_and_the_way_to_a_new_one() {
    let instance = UpInstance::start(&[]).await;
    let wrong = output_of(instance.command(&["tools"]).env("TOOLBUS_TOKEN", "tb_wrong")).await;
    let parts = ["error[TB0103]", instance.url(), "the token in TOOLBUS_TOKEN", "toolbus agent rotate NAME"];
    wrong.check(1, &[], &parts);
    std::fs::write(instance.folder.path().join("mine.token"), "tb_wrong").expect("writable");
    instance.run(&["tools", "--token-file", "mine.token"]).await.check(1, &[], &["the token in mine.token"]);
}

#[tokio::test]
async fn an_unusable_data_folder_is_not_taken_for_a_missing_token_or_a_second_broker() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    std::fs::write(folder.path().join("file"), "").expect("writable");
    let unusable = folder.path().join("file").display().to_string();
    let tools = output_of(toolbus(folder.path()).args(["tools"]).env("TOOLBUS_DATA", &unusable)).await;
    tools.check(1, &[], &["can't read the token file", "file/token"]);
    let broker =
        output_of(toolbus(folder.path()).args(["broker", "--listen", "127.0.0.1:0", "--data", &unusable])).await;
    broker.check(1, &[], &["data folder", "has to own the folder"]);
    assert!(!broker.err.contains("one broker"), "{}", broker.err);
}

#[tokio::test]
async fn a_missing_command_of_a_server_is_reported_with_the_remedy() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    std::fs::write(folder.path().join("toolbus.toml"), "[servers.a]\ncommand = 'no-such-command'").expect("writable");
    let instance = UpInstance::start_in(folder, &[]).await;
    let tools = soon("the reason", async {
        loop {
            let tools = instance.run(&["tools"]).await;
            if tools.out.contains("is down") {
                break tools;
            }
        }
    });
    tools.await.check(0, &["\"no-such-command\" not found in the host's PATH", "install it", "full path"], &[]);
}

#[tokio::test]
async fn an_address_needs_no_scheme_and_the_mcp_endpoint_is_not_the_bus() {
    let instance = UpInstance::start(&[]).await.settled().await;
    let address = instance.address();
    instance.run(&["tools", "--broker", address]).await.check(0, &["text_stats"], &[]);
    let mcp = instance.run(&["tools", "--broker", &format!("http://{address}/mcp")]).await;
    mcp.check(1, &[], &["is the endpoint of MCP clients", &format!("--broker ws://{address}/bus")]);
}

#[tokio::test]
async fn a_body_that_is_not_json_is_reported_once() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let sent = output_of(toolbus(folder.path()).args(["send", "--to", "bob", "--body", "hello"])).await;
    sent.check(1, &[], &["error: the body is not valid JSON", "hint: quote strings"]);
    assert_eq!(sent.err.matches("JSON").count(), 1, "{}", sent.err);
}

#[tokio::test]
async fn hidden_commands_are_not_suggested() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let demo = output_of(toolbus(folder.path()).arg("demo")).await;
    demo.check(2, &[], &["unrecognized subcommand 'demo'"]);
    assert!(!demo.err.contains("demo-server"), "{}", demo.err);
    output_of(toolbus(folder.path()).arg("toolz")).await.check(2, &[], &["'tools'"]);
}

#[tokio::test]
async fn at_the_connection_limit_no_command_says_that_there_is_no_broker() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let instance = UpInstance::start_in(folder, &["--max-connections", "12"]).await.settled().await;
    let token = std::fs::read_to_string(instance.folder.path().join("data/toolbus/token")).expect("a token");
    let mut open = Vec::new();
    let full = loop {
        let (agent, options) = (AgentRef::new("~"), ClientOptions { reconnect: false, ..ClientOptions::default() });
        match BrokerClient::connect_with(instance.url(), agent, token.trim(), options).await {
            Ok(client) => open.push(client),
            Err(error) => break error,
        }
    };
    assert!(full.to_string().contains("accepts no connection at the moment"), "{full}");
    let tools = instance.run(&["tools"]).await;
    tools.check(1, &[], &["error[TB0210]", "--max-connections"]);
    assert!(!tools.err.contains("is the broker running"), "{}", tools.err);
    let mut connect = instance.command(&["connect"]);
    let mut connect =
        connect.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("the binary starts");
    let mut input = connect.stdin.take().expect("a pipe");
    input.write_all(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\n").await.expect("it reads its input");
    let mut lines = BufReader::new(connect.stdout.take().expect("a pipe")).lines();
    let answer = soon("an answer", lines.next_line()).await.expect("text").expect("a line");
    assert!(answer.contains("TB0210") && !answer.contains("no broker"), "{answer}");
}

#[tokio::test]
async fn a_ca_certificate_of_a_broker_is_refused_with_the_way_to_a_usable_one() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let key = rcgen::KeyPair::generate().expect("a key");
    let certificate = params.self_signed(&key).expect("a certificate");
    std::fs::write(folder.path().join("cert.pem"), certificate.pem()).expect("writable");
    std::fs::write(folder.path().join("key.pem"), key.serialize_pem()).expect("writable");
    let args = ["--tls-cert", "cert.pem", "--tls-key", "key.pem"];
    let instance = UpInstance::start_in(folder, &args).await;
    let port = instance.url().rsplit(':').next().expect("a port").trim_end_matches("/bus").to_owned();
    let url = format!("wss://localhost:{port}/bus");
    let tools = instance.run(&["tools", "--broker", &url, "--ca-cert", "cert.pem"]).await;
    tools.check(1, &[], &["is marked as a CA", "basicConstraints=critical,CA:FALSE", "docs/credentials.md"]);
}
