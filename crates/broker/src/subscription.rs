//! Subscriptions of hosts that name their journal: the claim has to be durable, and still the last one, when the mailbox is
//! pushed to them.

use crate::claims::{Claims, Recorded};
use crate::core::Shared;
use futures_util::FutureExt;
use std::sync::Arc;
use toolbus_engine::{Command, ConnId, JournalClaim};

/// How often a host renews its claim because another one of the same name did.
const MAX_CLAIMS_IN_A_ROW: usize = 100;

/// Records a claim. Another journal than before fences the mailbox. Returns the write of the claim, which has to be awaited
/// before the subscription: a claim that a crash of the broker loses would hide that calls were pushed to this journal.
pub fn claim(
    shared: &Shared,
    claims: &Claims,
    mailbox: &str,
    claim: JournalClaim,
) -> Option<tokio::task::JoinHandle<()>> {
    let fence = || shared.lock().engine.fence(shared.clock.now(), mailbox);
    if claims.record(mailbox, claim, fence) == Recorded::Fenced {
        tracing::warn!(
            host = mailbox,
            "the host has another call journal than before: calls that may have been started are answered as unknown"
        );
    }
    let claims = claims.clone();
    (!claims.are_saved()).then(|| tokio::task::spawn_blocking(move || claims.save()))
}

/// Subscribes a host when its claim is durable. The claim is renewed: another host of the same name may have claimed the
/// mailbox and received calls since this one did.
pub fn subscribe(shared: &Arc<Shared>, claims: &Claims, conn: ConnId, mailbox: Arc<str>, claimed: JournalClaim) {
    let (shared, claims) = (Arc::clone(shared), claims.clone());
    let subscribing = async move {
        for _ in 0..MAX_CLAIMS_IN_A_ROW {
            if let Some(writing) = claim(&shared, &claims, &mailbox, claimed.clone()) {
                writing.await.ok();
                if !claims.are_saved() {
                    // Of a partition, no call may be pushed to a journal that the next owner would not know of.
                    shared.fail_if_partition("claims");
                    if shared.has_failed() {
                        return;
                    }
                }
            }
            // Calls that were pushed to another host that has claimed the mailbox since would be taken for new ones.
            if claims.if_current(&mailbox, &claimed, || shared.submit(conn, [Command::Subscribe])) {
                return;
            }
        }
        tracing::warn!(host = &*mailbox, "other hosts of the same name claim the mailbox again and again");
    };
    let mut subscribing = Box::pin(subscribing);
    // At once if nothing has to be written.
    if subscribing.as_mut().now_or_never().is_none() {
        tokio::spawn(subscribing);
    }
}
