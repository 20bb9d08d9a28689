//! Message pipes over tokio-tungstenite with its default buffers and `TCP_NODELAY`.

use anyhow::Context;
use bytes::Bytes;
use futures_util::{
    SinkExt, StreamExt,
    stream::{SplitSink, SplitStream},
};
use tokio::{
    io::{self, AsyncRead, AsyncWrite, Join},
    net::{TcpStream, tcp::OwnedReadHalf},
};
use tokio_tungstenite::{
    WebSocketStream, accept_async, client_async,
    tungstenite::{Message, Utf8Bytes, protocol::Role},
};

use super::{Library, Sink, Source};

/// Binary messages over tokio-tungstenite.
pub struct Tungstenite;

impl Library for Tungstenite {
    type Source = Reader;
    type Sink = Writer;

    async fn connect(url: &str) -> anyhow::Result<(Reader, Writer)> {
        Ok(pipe(dial(url).await?, Writer::binary))
    }

    async fn accept(stream: TcpStream) -> anyhow::Result<(Reader, Writer)> {
        stream.set_nodelay(true).context("set TCP_NODELAY")?;
        let socket = accept_async(stream).await.context("accept a WebSocket")?;
        Ok(pipe(socket, Writer::binary))
    }
}

/// Connects for text messages, the framing of the JSON protocol.
pub async fn connect_text(url: &str) -> anyhow::Result<(Reader, Writer)> {
    Ok(pipe(dial(url).await?, Writer::text))
}

/// Opens a WebSocket.
pub async fn dial(url: &str) -> anyhow::Result<WebSocketStream<TcpStream>> {
    let stream = super::client::dial_tcp(url).await?;
    let (socket, _) = client_async(url, stream).await.with_context(|| format!("open a WebSocket to {url}"))?;
    Ok(socket)
}

/// Reads messages from one half of a socket; the other half is written without this library. Pings are not answered.
pub async fn read_half(half: OwnedReadHalf) -> Reader<Join<OwnedReadHalf, io::Sink>> {
    Reader(WebSocketStream::from_raw_socket(io::join(half, io::sink()), Role::Client, None).await.split().1)
}

fn pipe(
    socket: WebSocketStream<TcpStream>,
    writer: fn(SplitSink<WebSocketStream<TcpStream>, Message>) -> Writer,
) -> (Reader, Writer) {
    let (sink, stream) = socket.split();
    (Reader(stream), writer(sink))
}

pub struct Reader<S = TcpStream>(SplitStream<WebSocketStream<S>>);

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Source for Reader<S> {
    async fn next(&mut self) -> anyhow::Result<Option<Bytes>> {
        while let Some(message) = self.0.next().await {
            match message.context("read a WebSocket message")? {
                Message::Binary(bytes) => return Ok(Some(bytes)),
                Message::Text(text) => return Ok(Some(text.into())),
                Message::Close(_) => return Ok(None),
                _ => {}
            }
        }
        Ok(None)
    }
}

pub struct Writer {
    sink: SplitSink<WebSocketStream<TcpStream>, Message>,
    text: bool,
}

impl Writer {
    fn binary(sink: SplitSink<WebSocketStream<TcpStream>, Message>) -> Self {
        Self { sink, text: false }
    }

    fn text(sink: SplitSink<WebSocketStream<TcpStream>, Message>) -> Self {
        Self { sink, text: true }
    }
}

impl Sink for Writer {
    async fn feed(&mut self, message: Bytes) -> anyhow::Result<()> {
        let message = if self.text {
            Message::Text(Utf8Bytes::try_from(message).context("a text message is UTF-8")?)
        } else {
            Message::Binary(message)
        };
        self.sink.feed(message).await.context("write a WebSocket message")
    }

    async fn flush(&mut self) -> anyhow::Result<()> {
        self.sink.flush().await.context("flush the WebSocket")
    }
}
