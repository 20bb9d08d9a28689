//! Links that are cut: a relay on loopback for each, which lets a number of bytes pass that the dice chose and then cuts
//! the connection there, in the middle of whatever it was.

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
    dice::Dice,
    recovery::{Blow, Recoveries},
};

/// Handshakes are about this long: some cuts are to fall into them.
const GREETING: u64 = 2 << 10;
/// What passes before a cut on a worker's link, and on the host's, which carries the traffic of all workers.
const WORKER: Span = Span { bytes: (GREETING, 96 << 10), millis: (50, 1500) };
const HOST: Span = Span { bytes: (32 << 10, 1 << 20), millis: (200, 4000) };
const CONNECT_LIMIT: Duration = Duration::from_secs(2);

/// How long a connection lives: so many bytes, or, where there is little to say, so long and then a part of what is said
/// next.
struct Span {
    bytes: (u64, u64),
    millis: (u64, u64),
}

struct Budget {
    bytes: u64,
    until: Instant,
}

/// How many cuts there are and may be.
pub struct Cuts {
    state: Mutex<CutState>,
}

struct CutState {
    dice: Dice,
    made: u64,
    /// Rises with the kills, so that both happen over the whole run.
    allowed: u64,
}

impl Cuts {
    pub fn new(dice: Dice) -> Arc<Self> {
        Arc::new(Self { state: Mutex::new(CutState { dice, made: 0, allowed: 0 }) })
    }

    pub fn allow(&self, allowed: u64) {
        self.state.lock().expect("no panic").allowed = allowed;
    }

    pub fn made(&self) -> u64 {
        self.state.lock().expect("no panic").made
    }

    fn budget(&self, span: &Span) -> Budget {
        let dice = &mut self.state.lock().expect("no panic").dice;
        let bytes =
            if dice.one_in(12) { 1 + dice.below(GREETING) } else { dice.of_any_size(span.bytes.0, span.bytes.1) };
        Budget { bytes, until: Instant::now() + dice.millis(span.millis.0, span.millis.1) }
    }

    /// Whether to cut now; if so, after how many of at most so many bytes, and whether with a reset.
    fn take(&self, most: u64) -> Option<(u64, bool)> {
        let mut state = self.state.lock().expect("no panic");
        if state.made >= state.allowed {
            return None;
        }
        state.made += 1;
        Some((state.dice.below(most + 1), state.dice.one_in(2)))
    }
}

pub struct Cutter {
    port: u16,
    _accepting: JoinSet<()>,
}

impl Cutter {
    /// A relay to the broker whose cuts hit the worker of that number, or all where it is the host's link.
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
                            // A broker that is down makes for a connection that ends at once.
                            let far = tokio::time::timeout(CONNECT_LIMIT, TcpStream::connect(target)).await;
                            let left = Left::new(&cuts, worker.map_or(&HOST, |_| &WORKER));
                            if let Ok(Ok(far)) = far
                                && relay(near, far, &left).await
                            {
                                recoveries.hit(worker.map_or(Blow::CutHost, |_| Blow::CutWorker), worker);
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

/// What still passes before the connection is cut.
struct Left<'a> {
    cuts: &'a Cuts,
    span: &'a Span,
    budget: Mutex<Budget>,
}

impl<'a> Left<'a> {
    fn new(cuts: &'a Cuts, span: &'a Span) -> Self {
        Self { cuts, span, budget: Mutex::new(cuts.budget(span)) }
    }

    /// How many of so many bytes pass, and whether the cut comes after them (true: with a reset). Where there may be no
    /// cut now, the count begins anew.
    fn spend(&self, count: u64) -> (usize, Option<bool>) {
        let mut budget = self.budget.lock().expect("no panic");
        let late = Instant::now() >= budget.until;
        if budget.bytes > count && !late {
            budget.bytes -= count;
            return (count as usize, None);
        }
        match self.cuts.take(count) {
            Some((passed, reset)) if late => (passed as usize, Some(reset)),
            Some((_, reset)) => (budget.bytes as usize, Some(reset)),
            None => {
                *budget = self.cuts.budget(self.span);
                (count as usize, None)
            }
        }
    }
}

/// Passes bytes on in both directions until an end hangs up or the link is cut, and says whether it was cut.
async fn relay(near: TcpStream, far: TcpStream, left: &Left<'_>) -> bool {
    near.set_nodelay(true).ok();
    far.set_nodelay(true).ok();
    let (mut near_read, mut near_write) = near.into_split();
    let (mut far_read, mut far_write) = far.into_split();
    let cut = tokio::select! {
        cut = pass(&mut near_read, &mut far_write, left) => cut,
        cut = pass(&mut far_read, &mut near_write, left) => cut,
    };
    if cut == Some(true) {
        near_write.as_ref().set_zero_linger().ok();
        far_write.as_ref().set_zero_linger().ok();
    }
    cut.is_some()
}

/// Returns when the link is to be cut (with a reset if true), or with nothing when an end hung up.
async fn pass(from: &mut OwnedReadHalf, to: &mut OwnedWriteHalf, left: &Left<'_>) -> Option<bool> {
    let mut buffer = vec![0; 16 << 10];
    loop {
        let count = from.read(&mut buffer).await.ok().filter(|count| *count > 0)?;
        let (passed, cut) = left.spend(count as u64);
        to.write_all(&buffer[..passed]).await.ok()?;
        if cut.is_some() {
            return cut;
        }
    }
}
