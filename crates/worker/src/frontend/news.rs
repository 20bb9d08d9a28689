//! What a legacy session is told outside of its calls: what its servers say, and that lists changed because a host came,
//! went, or announced something else.

use super::Frontend;
use super::listen::changed_lists;
use crate::bus::{Hosts, SessionEvent};
use crate::view::View;
use crate::worker::lock;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use toolbus_mcp::{HostEvent, Message, Notification};

/// A server that says itself that its list changed changes its manifest soon after; once is enough.
const MANIFEST_FOLLOWS_WITHIN: Duration = Duration::from_secs(10);

/// What is told aside and not read yet; more than that is lost.
const MAX_ASIDE: usize = 256;

pub struct News {
    frontend: Arc<Frontend>,
    events: mpsc::Receiver<SessionEvent>,
    /// What came with calls that are not the client's own.
    aside: mpsc::Receiver<Message>,
    hosts: watch::Receiver<Hosts>,
    seen: Arc<View>,
    told: Told,
    ready: VecDeque<Message>,
    bus_is_gone: bool,
}

impl News {
    pub fn open(frontend: &Arc<Frontend>) -> Self {
        let (sender, aside) = mpsc::channel(MAX_ASIDE);
        lock(&frontend.state).aside = Some(sender);
        Self {
            aside,
            frontend: Arc::clone(frontend),
            events: frontend.worker.bus.open_session(&frontend.session),
            hosts: frontend.worker.hosts(),
            seen: frontend.worker.view(),
            told: Told::default(),
            ready: VecDeque::new(),
            bus_is_gone: false,
        }
    }

    /// The next message for the client that belongs to no call. Never ends; giving up the wait loses nothing.
    pub async fn next(&mut self) -> Message {
        loop {
            if let Some(message) = self.ready.pop_front() {
                return message;
            }
            tokio::select! {
                biased;
                Some(SessionEvent { host, event }) = self.events.recv() => {
                    if let HostEvent::Notification { method, .. } = &event {
                        self.told.note(method);
                    }
                    let message = self.frontend.translate(&host, self.frontend.era(), event).await;
                    self.ready.extend(message);
                }
                Some(message) = self.aside.recv() => return message,
                changed = self.hosts.changed(), if !self.bus_is_gone => {
                    self.bus_is_gone = changed.is_err();
                    self.look_at_lists();
                }
                else => std::future::pending().await,
            }
        }
    }

    fn look_at_lists(&mut self) {
        let view = self.frontend.worker.view();
        let promised = lock(&self.frontend.state).promised.clone();
        for method in changed_lists(&self.seen, &view, &promised) {
            if !self.told.already(method) {
                self.ready.push_back(Notification { method: method.to_owned(), params: None }.into());
            }
        }
        self.seen = view;
    }
}

/// Which changes of lists the servers themselves have told, so that the manifests don't tell them again.
#[derive(Default)]
pub struct Told(HashMap<String, Instant>);

impl Told {
    pub fn note(&mut self, method: &str) {
        if method.ends_with("/list_changed") {
            self.0.insert(method.to_owned(), Instant::now());
        }
    }

    pub fn already(&mut self, method: &str) -> bool {
        self.0.remove(method).is_some_and(|at| at.elapsed() < MANIFEST_FOLLOWS_WITHIN)
    }
}
