//! Whether the broker and a call's host are there while the call waits, in sentences for whoever waits too, and as
//! knowledge about what a missed deadline means.

use std::cell::Cell;
use std::convert::Infallible;
use std::time::Duration;
use tokio::sync::mpsc;
use toolbus_client::{KnownHosts, MultiplexedClient};

/// How often the connection is looked at: its loss rings no bell.
const LOOK: Duration = Duration::from_millis(250);

/// Sentences that wait to be said; there are two for every outage.
pub const SENTENCES: usize = 16;

pub struct Around {
    broker_away: Cell<bool>,
    host_away: Cell<bool>,
    /// Whether the call waits for a host that is away.
    waits: bool,
    /// Whether the host can have seen the call.
    host_was_there: Cell<bool>,
}

impl Around {
    pub fn new(host_online: bool, waits: bool) -> Self {
        Self {
            waits,
            broker_away: Cell::new(false),
            host_away: Cell::new(!host_online),
            host_was_there: Cell::new(host_online),
        }
    }

    pub fn broker_away(&self) -> bool {
        self.broker_away.get()
    }

    pub fn host_away(&self) -> bool {
        self.host_away.get()
    }

    /// Whether the host can't have run anything: it was away all the time.
    pub fn never_there(&self) -> bool {
        self.host_away.get() && !self.host_was_there.get()
    }

    /// Goes on as long as it is polled.
    pub async fn watch(&self, client: &MultiplexedClient, host: &str, say: &mpsc::Sender<String>) -> Infallible {
        let mut changes = client.client().watch_hosts();
        let mut known = KnownHosts::new();
        let mut is_stale = true;
        loop {
            self.look_at_broker(client.reader_alive(), say);
            if is_stale && !self.broker_away.get() {
                is_stale = !self.ask(client, host, &mut known, say).await;
            }
            tokio::select! {
                changed = changes.changed() => match changed {
                    Some(()) => is_stale = true,
                    None => return std::future::pending().await,
                },
                () = tokio::time::sleep(LOOK) => {}
            }
        }
    }

    fn look_at_broker(&self, is_there: bool, say: &mpsc::Sender<String>) {
        if self.broker_away.replace(!is_there) != is_there {
            return;
        }
        if is_there {
            tell(say, "the broker is back".to_owned());
        } else {
            // Meanwhile the host may come, do the work and go without our knowing.
            self.host_was_there.set(true);
            tell(say, "the broker is away; waiting until it is back, Ctrl-C gives up".to_owned());
        }
    }

    /// Whether the broker told.
    async fn ask(
        &self,
        client: &MultiplexedClient,
        host: &str,
        known: &mut KnownHosts,
        say: &mpsc::Sender<String>,
    ) -> bool {
        let Ok(hosts) = client.client().hosts(known).await else { return false };
        *known = hosts.iter().map(|entry| (entry.id.to_string(), entry.version)).collect();
        let is_there = hosts.iter().any(|entry| &*entry.id == host && entry.online);
        if self.host_away.replace(!is_there) == is_there {
            match is_there {
                true => tell(say, format!("{host} is back")),
                false if self.waits => tell(say, format!("{host} is away; waiting until it is back, Ctrl-C gives up")),
                false => tell(say, format!("{host} is away")),
            }
        }
        if is_there {
            self.host_was_there.set(true);
        }
        true
    }
}

/// A reader that is that far behind has enough to read.
fn tell(say: &mpsc::Sender<String>, sentence: String) {
    say.try_send(sentence).ok();
}
