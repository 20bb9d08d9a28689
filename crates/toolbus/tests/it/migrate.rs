//! `toolbus migrate` with real brokers, hosts and a NATS server, which `cargo xtask test` installs (in `TOOLBUS_PARTS`);
//! without it, these tests do nothing.

use crate::nats_site::Site;
use crate::support::{BrokerProcess, connect, message, soon};
use crate::up::{CommandOutput, toolbus};
use serde_json::Value;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;
use toolbus::{BrokerClient, BrokerError, InboxMessage, SendOptions};
use toolbus_protocol::{ErrorCode, Framing};

async fn client(broker: &BrokerProcess, name: &str) -> BrokerClient {
    connect(&broker.url(), name, Framing::Compact).await
}

/// Receives and acknowledges the messages of a mailbox until none follows for a moment.
async fn drained(broker: &BrokerProcess, name: &str) -> Vec<InboxMessage> {
    let client = client(broker, name).await;
    client.subscribe().await.expect("open");
    let mut all = Vec::new();
    while let Ok(Some(message)) = tokio::time::timeout(Duration::from_secs(1), client.next_message()).await {
        client.ack_confirmed(message.id.clone()).await.expect("open");
        all.push(message);
    }
    all
}

fn numbers_from(messages: &[InboxMessage], sender: &str) -> Vec<u64> {
    let sent = messages.iter().filter(|message| &*message.from.session_id == sender);
    sent.map(|message| message.body.to::<u64>().expect("a number")).collect()
}

#[tokio::test]
async fn messages_keep_their_order_and_ids_are_known_after_the_way_into_a_cluster_and_back() {
    let Some(site) = Site::start().await else { return };
    let broker = site.broker("first").await;
    let (alice, carol) = (client(&broker, "alice").await, client(&broker, "carol").await);
    let sent: Vec<InboxMessage> = (0..60).map(message).collect();
    for (number, message) in sent.iter().enumerate() {
        let sender = if number % 3 == 0 { &carol } else { &alice };
        let send = SendOptions { deadline: (number % 2 == 0).then(|| Duration::from_secs(3600)) };
        soon("receipt", sender.deliver_with("bob", message.clone(), send)).await.expect("accepted");
    }
    for number in 100..120 {
        soon("receipt", alice.deliver("dora", message(number))).await.expect("accepted");
    }
    // Some are settled, and some were pushed before.
    let bob = client(&broker, "bob").await;
    bob.subscribe().await.expect("open");
    for expected in &sent[..10] {
        let message = soon("message", bob.next_message()).await.expect("open");
        assert_eq!(message.id, expected.id);
        bob.ack_confirmed(message.id).await.expect("open");
    }
    soon("message", bob.next_message()).await.expect("open");
    broker.kill().await;

    let before = site.moved("first", &site.url(), &["--dry-run"]).await;
    assert_eq!((&before["source"]["messages"], &before["target"]), (&70.into(), &Value::Null));
    let there = site.moved("first", &site.url(), &[]).await;
    assert_eq!(there["source"], before["source"]);
    assert_eq!(there["target"], before["source"]);
    site.refused("first", false, "TB0310").await;
    let revoke = toolbus(site.folder.path()).args(["agent", "revoke", "alice", "--data", "first"]).output().await;
    CommandOutput::of(revoke.expect("it starts")).check(1, &[], &["error[TB0310]", "was moved to the cluster default"]);
    site.run("first", &site.url(), &[]).await.check(1, &[], &["error[TB0310]", "was moved to the cluster default"]);

    let member = site.member("member").await;
    let (alice, carol) = (client(&member, "alice").await, client(&member, "carol").await);
    soon("a settled id", carol.deliver("bob", sent[0].clone())).await.expect("known");
    soon("a pending id", carol.deliver("bob", sent[30].clone())).await.expect("known");
    let other = InboxMessage { body: message(999).body, ..sent[1].clone() };
    let conflict = soon("another content", alice.deliver("bob", other)).await;
    assert!(matches!(conflict, Err(BrokerError::Rejected { code: Some(ErrorCode::IdConflict), .. })), "{conflict:?}");
    soon("receipt", alice.deliver("dora", message(120))).await.expect("accepted");
    let dora = drained(&member, "dora").await;
    assert_eq!(numbers_from(&dora, "alice"), (100..=120).collect::<Vec<_>>());
    member.kill().await;

    let back = site.moved(&site.url(), "second", &[]).await;
    assert_eq!((&back["source"], &back["source"]["messages"]), (&back["target"], &50.into()));
    site.refused("member", true, "TB0310").await;
    let broker = site.broker("second").await;
    let (alice, carol) = (client(&broker, "alice").await, client(&broker, "carol").await);
    soon("settled in the folder", carol.deliver("bob", sent[0].clone())).await.expect("known");
    for message in dora {
        let again = InboxMessage { from: toolbus::AgentRef::new("alice"), ..message };
        soon("settled in the cluster", alice.deliver("dora", again)).await.expect("known");
    }
    let bob = drained(&broker, "bob").await;
    let of = |sender: u64| (10..60).filter(|number| (number % 3 == 0) == (sender == 0)).collect::<Vec<u64>>();
    assert_eq!((numbers_from(&bob, "carol"), numbers_from(&bob, "alice")), (of(0), of(1)));
    assert!(drained(&broker, "dora").await.is_empty(), "nothing comes twice");
}

/// A host with the demo server, until it is connected.
async fn host(site: &Site, broker: &BrokerProcess, state: &str) -> tokio::process::Child {
    let servers = serde_json::json!({"mcpServers": {"demo": {"command": env!("CARGO_BIN_EXE_toolbus"), "args": ["demo-server"]}}});
    fs::write(site.path("servers.json"), servers.to_string()).expect("writable");
    let mut command = toolbus(site.folder.path());
    command.args(["host", "--id", "desk", "--broker", &broker.url(), "--token-file", "test-token"]);
    command.args(["--mcp-config", "servers.json", "--state", state]).stdout(Stdio::null()).stderr(Stdio::null());
    let child = command.spawn().expect("it starts");
    let observer = client(broker, "observer").await;
    let is_there = |it: &toolbus_protocol::Connection| it.subscribed && &*it.agent.session_id == "desk";
    soon("the host", async {
        while !observer.status().await.expect("open").connections.iter().any(is_there) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    child
}

async fn logged(site: &Site, data: &str, is_member: bool) -> (BrokerProcess, PathBuf) {
    let log = site.path(&format!("{data}.log"));
    let command = site.broker_command(data, is_member);
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(r#"exec "$0" "$@" 2>"$LOG""#).arg(command.as_std().get_program());
    shell.args(command.as_std().get_args()).env("LOG", &log).current_dir(site.folder.path());
    (BrokerProcess::spawn(shell).await, log)
}

async fn listed(site: &Site, broker: &BrokerProcess) -> String {
    let mut command = toolbus(site.folder.path());
    command.args(["tools", "--broker", &broker.url(), "--token-file", "test-token", "--role", "local"]);
    let output = CommandOutput::of(soon("the list", command.output()).await.expect("it starts"));
    output.check(0, &[], &[]);
    output.out
}

async fn has_listed(site: &Site, broker: &BrokerProcess) {
    soon("its tools", async {
        while !listed(site, broker).await.contains("text_stats") {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_host_continues_with_its_journal_on_both_sides_and_another_journal_is_fenced() {
    const FENCED: &str = "another call journal than before";
    let Some(site) = Site::start().await else { return };
    let broker = site.broker("first").await;
    let mut desk = host(&site, &broker, "one").await;
    has_listed(&site, &broker).await;
    desk.kill().await.expect("it was running");
    broker.kill().await;
    let there = site.moved("first", &site.url(), &[]).await;
    assert_eq!([&there["target"]["claims"], &there["target"]["hosts"]], [&Value::from(1), &Value::from(1)]);

    let (member, log) = logged(&site, "member", true).await;
    assert!(listed(&site, &member).await.contains("text_stats"), "the tools of a host that is away");
    let mut desk = host(&site, &member, "one").await;
    desk.kill().await.expect("it was running");
    let text = fs::read_to_string(&log).expect("a log");
    assert!(!text.contains(FENCED), "{text}");
    let mut desk = host(&site, &member, "two").await;
    has_listed(&site, &member).await;
    desk.kill().await.expect("it was running");
    let text = fs::read_to_string(&log).expect("a log");
    assert!(text.contains(FENCED), "{text}");
    member.kill().await;

    let back = site.moved(&site.url(), "second", &[]).await;
    assert_eq!(back["target"]["fences"], 1);
    let (broker, log) = logged(&site, "second", false).await;
    assert!(listed(&site, &broker).await.contains("text_stats"));
    let mut desk = host(&site, &broker, "two").await;
    desk.kill().await.expect("it was running");
    let text = fs::read_to_string(&log).expect("a log");
    assert!(!text.contains(FENCED), "{text}");
    let mut desk = host(&site, &broker, "one").await;
    desk.kill().await.expect("it was running");
    let text = fs::read_to_string(&log).expect("a log");
    assert!(text.contains(FENCED), "{text}");
}

/// Starts a move again and again and kills it a little later each time, until it has ended by itself. Returns how often it was
/// killed.
async fn killed_again_and_again(site: &Site, from: &str, to: &str, member: &str) -> u32 {
    let mut kills = 0;
    loop {
        let mut command = site.migrate(from, to, &[]);
        let (out, errors) = (site.path("out.json"), site.path("errors"));
        let file = |path: &PathBuf| File::create(path).expect("writable");
        let mut child = command.stdout(file(&out)).stderr(file(&errors)).spawn().expect("starts");
        // Closer together at the beginning, so that a slow machine needs not many more runs.
        let limit = Duration::from_millis(15 + u64::from(kills) * 4 + u64::from(kills * kills) * 2);
        if let Ok(status) = tokio::time::timeout(limit, child.wait()).await {
            let text = fs::read_to_string(&errors).expect("text");
            // The one before may have been killed after its last step.
            let was_complete = text.contains("error[TB0310]");
            assert!(status.expect("a status").success() || was_complete, "{text}");
            return kills;
        }
        child.kill().await.expect("it was running");
        kills += 1;
        if kills % 8 == 0 {
            // Neither side is served, whichever step it was.
            let folder = [from, to].into_iter().find(|side| !side.contains("://")).expect("one is a folder");
            let identity = fs::read_to_string(site.path(folder).join("identity")).unwrap_or_default();
            if identity.starts_with("toolbus moved 1") {
                let code = if identity.contains("\nleft ") { "TB0310" } else { "TB0309" };
                site.refused(folder, false, code).await;
                let output = site.broker_command(member, true).output();
                let output = CommandOutput::of(soon("the broker ends", output).await.expect("it starts"));
                assert!(output.err.contains("error[TB0309]") || output.err.contains("error[TB0310]"), "{}", output.err);
            }
        }
    }
}

#[tokio::test]
async fn a_move_that_is_killed_at_any_moment_goes_on() {
    let Some(site) = Site::start().await else { return };
    let broker = site.broker("first").await;
    let alice = client(&broker, "alice").await;
    let body = toolbus::Body::of(&"x".repeat(2_000)).expect("text is JSON");
    for number in 0..1_500u64 {
        let message = InboxMessage { body: body.clone(), ..message(number) };
        let to = format!("worker-{}", number % 7);
        soon("sent", alice.deliver_nowait(&to, message, SendOptions::default())).await.expect("open");
    }
    soon("receipt", alice.deliver("worker-0", message(1))).await.expect("accepted");
    broker.kill().await;
    let before = site.moved("first", &site.url(), &["--dry-run"]).await;
    assert_eq!(before["source"]["messages"], 1501);
    let kills = killed_again_and_again(&site, "first", &site.url(), "member").await;
    assert!(kills >= 5, "{kills} kills");
    let there = site.moved(&site.url(), "unused", &["--dry-run"]).await;
    assert_eq!(there["source"], before["source"]);
    let kills = killed_again_and_again(&site, &site.url(), "second", "member").await;
    assert!(kills >= 5, "{kills} kills");
    let back = site.moved("second", &site.url(), &["--cluster", "other", "--dry-run"]).await;
    assert_eq!(back["source"], before["source"]);
}

/// Flips a bit in the middle of the first segment.
fn damage(data: &Path) {
    let segment = data.join("segment-0000000001.log");
    let mut bytes = fs::read(&segment).expect("a segment");
    let at = bytes.iter().position(|byte| *byte == b'@').expect("the body of a message");
    bytes[at + 100] ^= 1;
    fs::write(segment, bytes).expect("writable");
}

#[tokio::test]
async fn a_damaged_source_is_refused_and_left_as_it_is() {
    let Some(site) = Site::start().await else { return };
    let broker = site.broker("first").await;
    let alice = client(&broker, "alice").await;
    for number in 0..5u64 {
        let body = toolbus::Body::of(&"@".repeat(5_000)).expect("text is JSON");
        let message = InboxMessage { body, ..message(number) };
        soon("receipt", alice.deliver("bob", message)).await.expect("accepted");
    }
    broker.kill().await;
    let claims = site.path("first/claims.json");
    fs::write(&claims, "{").expect("writable");
    site.run("first", &site.url(), &[]).await.check(1, &[], &["error[TB0312]", "claims.json", "hint:"]);
    fs::remove_file(&claims).expect("it was there");
    damage(&site.path("first"));
    for _ in 0..2 {
        site.run("first", &site.url(), &[]).await.check(1, &[], &["error[TB0312]", "damaged ranges: 1 ", "hint:"]);
    }
    let identity = fs::read_to_string(site.path("first/identity")).expect("an identity");
    assert!(identity.starts_with("toolbus log"), "{identity}");
    let there = site.moved("first", &site.url(), &["--accept-damage"]).await;
    assert_eq!(there["target"]["messages"], 4);
}

#[tokio::test]
async fn a_target_in_use_and_running_brokers_are_refused_and_a_move_can_be_given_up() {
    let Some(site) = Site::start().await else { return };
    let both = site.run("first", "second", &[]).await;
    both.check(1, &[], &["one of --from and --to has to be a folder", "hint:"]);
    site.run("none", &site.url(), &[]).await.check(1, &[], &["has no data of a broker"]);
    site.run(&site.url(), "new", &[]).await.check(1, &[], &["there is no cluster default"]);
    let broker = site.broker("first").await;
    site.run("first", &site.url(), &[]).await.check(1, &[], &["error[TB0313]", "hint:"]);
    let alice = client(&broker, "alice").await;
    soon("receipt", alice.deliver("bob", message(7))).await.expect("accepted");
    broker.kill().await;
    let member = site.member("member").await;
    site.run("first", &site.url(), &[]).await.check(1, &[], &["error[TB0311]", "hint:"]);
    let address = member.address.to_string();
    site.run(&site.url(), "new", &[]).await.check(1, &[], &["error[TB0313]", &address, "hint:"]);
    // It was not disturbed.
    let carol = client(&member, "carol").await;
    soon("receipt", carol.deliver("bob", message(8))).await.expect("accepted");
    member.kill().await;
    fs::create_dir_all(site.path("full")).expect("writable");
    fs::write(site.path("full/file"), "of another program").expect("writable");
    site.run(&site.url(), "full", &[]).await.check(1, &[], &["error[TB0311]", "hint:"]);
    let other = ["--cluster", "other"];
    site.moved("first", &site.url(), &other).await;
    let abandon = |extra: &'static [&'static str]| [&other[..], &["--abandon"], extra].concat();
    site.run("first", &site.url(), &abandon(&[])).await.check(1, &[], &["error[TB0310]", "--abandon --force"]);
    site.run("first", &site.url(), &abandon(&["--force"])).await.check(0, &["abandoned"], &[]);
    let broker = site.broker("first").await;
    assert_eq!(numbers_from(&drained(&broker, "bob").await, "alice"), [7]);
    broker.kill().await;
    site.run("first", &site.url(), &abandon(&[])).await.check(1, &[], &["takes part in no move"]);
    // A move to a target that was used before is refused.
    site.run("first", &site.url(), &other).await.check(1, &[], &["error[TB0311]"]);
}
