//! Which host of a pool gets a request: the one that gave its request state, the one that keeps the session's state, or one
//! with few calls.

use super::Frontend;
use crate::view::Upstream;
use crate::view::pool::{Candidate, Pool, choose, mark_state, read_state};
use std::sync::Arc;
use toolbus_base::now_ms;
use toolbus_mcp::{Era, Members, Raw, raw, routed_name};

const REQUEST_STATE: &str = "requestState";

/// Where a request goes.
pub struct Destination {
    pub member: Arc<Upstream>,
    /// The params as the member gets them.
    pub params: Option<Raw>,
    /// Only this member can answer the request.
    pub is_bound: bool,
}

impl Frontend {
    /// Chooses the host of a request. `tried` hosts are chosen only if there is no other.
    pub(super) fn destination(
        &self,
        upstream: &Arc<Upstream>,
        era: Era,
        (method, params): (&str, Option<Raw>),
        tried: &[String],
    ) -> Destination {
        let Some(pool) = &upstream.pool else {
            return Destination { member: Arc::clone(upstream), params, is_bound: false };
        };
        if let Some((member, params)) = bound_member(pool, params.as_ref()) {
            return Destination { member, params: Some(params), is_bound: true };
        }
        let name = routed_name(method, params.as_ref());
        let mut members = pool.serving(name.as_ref());
        if members.is_empty() {
            members = pool.members().collect();
        }
        let pools = &self.worker.pools;
        let keeps_state = pool.keeps_state(era);
        let pinned = keeps_state.then(|| pools.pinned(&self.session, &upstream.host)).flatten();
        let pinned = pinned.and_then(|host| members.iter().position(|member| member.host == host));
        let candidate =
            |member: &&Arc<Upstream>| Candidate::of(member, pools.load(&member.host), tried.contains(&member.host));
        let candidates: Vec<Candidate> = members.iter().map(candidate).collect();
        let random = uuid::Uuid::new_v4().as_u64_pair().0;
        let chosen = choose(&candidates, pinned, now_ms(), self.worker.options.pool_grace, random);
        // A server of a pool has a member: the one whose manifest lists it.
        let member = chosen.map_or(upstream, |chosen| members[chosen]);
        if keeps_state && pinned != chosen {
            pools.pin(&self.session, &upstream.host, &member.host);
        }
        Destination { member: Arc::clone(member), params, is_bound: false }
    }

    /// The host of a pool that keeps the session's state; of any other server its host. `None` if there is no state yet.
    pub(super) fn host_with_state<'a>(&self, upstream: &'a Arc<Upstream>) -> Option<&'a Arc<Upstream>> {
        let Some(pool) = &upstream.pool else { return Some(upstream) };
        let host = self.worker.pools.pinned(&self.session, &upstream.host)?;
        pool.members().find(|member| member.host == host)
    }
}

/// The member that gave the request state of the params, and the params with its own state.
fn bound_member(pool: &Pool, params: Option<&Raw>) -> Option<(Arc<Upstream>, Raw)> {
    let members = Members::of(params).ok()?;
    let marked = members.text(REQUEST_STATE)?;
    let (host, state) = read_state(&marked)?;
    let member = pool.members().find(|member| member.host == host)?;
    let mut params = members.clone();
    params.set(REQUEST_STATE, raw(state));
    Some((Arc::clone(member), params.into_raw()))
}

/// The result with the host in its request state, if it has one.
pub fn with_marked_state(result: Raw, host: &str) -> Raw {
    let Some(state) = result.members().ok().and_then(|result| result.text(REQUEST_STATE)) else { return result };
    let Ok(members) = result.members() else { return result };
    let mut members = members.clone();
    members.set(REQUEST_STATE, raw(&mark_state(host, &state)));
    members.into_raw()
}
