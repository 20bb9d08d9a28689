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
    /// Whether a peer is connected under each mailbox, and whether each reply, given as mailbox and message id, was not
    /// collected there. The replies are not older than `max_age`. `None` if that is unknown now.
    async fn inspect(
        &self,
        peers: &[ByteString],
        replies: &[(ByteString, ByteString)],
        max_age: Duration,
    ) -> Option<Inspected>;
}

#[async_trait::async_trait]
impl Callers for BrokerClient {
    async fn inspect(
        &self,
        peers: &[ByteString],
        replies: &[(ByteString, ByteString)],
        max_age: Duration,
    ) -> Option<Inspected> {
        let mut view = Inspected::default();
        for peers in peers.chunks(MAX_INSPECTED) {
            let inspect = Inspect { peers: peers.to_vec(), ..Inspect::default() };
            view.connected.extend(ask(self, inspect).await?.peers);
        }
        for some in replies.chunks(MAX_INSPECTED) {
            let messages = some.iter().map(|(to, id)| MessageRef { to: to.clone(), id: id.clone() }).collect();
            let found = ask(self, Inspect { messages, ..Inspect::default() }).await?;
            view.uncollected.extend(uncollected(&found, max_age));
        }
        (view.connected.len() == peers.len() && view.uncollected.len() == replies.len()).then_some(view)
    }
}

/// Whether each reply is pending, or has never reached the broker: its request was lost in a crash of the broker, and the
/// host was restarted before it could send the reply again.
fn uncollected(found: &toolbus_client::Inspected, max_age: Duration) -> impl Iterator<Item = bool> {
    let remembers_all = u128::from(found.remembered_ms) > max_age.as_millis();
    let is_settled = |index: usize| found.settled.get(index).copied().unwrap_or(true);
    let is_uncollected = move |(index, position): (usize, &Option<u64>)| {
        Inspected::is_uncollected(position.is_some(), is_settled(index), remembers_all)
    };
    found.messages.iter().enumerate().map(is_uncollected)
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
        // Earlier replies are not asked about: they are not joined any more.
        let max_age = self.options.config.servers.iter().map(|server| server.calls.join_window).max();
        let inspected = callers.inspect(&peers, &replies, max_age.unwrap_or_default());
        // Without an answer the call would wait for its whole time.
        AssertUnwindSafe(inspected).catch_unwind().await.ok().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_is_uncollected_if_it_is_pending_or_never_reached_the_broker() {
        let check = |settled: &[bool], remembered_ms, expected: [bool; 3]| {
            let (messages, settled) = (vec![Some(3), None, None], settled.to_vec());
            let found = toolbus_client::Inspected { messages, settled, remembered_ms, ..Default::default() };
            assert_eq!(uncollected(&found, Duration::from_millis(10)).collect::<Vec<_>>(), expected);
        };
        check(&[false, true, false], 11, [true, false, true]);
        // The broker may have forgotten that the reply was collected.
        check(&[false, true, false], 10, [true, false, false]);
        // Older brokers report neither.
        check(&[], 0, [true, false, false]);
        check(&[], 11, [true, false, false]);
    }
}
