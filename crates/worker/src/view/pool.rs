//! The hosts behind a server of a pool, and the choice among them.
//!
//! Requests of a session go to the same host while the server keeps state for it. All others go where the fewest calls of
//! this worker are in progress: to the better of two random members (power of two choices), so that several workers don't
//! all choose the same one.

use super::Upstream;
use crate::bus::HostEntry;
use std::sync::Arc;
use std::time::Duration;
use toolbus_mcp::{Era, ListKind, NameKey, PoolMember, ServerState, Serving, merge_pool};

/// The members of a pool that have the server.
#[derive(Debug)]
pub struct Pool {
    members: Vec<Member>,
    serving: Serving,
}

#[derive(Debug)]
struct Member {
    /// The index among all members of the pool.
    position: usize,
    upstream: Arc<Upstream>,
}

/// The servers of a pool, and the differences between its members.
pub fn upstreams(
    pool: &str,
    hosts: &[&HostEntry],
    first_index: usize,
    is_chosen: bool,
) -> (Vec<Arc<Upstream>>, Vec<String>) {
    let members = hosts.iter().map(|host| PoolMember {
        host: &host.name,
        online: host.away_since_ms.is_none(),
        manifest: &host.manifest,
    });
    let merged = merge_pool(pool, &members.collect::<Vec<_>>());
    let manifest = Arc::new(merged.manifest);
    let problems = manifest.problems.clone();
    // The pool is away since its last member is.
    let is_online = hosts.iter().any(|host| host.away_since_ms.is_none());
    let away_since_ms = hosts.iter().filter_map(|host| host.away_since_ms).max().filter(|_| !is_online);
    let servers = merged.serving.into_iter().enumerate().map(|(server_index, serving)| {
        let (name, index) = (&manifest.servers[server_index].name, first_index + server_index);
        let member = |position: &usize| {
            let host = hosts[*position];
            let at_host = host.manifest.servers.iter().position(|server| server.name == *name)?;
            let member_of = Some(pool.to_owned());
            let upstream = Upstream { member_of, ..Upstream::of_host(host, at_host, index, is_chosen) };
            Some(Member { position: *position, upstream: Arc::new(upstream) })
        };
        let members = serving.members.iter().filter_map(member).collect();
        Arc::new(Upstream {
            host: pool.to_owned(),
            away_since_ms,
            manifest: Arc::clone(&manifest),
            server_index,
            index,
            is_chosen,
            member_of: None,
            pool: Some(Pool { members, serving }),
        })
    });
    (servers.collect(), problems)
}

impl Pool {
    /// The server at each of its hosts.
    pub fn members(&self) -> impl Iterator<Item = &Arc<Upstream>> {
        self.members.iter().map(|member| &member.upstream)
    }

    /// Whether all members have the same lists.
    pub fn is_uniform(&self) -> bool {
        self.serving.is_uniform()
    }

    /// The hosts that serve the named item, or any item.
    pub fn serving(&self, name: Option<&NameKey>) -> Vec<&Arc<Upstream>> {
        let positions = match name {
            Some(NameKey::Tool(name)) => self.serving.of(ListKind::Tools, name),
            Some(NameKey::Prompt(name)) => self.serving.of(ListKind::Prompts, name),
            Some(NameKey::Uri(uri)) => self.serving.of(ListKind::Resources, uri),
            Some(NameKey::Task(_)) | None => &self.serving.members,
        };
        let serves = |member: &&Member| positions.contains(&member.position);
        self.members.iter().filter(serves).map(|member| &member.upstream).collect()
    }

    /// Whether the server keeps state for the client's session. A modern client of a modern server has no session.
    pub fn keeps_state(&self, era: Era) -> bool {
        let has_session = |member: &Arc<Upstream>| era == Era::Legacy || member.is_legacy_only();
        self.members().any(|member| has_session(member) && !member.manifest().shared)
    }
}

/// A member that can be chosen.
#[derive(Debug, Clone, Copy, Default)]
pub struct Candidate {
    /// When the host disconnected; `None` while it is connected.
    pub away_since: Option<u64>,
    /// The server is up.
    pub is_up: bool,
    /// The host stops.
    pub is_draining: bool,
    /// The host has handed this call back.
    pub is_tried: bool,
    /// Calls of this worker in progress at the host.
    pub load: u32,
}

impl Candidate {
    pub fn of(upstream: &Upstream, load: u32, is_tried: bool) -> Self {
        Self {
            away_since: upstream.away_since_ms,
            is_up: upstream.manifest().state == ServerState::Up,
            is_draining: upstream.is_draining(),
            is_tried,
            load,
        }
    }

    fn is_usable(&self) -> bool {
        self.away_since.is_none() && !self.is_draining
    }
}

/// Chooses a member; `pinned` is the one that keeps state for the session. It is replaced when its host stops, or was away
/// for `grace` while another one is connected.
pub fn choose(all: &[Candidate], pinned: Option<usize>, now: u64, grace: Duration, random: u64) -> Option<usize> {
    if let Some(pinned) = pinned
        && let Some(candidate) = all.get(pinned).filter(|candidate| !candidate.is_draining && !candidate.is_tried)
    {
        let is_lost = |since: u64| now.saturating_sub(since) >= grace.as_millis() as u64;
        let others = all.iter().any(Candidate::is_usable);
        if candidate.away_since.is_none_or(|since| !is_lost(since) || !others) {
            return Some(pinned);
        }
    }
    let tiers: [fn(&Candidate) -> bool; 5] = [
        |candidate| candidate.is_usable() && candidate.is_up && !candidate.is_tried,
        |candidate| candidate.is_usable() && !candidate.is_tried,
        |candidate| candidate.is_usable(),
        |candidate| candidate.away_since.is_some(),
        |_| true,
    ];
    let fitting = |tier: fn(&Candidate) -> bool| {
        let fitting: Vec<usize> = (0..all.len()).filter(|index| tier(&all[*index])).collect();
        (!fitting.is_empty()).then_some(fitting)
    };
    let fitting = tiers.into_iter().find_map(fitting)?;
    let one = (random % fitting.len() as u64) as usize;
    if all[fitting[one]].away_since.is_some() {
        // The one that left last is expected back first.
        return fitting.into_iter().max_by_key(|index| all[*index].away_since);
    }
    // Another one, if there are two.
    let step = 1 + (random >> 32) as usize % (fitting.len() - 1).max(1);
    let other = (one + step) % fitting.len();
    Some(if all[fitting[other]].load < all[fitting[one]].load { fitting[other] } else { fitting[one] })
}

/// Prefix of the request states that members of pools gave.
const STATE: &str = "toolbus:";

/// Marks a request state with the host that gave it, which alone knows it.
pub fn mark_state(host: &str, state: &str) -> String {
    format!("{STATE}{}:{host}:{state}", host.len())
}

/// The host and the host's own request state.
pub fn read_state(marked: &str) -> Option<(&str, &str)> {
    let (length, rest) = marked.strip_prefix(STATE)?.split_once(':')?;
    let (host, state) = rest.split_at_checked(length.parse().ok()?)?;
    Some((host, state.strip_prefix(':')?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(10);

    fn up(load: u32) -> Candidate {
        Candidate { is_up: true, load, ..Candidate::default() }
    }

    fn away(since: u64) -> Candidate {
        Candidate { away_since: Some(since), ..up(0) }
    }

    /// All members that some random number chooses.
    #[track_caller]
    fn check(all: &[Candidate], pinned: Option<usize>, now: u64, expected: &[usize]) {
        let numbers = (0..64_u64).flat_map(|one| (0..8).map(move |other| one | other << 32));
        let mut chosen: Vec<usize> = numbers.filter_map(|random| choose(all, pinned, now, GRACE, random)).collect();
        chosen.sort_unstable();
        chosen.dedup();
        assert_eq!(chosen, expected);
    }

    #[test]
    fn calls_go_to_the_less_loaded_of_two_members() {
        check(&[up(3), up(2)], None, 0, &[1]);
        check(&[up(2), up(2)], None, 0, &[0, 1]);
        check(&[up(1), up(9), up(2)], None, 0, &[0, 2]);
        check(&[up(5)], None, 0, &[0]);
        check(&[], None, 0, &[]);
    }

    #[test]
    fn members_that_can_not_answer_now_come_last() {
        let (down, draining) = (Candidate::default(), Candidate { is_draining: true, ..up(0) });
        check(&[away(5), down, draining, up(100)], None, 9, &[3]);
        check(&[away(5), down, draining], None, 9, &[1]);
        check(&[away(5), away(7), draining], None, 9, &[1]);
        check(&[draining], None, 9, &[0]);
        let tried = Candidate { is_tried: true, ..up(0) };
        check(&[tried, up(100)], None, 0, &[1]);
        check(&[tried, away(5)], None, 9, &[0]);
    }

    #[test]
    fn a_session_keeps_its_member_until_that_is_lost() {
        check(&[up(0), up(100)], Some(1), 0, &[1]);
        check(&[up(0), away(5_000)], Some(1), 14_999, &[1]);
        check(&[up(0), away(5_000)], Some(1), 15_000, &[0]);
        check(&[away(1_000), away(5_000)], Some(0), 60_000, &[0]);
        let draining = Candidate { is_draining: true, ..up(0) };
        check(&[up(100), draining], Some(1), 0, &[0]);
        check(&[up(100), Candidate { is_tried: true, ..up(0) }], Some(1), 0, &[0]);
    }

    #[test]
    fn a_request_state_names_its_host() {
        for (host, state) in [("a", "s"), ("a:b", "x:y"), ("ä", ""), ("h", "toolbus:1:h:s")] {
            assert_eq!(read_state(&mark_state(host, state)), Some((host, state)));
        }
        for other in ["", "s", "toolbus:", "toolbus:9:a:s", "toolbus:1:ab", "toolbus:x:a:s", "toolbus:host:id"] {
            assert_eq!(read_state(other), None, "{other}");
        }
    }
}
