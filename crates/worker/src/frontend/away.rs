//! A call that waits for an absent host says so: at once and then every few seconds, as progress of the call. One that is
//! not to wait finds out here that its host has left.

use crate::bus::{Bus, Hosts};
use crate::view::Upstream;
use serde_json::value::RawValue;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use toolbus_mcp::{Message, Notification, Raw, raw};

pub struct AwayWatch {
    bus: Arc<dyn Bus>,
    hosts: watch::Receiver<Hosts>,
    host: String,
    /// The call's id on the bus.
    call: String,
    /// Without a token nobody wants to hear of it.
    token: Option<Raw>,
    every: Duration,
    /// When the call was made, in milliseconds since 1970.
    began: u64,
    next: Option<Instant>,
    told: u32,
}

impl AwayWatch {
    pub fn new(bus: Arc<dyn Bus>, upstream: &Upstream, call: &str, token: Option<Raw>, every: Duration) -> Self {
        let (host, call) = (upstream.host.clone(), call.to_owned());
        let began = u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or_default();
        Self { hosts: bus.hosts(), bus, host, call, token, every, began, next: None, told: 0 }
    }

    /// Since when the host is away, if it was so already when the call was made. One that left later may have run it.
    pub fn away_all_along(&self) -> Option<u64> {
        self.away_since().filter(|since| *since <= self.began)
    }

    /// Since when the host is away, right now.
    pub fn away_since(&self) -> Option<u64> {
        away_since(&self.hosts, &self.host)
    }

    /// The next thing to tell. Ends only while the host is away and somebody wants to hear of it.
    pub async fn news(&mut self) -> Message {
        let Some(token) = self.token.clone() else { return std::future::pending().await };
        loop {
            self.hosts.mark_unchanged();
            let Some(since) = self.away_since() else {
                self.next = None;
                // A bus that is gone for good changes no more; the call itself ends then.
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

    fn progress(&mut self, token: &RawValue, since: u64, ahead: Option<u64>) -> Message {
        // Small steps, so that the server's own progress is not behind when it comes.
        let progress = f64::from(self.told) / 10_000.0;
        self.told += 1;
        let position = ahead.map_or(String::new(), |ahead| format!(", position {}", ahead + 1));
        let message = format!("queued: host {} is away since {}{position}", self.host, when(since));
        let progress = if self.told == 1 { raw(&0) } else { raw(&progress) };
        let params = format!(
            r#"{{"progressToken":{},"progress":{},"message":{}}}"#,
            token.get(),
            progress.get(),
            raw(&message).get()
        );
        let params = RawValue::from_string(params).expect("three members make an object");
        Notification { method: "notifications/progress".into(), params: Some(params) }.into()
    }
}

/// Tells when the host of a call that is not to wait has left.
pub struct Departures {
    hosts: watch::Receiver<Hosts>,
    host: String,
    was_away: bool,
}

impl Departures {
    pub fn new(hosts: watch::Receiver<Hosts>, upstream: &Upstream) -> Self {
        Self { hosts, host: upstream.host.clone(), was_away: false }
    }

    /// Resolves once for each time that the host is away.
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

/// Since when that host is away, if it is. One that is not known was never there.
pub fn away_since(hosts: &watch::Receiver<Hosts>, host: &str) -> Option<u64> {
    let hosts = hosts.borrow();
    hosts.iter().find(|entry| entry.name == host).map_or(Some(0), |entry| entry.away_since_ms)
}

/// A time for people.
pub fn when(ms: u64) -> String {
    let at = i64::try_from(ms).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    at.filter(|_| ms > 0).map_or_else(|| "an unknown time".to_owned(), |at| at.to_string())
}
