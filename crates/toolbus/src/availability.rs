//! Watches the broker and the host of a call while it waits: notices for the user, and whether the host can have
//! received the call when the deadline passes.

use std::cell::Cell;
use std::convert::Infallible;
use std::time::Duration;
use tokio::sync::mpsc;
use toolbus_client::{KnownHosts, MultiplexedClient};

/// The interval at which the connection is polled, because its loss causes no event.
const POLL: Duration = Duration::from_millis(250);

/// Capacity of the queue of notices. Each outage causes two.
pub const NOTICE_QUEUE: usize = 16;

pub struct Availability {
    broker_away: Cell<bool>,
    host_away: Cell<bool>,
    /// Whether the call waits while its host is away; a fail-fast call does not.
    waits: bool,
    /// Whether the host can have received the call.
    host_was_online: Cell<bool>,
}

impl Availability {
    pub fn new(host_online: bool, waits: bool) -> Self {
        Self {
            waits,
            broker_away: Cell::new(false),
            host_away: Cell::new(!host_online),
            host_was_online: Cell::new(host_online),
        }
    }

    pub fn broker_away(&self) -> bool {
        self.broker_away.get()
    }

    pub fn host_away(&self) -> bool {
        self.host_away.get()
    }

    /// Whether the host was away all the time, so that it can't have run the call.
    pub fn host_never_online(&self) -> bool {
        self.host_away.get() && !self.host_was_online.get()
    }

    /// Watches until it is dropped.
    pub async fn watch(&self, client: &MultiplexedClient, host: &str, notices: &mpsc::Sender<String>) -> Infallible {
        let mut changes = client.client().watch_hosts();
        let mut known = KnownHosts::new();
        let mut is_stale = true;
        loop {
            self.update_broker(client.reader_alive(), notices);
            if is_stale && !self.broker_away.get() {
                is_stale = !self.update_host(client, host, &mut known, notices).await;
            }
            tokio::select! {
                changed = changes.changed() => match changed {
                    Some(()) => is_stale = true,
                    None => return std::future::pending().await,
                },
                () = tokio::time::sleep(POLL) => {}
            }
        }
    }

    fn update_broker(&self, is_online: bool, notices: &mpsc::Sender<String>) {
        if self.broker_away.replace(!is_online) != is_online {
            return;
        }
        if is_online {
            notify(notices, "the broker is back".to_owned());
        } else {
            // During the outage the host may connect, run the call and disconnect unnoticed.
            self.host_was_online.set(true);
            notify(notices, "the broker is away; waiting until it is back, Ctrl-C cancels".to_owned());
        }
    }

    /// Updates the host's presence. Returns whether the broker answered.
    async fn update_host(
        &self,
        client: &MultiplexedClient,
        host: &str,
        known: &mut KnownHosts,
        notices: &mpsc::Sender<String>,
    ) -> bool {
        let Ok(hosts) = client.client().hosts(known).await else { return false };
        *known = hosts.iter().map(|entry| (entry.id.to_string(), entry.version)).collect();
        let is_online = hosts.iter().any(|entry| &*entry.id == host && entry.online);
        if self.host_away.replace(!is_online) == is_online {
            match is_online {
                true => notify(notices, format!("{host} is back")),
                false if self.waits => {
                    notify(notices, format!("{host} is away; waiting until it is back, Ctrl-C cancels"))
                }
                false => notify(notices, format!("{host} is away")),
            }
        }
        if is_online {
            self.host_was_online.set(true);
        }
        true
    }
}

/// Drops the notice if the queue is full.
fn notify(notices: &mpsc::Sender<String>, notice: String) {
    notices.try_send(notice).ok();
}
