//! Authentication by the `Authorization` header of the upgrade request instead of `hello`.

use crate::support::{Bus, Peer, TOKEN, hello, within};
use serde_json::{Value, json};
use tokio::net::TcpStream;

fn hello_with(token: &str) -> Value {
    let mut value = hello("w");
    value["token"] = token.into();
    value
}

/// The broker's response to an upgrade with that header and that `hello`.
async fn response(bus: &Bus, header: &str, hello: Value) -> Value {
    let socket = within("a TCP connection", TcpStream::connect(bus.address)).await.expect("the broker accepts");
    let mut peer = Peer::upgrade_with(socket, bus.address, header).await;
    peer.send(hello).await;
    peer.frame().await
}

#[tokio::test]
async fn a_token_in_the_authorization_header_is_accepted() {
    let bus = Bus::start().await;
    let header = format!("Authorization: Bearer {TOKEN}\r\n");
    assert_eq!(response(&bus, &header, hello_with("")).await["kind"], "welcome");
    assert_eq!(response(&bus, &header, hello_with(TOKEN)).await["kind"], "welcome");
    let other_scheme = "Authorization: Basic dXNlcjpwdw==\r\n";
    assert_eq!(response(&bus, other_scheme, hello_with(TOKEN)).await["kind"], "welcome");
}

#[tokio::test]
async fn different_or_wrong_tokens_are_refused() {
    let bus = Bus::start().await;
    let right = format!("Authorization: Bearer {TOKEN}\r\n");
    for (header, token) in [
        (right.as_str(), "another"),
        ("Authorization: Bearer another\r\n", TOKEN),
        ("Authorization: Bearer another\r\n", ""),
        ("Authorization: Bearer\r\n", ""),
        (&right.repeat(2), ""),
    ] {
        let refused = response(&bus, header, hello_with(token)).await;
        assert_eq!((&refused["kind"], &refused["code"]), (&json!("error"), &json!("TB0103")), "{header}");
    }
}
