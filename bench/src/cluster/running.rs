//! The running processes of a cluster under test, and the blows against them.

use std::{
    collections::HashMap,
    net::TcpListener,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use tokio::sync::watch;

use super::{
    gate::{Network, NetworkThread, serve_balancer, serve_gate},
    health,
    layout::{HOSTS, Layout, Ports},
    node::{Node, Role},
    plan::{Action, Blow},
    source::Processes,
};
use crate::faults::{
    rng::Rng,
    supervisor::{self, MakeCommand, Service, Supervisor, last_line},
};

const START_LIMIT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// How long a struck process may take until it runs again: it may end slowly after SIGTERM, and stays down for a while.
const RESTART_LIMIT: Duration = Duration::from_secs(60);

pub struct RunningCluster {
    layout: Arc<Layout>,
    nodes: HashMap<String, Supervisor>,
    cut: watch::Sender<Option<Node>>,
    network: Network,
    /// Milliseconds before a struck process is restarted.
    down: (u64, u64),
    stop: watch::Sender<bool>,
    rng: Rng,
    thread: NetworkThread,
}

impl RunningCluster {
    /// Starts the NATS servers, then the brokers, then the hosts; waits until the brokers are ready.
    pub async fn start(layout: Arc<Layout>, down: (u64, u64), rng: Rng) -> anyhow::Result<Self> {
        let (cut, isolated) = watch::channel(None);
        let network = Network { processes: Arc::new(Processes::default()), isolated };
        let (stop, _) = watch::channel(false);
        let (nodes, thread) = (HashMap::new(), NetworkThread::start()?);
        let mut cluster = Self { layout, nodes, cut, network, down, stop, rng, thread };
        let layout = Arc::clone(&cluster.layout);
        for (number, ports) in layout.nats.iter().enumerate() {
            let making = Arc::clone(&layout);
            let gates = [ports.clients, ports.routes];
            cluster.start_node(Node::nats(number), Arc::new(move || making.nats_server(number)), &gates);
        }
        for number in 0..layout.nats.len() {
            cluster.wait_until_ready(Node::nats(number), START_LIMIT).await?;
        }
        for (number, ports) in layout.brokers.iter().enumerate() {
            let making = Arc::clone(&layout);
            cluster.start_node(Node::broker(number), Arc::new(move || making.broker(number)), &[*ports]);
        }
        for number in 0..layout.brokers.len() {
            cluster.wait_until_ready(Node::broker(number), START_LIMIT).await?;
        }
        let listener = TcpListener::bind(("127.0.0.1", layout.front)).context("listen for clients")?;
        listener.set_nonblocking(true).context("listen for clients")?;
        let brokers = layout.brokers.iter().enumerate().map(|(number, ports)| (Node::broker(number), ports.own));
        cluster.thread.spawn(serve_balancer(cluster.network.clone(), listener, brokers.collect()));
        for number in 0..HOSTS.len() {
            let making = Arc::clone(&layout);
            cluster.start_node(Node::host(number), Arc::new(move || making.host(number)), &[]);
        }
        Ok(cluster)
    }

    fn start_node(&mut self, node: Node, make: MakeCommand, ports: &[Ports]) {
        let supervisor = self.supervise(node.to_string(), make);
        self.network.processes.add(node, supervisor.process.clone());
        for ports in ports {
            let process = supervisor.process.clone();
            self.thread.spawn(serve_gate(self.network.clone(), node, process, ports.gate, ports.own));
        }
        self.nodes.insert(node.to_string(), supervisor);
    }

    fn supervise(&mut self, name: String, make: MakeCommand) -> Supervisor {
        let log = self.layout.folder.log(&name);
        Supervisor::start(Service { name, make, log, down: self.down }, self.rng.fork(), self.stop.subscribe())
    }

    /// Strikes a node; returns when its process runs again and can be reached.
    pub async fn strike(&self, blow: &Blow) -> anyhow::Result<()> {
        let node = blow.node;
        let supervisor = self.nodes.get(&node.to_string()).context("a node of the cluster")?;
        let hit = match blow.action {
            Action::Cut(time) => {
                self.cut.send_replace(Some(node));
                tokio::time::sleep(time).await;
                self.cut.send_replace(None);
                return Ok(());
            }
            Action::Pause(time) => {
                let hit = supervisor.kill_handle.hit(supervisor::Blow::Pause(time)).await;
                tokio::time::sleep(time).await;
                hit
            }
            Action::Kill => self.restart(supervisor, supervisor::Blow::Kill).await?,
            Action::Stop => self.restart(supervisor, supervisor::Blow::Stop).await?,
        };
        anyhow::ensure!(hit, "{node} was not running");
        Ok(())
    }

    async fn restart(&self, supervisor: &Supervisor, blow: supervisor::Blow) -> anyhow::Result<bool> {
        let mut process = supervisor.process.clone();
        let before = *process.borrow_and_update();
        let hit = supervisor.kill_handle.hit(blow).await;
        let restarted = process.wait_for(|process| process.is_some() && *process != before);
        tokio::time::timeout(RESTART_LIMIT, restarted).await.context("a process was not restarted")??;
        Ok(hit)
    }

    /// Waits until a node is healthy, and for NATS until all servers have caught up.
    pub async fn wait_until_ready(&self, node: Node, limit: Duration) -> anyhow::Result<()> {
        let until = Instant::now() + limit;
        while !self.is_ready(node).await {
            if Instant::now() > until {
                let log = self.layout.folder.log(&node.to_string());
                bail!("{node} was not ready within {limit:?}; the end of its log: {}", last_line(&log));
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    async fn is_ready(&self, node: Node) -> bool {
        match node.role {
            Role::Nats => health::is_ok(self.layout.nats[node.number].monitor, "/healthz").await,
            Role::Broker => health::is_ok(self.layout.brokers[node.number].own, "/readyz").await,
            // Calls show whether it serves: all workers have to succeed after each blow.
            Role::Host => true,
        }
    }

    /// Kills all processes; returns their unexpected exits.
    pub async fn stop(self) -> anyhow::Result<Vec<String>> {
        self.stop.send_replace(true);
        let mut problems = Vec::new();
        for supervisor in self.nodes.into_values() {
            problems.extend(supervisor.task.await.context("a supervisor panicked")?);
        }
        Ok(problems)
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use async_nats::jetstream::{self, stream::Config};

    use super::{
        super::{layout::Programs, plan::Nodes},
        *,
    };

    /// Connects only to the first server, and publishes once the servers have elected their leaders.
    async fn publish(port: u16, limit: Duration) -> bool {
        let publishing = async {
            let Ok(client) = async_nats::connect(format!("nats://127.0.0.1:{port}")).await else { return false };
            let mut context = jetstream::new(client);
            context.set_timeout(Duration::from_secs(1));
            loop {
                let config = Config { name: "s".to_owned(), num_replicas: 3, ..Config::default() };
                if context.get_or_create_stream(config).await.is_ok()
                    && let Ok(ack) = context.publish("s", "m".into()).await
                    && ack.await.is_ok()
                {
                    return true;
                }
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        };
        tokio::time::timeout(limit, publishing).await.unwrap_or(false)
    }

    #[tokio::test]
    async fn a_nats_server_that_is_cut_off_has_no_majority() {
        let Some(parts) = std::env::var_os("TOOLBUS_PARTS").map(PathBuf::from) else {
            eprintln!("no installed parts: TOOLBUS_PARTS is not set");
            return;
        };
        let folder = tempfile::tempdir().unwrap();
        // No broker is started, so the path of the program is not used, except by hosts that fail to start.
        let programs = Programs {
            toolbus: PathBuf::from("/nonexistent"),
            nats_server: Some(parts.join("python/bin/nats-server")),
        };
        let mut rng = Rng::new(u64::from(std::process::id()));
        let nodes = Nodes { nats: 3, brokers: 0, hosts: 0 };
        let layout = Layout::new(programs, Path::new("bench"), folder.path(), nodes, &mut rng).unwrap();
        let layout = Arc::new(layout);
        let cluster = RunningCluster::start(Arc::clone(&layout), (100, 200), rng).await.unwrap();
        let ports: Vec<u16> = layout.nats.iter().map(|ports| ports.clients.own).collect();
        assert!(publish(ports[0], START_LIMIT).await);
        // Servers that come back must not find ways around the gates.
        for (number, action) in [(0, Action::Kill), (1, Action::Stop), (2, Action::Kill)] {
            cluster.strike(&Blow { node: Node::nats(number), action }).await.unwrap();
            cluster.wait_until_ready(Node::nats(number), START_LIMIT).await.unwrap();
        }
        let cut = Blow { node: Node::nats(0), action: Action::Cut(Duration::from_secs(16)) };
        let (struck, alone, majority) = tokio::join!(
            cluster.strike(&cut),
            async {
                tokio::time::sleep(Duration::from_millis(100)).await;
                publish(ports[0], Duration::from_secs(10)).await
            },
            publish(ports[1], Duration::from_secs(16)),
        );
        struck.unwrap();
        assert_eq!((alone, majority), (false, true));
        assert!(publish(ports[0], START_LIMIT).await);
        cluster.stop().await.unwrap();
    }
}
