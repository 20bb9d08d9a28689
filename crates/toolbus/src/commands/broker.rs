//! `toolbus broker`: the mailboxes and their WebSocket, until SIGTERM or Ctrl-C.

use super::print_line;
use crate::failure::Failure;
use crate::folders;
use clap::Args;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use toolbus_broker::{
    BrokerCore, BrokerServer, CoreOptions, ServerOptions, SharedToken, read_or_create_token, read_token,
};

#[derive(Args)]
pub struct BrokerArgs {
    /// Address to listen on. Port 0 takes any free port.
    #[arg(long, default_value = "127.0.0.1:7420", value_name = "ADDR")]
    listen: SocketAddr,
    /// Folder for the mailboxes. Default: TOOLBUS_DATA, or toolbus in the user's data folder.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// File with the token that clients must present. Without it, one is made in the data folder.
    #[arg(long, value_name = "FILE")]
    shared_token_file: Option<PathBuf>,
    /// Connections served at the same time.
    #[arg(long, default_value_t = ServerOptions::default().max_connections, value_name = "N")]
    max_connections: usize,
    /// Largest frame, in bytes.
    #[arg(long, default_value_t = ServerOptions::default().max_frame_bytes, value_name = "BYTES")]
    max_frame: usize,
    /// Web page origin that may connect, such as https://console.example. Can be given several times.
    #[arg(long, value_name = "ORIGIN")]
    allow_origin: Vec<String>,
    /// Name that clients may call this broker by, such as bus.example. Addresses and localhost need none of this.
    #[arg(long, value_name = "NAME")]
    allow_host: Vec<String>,
    /// Free space below which no new messages are taken, in MiB.
    #[arg(long, default_value_t = CoreOptions::default().reserve_bytes >> 20, value_name = "MIB")]
    reserve: u64,
}

pub async fn run(args: BrokerArgs) -> Result<(), Failure> {
    raise_descriptor_limit();
    let data = match args.data {
        Some(folder) => folder,
        None => folders::data_folder()?,
    };
    let core = BrokerCore::open(&data, CoreOptions { reserve_bytes: args.reserve << 20, ..CoreOptions::default() })?;
    let (token, token_file) = match args.shared_token_file {
        Some(file) => (read_token(&file)?, file),
        None => {
            let file = data.join(folders::TOKEN_FILE);
            (read_or_create_token(&file)?, file)
        }
    };
    let listener =
        TcpListener::bind(args.listen).await.map_err(|source| Failure::Listen { address: args.listen, source })?;
    let address = listener.local_addr().map_err(|source| Failure::Listen { address: args.listen, source })?;
    let options = ServerOptions {
        max_connections: args.max_connections,
        max_frame_bytes: args.max_frame,
        allowed_origins: args.allow_origin,
        allowed_hosts: args.allow_host,
        ..ServerOptions::default()
    };
    let server = BrokerServer::with_options(core, Box::new(SharedToken::new(token)), options);
    stop_on_signals(&server)?;
    print_line(&format!("data in {}", data.display()))?;
    print_line(&format!("token in {}", token_file.display()))?;
    print_line(&format!("listening on ws://{address}/bus"))?;
    server.serve(listener).await?;
    tracing::info!("stopped; everything accepted is on disk");
    Ok(())
}

fn stop_on_signals(server: &Arc<BrokerServer>) -> Result<(), Failure> {
    let mut terminate = signal(SignalKind::terminate()).map_err(Failure::Runtime)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Failure::Runtime)?;
    let server = Arc::clone(server);
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("stopping");
        server.stop();
    });
    Ok(())
}

/// Every connection is a descriptor, and the usual soft limit is small.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        tracing::warn!(%error, "the limit of open files stays as it is");
    }
}
