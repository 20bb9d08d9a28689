//! Questions to the broker about callers: whether they are connected, and whether they have collected their replies.

use crate::host::Host;
use bytestring::ByteString;
use std::panic::AssertUnwindSafe;
use std::time::Duration;
use toolbus_call::Inspected;
use toolbus_client::{BrokerClient, Inspect, MAX_INSPECTED, MessageRef};

/// The broker answers from memory.
const INSPECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Reports about callers. A trait, so that tests can replace the broker.
#[async_trait::async_trait]
pub trait Callers: Send + Sync {
    /// Whether a peer is connected under each mailbox, and whether each reply, given as mailbox and message id, is still
    /// uncollected there. `None` if that is unknown now.
    async fn inspect(&self, peers: &[ByteString], replies: &[(ByteString, ByteString)]) -> Option<Inspected>;
}

#[async_trait::async_trait]
impl Callers for BrokerClient {
    async fn inspect(&self, peers: &[ByteString], replies: &[(ByteString, ByteString)]) -> Option<Inspected> {
        let mut view = Inspected::default();
        for peers in peers.chunks(MAX_INSPECTED) {
            let inspect = Inspect { peers: peers.to_vec(), ..Inspect::default() };
            view.connected.extend(ask(self, inspect).await?.peers);
        }
        for some in replies.chunks(MAX_INSPECTED) {
            let messages = some.iter().map(|(to, id)| MessageRef { to: to.clone(), id: id.clone() }).collect();
            let found = ask(self, Inspect { messages, ..Inspect::default() }).await?.messages;
            view.uncollected.extend(found.iter().map(Option::is_some));
        }
        (view.connected.len() == peers.len() && view.uncollected.len() == replies.len()).then_some(view)
    }
}

async fn ask(client: &BrokerClient, inspect: Inspect) -> Option<toolbus_client::Inspected> {
    let asked = tokio::time::timeout(INSPECT_TIMEOUT, client.inspect(inspect)).await.ok()?;
    asked.inspect_err(|error| tracing::debug!(%error, "the broker could not be asked about callers")).ok()
}

impl Host {
    pub async fn inspect(&self, peers: Vec<ByteString>, replies: Vec<(ByteString, ByteString)>) -> Option<Inspected> {
        use futures_util::FutureExt;
        let callers: &dyn Callers = match &self.options.callers {
            Some(callers) => &**callers,
            None => self.outbox.client(),
        };
        // Without an answer the call would wait for its whole time.
        AssertUnwindSafe(callers.inspect(&peers, &replies)).catch_unwind().await.ok().flatten()
    }
}
