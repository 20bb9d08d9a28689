//! Hosts and their manifests: announcing our own, and fetching and watching those of others.

use crate::client::BrokerClient;
use crate::{BrokerError, BrokerResult};
use bytestring::ByteString;
use hashbrown::HashMap;
use std::collections::BTreeMap;
use tokio::sync::{oneshot, watch};
use toolbus_protocol::{
    Announce, Announced, AskHosts, Body, ClientFrame, ErrorCode, HostEntry, Hosts, MsgId, RoleManifest,
};

/// Versions of the manifests that the caller already has, by host.
pub type KnownHosts = BTreeMap<String, u64>;

/// Limit on queries for manifests that did not fit into one answer; larger than a broker's number of hosts.
const MAX_ROUNDS: usize = 2048;

impl BrokerClient {
    /// Announces this agent as a host, with one manifest per role and one without a role for all others. Replaces the
    /// previous announcement; an empty list ends it. Returns when the broker has made it durable. Repeated
    /// automatically after every reconnect, unless the broker refused it.
    pub async fn announce(&self, manifests: Vec<(Option<String>, Body)>) -> BrokerResult<()> {
        self.check_version()?;
        let limit = self.shared.lock().terms.max_frame_bytes.unwrap_or(u64::MAX);
        let mut size = 0;
        for (_, manifest) in &manifests {
            manifest.check()?;
            size += manifest.as_bytes().len() as u64 + 512;
        }
        if size > limit {
            let reason = format!("the manifests have {size} bytes, the broker's limit is {limit}");
            return Err(BrokerError::Rejected { code: Some(ErrorCode::FrameTooLarge), reason, id: None });
        }
        let manifest =
            |(role, manifest): (Option<String>, Body)| RoleManifest { role: role.map(ByteString::from), manifest };
        let (sender, answer) = oneshot::channel();
        self.shared.change(|session| {
            if let Some(frame) = session.hosts.announce(manifests.into_iter().map(manifest).collect(), sender) {
                session.send(frame);
            }
        });
        self.await_receipt(answer).await
    }

    /// Returns the hosts visible to this agent's role. Manifests whose versions are in `known` are omitted.
    pub async fn hosts(&self, known: &KnownHosts) -> BrokerResult<Vec<HostEntry>> {
        self.check_version()?;
        let mut known: Vec<_> = known.iter().map(|(id, version)| (ByteString::from(&**id), *version)).collect();
        let mut manifests: HashMap<ByteString, (u64, Body)> = HashMap::new();
        for _ in 0..MAX_ROUNDS {
            let mut hosts = self.ask_hosts(known.clone()).await?;
            let before = manifests.len();
            for host in &hosts {
                if let Some(manifest) = &host.manifest {
                    known.retain(|(id, _)| *id != host.id);
                    known.push((host.id.clone(), host.version));
                    manifests.insert(host.id.clone(), (host.version, manifest.clone()));
                }
            }
            let lacking =
                |host: &HostEntry| !known.iter().any(|(id, version)| *id == host.id && *version == host.version);
            if !hosts.iter().any(lacking) || manifests.len() == before {
                for host in &mut hosts {
                    let received = manifests.remove(&host.id).filter(|(version, _)| *version == host.version);
                    host.manifest = received.map(|(_, manifest)| manifest);
                }
                return Ok(hosts);
            }
        }
        Err(BrokerError::Protocol(format!("the broker's list of hosts is incomplete after {MAX_ROUNDS} queries")))
    }

    async fn ask_hosts(&self, known: Vec<(ByteString, u64)>) -> BrokerResult<Vec<HostEntry>> {
        let (sender, answer) = oneshot::channel();
        self.shared.change(|session| {
            if session.is_connected() {
                let frame = session.hosts.ask(known, sender);
                session.send(frame);
            }
        });
        self.await_answer(answer).await
    }

    /// Watches for hosts that announce, connect or disconnect. Also reports a change after a reconnect, since updates
    /// may have been missed.
    pub fn watch_hosts(&self) -> HostsWatch {
        let changes = self.shared.change(|session| {
            let (frame, changes) = session.hosts.watch();
            if session.terms.version >= 2 {
                session.send(frame);
            }
            changes
        });
        HostsWatch { changes }
    }

    fn check_version(&self) -> BrokerResult<()> {
        if self.shared.lock().terms.version < 2 {
            return Err(BrokerError::Protocol("this broker does not support hosts".into()));
        }
        Ok(())
    }
}

/// Reports changes of the hosts.
pub struct HostsWatch {
    changes: watch::Receiver<u64>,
}

impl HostsWatch {
    /// Waits for a change since the last call; several changes are reported as one. `None` when the client is closed.
    pub async fn changed(&mut self) -> Option<()> {
        self.changes.changed().await.ok()
    }
}

struct Announcement {
    request_id: ByteString,
    manifests: Vec<RoleManifest>,
}

/// The host-related state of a session.
pub struct HostsState {
    /// This agent's last announcement, repeated after a reconnect.
    current: Option<Announcement>,
    /// The last manifests that the broker accepted: announced again if it refuses newer ones.
    accepted: Option<Vec<RoleManifest>>,
    /// Callers waiting for the answer to an announcement, by request id.
    announcing: HashMap<ByteString, Vec<oneshot::Sender<BrokerResult<()>>>>,
    asking: HashMap<ByteString, oneshot::Sender<Vec<HostEntry>>>,
    watching: bool,
    /// Versions in the latest answer: a renewed watch does not fetch their manifests again.
    seen: BTreeMap<ByteString, u64>,
    /// Counts changes; `None` once the client is closed.
    changes: Option<watch::Sender<u64>>,
}

impl Default for HostsState {
    fn default() -> Self {
        Self {
            current: None,
            accepted: None,
            announcing: HashMap::new(),
            asking: HashMap::new(),
            watching: false,
            seen: BTreeMap::new(),
            changes: Some(watch::Sender::new(0)),
        }
    }
}

impl HostsState {
    /// Stores the manifests and returns the frame that announces them, or `None` if the client is closed.
    fn announce(
        &mut self,
        manifests: Vec<RoleManifest>,
        answer: oneshot::Sender<BrokerResult<()>>,
    ) -> Option<ClientFrame> {
        self.changes.as_ref()?;
        let request_id = MsgId::new().into_inner();
        self.current = Some(Announcement { request_id: request_id.clone(), manifests: manifests.clone() });
        self.announcing.insert(request_id.clone(), vec![answer]);
        Some(ClientFrame::Announce(Announce { request_id, manifests }))
    }

    pub fn announced(&mut self, Announced { request_id, reason, code }: Announced) {
        let current = self.current.take_if(|current| current.request_id == request_id);
        let outcome = match reason {
            None => {
                if let Some(current) = current {
                    self.accepted = Some(current.manifests.clone());
                    self.current = Some(current);
                }
                Ok(())
            }
            Some(reason) => {
                if let Some(refused) = current {
                    self.forget_refused(refused);
                }
                tracing::warn!(code = code.map(ErrorCode::code), reason, "the broker refused an announcement");
                Err(BrokerError::Rejected { code, reason, id: None })
            }
        };
        for waiting in self.announcing.remove(&request_id).into_iter().flatten() {
            waiting.send(outcome.clone()).ok();
        }
    }

    /// Drops refused manifests, which would be refused again on every connection, and returns to the accepted ones.
    fn forget_refused(&mut self, refused: Announcement) {
        let accepted = self.accepted.take().filter(|manifests| *manifests != refused.manifests);
        self.accepted = accepted.clone();
        self.current = accepted.map(|manifests| Announcement { manifests, ..refused });
    }

    fn ask(&mut self, known: Vec<(ByteString, u64)>, answer: oneshot::Sender<Vec<HostEntry>>) -> ClientFrame {
        let request_id = MsgId::new().into_inner();
        self.asking.insert(request_id.clone(), answer);
        ClientFrame::Hosts(AskHosts { request_id, watch: self.watching, known })
    }

    pub fn answered(&mut self, answer: Hosts) {
        self.seen = answer.hosts.iter().map(|host| (host.id.clone(), host.version)).collect();
        if let Some(waiting) = self.asking.remove(&answer.request_id) {
            waiting.send(answer.hosts).ok();
        }
    }

    fn watch(&mut self) -> (ClientFrame, watch::Receiver<u64>) {
        self.watching = true;
        let changes = match &self.changes {
            Some(sender) => sender.subscribe(),
            None => watch::Sender::new(0).subscribe(),
        };
        (self.renew_watch(), changes)
    }

    fn renew_watch(&self) -> ClientFrame {
        let known = self.seen.iter().map(|(id, version)| (id.clone(), *version)).collect();
        ClientFrame::Hosts(AskHosts { request_id: MsgId::new().into_inner(), watch: true, known })
    }

    pub fn notify_change(&self) {
        if let Some(sender) = &self.changes {
            sender.send_modify(|count| *count += 1);
        }
    }

    /// On a new connection: announces and watches again. Callers still waiting for an announcement get the answer to
    /// this one.
    pub fn connected(&mut self, frames: &mut Vec<ClientFrame>) {
        if let Some(current) = &mut self.current {
            let request_id = MsgId::new().into_inner();
            current.request_id = request_id.clone();
            let waiting = self.announcing.drain().flat_map(|(_, waiting)| waiting).collect();
            self.announcing.insert(request_id.clone(), waiting);
            frames.push(ClientFrame::Announce(Announce { request_id, manifests: current.manifests.clone() }));
        }
        if self.watching {
            frames.push(self.renew_watch());
            self.notify_change();
        }
    }

    pub fn disconnected(&mut self) {
        self.asking.clear();
    }

    pub fn close(&mut self, error: &BrokerError) {
        self.changes = None;
        self.asking.clear();
        for waiting in self.announcing.drain().flat_map(|(_, waiting)| waiting) {
            waiting.send(Err(error.clone())).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifests(text: &str) -> Vec<RoleManifest> {
        vec![RoleManifest { role: None, manifest: Body::of(&text).expect("a string") }]
    }

    fn announce(state: &mut HostsState, text: &str) -> ByteString {
        match state.announce(manifests(text), oneshot::channel().0) {
            Some(ClientFrame::Announce(announce)) => announce.request_id,
            other => panic!("{other:?}"),
        }
    }

    fn answer(state: &mut HostsState, request_id: ByteString, refused: bool) {
        let reason = refused.then(|| "too much".to_owned());
        state.announced(Announced { request_id, reason, code: None });
    }

    /// Connects again, and returns the announcement that is sent.
    fn announced_again(state: &mut HostsState) -> Option<(ByteString, Vec<RoleManifest>)> {
        let mut frames = Vec::new();
        state.connected(&mut frames);
        match frames.pop() {
            Some(ClientFrame::Announce(Announce { request_id, manifests })) => Some((request_id, manifests)),
            None => None,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn refused_manifests_are_not_announced_again() {
        let mut state = HostsState::default();
        let first = announce(&mut state, "a");
        answer(&mut state, first, true);
        assert_eq!(announced_again(&mut state), None);
    }

    #[test]
    fn after_a_refusal_the_last_accepted_manifests_are_announced_until_refused() {
        let mut state = HostsState::default();
        let first = announce(&mut state, "a");
        answer(&mut state, first, false);
        let second = announce(&mut state, "b");
        answer(&mut state, second, true);
        for refused in [false, true] {
            let (request_id, again) = announced_again(&mut state).expect("an announcement");
            assert_eq!(again, manifests("a"));
            answer(&mut state, request_id, refused);
        }
        assert_eq!(announced_again(&mut state), None);
    }

    #[test]
    fn a_late_refusal_of_older_manifests_keeps_the_newer_ones() {
        let mut state = HostsState::default();
        let first = announce(&mut state, "a");
        announce(&mut state, "b");
        answer(&mut state, first, true);
        assert_eq!(announced_again(&mut state).map(|(_, manifests)| manifests), Some(manifests("b")));
    }
}
