//! A call that waits for an absent host says so: at once and then every few seconds, as progress of the call.

use crate::bus::Hosts;
use crate::view::Upstream;
use serde_json::value::RawValue;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use toolbus_mcp::{Message, Notification, Raw, raw};

pub struct AwayWatch {
    hosts: watch::Receiver<Hosts>,
    host: String,
    /// Without a token nobody wants to hear of it.
    token: Option<Raw>,
    every: Duration,
    next: Option<Instant>,
    told: u32,
}

impl AwayWatch {
    pub fn new(hosts: watch::Receiver<Hosts>, upstream: &Upstream, token: Option<Raw>, every: Duration) -> Self {
        Self { hosts, host: upstream.host.clone(), token, every, next: None, told: 0 }
    }

    /// Since when the host is away, right now.
    pub fn away_since(&self) -> Option<u64> {
        let hosts = self.hosts.borrow();
        match hosts.iter().find(|host| host.name == self.host) {
            Some(host) => host.away_since_ms,
            None => Some(0),
        }
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
                    self.next = Some(at + self.every);
                    return self.progress(&token, since);
                }
                Ok(()) = self.hosts.changed() => {}
            }
        }
    }

    fn progress(&mut self, token: &RawValue, since: u64) -> Message {
        // Small steps, so that the server's own progress is not behind when it comes.
        let progress = f64::from(self.told) / 10_000.0;
        self.told += 1;
        let message = format!("queued: host {} is away since {}", self.host, when(since));
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

/// A time for people.
pub fn when(ms: u64) -> String {
    let at = i64::try_from(ms).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    at.filter(|_| ms > 0).map_or_else(|| "an unknown time".to_owned(), |at| at.to_string())
}
