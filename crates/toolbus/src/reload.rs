//! Reads toolbus.toml again when it changes, or on SIGHUP. A file that can't be used is reported with its place,
//! and the last good one stays in force. Only rules and limits change at run time; what else was changed is said.

use crate::config::{Config, ConfigFailure, LocalBroker};
use crate::hosting::{HostingArgs, Identities};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use toolbus_host::LivePolicy;
use toolbus_policy::PolicySet;

const LOOK_EVERY: Duration = Duration::from_millis(250);
/// A file that was changed less than this ago may be half written.
const QUIET: Duration = Duration::from_millis(300);

/// For a host. Ends with the service.
pub async fn of_host(
    args: HostingArgs,
    config: Config,
    mode: Identities,
    policy: Arc<LivePolicy>,
    stop: CancellationToken,
) {
    let Some(file) = config.file.clone() else { return };
    let fixed = |config: &Config| (config.listen, config.data.clone(), config.name.clone(), config.servers.clone());
    let mut running = fixed(&config);
    let path = file.clone();
    keep_current(&file, stop, move || {
        let Some(config) = reported(args.read_again(&path)) else { return };
        let now = fixed(&config);
        let changed = [
            ("listen", now.0 != running.0),
            ("data", now.1 != running.1),
            ("name", now.2 != running.2),
            ("servers", now.3 != running.3),
        ];
        say_fixed(changed.iter().filter(|(_, changed)| *changed).map(|(key, _)| *key));
        // Said once for each change.
        running = now;
        replace(&policy, mode.policy(config.policy), &config.warnings);
    })
    .await;
}

/// For a broker without a host: the rules for messages.
pub async fn of_broker(local: LocalBroker, mode: Identities, policy: Arc<LivePolicy>, stop: CancellationToken) {
    let Some(file) = local.file.clone() else { return };
    let mut running = (local.listen, local.data);
    let path = file.clone();
    keep_current(&file, stop, move || {
        let Some(local) = reported(LocalBroker::load(Some(&path))) else { return };
        let changed = [("listen", local.listen != running.0), ("data", local.data != running.1)];
        say_fixed(changed.iter().filter(|(_, changed)| *changed).map(|(key, _)| *key));
        running = (local.listen, local.data);
        replace(&policy, mode.policy(local.policy), &local.warnings);
    })
    .await;
}

fn reported<T>(loaded: Result<T, ConfigFailure>) -> Option<T> {
    loaded
        .inspect_err(|failure| {
            tracing::error!("{failure}; the rules that were read before stay in force. hint: {}", failure.hint());
        })
        .ok()
}

fn say_fixed<'a>(changed: impl Iterator<Item = &'a str>) {
    let changed: Vec<&str> = changed.collect();
    if !changed.is_empty() {
        tracing::warn!("what was changed under {} counts from the next start on", changed.join(", "));
    }
}

fn replace(policy: &LivePolicy, set: PolicySet, warnings: &[String]) {
    warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    // A file that was emptied or cut short is still TOML, and without roles more is allowed than with them.
    if policy.current().has_own_roles() && !set.has_own_roles() {
        return tracing::error!(
            "the file names no roles any more; the rules that were read before stay in force. hint: to go without roles, restart"
        );
    }
    policy.replace(set);
    tracing::info!("the rules were read again and are in force");
}

/// Calls back whenever the file may be worth reading.
async fn keep_current(file: &Path, stop: CancellationToken, mut reload: impl FnMut()) {
    let mut hang_up = match signal(SignalKind::hangup()) {
        Ok(hang_up) => hang_up,
        Err(error) => return tracing::warn!(%error, "changes of {} won't be seen", file.display()),
    };
    let mut look = tokio::time::interval(LOOK_EVERY);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut changes = Changes::new(Stamp::of(file));
    loop {
        tokio::select! {
            _ = look.tick() => if changes.worth_reading(Stamp::of(file), Instant::now()) {
                reload();
            },
            // Also then it may be half written.
            _ = hang_up.recv() => changes.asked = true,
            () = stop.cancelled() => return,
        }
    }
}

/// What changes with a file. None where it is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    inode: (u64, u64),
    modified: (i64, i64),
    changed: (i64, i64),
    size: u64,
}

impl Stamp {
    fn of(file: &Path) -> Option<Self> {
        let of = |metadata: Metadata| Self {
            inode: (metadata.dev(), metadata.ino()),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
            size: metadata.size(),
        };
        std::fs::metadata(file).ok().map(of)
    }
}

/// Tells when a change is over.
struct Changes {
    read: Option<Stamp>,
    /// What was seen last, and since when.
    seen: Option<(Option<Stamp>, Instant)>,
    /// It is to be read even if it is the same.
    asked: bool,
}

impl Changes {
    fn new(read: Option<Stamp>) -> Self {
        Self { read, seen: None, asked: false }
    }

    fn worth_reading(&mut self, stamp: Option<Stamp>, now: Instant) -> bool {
        if stamp == self.read && !self.asked {
            self.seen = None;
            return false;
        }
        match self.seen {
            Some((seen, since)) if seen == stamp => {
                let quiet = now.duration_since(since) >= QUIET;
                if quiet {
                    *self = Self::new(stamp);
                }
                quiet
            }
            _ => {
                self.seen = Some((stamp, now));
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(size: u64) -> Option<Stamp> {
        Some(Stamp { inode: (1, 1), modified: (1, 1), changed: (1, 1), size })
    }

    #[test]
    fn a_file_is_read_when_it_has_been_quiet_and_once_for_each_change() {
        let begin = Instant::now();
        let mut changes = Changes::new(stamp(1));
        let mut at = |stamp, millis| changes.worth_reading(stamp, begin + Duration::from_millis(millis));
        assert!(!at(stamp(1), 0));
        assert!(!at(stamp(2), 250));
        assert!(!at(stamp(3), 500), "it grows");
        assert!(!at(stamp(3), 750), "it has been quiet for 250 ms");
        assert!(at(stamp(3), 1000));
        assert!(!at(stamp(3), 1250));
        assert!(!at(None, 1500));
        assert!(!at(stamp(3), 1750), "it was gone for a moment");
        assert!(!at(None, 2000));
        assert!(at(None, 2500), "its absence is worth a word too");
        assert!(!at(None, 2750));
    }

    #[test]
    fn a_file_is_read_on_demand_once_it_is_quiet() {
        let begin = Instant::now();
        let mut changes = Changes::new(stamp(1));
        changes.asked = true;
        let mut at = |stamp, millis| changes.worth_reading(stamp, begin + Duration::from_millis(millis));
        assert!(!at(stamp(1), 0) && !at(stamp(0), 250) && !at(stamp(1), 500), "it is being written");
        assert!(at(stamp(1), 800) && !at(stamp(1), 1200));
    }

    #[test]
    fn rules_are_not_replaced_by_a_file_that_lost_its_roles() {
        let read = |text: &str| PolicySet::read(text).expect("rules").0;
        let policy = LivePolicy::new(read("[roles.reader]\nallow = ['a']"));
        replace(&policy, read(""), &[]);
        assert!(policy.current().has_own_roles());
        replace(&policy, read("").for_shared_token(), &[]);
        assert!(policy.current().has_own_roles());
        replace(&policy, read("[roles.other]\nallow = ['a']"), &[]);
        assert_eq!(policy.current().named_roles().collect::<Vec<_>>(), ["other"]);
    }
}
