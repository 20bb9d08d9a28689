//! Messages to a legacy session outside of its calls: events of its servers, and list changes because a host connected,
//! disconnected or announced another manifest.

use super::Frontend;
use crate::bus::{Hosts, SessionEvent};
use crate::view::{Upstream, View};
use crate::worker::lock;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use toolbus_mcp::{HostEvent, ListKind, Message, Notification};

/// A changed manifest within this time after a server's own `list_changed` is not notified again.
const MANIFEST_LAG: Duration = Duration::from_secs(10);

/// Buffered out-of-band messages. Further messages are dropped until the client reads.
const MAX_OUT_OF_BAND: usize = 256;

/// The stream of messages to a client that belong to none of its calls.
pub struct News {
    frontend: Arc<Frontend>,
    events: mpsc::Receiver<SessionEvent>,
    /// Messages of calls that the frontend made on its own, such as those behind a merged list.
    out_of_band: mpsc::Receiver<Message>,
    hosts: watch::Receiver<Hosts>,
    seen: Arc<View>,
    notified: NotifiedChanges,
    ready: VecDeque<Message>,
    bus_closed: bool,
}

impl News {
    /// Becomes the reader of the session's messages outside of calls.
    pub fn open(frontend: &Arc<Frontend>) -> Self {
        let (sender, out_of_band) = mpsc::channel(MAX_OUT_OF_BAND);
        lock(&frontend.state).out_of_band = Some(sender);
        Self {
            out_of_band,
            frontend: Arc::clone(frontend),
            events: frontend.worker.bus.open_session(&frontend.session),
            hosts: frontend.worker.hosts(),
            seen: frontend.worker.view(),
            notified: NotifiedChanges::default(),
            ready: VecDeque::new(),
            bus_closed: false,
        }
    }

    /// The next message for the client that belongs to no call. Never ends. Cancellation-safe.
    pub async fn next(&mut self) -> Message {
        loop {
            if let Some(message) = self.ready.pop_front() {
                return message;
            }
            tokio::select! {
                biased;
                Some(SessionEvent { host, event }) = self.events.recv() => {
                    if let HostEvent::Notification { method, server, .. } = &event
                        && let Some(upstream) = self.seen.find(&host, server)
                    {
                        self.notified.record(method, upstream);
                    }
                    let message = self.frontend.translate(&host, self.frontend.era(), event).await;
                    self.ready.extend(message);
                }
                Some(message) = self.out_of_band.recv() => return message,
                changed = self.hosts.changed(), if !self.bus_closed => {
                    self.bus_closed = changed.is_err();
                    self.check_lists();
                }
                else => std::future::pending().await,
            }
        }
    }

    fn check_lists(&mut self) {
        let view = self.frontend.worker.view();
        let kinds = lock(&self.frontend.state).list_changed.clone();
        for method in self.notified.unannounced(&self.seen, &view, &kinds) {
            self.ready.push_back(Notification { method: method.to_owned(), params: None }.into());
        }
        self.seen = view;
    }
}

/// List changes that servers notified themselves; the change of their manifest that follows is not notified again. Changes
/// of other servers at the same time are.
#[derive(Default)]
pub struct NotifiedChanges(HashMap<(String, String, String), Instant>);

impl NotifiedChanges {
    pub fn record(&mut self, method: &str, upstream: &Upstream) {
        if method.ends_with("/list_changed") {
            self.0.insert(key(method, upstream), Instant::now());
        }
    }

    /// The `list_changed` notifications for the difference between two views, without those that servers sent recently.
    pub fn unannounced(&mut self, before: &View, now: &View, kinds: &[ListKind]) -> Vec<&'static str> {
        let mut methods = Vec::new();
        for kind in kinds {
            let method = kind.list_changed();
            let changed = now.changed_servers(before, *kind);
            // All of them, so that each notification of a server covers one change.
            let new = changed.iter().filter(|upstream| !self.take_recent(method, upstream)).count();
            if new > 0 && !methods.contains(&method) {
                methods.push(method);
            }
        }
        methods
    }

    fn take_recent(&mut self, method: &str, upstream: &Upstream) -> bool {
        self.0.remove(&key(method, upstream)).is_some_and(|at| at.elapsed() < MANIFEST_LAG)
    }
}

fn key(method: &str, upstream: &Upstream) -> (String, String, String) {
    (method.to_owned(), upstream.shown_host().to_owned(), upstream.server().to_owned())
}
