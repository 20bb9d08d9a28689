//! Message pipes over WebSocket libraries, behind two small traits, so that relay,
//! host and multiplexing client are written once for all of them.

pub mod client;
pub mod fast;
pub mod frame;
pub mod relay;
pub mod tungstenite;

use std::future::Future;

use bytes::Bytes;
use tokio::{
    net::TcpStream,
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
};

/// The receiving half of a connection.
pub trait Source: Send + 'static {
    /// The next message, or `None` after the peer has closed the connection.
    fn next(&mut self) -> impl Future<Output = anyhow::Result<Option<Bytes>>> + Send;
}

/// The sending half. `feed` may buffer; `flush` puts everything on the wire.
pub trait Sink: Send + 'static {
    fn feed(&mut self, message: Bytes) -> impl Future<Output = anyhow::Result<()>> + Send;
    fn flush(&mut self) -> impl Future<Output = anyhow::Result<()>> + Send;
}

/// A WebSocket library, as far as this benchmark needs it.
pub trait Library: Send + 'static {
    type Source: Source;
    type Sink: Sink;

    fn connect(url: &str) -> impl Future<Output = anyhow::Result<(Self::Source, Self::Sink)>>;
    fn accept(stream: TcpStream) -> impl Future<Output = anyhow::Result<(Self::Source, Self::Sink)>> + Send;
}

/// A queue that a separate task writes to the sink, with one flush for all queued messages.
///
/// The queue is unbounded because the load is a closed loop: its length is bounded by the calls in flight.
pub fn outbox(sink: impl Sink) -> UnboundedSender<Bytes> {
    let (sender, receiver) = unbounded_channel();
    tokio::spawn(async move {
        if let Err(error) = write_all(receiver, sink).await {
            eprintln!("writer failed: {error:#}");
        }
    });
    sender
}

async fn write_all(mut queue: UnboundedReceiver<Bytes>, mut sink: impl Sink) -> anyhow::Result<()> {
    while let Some(message) = queue.recv().await {
        sink.feed(message).await?;
        while let Ok(message) = queue.try_recv() {
            sink.feed(message).await?;
        }
        sink.flush().await?;
    }
    Ok(())
}
