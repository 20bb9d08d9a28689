//! The broker as a process: signals, file descriptors, a full disk, and its data after a restart.

use crate::support::{BrokerProcess, TOKEN, connect, message, soon};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::process::Command;
use toolbus_protocol::Framing;

#[tokio::test]
async fn sigterm_stops_within_five_seconds_and_keeps_all_messages() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut broker = BrokerProcess::start(folder.path(), "127.0.0.1:0").await;
    let sender = connect(&broker.url(), "alice", Framing::Compact).await;
    for number in 0..100 {
        soon("receipt", sender.deliver("bob", message(number))).await.expect("accepted");
    }
    let pid = broker.child.id().expect("it runs").to_string();
    let start = Instant::now();
    let killed = Command::new("kill").arg(&pid).status().await.expect("kill exists");
    assert!(killed.success());
    let status = soon("exit", broker.child.wait()).await.expect("an exit status");
    assert!(status.success(), "{status}");
    assert!(start.elapsed() < Duration::from_secs(5));

    let broker = BrokerProcess::start(folder.path(), "127.0.0.1:0").await;
    let receiver = connect(&broker.url(), "bob", Framing::Compact).await;
    receiver.subscribe().await.expect("open");
    for number in 0..100u64 {
        let message = soon("message", receiver.next_message()).await.expect("open");
        assert_eq!(message.body.to::<u64>().expect("a number"), number, "in order");
    }
}

#[tokio::test]
async fn messages_that_are_sent_while_the_broker_stops_are_delivered_by_the_next_one() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut broker = BrokerProcess::start(folder.path(), "127.0.0.1:0").await;
    let address = broker.address.to_string();
    let sender = std::sync::Arc::new(connect(&broker.url(), "alice", Framing::Compact).await);
    let sending = tokio::spawn({
        let sender = std::sync::Arc::clone(&sender);
        async move {
            for number in 0..2_000 {
                sender.deliver_nowait("bob", message(number), toolbus::SendOptions::default()).await?;
                tokio::task::yield_now().await;
            }
            sender.deliver("bob", message(2_000)).await
        }
    });
    let pid = broker.child.id().expect("a running child").to_string();
    assert!(Command::new("kill").arg(&pid).status().await.expect("kill exists").success());
    soon("exit", broker.child.wait()).await.expect("an exit status");
    let broker = BrokerProcess::start(folder.path(), &address).await;
    soon("all sent", sending).await.expect("no panic").expect("a stop of the broker is no error");
    let receiver = connect(&broker.url(), "bob", Framing::Compact).await;
    receiver.subscribe().await.expect("open");
    for number in 0..=2_000u64 {
        let message = soon("message", receiver.next_message()).await.expect("open");
        assert_eq!(message.body.to::<u64>().expect("a number"), number, "in order");
        receiver.ack(message.id).await.expect("open");
    }
}

#[tokio::test]
async fn hole_07_clients_are_served_again_after_descriptors_ran_out() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let token = folder.path().join("test-token");
    std::fs::write(&token, TOKEN).expect("writable");
    let mut command = Command::new("sh");
    // The hard limit too, because the broker raises the soft one to it.
    command.arg("-c").arg(format!(
        "ulimit -n 64; exec '{}' broker --listen 127.0.0.1:0 --data '{}' --shared-token-file '{}'",
        env!("CARGO_BIN_EXE_toolbus"),
        folder.path().display(),
        token.display()
    ));
    let broker = BrokerProcess::spawn(command).await;
    let mut silent = Vec::new();
    for _ in 0..200 {
        match tokio::time::timeout(Duration::from_millis(200), TcpStream::connect(broker.address)).await {
            Ok(Ok(socket)) => silent.push(socket),
            _ => break,
        }
    }
    assert!(silent.len() > 64, "the limit was not reached: {}", silent.len());
    drop(silent);
    let client = soon("a connection", async {
        loop {
            let agent = toolbus::AgentRef::new("alice");
            match toolbus::BrokerClient::connect(&broker.url(), agent, TOKEN).await {
                Ok(client) => break client,
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    })
    .await;
    soon("receipt", client.deliver("bob", message(1))).await.expect("accepted");
}

#[tokio::test]
async fn a_displaced_host_exits_with_the_reason_and_does_not_reconnect() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let broker = BrokerProcess::start(folder.path(), "127.0.0.1:0").await;
    let binary = env!("CARGO_BIN_EXE_toolbus");
    let servers = serde_json::json!({"mcpServers": {"demo": {"command": binary, "args": ["demo-server"]}}});
    let (config, token) = (folder.path().join("servers.json"), folder.path().join("host-token"));
    std::fs::write(&config, servers.to_string()).expect("writable");
    std::fs::write(&token, TOKEN).expect("writable");
    // Separate state folders, as on two machines.
    let host = |state: &str| {
        let mut command = Command::new(binary);
        command.current_dir(folder.path()).args(["host", "--id", "admin", "--broker", &broker.url(), "--token-file"]);
        command.arg(&token).arg("--mcp-config").arg(&config).args(["--state", state]).kill_on_drop(true);
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().expect("it starts")
    };
    let observer = connect(&broker.url(), "observer", Framing::Compact).await;
    let first = host("one");
    soon("the first host", async {
        let is_there = |it: &toolbus_protocol::Connection| it.subscribed && &*it.agent.session_id == "admin";
        while !observer.status().await.expect("open").connections.iter().any(is_there) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    let mut second = host("other");
    let ended = soon("the end of the first", first.wait_with_output()).await.expect("an exit status");
    let stderr = String::from_utf8_lossy(&ended.stderr);
    assert!(!ended.status.success() && stderr.contains("error[TB0206]") && stderr.contains("hint:"), "{stderr}");
    assert!(second.try_wait().expect("a status").is_none(), "the second host runs");
}

#[tokio::test]
async fn a_second_broker_on_the_same_folder_is_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let _first = BrokerProcess::start(folder.path(), "127.0.0.1:0").await;
    let second = Command::new(env!("CARGO_BIN_EXE_toolbus"))
        .args(["broker", "--listen", "127.0.0.1:0", "--data"])
        .arg(folder.path())
        .output();
    let second = soon("exit", second).await.expect("it starts");
    let stderr = String::from_utf8_lossy(&second.stderr);
    assert!(!second.status.success());
    assert!(stderr.contains("another process uses the data folder"), "{stderr}");
    assert!(stderr.contains("hint:"), "{stderr}");
}

#[tokio::test]
async fn a_full_disk_refuses_new_messages_until_the_old_ones_are_acknowledged() {
    let Some(disk) = SmallDisk::mount() else {
        println!("mounting a tmpfs is not permitted here; nothing was tested");
        return;
    };
    let mut command = Command::new(env!("CARGO_BIN_EXE_toolbus"));
    command.args(["broker", "--listen", "127.0.0.1:0", "--reserve", "4", "--data"]).arg(disk.folder.path().join("d"));
    let token = disk.folder.path().join("token");
    std::fs::write(&token, TOKEN).expect("there is room");
    command.arg("--shared-token-file").arg(token);
    let broker = BrokerProcess::spawn(command).await;
    let sender = connect(&broker.url(), "alice", Framing::Compact).await;
    let mut accepted = 0u64;
    let refused = loop {
        let body = toolbus::Body::of(&"x".repeat(256 << 10)).expect("a string");
        let large = toolbus::InboxMessage::new(sender.me(), "task", body);
        match soon("an answer", sender.deliver("bob", large)).await {
            Ok(_) => accepted += 1,
            Err(error) => break error,
        }
        assert!(accepted < 1000, "the disk never filled up");
    };
    assert_eq!(refused.code(), Some(toolbus::ErrorCode::DiskFull), "{refused}");
    let receiver = connect(&broker.url(), "bob", Framing::Compact).await;
    receiver.subscribe().await.expect("open");
    for _ in 0..accepted {
        let message = soon("message", receiver.next_message()).await.expect("open");
        soon("confirmation", receiver.ack_confirmed(message.id)).await.expect("acknowledged on a full disk");
    }
    soon("new messages are accepted again", async {
        while sender.deliver("bob", message(1)).await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
}

/// A tmpfs of 32 MiB.
struct SmallDisk {
    folder: tempfile::TempDir,
    _open: OwnedFd,
}

impl SmallDisk {
    fn mount() -> Option<Self> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mounted = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=32m", "tmpfs"])
            .arg(folder.path())
            .status();
        if !mounted.is_ok_and(|status| status.success()) {
            return None;
        }
        let open = std::fs::File::open(folder.path()).expect("it was just mounted");
        Some(Self { folder, _open: open.into() })
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // A lazy unmount, because the broker may still be running.
        std::process::Command::new("umount").arg("-l").arg(self.folder.path()).status().ok();
    }
}
