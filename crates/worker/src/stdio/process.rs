//! The process's own stdin and stdout. MCP clients connect them to pipes or sockets, which tokio polls directly;
//! anything else goes through tokio's blocking thread, which costs a thread switch per line.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{UnixStream, unix::pipe};

/// Standard input of the process.
pub type Input = Box<dyn AsyncRead + Send + Unpin>;
/// Standard output of the process.
pub type Output = Box<dyn AsyncWrite + Send + Unpin>;

/// Opens the process's stdin for async reads.
pub fn stdin() -> Input {
    match open(io::stdin().as_fd().try_clone_to_owned()) {
        Ok(Kind::Pipe(file)) => match pipe::Receiver::from_file(file) {
            Ok(pipe) => Box::new(pipe),
            Err(_) => Box::new(tokio::io::stdin()),
        },
        Ok(Kind::Socket(socket)) => Box::new(socket),
        Ok(Kind::Other) | Err(_) => Box::new(tokio::io::stdin()),
    }
}

/// Opens the process's stdout for async writes.
pub fn stdout() -> Output {
    match open(io::stdout().as_fd().try_clone_to_owned()) {
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

fn open(descriptor: io::Result<OwnedFd>) -> io::Result<Kind> {
    let file = File::from(descriptor?);
    let kind = file.metadata()?.file_type();
    if kind.is_fifo() {
        return Ok(Kind::Pipe(file));
    }
    if kind.is_socket() {
        let socket = std::os::unix::net::UnixStream::from(OwnedFd::from(file));
        socket.set_nonblocking(true)?;
        return Ok(Kind::Socket(UnixStream::from_std(socket)?));
    }
    Ok(Kind::Other)
}
