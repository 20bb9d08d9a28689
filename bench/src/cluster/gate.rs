//! The network between the nodes. Connections to a node lead through its gate, and those of hosts and workers through a load
//! balancer. While a node is cut off, no byte passes to or from it, and nothing is closed; then the connections go on.

use std::{net::Ipv4Addr, sync::Arc, time::Duration};

use anyhow::Context;
use tokio::{
    net::{TcpListener, TcpStream},
    runtime::{Builder, Runtime},
    sync::watch,
    task::{JoinSet, spawn_blocking},
};

use super::{health, node::Node, source::Processes};
use crate::faults::relay::{Control, Cut, relay};

const CONNECT_LIMIT: Duration = Duration::from_secs(2);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Between the health checks of a broker.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// The node that is cut off.
pub type Isolated = watch::Receiver<Option<Node>>;

/// Resources of the gates.
#[derive(Clone)]
pub struct Network {
    pub processes: Arc<Processes>,
    pub isolated: Isolated,
}

/// A thread for gates and balancer: all traffic passes through them, and must not wait for the other tasks of this process.
pub struct NetworkThread(Option<Runtime>);

impl NetworkThread {
    pub fn start() -> anyhow::Result<Self> {
        let runtime = Builder::new_multi_thread().worker_threads(1).thread_name("network").enable_all().build();
        Ok(Self(Some(runtime.context("start a thread for the network")?)))
    }

    /// Runs the task until this value is dropped.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.0.as_ref().expect("the runtime is only taken on drop").spawn(task);
    }
}

impl Drop for NetworkThread {
    fn drop(&mut self) {
        self.0.take().expect("dropped once").shutdown_background();
    }
}

/// A connection whose ends are nodes; workers are none.
struct Path {
    ends: [Option<Node>; 2],
    isolated: Isolated,
}

impl Path {
    async fn wait_until_open(&self) {
        let is_open = |cut: &Option<Node>| cut.is_none_or(|cut| !self.ends.contains(&Some(cut)));
        // The run has ended if there is no sender any more.
        self.isolated.clone().wait_for(is_open).await.ok();
    }
}

impl Control for Path {
    async fn admit(&self, count: usize) -> (usize, Option<Cut>) {
        self.wait_until_open().await;
        (count, None)
    }

    async fn close(&self) {
        self.wait_until_open().await;
    }
}

async fn forward(near: TcpStream, target: u16, path: Path) {
    path.wait_until_open().await;
    let connecting = TcpStream::connect((Ipv4Addr::LOCALHOST, target));
    if let Ok(Ok(far)) = tokio::time::timeout(CONNECT_LIMIT, connecting).await {
        relay(near, far, &path).await;
    }
}

/// Listens at `port` for a node that listens at `target`. Refuses connections while the process is down.
pub async fn serve_gate(
    network: Network,
    node: Node,
    mut process: watch::Receiver<Option<u32>>,
    port: u16,
    target: u16,
) {
    let mut links = JoinSet::new();
    while process.wait_for(Option::is_some).await.is_ok() {
        process.mark_unchanged();
        let Some(listener) = listen(&mut process, port, target).await else { continue };
        loop {
            tokio::select! {
                accepted = listener.accept() => {
                    let Ok((near, peer)) = accepted else { continue };
                    let network = network.clone();
                    links.spawn(async move {
                        let processes = Arc::clone(&network.processes);
                        let source = spawn_blocking(move || processes.of(peer)).await.unwrap_or_default();
                        let path = Path { ends: [source, Some(node)], isolated: network.isolated };
                        forward(near, target, path).await;
                    });
                }
                _ = process.changed() => break,
                Some(_) = links.join_next() => {}
            }
        }
    }
}

/// Listens once the process does; `None` if it ended before that.
async fn listen(process: &mut watch::Receiver<Option<u32>>, port: u16, target: u16) -> Option<TcpListener> {
    loop {
        if TcpStream::connect((Ipv4Addr::LOCALHOST, target)).await.is_ok()
            && let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await
        {
            return Some(listener);
        }
        if tokio::time::timeout(POLL_INTERVAL, process.changed()).await.is_ok() {
            return None;
        }
    }
}

/// Spreads new connections over the brokers that are healthy.
pub async fn serve_balancer(network: Network, listener: std::net::TcpListener, brokers: Vec<(Node, u16)>) {
    let Network { processes, isolated } = network;
    let listener = TcpListener::from_std(listener).expect("the listener doesn't block");
    let (health, healthy) = watch::channel(vec![false; brokers.len()]);
    let mut tasks = JoinSet::new();
    for (index, (node, port)) in brokers.iter().copied().enumerate() {
        let (health, isolated) = (health.clone(), isolated.clone());
        tasks.spawn(async move {
            loop {
                // The checks of a broker that is cut off are lost.
                let is_healthy = *isolated.borrow() != Some(node) && health::is_ok(port, "/readyz").await;
                health.send_modify(|all| all[index] = is_healthy);
                tokio::time::sleep(CHECK_INTERVAL).await;
            }
        });
    }
    let mut next = 0;
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((near, peer)) = accepted else { continue };
                let order = (0..brokers.len()).map(|offset| (next + offset) % brokers.len());
                let Some(chosen) = order.into_iter().find(|index| healthy.borrow()[*index]) else { continue };
                next = chosen + 1;
                let (node, port) = brokers[chosen];
                let (processes, isolated) = (Arc::clone(&processes), isolated.clone());
                tasks.spawn(async move {
                    let source = spawn_blocking(move || processes.of(peer)).await.unwrap_or_default();
                    forward(near, port, Path { ends: [source, Some(node)], isolated }).await;
                });
            }
            Some(_) = tasks.join_next() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn a_connection_goes_on_after_its_node_was_cut_off() {
        let far = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (port, target) = (free.local_addr().unwrap().port(), far.local_addr().unwrap().port());
        drop(free);
        let (cut, isolated) = watch::channel(None);
        let (_process, running) = watch::channel(Some(1));
        let network = Network { processes: Arc::default(), isolated };
        let gate = tokio::spawn(serve_gate(network, Node::broker(0), running, port, target));
        // The gate's own check whether the node listens.
        drop(far.accept().await.unwrap());
        let mut near = loop {
            match TcpStream::connect(("127.0.0.1", port)).await {
                Ok(near) => break near,
                Err(_) => tokio::time::sleep(POLL_INTERVAL).await,
            }
        };
        let (mut far, _) = far.accept().await.unwrap();
        let mut byte = [0];
        near.write_all(b"a").await.unwrap();
        far.read_exact(&mut byte).await.unwrap();
        cut.send_replace(Some(Node::broker(0)));
        near.write_all(b"b").await.unwrap();
        let read = tokio::time::timeout(Duration::from_millis(200), far.read_exact(&mut byte));
        assert!(read.await.is_err(), "a byte passed");
        cut.send_replace(Some(Node::broker(1)));
        far.read_exact(&mut byte).await.unwrap();
        assert_eq!(byte, *b"b");
        gate.abort();
    }
}
