//! The token in the header of the upgrade request instead of `hello`.

use crate::support::{Bus, Peer, TOKEN, hello, within};
use serde_json::{Value, json};
use tokio::net::TcpStream;

fn hello_with(token: &str) -> Value {
    let mut value = hello("w");
    value["token"] = token.into();
    value
}

/// What a peer is answered that puts this into the header and that into `hello`.
async fn answer(bus: &Bus, header: &str, hello: Value) -> Value {
    let socket = within("a TCP connection", TcpStream::connect(bus.address)).await.expect("the broker accepts");
    let mut peer = Peer::upgrade_with(socket, bus.address, header).await;
    peer.send(hello).await;
    peer.frame().await
}

#[tokio::test]
async fn a_token_in_the_authorization_header_is_as_good_as_one_in_hello() {
    let bus = Bus::start().await;
    let header = format!("Authorization: Bearer {TOKEN}\r\n");
    assert_eq!(answer(&bus, &header, hello_with("")).await["kind"], "welcome");
    assert_eq!(answer(&bus, &header, hello_with(TOKEN)).await["kind"], "welcome");
    let other_scheme = "Authorization: Basic dXNlcjpwdw==\r\n";
    assert_eq!(answer(&bus, other_scheme, hello_with(TOKEN)).await["kind"], "welcome");
}

#[tokio::test]
async fn two_tokens_that_differ_or_one_that_is_wrong_let_nobody_in() {
    let bus = Bus::start().await;
    let right = format!("Authorization: Bearer {TOKEN}\r\n");
    for (header, token) in [
        (right.as_str(), "another"),
        ("Authorization: Bearer another\r\n", TOKEN),
        ("Authorization: Bearer another\r\n", ""),
        ("Authorization: Bearer\r\n", ""),
        (&right.repeat(2), ""),
    ] {
        let refused = answer(&bus, header, hello_with(token)).await;
        assert_eq!((&refused["kind"], &refused["code"]), (&json!("error"), &json!("TB0103")), "{header}");
    }
}
