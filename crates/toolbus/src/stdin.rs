//! The process's own standard input and output for `toolbus connect`. The input begins with what was read of it before
//! there was a broker, and it breaks off when the process is to stop, so that the client's session is closed properly.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{UnixStream, unix::pipe};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

pub type Reader = Box<dyn AsyncRead + Send + Unpin>;
pub type Writer = Box<dyn AsyncWrite + Send + Unpin>;

/// Pipes and sockets, which is what MCP clients connect, need no thread to be waited for.
pub fn input() -> Reader {
    match Kind::of(io::stdin().as_fd().try_clone_to_owned()) {
        Ok(Kind::Pipe(file)) => match pipe::Receiver::from_file(file) {
            Ok(pipe) => Box::new(pipe),
            Err(_) => Box::new(tokio::io::stdin()),
        },
        Ok(Kind::Socket(socket)) => Box::new(socket),
        Ok(Kind::Other) | Err(_) => Box::new(tokio::io::stdin()),
    }
}

pub fn output() -> Writer {
    match Kind::of(io::stdout().as_fd().try_clone_to_owned()) {
        Ok(Kind::Pipe(file)) => match pipe::Sender::from_file(file) {
            Ok(pipe) => Box::new(pipe),
            Err(_) => Box::new(tokio::io::stdout()),
        },
        Ok(Kind::Socket(socket)) => Box::new(socket),
        Ok(Kind::Other) | Err(_) => Box::new(tokio::io::stdout()),
    }
}

enum Kind {
    Pipe(File),
    Socket(UnixStream),
    Other,
}

impl Kind {
    fn of(descriptor: io::Result<OwnedFd>) -> io::Result<Self> {
        let file = File::from(descriptor?);
        let kind = file.metadata()?.file_type();
        if kind.is_fifo() {
            return Ok(Self::Pipe(file));
        }
        if kind.is_socket() {
            let socket = std::os::unix::net::UnixStream::from(OwnedFd::from(file));
            socket.set_nonblocking(true)?;
            return Ok(Self::Socket(UnixStream::from_std(socket)?));
        }
        Ok(Self::Other)
    }
}

/// What was read before, then the rest, until the wish to stop.
pub struct Input {
    before: io::Cursor<Vec<u8>>,
    rest: Reader,
    stop: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl Input {
    pub fn new(before: Vec<u8>, rest: Reader, stop: CancellationToken) -> Self {
        Self { before: io::Cursor::new(before), rest, stop: Box::pin(stop.cancelled_owned()) }
    }
}

impl AsyncRead for Input {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        // An error and no end of file: at the end of file, calls under way would still be waited for.
        if self.stop.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        let before = self.before.position();
        if before < self.before.get_ref().len() as u64 {
            return Pin::new(&mut self.before).poll_read(cx, buffer);
        }
        Pin::new(&mut self.rest).poll_read(cx, buffer)
    }
}
