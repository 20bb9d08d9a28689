//! Finds the member of a pool that may have run a call before: a client whose worker ended repeats its call through another
//! worker, and only the member that got the first one can join the second to it.
//!
//! Connected members answer from their calls and journals. Of the others the broker knows the requests that wait for them.

use super::{Frontend, body};
use crate::bus::BusItem;
use crate::call_key::content_key;
use crate::view::Upstream;
use futures_util::future::join_all;
use std::sync::Arc;
use std::time::Duration;
use toolbus_mcp::{HostReply, HostRequest, NameKey, Outcome, Rpc, has_effect, routed_name};

/// How long a member may take to answer. A member that does not answer counts as away, and is not asked again for a while.
const ASK_TIMEOUT: Duration = Duration::from_secs(2);

impl Frontend {
    /// The member that knows an equal call of another worker of this agent.
    pub(super) async fn earlier_holder(&self, pool: &Upstream, rpc: &Rpc) -> Option<Arc<Upstream>> {
        if !self.may_repeat(pool, rpc) {
            return None;
        }
        let key = content_key(rpc);
        let members = pool.pool.as_ref()?.members();
        let asked =
            join_all(members.map(|member| async move { self.knows_equal(member, rpc, key).await.then_some(member) }));
        asked.await.into_iter().flatten().next().cloned()
    }

    /// Whether the call may repeat one of an earlier worker, and must not run twice.
    fn may_repeat(&self, pool: &Upstream, rpc: &Rpc) -> bool {
        if !has_effect(&rpc.method) || self.worker.asks_no_more() {
            return false;
        }
        let name = routed_name(&rpc.method, rpc.params.as_ref());
        let tool = match &name {
            Some(NameKey::Tool(tool)) => Some(tool.as_str()),
            _ => None,
        };
        !pool.manifest().alone.contain(tool)
    }

    async fn knows_equal(&self, member: &Upstream, rpc: &Rpc, key: u64) -> bool {
        let (bus, pools) = (&self.worker.bus, &self.worker.pools);
        if member.away_since_ms.is_some() || pools.is_silent(&member.host) {
            return bus.has_equal(&member.host, key).await;
        }
        let asking = async {
            let body = body(HostRequest::Earlier(rpc.clone()));
            let mut call = bus.start_call(&member.host, body, ASK_TIMEOUT).await.ok()?;
            loop {
                match call.next().await {
                    BusItem::Event(_) => {}
                    BusItem::Reply(Ok(reply)) => match HostReply::parse(reply.text().ok()?).ok()? {
                        HostReply::Rpc(Outcome::Result(result)) => {
                            return Some(result.members().ok()?.is_true("known"));
                        }
                        _ => return None,
                    },
                    BusItem::Reply(Err(_)) => return None,
                }
            }
        };
        match tokio::time::timeout(ASK_TIMEOUT, asking).await.ok().flatten() {
            Some(is_known) => is_known,
            None => {
                pools.note_silent(&member.host);
                bus.has_equal(&member.host, key).await
            }
        }
    }
}
