//! Message pipes over fastwebsockets, whose writes go through a buffer so that all
//! messages of one wake-up leave in one system call.

use anyhow::{Context, ensure};
use bytes::{Bytes, BytesMut};
use fastwebsockets::{
    Frame, OpCode, Payload, Role, WebSocketError, WebSocketRead, WebSocketWrite, after_handshake_split,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, BufWriter},
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
};
use tokio_tungstenite::tungstenite::handshake::{client::generate_key, derive_accept_key};

use super::{Library, Sink, Source};

const WRITE_BUFFER: usize = 128 * 1024;
const LONGEST_HEAD: usize = 8 * 1024;

/// Binary messages over fastwebsockets.
pub struct Fast;

impl Library for Fast {
    type Source = Reader;
    type Sink = Writer;

    async fn connect(url: &str) -> anyhow::Result<(Reader, Writer)> {
        let mut stream = super::client::dial_tcp(url).await?;
        let request = format!(
            "GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {}\r\n\r\n",
            generate_key()
        );
        stream.write_all(request.as_bytes()).await?;
        let head = read_head(&mut stream).await?;
        ensure!(head.starts_with("HTTP/1.1 101"), "the upgrade was refused: {head}");
        Ok(pipe(stream, Role::Client))
    }

    async fn accept(mut stream: TcpStream) -> anyhow::Result<(Reader, Writer)> {
        stream.set_nodelay(true).context("set TCP_NODELAY")?;
        let head = read_head(&mut stream).await?;
        let key = header(&head, "sec-websocket-key").context("no Sec-WebSocket-Key")?;
        let response = format!(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Accept: {}\r\n\r\n",
            derive_accept_key(key.as_bytes())
        );
        stream.write_all(response.as_bytes()).await?;
        Ok(pipe(stream, Role::Server))
    }
}

/// Reads an HTTP head byte by byte, so that no byte after it is consumed.
async fn read_head(stream: &mut TcpStream) -> anyhow::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        ensure!(head.len() < LONGEST_HEAD, "the HTTP head is too long");
        head.push(stream.read_u8().await.context("read the HTTP head")?);
    }
    String::from_utf8(head).context("the HTTP head is not text")
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        key.eq_ignore_ascii_case(name).then(|| value.trim())
    })
}

fn pipe(stream: TcpStream, role: Role) -> (Reader, Writer) {
    let (read, write) = stream.into_split();
    let write = BufWriter::with_capacity(WRITE_BUFFER, write);
    let masks = matches!(role, Role::Client);
    let (reader, writer) = after_handshake_split(read, write, role);
    let writer = Writer { socket: writer, masks };
    (Reader(reader), writer)
}

pub struct Reader(WebSocketRead<OwnedReadHalf>);

impl Source for Reader {
    async fn next(&mut self) -> anyhow::Result<Option<Bytes>> {
        loop {
            // The peers send no pings and need no close frame in return, so there is nothing to send.
            let mut send_nothing = |_| std::future::ready(Ok::<_, WebSocketError>(()));
            let frame = match self.0.read_frame(&mut send_nothing).await {
                Ok(frame) => frame,
                Err(WebSocketError::UnexpectedEOF | WebSocketError::ConnectionClosed) => {
                    return Ok(None);
                }
                Err(error) => return Err(error).context("read a WebSocket frame"),
            };
            match frame.opcode {
                OpCode::Binary | OpCode::Text => {
                    return Ok(Some(match frame.payload {
                        Payload::Bytes(bytes) => bytes.freeze(),
                        other => Bytes::copy_from_slice(&other),
                    }));
                }
                OpCode::Close => return Ok(None),
                _ => {}
            }
        }
    }
}

pub struct Writer {
    socket: WebSocketWrite<BufWriter<OwnedWriteHalf>>,
    masks: bool,
}

impl Sink for Writer {
    async fn feed(&mut self, message: Bytes) -> anyhow::Result<()> {
        let written = if self.masks {
            let owned = message.try_into_mut().unwrap_or_else(|shared| BytesMut::from(&shared[..]));
            let frame = Frame::binary(Payload::Bytes(owned));
            self.socket.write_frame(frame).await
        } else {
            let frame = Frame::binary(Payload::Borrowed(&message));
            self.socket.write_frame(frame).await
        };
        written.context("write a WebSocket frame")
    }

    async fn flush(&mut self) -> anyhow::Result<()> {
        self.socket.flush().await.context("flush the WebSocket")
    }
}
