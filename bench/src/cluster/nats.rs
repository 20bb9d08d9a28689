//! NATS servers that form a cluster on loopback, and the options with which brokers use them.

use std::path::PathBuf;

/// One server of the cluster.
pub struct Server {
    pub name: String,
    pub clients: u16,
    pub routes: u16,
    /// The port at which the other servers reach it.
    pub advertised: u16,
    pub monitor: u16,
    pub store: PathBuf,
    /// Whether each write is synced before it is confirmed.
    pub sync_always: bool,
    /// The ports at which it reaches the other servers.
    pub others: Vec<u16>,
}

/// The server's configuration. It doesn't tell clients about the other servers: they must not bypass the gates.
pub fn config(server: &Server) -> String {
    let Server { name, clients, routes, advertised, monitor, store, sync_always, others } = server;
    let sync = if *sync_always { "  sync_interval: always\n" } else { "" };
    let others: Vec<String> = others.iter().map(|port| url(*port)).collect();
    format!(
        "server_name: {name:?}\n\
         listen: \"127.0.0.1:{clients}\"\n\
         http: \"127.0.0.1:{monitor}\"\n\
         jetstream {{\n  store_dir: {store:?}\n{sync}}}\n\
         cluster {{\n  name: \"bench\"\n  listen: \"127.0.0.1:{routes}\"\n  advertise: \"127.0.0.1:{advertised}\"\n  \
         no_advertise: true\n  routes: {others:?}\n}}\n"
    )
}

/// The options of a broker in a cluster on the servers with these ports for clients and for monitoring.
pub fn broker_options(servers: &[u16], monitors: &[u16], cluster: &str) -> Vec<String> {
    let servers: Vec<String> = servers.iter().map(|port| url(*port)).collect();
    let monitors: Vec<String> = monitors.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    let (servers, monitors) = (servers.join(","), monitors.join(","));
    ["--nats", &servers, "--nats-monitor", &monitors, "--cluster", cluster].map(str::to_owned).to_vec()
}

pub fn url(port: u16) -> String {
    format!("nats://127.0.0.1:{port}")
}
