//! Three NATS servers on loopback that form a cluster.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use toolbus_jetstream::{Cluster, ClusterOptions};

const SERVERS: usize = 3;
/// Maximum size of the streams of the tests.
pub const MAX_BYTES: u64 = 256 << 20;
const START: Duration = Duration::from_secs(60);

pub struct Servers {
    program: PathBuf,
    folder: TempDir,
    ports: Vec<u16>,
    running: Vec<Option<Child>>,
}

impl Servers {
    /// Starts the servers, or returns `None` if nats-server is not installed.
    pub fn start() -> Option<Self> {
        let Some(parts) = std::env::var_os("TOOLBUS_PARTS").map(PathBuf::from) else {
            eprintln!("no installed parts: TOOLBUS_PARTS is not set");
            return None;
        };
        let program = parts.join("python/bin/nats-server");
        assert!(program.is_file(), "{} is missing", program.display());
        let folder = tempfile::tempdir().unwrap();
        let listeners: Vec<TcpListener> = (0..3 * SERVERS).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let ports: Vec<u16> = listeners.iter().map(|listener| listener.local_addr().unwrap().port()).collect();
        drop(listeners);
        let mut servers = Self { program, folder, ports, running: Vec::new() };
        let routes: Vec<String> =
            servers.ports[SERVERS..2 * SERVERS].iter().map(|port| format!("nats://127.0.0.1:{port}")).collect();
        for number in 0..SERVERS {
            let (port, cluster) = (servers.ports[number], servers.ports[SERVERS + number]);
            let monitor = servers.ports[2 * SERVERS + number];
            let store = servers.folder.path().join(format!("store-{number}"));
            let text = format!(
                "server_name: n{number}\nlisten: \"127.0.0.1:{port}\"\nhttp: \"127.0.0.1:{monitor}\"\n\
                 jetstream {{ store_dir: {store:?}, sync_interval: always }}\n\
                 cluster {{ name: test, listen: \"127.0.0.1:{cluster}\", routes: {routes:?} }}\n"
            );
            fs::write(servers.config(number), text).unwrap();
            servers.running.push(None);
            servers.restart(number);
        }
        Some(servers)
    }

    fn config(&self, number: usize) -> PathBuf {
        self.folder.path().join(format!("{number}.conf"))
    }

    pub fn restart(&mut self, number: usize) {
        let log = fs::File::create(self.folder.path().join(format!("{number}.log"))).unwrap();
        let mut command = Command::new(&self.program);
        command.arg("--config").arg(self.config(number)).stdout(Stdio::null()).stderr(log);
        self.running[number] = Some(command.spawn().unwrap());
    }

    /// Waits until a server has caught up with the others.
    pub fn wait_until_healthy(&self, number: usize) {
        let deadline = Instant::now() + START;
        while !self.is_healthy(number) {
            assert!(Instant::now() < deadline, "server {number} does not catch up");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn is_healthy(&self, number: usize) -> bool {
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.ports[2 * SERVERS + number])) else { return false };
        let request = "GET /healthz HTTP/1.0\r\n\r\n";
        let mut answer = String::new();
        let asked = stream.write_all(request.as_bytes()).and_then(|()| stream.read_to_string(&mut answer));
        asked.is_ok() && answer.starts_with("HTTP/1.0 200")
    }

    /// Ends a server without any warning.
    pub fn kill(&mut self, number: usize) {
        if let Some(mut child) = self.running[number].take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// The bucket of a cluster, to write what a broker of another version would.
    pub async fn bucket(&self, name: &str) -> async_nats::jetstream::kv::Store {
        let client = async_nats::connect(format!("127.0.0.1:{}", self.ports[0])).await.unwrap();
        async_nats::jetstream::new(client).get_key_value(format!("TOOLBUS_{name}")).await.unwrap()
    }

    /// Connects once the servers have elected their leaders.
    pub async fn connect(&self, name: &str) -> Cluster {
        let servers = self.ports[..SERVERS].iter().map(|port| format!("nats://127.0.0.1:{port}")).collect();
        let options = ClusterOptions { name: name.to_owned(), max_bytes: MAX_BYTES, ..ClusterOptions::new(servers) };
        let deadline = Instant::now() + START;
        loop {
            let problem = match Cluster::connect(options.clone()).await {
                Ok(cluster) => match cluster.leases().await {
                    Ok(_) => return cluster,
                    Err(error) => error,
                },
                Err(error) => error,
            };
            assert!(Instant::now() < deadline, "{problem}");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        (0..SERVERS).for_each(|number| self.kill(number));
    }
}

/// A runtime for the requests, whose threads the tests don't block.
pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}
