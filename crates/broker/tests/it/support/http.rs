//! Hand-written HTTP: the test controls every byte of a request.

use super::within;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A response, read until the broker closed the connection.
pub struct HttpResponse {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl HttpResponse {
    pub fn parse(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let status = head.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap_or_default();
        Self { status, head: head.to_owned(), body: body.to_owned() }
    }

    /// The value of a header; names are case-insensitive.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }
}

/// Sends bytes and reads until the broker closes the connection.
pub async fn request(address: SocketAddr, bytes: impl AsRef<[u8]>) -> HttpResponse {
    within("an HTTP response", async {
        let mut socket = TcpStream::connect(address).await.expect("the broker accepts");
        // The broker may respond and close before it has read the whole request.
        socket.write_all(bytes.as_ref()).await.ok();
        let mut response = Vec::new();
        socket.read_to_end(&mut response).await.ok();
        HttpResponse::parse(&response)
    })
    .await
}

pub async fn get(address: SocketAddr, path: &str) -> HttpResponse {
    request(address, format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n")).await
}

/// A valid WebSocket upgrade request, with additional header lines in `more`.
pub fn upgrade_request(address: SocketAddr, path: &str, more: &str) -> String {
    format!(
        "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{more}\r\n"
    )
}
