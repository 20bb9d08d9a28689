//! The way to another broker: TCP, TLS if the brokers use it, and the HTTP upgrade.

use super::{Binding, LINK_PATH, LINK_PROTOCOL, LinkError, binding};
use crate::prefixed::{Prefixed, Transport};
use bytes::BytesMut;
use std::io;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Maximum size of the head of the response to the upgrade.
const MAX_HEAD_BYTES: usize = 8 << 10;

const SWITCHING_PROTOCOLS: u16 = 101;
const UPGRADE_REQUIRED: u16 = 426;

pub async fn connect(address: &str) -> Result<TcpStream, LinkError> {
    let failed = |source| LinkError::Connect { address: address.to_owned(), source };
    let socket = TcpStream::connect(address).await.map_err(failed)?;
    socket.set_nodelay(true).map_err(failed)?;
    Ok(socket)
}

/// Makes a link of a connection that is not authenticated yet.
pub async fn upgrade(socket: TcpStream, address: &str, is_tls: bool) -> Result<(Prefixed, Binding), LinkError> {
    if !is_tls {
        return Ok((request(socket, address).await?, Binding::plain()));
    }
    let (stream, binding) = binding::connect(socket).await.map_err(|source| LinkError::Tls { source })?;
    Ok((request(stream, address).await?, binding))
}

async fn request(mut stream: impl Transport + 'static, address: &str) -> Result<Prefixed, LinkError> {
    let request = format!(
        "GET {LINK_PATH} HTTP/1.1\r\nHost: {address}\r\nConnection: Upgrade\r\nUpgrade: {LINK_PROTOCOL}\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await?;
    stream.flush().await?;
    let (mut received, mut head) = (BytesMut::new(), None);
    while head.is_none() {
        if received.len() > MAX_HEAD_BYTES {
            return Err(LinkError::Refused { status: 0 });
        }
        if stream.read_buf(&mut received).await? == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        head = received.windows(4).position(|bytes| bytes == b"\r\n\r\n");
    }
    let status = status(&received);
    let after_head = received.split_off(head.map_or(0, |end| end + 4));
    match status {
        SWITCHING_PROTOCOLS => Ok(Prefixed::new(after_head.freeze(), stream)),
        UPGRADE_REQUIRED => Err(LinkError::Version),
        status => Err(LinkError::Refused { status }),
    }
}

/// The status of an HTTP response, 0 if it is none.
fn status(response: &[u8]) -> u16 {
    let digits = response.strip_prefix(b"HTTP/1.1 ").and_then(|rest| rest.get(..3));
    digits.and_then(|digits| std::str::from_utf8(digits).ok()).and_then(|digits| digits.parse().ok()).unwrap_or(0)
}
