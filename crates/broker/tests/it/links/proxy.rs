//! A TCP proxy that records, stops or cuts a connection.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub struct Proxy {
    pub address: SocketAddr,
    /// What fronts have sent.
    pub recorded: Arc<Mutex<Vec<u8>>>,
    cut: CancellationToken,
    is_passing: watch::Sender<bool>,
}

impl Proxy {
    pub async fn start(to: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound address");
        let (cut, is_passing) = (CancellationToken::new(), watch::Sender::new(true));
        let recorded = Arc::new(Mutex::new(Vec::new()));
        let (ended, passing, record) = (cut.clone(), is_passing.subscribe(), Arc::clone(&recorded));
        let serving = async move {
            while let Ok((front, _)) = listener.accept().await {
                let owner = TcpStream::connect(to).await.expect("the owner accepts");
                let ((from_front, to_front), (from_owner, to_owner)) = (front.into_split(), owner.into_split());
                let (passing, record, ended) = (passing.clone(), Arc::clone(&record), ended.clone());
                tokio::spawn(ended.run_until_cancelled_owned(async move {
                    tokio::join!(
                        pass(from_front, to_owner, passing.clone(), Some(record)),
                        pass(from_owner, to_front, passing, None)
                    )
                }));
            }
        };
        tokio::spawn(cut.clone().run_until_cancelled_owned(serving));
        Self { address, recorded, cut, is_passing }
    }

    /// Closes all connections.
    pub fn cut(&self) {
        self.cut.cancel();
    }

    /// Passes nothing on from now on. The connections stay open.
    pub fn stop(&self) {
        self.is_passing.send_replace(false);
    }
}

async fn pass(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut is_passing: watch::Receiver<bool>,
    record: Option<Arc<Mutex<Vec<u8>>>>,
) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        if let Some(record) = &record {
            record.lock().expect("no panic while holding the lock").extend_from_slice(&buffer[..count]);
        }
        is_passing.wait_for(|is_passing| *is_passing).await.ok();
        if to.write_all(&buffer[..count]).await.is_err() {
            break;
        }
    }
}
