//! What the broker tells about callers: whether they are connected, and whether they have collected their replies.
//!
//! The callers of calls that take a while are followed: the broker reports each change. Follows outlive connections, and
//! start with the current state on each new one, so no change is missed. A broker without `follow` is asked at intervals.

use crate::agent_ends::address;
use crate::calls::Given;
use crate::host::Host;
use bytestring::ByteString;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::DropGuard;
use toolbus_call::{Event, Inspected};
use toolbus_client::{BrokerClient, Inspect, MAX_INSPECTED, MessageRef};

/// The broker answers from memory.
const INSPECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause before a question without an answer is repeated on the same connection.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// How often a broker without `follow` is asked about a caller during its grace, and how often at most.
const CHECKS_PER_GRACE: u32 = 4;
const MIN_POLL_INTERVAL: Duration = Duration::from_secs(1);

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
    /// Asks until the broker answers: again on the next connection, or after a while if an answer got lost. `None` when the
    /// client is closed.
    pub async fn inspect(&self, peers: &[ByteString], replies: &[(ByteString, ByteString)]) -> Option<Inspected> {
        let client = self.outbox.client();
        let mut connection = client.next_connection(0).await?;
        loop {
            if let Some(view) = self.ask_once(peers, replies).await {
                return Some(view);
            }
            tokio::select! {
                next = client.next_connection(connection) => connection = next?,
                () = tokio::time::sleep(ASK_AGAIN_AFTER) => {}
            }
        }
    }

    async fn ask_once(&self, peers: &[ByteString], replies: &[(ByteString, ByteString)]) -> Option<Inspected> {
        use futures_util::FutureExt;
        let callers: &dyn Callers = match &self.options.callers {
            Some(callers) => &**callers,
            None => self.outbox.client(),
        };
        let on_bus = |mailbox: &ByteString| ByteString::from(&*address(mailbox));
        let peers: Vec<ByteString> = peers.iter().map(on_bus).collect();
        let replies: Vec<(ByteString, ByteString)> = replies.iter().map(|(to, id)| (on_bus(to), id.clone())).collect();
        // Earlier replies are not asked about: they are not joined any more.
        let max_age = self.options.config.servers.iter().map(|server| server.calls.join_window).max();
        let inspected = callers.inspect(&peers, &replies, max_age.unwrap_or_default());
        // Without an answer the call would wait for its whole time.
        AssertUnwindSafe(inspected).catch_unwind().await.ok().flatten()
    }

    /// Reports to the machine whether a caller is connected, until the guard is dropped.
    pub fn follow_caller(self: &Arc<Self>, caller: ByteString) -> DropGuard {
        let (host, ended) = (Arc::clone(self), self.shutdown.child_token());
        let guard = ended.clone().drop_guard();
        self.tracker.spawn(async move { ended.run_until_cancelled(host.report_caller(&caller)).await });
        guard
    }

    async fn report_caller(self: &Arc<Self>, caller: &ByteString) {
        let client = self.outbox.client();
        let mut connection = 0;
        while let Some(current) = client.next_connection(connection).await {
            connection = current;
            match client.follow(vec![ByteString::from(&*address(caller))], Vec::new()).await {
                Ok(mut follow) => {
                    while let Some(state) = follow.changed().await {
                        self.feed(followed(caller, state.peers.first().copied().flatten()));
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, caller = &**caller, "could not follow a caller; asking at intervals");
                    self.poll_caller(caller, connection).await;
                }
            }
        }
    }

    /// Asks at intervals, until the next connection: its broker may be another version.
    async fn poll_caller(self: &Arc<Self>, caller: &ByteString, connection: u64) {
        let grace = self.options.limits.caller_grace.unwrap_or_default();
        let pause = (grace / CHECKS_PER_GRACE).max(MIN_POLL_INTERVAL);
        loop {
            let view = self.ask_once(std::slice::from_ref(caller), &[]).await;
            self.feed(followed(caller, view.and_then(|view| view.connected.first().copied())));
            tokio::select! {
                _ = self.outbox.client().next_connection(connection) => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }
}

fn followed(caller: &ByteString, connected: Option<bool>) -> Event<Given> {
    Event::Followed { caller: caller.clone(), connected }
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
