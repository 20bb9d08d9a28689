//! The clients of the relays: an echoing host, and a worker that multiplexes many
//! calls over one connection. The table of pending calls serves other contenders too.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use anyhow::{Context, anyhow};
use bytes::Bytes;
use tokio::{
    net::TcpStream,
    sync::{mpsc::UnboundedSender, oneshot},
};

use super::{Library, Source, frame, outbox};
use crate::load::{Load, ensure_echo};

/// Opens the TCP connection of a `ws://ADDRESS/…` URL with `TCP_NODELAY`.
pub async fn dial_tcp(url: &str) -> anyhow::Result<TcpStream> {
    let rest = url.strip_prefix("ws://").with_context(|| format!("{url} is not a ws:// URL"))?;
    let address = rest.split('/').next().unwrap_or(rest);
    let stream = TcpStream::connect(address).await.with_context(|| format!("connect to {address}"))?;
    stream.set_nodelay(true).context("set TCP_NODELAY")?;
    Ok(stream)
}

/// Echoes every message, after `ready` has been called.
pub async fn host<L: Library>(url: &str, ready: impl FnOnce()) -> anyhow::Result<()> {
    let (mut source, sink) = L::connect(url).await?;
    let outbox = outbox(sink);
    register(&mut source, &outbox, frame::HOST).await?;
    ready();
    while let Some(message) = source.next().await? {
        outbox.send(message).context("the relay closed the connection")?;
    }
    Ok(())
}

/// A worker connection on a relay.
pub struct Worker {
    number: u32,
    outbox: UnboundedSender<Bytes>,
    pending: Pending,
    numbers: Numbers,
}

impl Worker {
    pub async fn connect<L: Library>(url: &str, number: u32) -> anyhow::Result<Self> {
        let (mut source, sink) = L::connect(url).await?;
        let outbox = outbox(sink);
        register(&mut source, &outbox, number).await?;
        let pending = Pending::default();
        tokio::spawn(resolve_replies(source, pending.clone()));
        Ok(Self { number, outbox, pending, numbers: Numbers::default() })
    }
}

impl Load for Worker {
    async fn once(&self, body: &Bytes) -> anyhow::Result<()> {
        let call = self.numbers.next();
        let reply = self.pending.expect(call);
        self.outbox.send(frame::encode(self.number, call, body)).context("the connection is closed")?;
        ensure_echo(body, &reply.await?)
    }
}

async fn register(source: &mut impl Source, outbox: &UnboundedSender<Bytes>, number: u32) -> anyhow::Result<()> {
    outbox.send(frame::encode(number, 0, b"")).context("the connection is closed")?;
    source.next().await?.context("the relay closed the connection")?;
    Ok(())
}

async fn resolve_replies(mut source: impl Source, pending: Pending) {
    while let Ok(Some(message)) = source.next().await {
        let Ok(reply) = frame::decode(message) else {
            break;
        };
        pending.resolve(reply.call, reply.body);
    }
    pending.fail_all();
}

/// Consecutive numbers for the calls of one connection.
#[derive(Default)]
pub struct Numbers(AtomicU64);

impl Numbers {
    pub fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed) + 1
    }
}

/// Calls that wait for their reply. The lock is a std lock: it is never held across
/// an await, and its holders do one map operation.
#[derive(Clone, Default)]
pub struct Pending(Arc<Mutex<HashMap<u64, oneshot::Sender<Bytes>>>>);

impl Pending {
    /// Registers a call before it returns, so that no reply is missed.
    pub fn expect(&self, call: u64) -> impl Future<Output = anyhow::Result<Bytes>> + use<> {
        let (sender, receiver) = oneshot::channel();
        self.table().insert(call, sender);
        async move { receiver.await.map_err(|_| anyhow!("the connection is closed")) }
    }

    pub fn resolve(&self, call: u64, body: Bytes) {
        let caller = self.table().remove(&call);
        if let Some(caller) = caller {
            // Fails if the caller has given up, which is fine.
            let _ = caller.send(body);
        }
    }

    pub fn fail_all(&self) {
        self.table().clear();
    }

    fn table(&self) -> MutexGuard<'_, HashMap<u64, oneshot::Sender<Bytes>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
