//! The transport of a bus connection: a socket, preceded by the bytes that the HTTP layer has already read from it, or
//! an in-process pipe.

use bytes::{Buf, Bytes};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::{client, server};

/// A byte stream such as a TCP socket, a TLS stream or a pipe.
pub trait Transport: AsyncRead + AsyncWrite + Send + Unpin {
    /// Acknowledges received segments now, where TCP would wait for data to send along.
    fn acknowledge(&self) {}
}

impl Transport for TcpStream {
    fn acknowledge(&self) {
        // Linux leaves this mode by itself, so it is set after each read. An error means that the connection has ended.
        #[cfg(target_os = "linux")]
        let _ = self.set_quickack(true);
    }
}

impl Transport for server::TlsStream<TcpStream> {
    fn acknowledge(&self) {
        self.get_ref().0.acknowledge();
    }
}

impl Transport for client::TlsStream<TcpStream> {}

impl Transport for DuplexStream {}

pub struct Prefixed {
    prefix: Bytes,
    socket: Box<dyn Transport>,
    written: u64,
    received: u64,
    last_received: u64,
    /// Bytes that were read when they were last acknowledged.
    acknowledged: u64,
}

impl Prefixed {
    pub fn new(prefix: Bytes, socket: impl Transport + 'static) -> Self {
        Self { prefix, socket: Box::new(socket), written: 0, received: 0, last_received: 0, acknowledged: 0 }
    }

    /// Acknowledges what was read since the last call. Nothing is sent if an answer has acknowledged it already.
    pub fn acknowledge(&mut self) {
        if std::mem::replace(&mut self.acknowledged, self.received) < self.received {
            self.socket.acknowledge();
        }
    }

    /// Bytes that the socket has accepted so far. Grows as long as the peer reads, however slowly.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Bytes that were read so far.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Size of the last read.
    pub fn last_received(&self) -> u64 {
        self.last_received
    }

    fn count(&mut self, outcome: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(count)) = &outcome {
            self.written += *count as u64;
        }
        outcome
    }
}

impl AsyncRead for Prefixed {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let outcome = if self.prefix.is_empty() {
            Pin::new(&mut self.socket).poll_read(cx, buffer)
        } else {
            let count = self.prefix.len().min(buffer.remaining());
            buffer.put_slice(&self.prefix[..count]);
            self.prefix.advance(count);
            Poll::Ready(Ok(()))
        };
        if outcome.is_ready() {
            self.last_received = (buffer.filled().len() - before) as u64;
            self.received += self.last_received;
        }
        outcome
    }
}

impl AsyncWrite for Prefixed {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.socket).poll_write(cx, bytes);
        self.count(outcome)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.socket).poll_write_vectored(cx, slices);
        self.count(outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}
