//! Links that are cut: a loopback relay for each, which forwards a random number of bytes and then cuts the connection,
//! mostly in the middle of a message.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use anyhow::Context;
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

use super::fault::Fault;
use crate::faults::{
    recovery::Recoveries,
    relay::{Control, Cut, relay},
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

    /// Takes a cut if one is allowed, after a part of `most` bytes.
    fn take(&self, most: u64) -> Option<(u64, Cut)> {
        let mut state = self.state.lock().expect("no panic");
        if state.made >= state.allowed {
            return None;
        }
        state.made += 1;
        Some((state.rng.below(most + 1), if state.rng.one_in(2) { Cut::Reset } else { Cut::Close }))
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
                                let fault = worker.map_or(Fault::CutHost, |_| Fault::CutWorker);
                                recoveries.record_fault(fault.name(), worker);
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
}

impl Control for CutLimit<'_> {
    /// Starts a new budget if no cut is allowed now.
    async fn admit(&self, count: usize) -> (usize, Option<Cut>) {
        let bytes = count as u64;
        let mut budget = self.budget.lock().expect("no panic");
        let late = Instant::now() >= budget.until;
        if budget.bytes > bytes && !late {
            budget.bytes -= bytes;
            return (count, None);
        }
        match self.cuts.take(bytes) {
            Some((forwarded, cut)) if late => (forwarded as usize, Some(cut)),
            Some((_, cut)) => (budget.bytes as usize, Some(cut)),
            None => {
                *budget = self.cuts.budget(self.lifetime);
                (count, None)
            }
        }
    }

    async fn close(&self) {}
}
