//! Hosts and their manifests, from both sides: announcing one's own, and knowing those of others.

use crate::client::BrokerClient;
use crate::error::{BrokerError, BrokerResult};
use bytestring::ByteString;
use hashbrown::HashMap;
use std::collections::BTreeMap;
use tokio::sync::{oneshot, watch};
use toolbus_protocol::{
    Announce, Announced, AskHosts, Body, ClientFrame, ErrorCode, HostEntry, Hosts, MsgId, RoleManifest,
};

/// The versions of the manifests that a caller has, by host.
pub type KnownHosts = BTreeMap<String, u64>;

/// Questions for manifests that did not fit into one answer. More than a broker has hosts.
const MAX_ROUNDS: usize = 2048;

impl BrokerClient {
    /// Makes this agent a host: what it offers, for each role and (with no role) for all others. Replaces what was
    /// announced before; nothing at all ends it. Done when the broker has it on disk. Announced again by itself after
    /// every reconnect, unless the broker refused it.
    pub async fn announce(&self, manifests: Vec<(Option<String>, Body)>) -> BrokerResult<()> {
        self.check_version()?;
        let limit = self.shared.lock().terms.max_frame_bytes.unwrap_or(u64::MAX);
        let mut size = 0;
        for (_, manifest) in &manifests {
            manifest.check()?;
            size += manifest.as_bytes().len() as u64 + 512;
        }
        if size > limit {
            let reason = format!("manifests of {size} bytes; the broker's limit is {limit}");
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

    /// The hosts that this agent's role may see. Manifests whose versions are in `known` are left out.
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
                    let got = manifests.remove(&host.id).filter(|(version, _)| *version == host.version);
                    host.manifest = got.map(|(_, manifest)| manifest);
                }
                return Ok(hosts);
            }
        }
        Err(BrokerError::Protocol("the broker's list of hosts has no end".into()))
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

    /// Starts being told of changes: a host announced, came or went. Rings also after a reconnect, when anything may
    /// have happened.
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
            return Err(BrokerError::Protocol("this broker knows nothing of hosts".into()));
        }
        Ok(())
    }
}

/// Tells when the hosts have changed.
pub struct HostsWatch {
    changes: watch::Receiver<u64>,
}

impl HostsWatch {
    /// Waits for a change since the last call, however many there were. `None` when the client is closed.
    pub async fn changed(&mut self) -> Option<()> {
        self.changes.changed().await.ok()
    }
}

struct Announcement {
    request_id: ByteString,
    manifests: Vec<RoleManifest>,
}

/// What a session knows of hosts.
pub struct HostsView {
    /// What this agent announced last, to be announced again; and who waits for the answer.
    current: Option<Announcement>,
    /// What the broker took last: should it refuse what comes after, this is what is announced again.
    accepted: Option<Vec<RoleManifest>>,
    announcing: HashMap<ByteString, Vec<oneshot::Sender<BrokerResult<()>>>>,
    asking: HashMap<ByteString, oneshot::Sender<Vec<HostEntry>>>,
    watching: bool,
    /// Versions that came last: a watch that is renewed does not fetch their manifests again.
    seen: BTreeMap<ByteString, u64>,
    bell: Option<watch::Sender<u64>>,
}

impl Default for HostsView {
    fn default() -> Self {
        Self {
            current: None,
            accepted: None,
            announcing: HashMap::new(),
            asking: HashMap::new(),
            watching: false,
            seen: BTreeMap::new(),
            bell: Some(watch::Sender::new(0)),
        }
    }
}

impl HostsView {
    /// Remembers the manifests and returns the frame for them.
    fn announce(
        &mut self,
        manifests: Vec<RoleManifest>,
        answer: oneshot::Sender<BrokerResult<()>>,
    ) -> Option<ClientFrame> {
        self.bell.as_ref()?;
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

    /// Manifests that were refused once would be refused on every connection.
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
        let changes = match &self.bell {
            Some(bell) => bell.subscribe(),
            None => watch::Sender::new(0).subscribe(),
        };
        (self.renew_watch(), changes)
    }

    fn renew_watch(&self) -> ClientFrame {
        let known = self.seen.iter().map(|(id, version)| (id.clone(), *version)).collect();
        ClientFrame::Hosts(AskHosts { request_id: MsgId::new().into_inner(), watch: true, known })
    }

    pub fn ring(&self) {
        if let Some(bell) = &self.bell {
            bell.send_modify(|count| *count += 1);
        }
    }

    /// A new connection: the broker has to learn again who is a host, and who watches. Who waits for the
    /// answer to an announcement gets the answer to this one.
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
            self.ring();
        }
    }

    pub fn disconnected(&mut self) {
        self.asking.clear();
    }

    pub fn close(&mut self, error: &BrokerError) {
        self.bell = None;
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
        vec![RoleManifest { role: None, manifest: Body::of(&text).expect("a text") }]
    }

    fn announce(view: &mut HostsView, text: &str) -> ByteString {
        match view.announce(manifests(text), oneshot::channel().0) {
            Some(ClientFrame::Announce(announce)) => announce.request_id,
            other => panic!("{other:?}"),
        }
    }

    fn answer(view: &mut HostsView, request_id: ByteString, refused: bool) {
        let reason = refused.then(|| "too much".to_owned());
        view.announced(Announced { request_id, reason, code: None });
    }

    /// What is announced on the next connection.
    fn announced_again(view: &mut HostsView) -> Option<(ByteString, Vec<RoleManifest>)> {
        let mut frames = Vec::new();
        view.connected(&mut frames);
        match frames.pop() {
            Some(ClientFrame::Announce(Announce { request_id, manifests })) => Some((request_id, manifests)),
            None => None,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn refused_manifests_are_not_announced_again() {
        let mut view = HostsView::default();
        let first = announce(&mut view, "a");
        answer(&mut view, first, true);
        assert_eq!(announced_again(&mut view), None);
    }

    #[test]
    fn after_a_refusal_what_was_taken_before_is_announced_again_until_it_is_refused_too() {
        let mut view = HostsView::default();
        let first = announce(&mut view, "a");
        answer(&mut view, first, false);
        let second = announce(&mut view, "b");
        answer(&mut view, second, true);
        for refused in [false, true] {
            let (request_id, again) = announced_again(&mut view).expect("the first ones");
            assert_eq!(again, manifests("a"));
            answer(&mut view, request_id, refused);
        }
        assert_eq!(announced_again(&mut view), None);
    }

    #[test]
    fn a_late_refusal_of_older_manifests_leaves_the_newer_ones() {
        let mut view = HostsView::default();
        let first = announce(&mut view, "a");
        announce(&mut view, "b");
        answer(&mut view, first, true);
        assert_eq!(announced_again(&mut view).map(|(_, manifests)| manifests), Some(manifests("b")));
    }
}
