//! A minimal relay: forwards a worker's messages to the host, and the host's messages to the worker whose number they
//! carry.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::Context;
use bytes::Bytes;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::mpsc::UnboundedSender,
};

use super::{Library, Source, frame, outbox};

type Outbox = UnboundedSender<Bytes>;

/// Listens on a free loopback port, prints its URL and relays until it is killed.
pub async fn serve<L: Library>() -> anyhow::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await.context("bind the relay")?;
    let address = listener.local_addr().context("read the relay's address")?;
    println!("listening on ws://{address}/");
    let connected = Connected::default();
    loop {
        let (stream, _) = listener.accept().await.context("accept a connection")?;
        let connected = connected.clone();
        tokio::spawn(async move {
            if let Err(error) = relay::<L>(stream, connected).await {
                eprintln!("connection failed: {error:#}");
            }
        });
    }
}

/// The connected peers by worker number.
#[derive(Clone, Default)]
struct Connected(Arc<Mutex<HashMap<u32, Outbox>>>);

impl Connected {
    fn register(&self, worker: u32, outbox: Outbox) {
        let mut peers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        peers.insert(worker, outbox);
    }

    fn find(&self, worker: u32) -> anyhow::Result<Outbox> {
        let peers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        peers.get(&worker).cloned().with_context(|| format!("no peer is connected as {worker}"))
    }
}

/// The first message of a connection registers it, and is echoed as confirmation.
async fn relay<L: Library>(stream: TcpStream, connected: Connected) -> anyhow::Result<()> {
    let (mut source, sink) = L::accept(stream).await?;
    let outbox = outbox(sink);
    let hello = source.next().await?.context("closed before registering")?;
    let own = frame::worker(&hello).context("a registration without a worker number")?;
    connected.register(own, outbox.clone());
    outbox.send(hello).context("confirm the registration")?;
    if own == frame::HOST {
        to_workers(source, connected).await
    } else {
        to_host(source, connected.find(frame::HOST)?).await
    }
}

async fn to_host(mut source: impl Source, host: Outbox) -> anyhow::Result<()> {
    while let Some(message) = source.next().await? {
        host.send(message).context("the host is disconnected")?;
    }
    Ok(())
}

async fn to_workers(mut source: impl Source, connected: Connected) -> anyhow::Result<()> {
    let mut known: HashMap<u32, Outbox> = HashMap::new();
    while let Some(message) = source.next().await? {
        let worker = frame::worker(&message).context("a reply without a worker number")?;
        let outbox = match known.get(&worker) {
            Some(outbox) => outbox,
            None => known.entry(worker).or_insert(connected.find(worker)?),
        };
        // Replies to a disconnected worker are discarded.
        let _ = outbox.send(message);
    }
    Ok(())
}
