//! Floods of sockets: strangers are few at a time and not for long, seats are counted, and those who are in stay served.

use crate::support::{
    Bus, Logs, MIB, Peer, Seen, Setup, alone, hello, masked_frame, request, resident_bytes, upgrade_request,
};
use crate::witness::Witness;
use serde_json::json;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use toolbus_broker::ServerOptions;

async fn bus_with(server: ServerOptions) -> Bus {
    Bus::with(Setup { server, ..Setup::default() }).await
}

/// Whether a newcomer gets in: it may be dropped at any point while strangers take all the room.
async fn gets_in(bus: &Bus) -> bool {
    let attempt = async {
        let mut socket = TcpStream::connect(bus.address).await.ok()?;
        socket.write_all(upgrade_request(bus.address, "/bus", "").as_bytes()).await.ok()?;
        socket.write_all(&masked_frame(0x81, hello("newcomer").to_string().as_bytes())).await.ok()?;
        let mut answer = vec![0; 4096];
        let mut seen = Vec::new();
        while !String::from_utf8_lossy(&seen).contains("welcome") {
            let count = socket.read(&mut answer).await.ok().filter(|count| *count > 0)?;
            seen.extend_from_slice(&answer[..count]);
        }
        Some(())
    };
    crate::support::within("an answer or an end", attempt).await.is_some()
}

#[tokio::test]
async fn silent_sockets_take_neither_the_accept_loop_nor_the_place_of_those_who_are_in() {
    let server =
        ServerOptions { max_unknown_peers: 16, hello_timeout: Duration::from_millis(500), ..ServerOptions::default() };
    let bus = bus_with(server).await;
    let mut witness = Witness::join(&bus).await;
    let mut silent = Vec::new();
    for n in 0..400 {
        silent.push(TcpStream::connect(bus.address).await.expect("the kernel accepts"));
        if n % 100 == 0 {
            witness.is_served().await;
        }
    }
    witness.is_served().await;
    // All of them are still held by us; the broker lets go of them by itself.
    crate::support::within("room for a newcomer", async {
        while !gets_in(&bus).await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    witness.is_served().await;
    drop(silent);
}

#[tokio::test]
async fn strangers_past_the_limit_are_dropped_at_once_and_make_room_when_they_leave() {
    let server =
        ServerOptions { max_unknown_peers: 16, hello_timeout: Duration::from_secs(60), ..ServerOptions::default() };
    let bus = bus_with(server).await;
    let mut strangers = Vec::new();
    for _ in 0..50 {
        strangers.push(TcpStream::connect(bus.address).await.expect("the kernel accepts"));
    }
    for dropped in &mut strangers[16..] {
        let mut rest = Vec::new();
        crate::support::within("the end", dropped.read_to_end(&mut rest)).await.ok();
    }
    for kept in &strangers[..16] {
        assert!(kept.try_read(&mut [0]).is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock));
    }
    assert!(!gets_in(&bus).await);
    strangers.truncate(15);
    crate::support::within("room for a newcomer", async {
        while !gets_in(&bus).await {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn every_silent_socket_is_let_go_of() {
    let server =
        ServerOptions { max_unknown_peers: 64, hello_timeout: Duration::from_millis(300), ..ServerOptions::default() };
    let bus = bus_with(server).await;
    let mut silent = Vec::new();
    for n in 0..60 {
        let mut socket = TcpStream::connect(bus.address).await.expect("the broker accepts");
        if n % 2 == 0 {
            socket.write_all(upgrade_request(bus.address, "/bus", "").as_bytes()).await.expect("a request goes out");
        }
        silent.push(socket);
    }
    for mut socket in silent {
        let mut rest = Vec::new();
        crate::support::within("the end", socket.read_to_end(&mut rest)).await.ok();
    }
    assert!(gets_in(&bus).await);
}

#[tokio::test]
async fn a_connection_too_many_is_refused_with_a_code_and_the_others_stay() {
    let bus = bus_with(ServerOptions { max_connections: 3, ..ServerOptions::default() }).await;
    let mut witness = Witness::join(&bus).await;
    let logs = Logs::start();
    let third = bus.peer("third").await;
    let answer = request(bus.address, upgrade_request(bus.address, "/bus", "")).await;
    assert_eq!(answer.status, 503);
    assert!(answer.body.starts_with("TB0210 ") && answer.body.contains("hint: "), "{}", answer.body);
    let warnings = logs.warnings();
    assert!(warnings.len() == 1 && warnings[0].contains("TB0210"), "{warnings:?}");
    // A health check needs no seat.
    assert_eq!(crate::support::get(bus.address, "/healthz").await.status, 200);
    witness.is_served().await;

    drop(third);
    crate::support::within("the free seat", async {
        while !gets_in(&bus).await {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn strangers_that_send_much_before_hello_are_cut_and_cost_little() {
    let _alone = alone().await;
    let bus = Bus::start().await;
    let mut witness = Witness::join(&bus).await;
    let before = resident_bytes();
    let mut strangers = Vec::new();
    for _ in 0..200 {
        let mut peer = Peer::connect(bus.address).await;
        // A frame of just under the limit that lacks its last byte, held open.
        let frame = masked_frame(0x81, &vec![b' '; 64 << 10]);
        peer.send_raw(&frame[..frame.len() - 1]).await;
        strangers.push(peer);
    }
    witness.is_served().await;
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 80 * MIB, "200 strangers cost {} MiB", grown / MIB);
    for mut peer in strangers.into_iter().take(20) {
        peer.send_raw(b" ").await;
        peer.expect_error("TB0101").await;
    }
    for _ in 0..50 {
        let mut peer = Peer::connect(bus.address).await;
        peer.send_raw(&masked_frame(0x81, &vec![b' '; (64 << 10) + 1])).await;
        peer.expect_error("TB0105").await;
    }
    witness.is_served().await;
}

/// Each ping is owed a pong, and a stranger that takes none of them makes the broker keep them.
#[tokio::test]
async fn a_stranger_cannot_make_the_broker_hoard_pongs() {
    let _alone = alone().await;
    let bus = Bus::start().await;
    let before = resident_bytes();
    let mut peer = Peer::connect(bus.address).await;
    let pings = masked_frame(0x89, &[b'?'; 125]).repeat(4096);
    let flood = async {
        // 128 MiB at most: far more than the sockets' buffers hold.
        for _ in 0..240 {
            peer.send_raw(&pings).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(3), flood).await.ok();
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 40 * MIB, "one stranger cost {} MiB", grown / MIB);
}

#[tokio::test]
async fn a_thousand_wrong_tokens_in_a_row_change_nothing() {
    let bus = Bus::start().await;
    let mut witness = Witness::join(&bus).await;
    for n in 0..1000 {
        let mut peer = Peer::connect(bus.address).await;
        let mut frame = hello("guesser");
        frame["token"] = format!("guess-{n}").into();
        peer.send(frame).await;
        peer.expect_error("TB0103").await;
        assert!(matches!(peer.see().await, Seen::Close { .. }));
    }
    witness.is_served().await;
    bus.peer("newcomer").await.deliver("somebody", "m", json!(1)).await;
}
