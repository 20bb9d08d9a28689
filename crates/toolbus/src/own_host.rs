//! The name of the host in `toolbus up`, kept in the broker's data folder. If the configuration changes it, the tools under
//! the old name are withdrawn: no process will announce or serve them again.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use toolbus_base::{read_private_text, replace_file};
use toolbus_broker::{BrokerServer, Identity, Rights};
use toolbus_client::{BrokerClient, BrokerError, BrokerResult, ClientOptions};
use toolbus_protocol::AgentRef;

const FILE: &str = "up-host";
const WITHDRAW_TIMEOUT: Duration = Duration::from_secs(5);

/// Withdraws the announcement of the previous start if that had another name, and remembers this one. Call it before the
/// broker serves: a remote host that takes the old name later keeps its own announcement.
pub async fn retire_previous(server: &Arc<BrokerServer>, data: &Path, name: &str) {
    let file = data.join(FILE);
    let previous = match read_private_text(&file) {
        Ok(previous) => Some(previous),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return tracing::warn!(%error, "can't read {}", file.display()),
    };
    if previous.as_deref() == Some(name) {
        return;
    }
    if let Some(previous) = previous {
        let withdrawn = tokio::time::timeout(WITHDRAW_TIMEOUT, withdraw(Arc::clone(server), &previous)).await;
        match withdrawn.unwrap_or(Err(BrokerError::Closed)) {
            Ok(()) => tracing::info!("the host was {previous:?} before; the tools under that name are withdrawn"),
            Err(error) => return tracing::warn!("the tools of the earlier host {previous:?} stay listed: {error}"),
        }
    }
    if let Err(error) = replace_file(&file, name.as_bytes()) {
        tracing::warn!(%error, "can't write {}", file.display());
    }
}

async fn withdraw(server: Arc<BrokerServer>, name: &str) -> BrokerResult<()> {
    let client = connect(server, name).await?;
    let withdrawn = client.announce(Vec::new()).await;
    client.close().await;
    withdrawn
}

/// Connects the host of this process to its broker.
pub async fn connect(server: Arc<BrokerServer>, name: &str) -> BrokerResult<BrokerClient> {
    let agent = AgentRef::new(name.to_owned());
    let me = Identity::local(agent.clone(), Rights::HOST);
    let links = move || server.attach_as(me.clone()).map_err(|error| BrokerError::Transport(error.to_string()));
    BrokerClient::connect_local(links, agent, ClientOptions::default()).await
}
