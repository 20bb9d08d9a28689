//! A host's queries about its callers while the broker is unreachable.

use crate::support::within;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use toolbus_broker::{BrokerCore, BrokerResult, BrokerServer, ServerOptions, SharedToken};
use toolbus_client::{AgentRef, BrokerClient, ClientOptions};
use toolbus_host::Callers;

const TOKEN: &str = "a token for tests";

type Serving = (Arc<BrokerServer>, JoinHandle<BrokerResult<()>>, SocketAddr);

async fn serve(folder: &Path, address: SocketAddr) -> Serving {
    let listener = TcpListener::bind(address).await.expect("the port");
    let address = listener.local_addr().expect("an address");
    let core = within("the lock of the folder", async {
        loop {
            match BrokerCore::new(folder) {
                Ok(core) => return core,
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    })
    .await;
    let server = BrokerServer::with_options(core, Box::new(SharedToken::new(TOKEN)), ServerOptions::default());
    (Arc::clone(&server), tokio::spawn(server.serve(listener)), address)
}

#[tokio::test]
async fn queries_about_callers_wait_until_the_broker_is_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let (server, serving, address) = serve(folder.path(), ([127, 0, 0, 1], 0).into()).await;
    let options = ClientOptions { reconnect: true, ..ClientOptions::default() };
    let url = format!("ws://{address}/bus");
    let host = BrokerClient::connect_with(&url, AgentRef::new("host"), TOKEN, options).await.expect("a connection");
    server.stop();
    within("the broker to stop", serving).await.expect("no panic").expect("an orderly stop");
    // The server holds the lock of its folder until it is dropped.
    drop(server);
    within("the host to lose its connection", async {
        while host.inspect(toolbus_client::Inspect::default()).await.is_ok() {
            tokio::task::yield_now().await;
        }
    })
    .await;

    let asking = tokio::spawn(async move { (host.connected("w#1").await, host.waits("w#1", "reply").await) });
    let (_server, _serving, _) = serve(folder.path(), address).await;
    assert_eq!(within("the answers", asking).await.expect("no panic"), (Some(false), Some(false)));
}
