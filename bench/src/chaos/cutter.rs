//! Links that are cut: a loopback relay for each, which forwards a random number of bytes and then cuts the connection,
//! mostly in the middle of a message.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use anyhow::Context;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    task::JoinSet,
};

use super::{
    recovery::{Fault, Recoveries},
    rng::Rng,
};

/// Approximate size of a handshake: some cuts must fall into one.
const HANDSHAKE_BYTES: u64 = 2 << 10;
/// Lifetimes of a worker's link, and of the host's, which carries the traffic of all workers.
const WORKER: Lifetime = Lifetime { bytes: (HANDSHAKE_BYTES, 96 << 10), millis: (50, 1500) };
const HOST: Lifetime = Lifetime { bytes: (32 << 10, 1 << 20), millis: (200, 4000) };
const CONNECT_LIMIT: Duration = Duration::from_secs(2);

/// How long a connection lives: a number of bytes or, with little traffic, a time and then a part of the next bytes.
struct Lifetime {
    bytes: (u64, u64),
    millis: (u64, u64),
}

struct Budget {
    bytes: u64,
    until: Instant,
}

/// The number of cuts made and allowed.
pub struct Cuts {
    state: Mutex<CutState>,
}

struct CutState {
    rng: Rng,
    made: u64,
    /// Rises with the kills, so that both are spread over the whole run.
    allowed: u64,
}

impl Cuts {
    pub fn new(rng: Rng) -> Arc<Self> {
        Arc::new(Self { state: Mutex::new(CutState { rng, made: 0, allowed: 0 }) })
    }

    pub fn allow(&self, allowed: u64) {
        self.state.lock().expect("no panic").allowed = allowed;
    }

    pub fn made(&self) -> u64 {
        self.state.lock().expect("no panic").made
    }

    fn budget(&self, lifetime: &Lifetime) -> Budget {
        let rng = &mut self.state.lock().expect("no panic").rng;
        let bytes = if rng.one_in(12) {
            1 + rng.below(HANDSHAKE_BYTES)
        } else {
            rng.log_uniform(lifetime.bytes.0, lifetime.bytes.1)
        };
        Budget { bytes, until: Instant::now() + rng.millis(lifetime.millis.0, lifetime.millis.1) }
    }

    /// Takes a cut if one is allowed: after how many of `most` bytes it falls, and whether it is a reset.
    fn take(&self, most: u64) -> Option<(u64, bool)> {
        let mut state = self.state.lock().expect("no panic");
        if state.made >= state.allowed {
            return None;
        }
        state.made += 1;
        Some((state.rng.below(most + 1), state.rng.one_in(2)))
    }
}

pub struct Cutter {
    port: u16,
    _accepting: JoinSet<()>,
}

impl Cutter {
    /// Starts a relay to the broker for the link of this worker, or of the host, whose cuts affect all workers.
    pub async fn start(
        broker: u16,
        worker: Option<usize>,
        cuts: Arc<Cuts>,
        recoveries: Arc<Recoveries>,
    ) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("listen for a link")?;
        let port = listener.local_addr().context("read the port")?.port();
        let target = SocketAddr::from(([127, 0, 0, 1], broker));
        let mut accepting = JoinSet::new();
        accepting.spawn(async move {
            let mut links = JoinSet::new();
            loop {
                tokio::select! {
                    accepted = listener.accept() => {
                        let Ok((near, _)) = accepted else { continue };
                        let (cuts, recoveries) = (Arc::clone(&cuts), Arc::clone(&recoveries));
                        links.spawn(async move {
                            // While the broker is down, the connection is closed immediately.
                            let far = tokio::time::timeout(CONNECT_LIMIT, TcpStream::connect(target)).await;
                            let limit = CutLimit::new(&cuts, worker.map_or(&HOST, |_| &WORKER));
                            if let Ok(Ok(far)) = far
                                && relay(near, far, &limit).await
                            {
                                recoveries.record_fault(worker.map_or(Fault::CutHost, |_| Fault::CutWorker), worker);
                            }
                        });
                    }
                    Some(_) = links.join_next() => {}
                }
            }
        });
        Ok(Self { port, _accepting: accepting })
    }

    pub fn port(&self) -> u16 {
        self.port
    }
}

/// The bytes and the time left before a connection is cut.
struct CutLimit<'a> {
    cuts: &'a Cuts,
    lifetime: &'a Lifetime,
    budget: Mutex<Budget>,
}

impl<'a> CutLimit<'a> {
    fn new(cuts: &'a Cuts, lifetime: &'a Lifetime) -> Self {
        Self { cuts, lifetime, budget: Mutex::new(cuts.budget(lifetime)) }
    }

    /// Returns how many of `count` bytes to forward, and whether to cut after them (`Some(true)`: with a reset). Starts
    /// a new budget if no cut is allowed now.
    fn spend(&self, count: u64) -> (usize, Option<bool>) {
        let mut budget = self.budget.lock().expect("no panic");
        let late = Instant::now() >= budget.until;
        if budget.bytes > count && !late {
            budget.bytes -= count;
            return (count as usize, None);
        }
        match self.cuts.take(count) {
            Some((forwarded, reset)) if late => (forwarded as usize, Some(reset)),
            Some((_, reset)) => (budget.bytes as usize, Some(reset)),
            None => {
                *budget = self.cuts.budget(self.lifetime);
                (count as usize, None)
            }
        }
    }
}

/// Forwards bytes in both directions until a side closes or the link is cut; returns whether it was cut.
async fn relay(near: TcpStream, far: TcpStream, limit: &CutLimit<'_>) -> bool {
    near.set_nodelay(true).ok();
    far.set_nodelay(true).ok();
    let (mut near_read, mut near_write) = near.into_split();
    let (mut far_read, mut far_write) = far.into_split();
    let cut = tokio::select! {
        cut = forward(&mut near_read, &mut far_write, limit) => cut,
        cut = forward(&mut far_read, &mut near_write, limit) => cut,
    };
    if cut == Some(true) {
        near_write.as_ref().set_zero_linger().ok();
        far_write.as_ref().set_zero_linger().ok();
    }
    cut.is_some()
}

/// Returns `Some` when the link has to be cut (true: with a reset), or `None` when a side closed.
async fn forward(from: &mut OwnedReadHalf, to: &mut OwnedWriteHalf, limit: &CutLimit<'_>) -> Option<bool> {
    let mut buffer = vec![0; 16 << 10];
    loop {
        let count = from.read(&mut buffer).await.ok().filter(|count| *count > 0)?;
        let (forwarded, cut) = limit.spend(count as u64);
        to.write_all(&buffer[..forwarded]).await.ok()?;
        if cut.is_some() {
            return cut;
        }
    }
}
