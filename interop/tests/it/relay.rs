//! A relay between a client and a broker that can drop the broker's output, so that a test can lose a receipt
//! deterministically.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

pub struct Relay {
    port: u16,
    connections: Arc<Mutex<Connections>>,
    _accepting: JoinSet<()>,
}

#[derive(Default)]
struct Connections {
    tasks: JoinSet<()>,
    /// Shared by the connections since the last cut.
    muted: Arc<AtomicBool>,
}

impl Relay {
    pub async fn start(broker_port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let connections = Arc::new(Mutex::new(Connections::default()));
        let accepted = Arc::clone(&connections);
        let mut accepting = JoinSet::new();
        accepting.spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                // While the broker is down, the connection is closed immediately.
                if let Ok(broker) = TcpStream::connect(("127.0.0.1", broker_port)).await {
                    let mut connections = accepted.lock().expect("no panic");
                    let muted = Arc::clone(&connections.muted);
                    connections.tasks.spawn(forward(client, broker, muted));
                }
            }
        });
        Self { port, connections, _accepting: accepting }
    }

    pub fn endpoint(&self) -> String {
        format!("ws://127.0.0.1:{}", self.port)
    }

    /// Drops the broker's output from now on; the client's output is still forwarded.
    pub fn mute_broker(&self) {
        self.connections.lock().expect("no panic").muted.store(true, Ordering::SeqCst);
    }

    /// Cuts the connections; new ones work in both directions.
    pub fn cut(&self) {
        let mut connections = self.connections.lock().expect("no panic");
        connections.tasks.abort_all();
        connections.muted = Arc::default();
    }
}

async fn forward(client: TcpStream, broker: TcpStream, muted: Arc<AtomicBool>) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_broker, mut to_broker) = broker.into_split();
    let down = async move {
        let mut buffer = vec![0; 16 << 10];
        while let Ok(count @ 1..) = from_broker.read(&mut buffer).await {
            if !muted.load(Ordering::SeqCst) && to_client.write_all(&buffer[..count]).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = down => {}
        _ = copy(&mut from_client, &mut to_broker) => {}
    }
}
