//! The original broker (`bamboo-broker`) as a process of its own, for comparison.
//! It listens with `TCP_NODELAY` and without its rate limits, so that measurements show its design and not Nagle's
//! algorithm or a rate limit.

use std::{net::SocketAddr, num::NonZeroU32, path::PathBuf, sync::Arc};

use anyhow::Context;
use bamboo_broker::{BrokerCore, BrokerLimits, BrokerServer};
use clap::Parser;
use tokio::net::{TcpListener, TcpSocket};

#[derive(Parser)]
struct Options {
    /// Address to listen on; port 0 picks a free one.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Folder for the mailboxes.
    #[arg(long)]
    data: PathBuf,
    /// The token that every client has to present.
    #[arg(long)]
    token: String,
    /// Leave Nagle's algorithm on, as the published broker does.
    #[arg(long)]
    as_published: bool,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let listener = bind(options.listen, !options.as_published)?;
    let address = listener.local_addr().context("read the listening address")?;
    let core = Arc::new(BrokerCore::new(options.data).with_max_pending_per_mailbox(usize::MAX));
    let server = Arc::new(BrokerServer::with_limits(core, options.token, unlimited()));
    println!("listening on ws://{address}");
    server.serve(listener).await.context("serve the bus")
}

/// Binds the listener. On Linux an accepted socket inherits `TCP_NODELAY` from
/// the listening one, which is the only way to set it without the server's help.
fn bind(address: SocketAddr, nodelay: bool) -> anyhow::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }.context("open a socket")?;
    socket.set_nodelay(nodelay).context("set TCP_NODELAY")?;
    // As tokio's own listeners do, so that a restart can bind the same port.
    socket.set_reuseaddr(true).context("set SO_REUSEADDR")?;
    socket.bind(address).with_context(|| format!("bind {address}"))?;
    socket.listen(1024).context("listen")
}

fn unlimited() -> BrokerLimits {
    BrokerLimits { messages_per_second: NonZeroU32::MAX, message_burst: NonZeroU32::MAX, ..BrokerLimits::default() }
}
