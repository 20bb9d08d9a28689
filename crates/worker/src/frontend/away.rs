//! Absence of hosts during a call. A queued call sends progress notifications, immediately and then periodically; a
//! fail-fast call is notified that its host has disconnected.

use crate::bus::{Bus, Hosts};
use crate::view::Upstream;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use toolbus_mcp::{Message, Notification, Raw, raw};
use toolbus_protocol::Timestamp;

pub struct AwayWatch {
    bus: Arc<dyn Bus>,
    hosts: watch::Receiver<Hosts>,
    host: String,
    /// The call's id on the bus.
    call: String,
    /// The client's progress token. Without one, no progress is sent.
    token: Option<Raw>,
    every: Duration,
    next: Option<Instant>,
    notifications: u32,
}

impl AwayWatch {
    pub fn new(bus: Arc<dyn Bus>, upstream: &Upstream, call: &str, token: Option<Raw>, every: Duration) -> Self {
        let (host, call) = (upstream.host.clone(), call.to_owned());
        Self { hosts: bus.hosts(), bus, host, call, token, every, next: None, notifications: 0 }
    }

    /// Watches another host from now on, to which the call has moved.
    pub fn move_to(&mut self, upstream: &Upstream, call: &str) {
        (self.host, self.call, self.next) = (upstream.host.clone(), call.to_owned(), None);
    }

    /// When the host disconnected; `None` while it is connected.
    pub fn away_since(&self) -> Option<u64> {
        away_since(&self.hosts, &self.host)
    }

    /// The next progress notification. Pending while the host is connected, and forever without a progress token.
    pub async fn next_progress(&mut self) -> Message {
        let Some(token) = self.token.clone() else { return std::future::pending().await };
        loop {
            self.hosts.mark_unchanged();
            let Some(since) = self.away_since() else {
                self.next = None;
                // A closed bus ends the call itself.
                if self.hosts.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
                continue;
            };
            let at = *self.next.get_or_insert_with(Instant::now);
            tokio::select! {
                () = tokio::time::sleep_until(at) => {
                    let ahead = self.bus.ahead(&self.host, &self.call).await;
                    self.next = Some(at + self.every);
                    return self.progress(&token, since, ahead);
                }
                Ok(()) = self.hosts.changed() => {}
            }
        }
    }

    fn progress(&mut self, token: &Raw, since: u64, ahead: Option<u64>) -> Message {
        // Progress has to increase. Tiny steps keep it below the server's own progress, which follows.
        let progress = f64::from(self.notifications) / 10_000.0;
        self.notifications += 1;
        let position = ahead.map_or(String::new(), |ahead| format!(", position {}", ahead + 1));
        let message = format!("queued: host {} has been away since {}{position}", self.host, when(since));
        let progress = if self.notifications == 1 { raw(&0) } else { raw(&progress) };
        let params = format!(
            r#"{{"progressToken":{},"progress":{},"message":{}}}"#,
            token.get(),
            progress.get(),
            raw(&message).get()
        );
        let params = Raw::parse(params).expect("the format string makes a valid JSON object");
        Notification { method: "notifications/progress".into(), params: Some(params) }.into()
    }
}

/// Watches the host of a fail-fast call for disconnects.
pub struct Departures {
    hosts: watch::Receiver<Hosts>,
    host: String,
    was_away: bool,
}

impl Departures {
    pub fn new(hosts: watch::Receiver<Hosts>, upstream: &Upstream) -> Self {
        Self { hosts, host: upstream.host.clone(), was_away: false }
    }

    /// Resolves once per disconnect of the host.
    pub async fn next(&mut self) {
        loop {
            self.hosts.mark_unchanged();
            let is_away = away_since(&self.hosts, &self.host).is_some();
            if is_away && !std::mem::replace(&mut self.was_away, is_away) {
                return;
            }
            self.was_away = is_away;
            if self.hosts.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }
}

/// When the host disconnected; `None` while it is connected. An unknown host counts as away since 0.
pub fn away_since(hosts: &watch::Receiver<Hosts>, host: &str) -> Option<u64> {
    let hosts = hosts.borrow();
    hosts.iter().find(|entry| entry.name == host).map_or(Some(0), |entry| entry.away_since_ms)
}

/// A timestamp in RFC 3339, or a placeholder for 0.
pub fn when(ms: u64) -> String {
    if ms == 0 { "an unknown time".to_owned() } else { Timestamp::from_ms(ms).to_string() }
}
