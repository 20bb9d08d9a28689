//! The bytes of a link's handshake, written by hand.

use super::owner::{EPOCH, OWNER, PARTITION};
use crate::support::within;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// First byte of the owner's messages.
pub const NONCE: u8 = 1;
pub const ACCEPTED: u8 = 2;

/// What the owner sends if a proof is not valid.
pub const NO_PROOF: [u8; 6] = [0, 0, 0, 2, 0, 2];

pub fn request(protocol: &str) -> Vec<u8> {
    let head = "GET /link HTTP/1.1\r\nHost: any.example\r\nConnection: Upgrade\r\nUpgrade: ";
    format!("{head}{protocol}\r\n\r\n").into_bytes()
}

pub fn message(content: &[u8]) -> Vec<u8> {
    [&(content.len() as u32).to_be_bytes(), content].concat()
}

pub fn proposal() -> Vec<u8> {
    let mut proposal = vec![1; 32];
    proposal.extend(PARTITION.0.to_be_bytes());
    proposal.extend(EPOCH.to_be_bytes());
    for name in ["front", OWNER] {
        proposal.extend((name.len() as u16).to_be_bytes());
        proposal.extend(name.as_bytes());
    }
    message(&proposal)
}

/// Connects, sends bytes after an upgrade request, and keeps the connection open.
pub async fn send(address: SocketAddr, bytes: &[u8]) -> TcpStream {
    let mut socket = TcpStream::connect(address).await.expect("the broker accepts");
    socket.write_all(&[&request("toolbus-link/1"), bytes].concat()).await.expect("sent");
    socket
}

/// Reads until the peer closes the connection.
pub async fn rest(mut socket: TcpStream) -> Vec<u8> {
    let mut received = Vec::new();
    within("the end of the connection", socket.read_to_end(&mut received)).await.ok();
    received
}

pub async fn read_head(socket: &mut TcpStream) -> Vec<u8> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(socket.read_u8().await.expect("a head"));
    }
    head
}

pub async fn read_message(socket: &mut TcpStream) -> Vec<u8> {
    let length = socket.read_u32().await.expect("a length") as usize;
    let mut content = vec![0; length];
    socket.read_exact(&mut content).await.expect("a message");
    content
}
