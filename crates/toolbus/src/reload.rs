//! Reloads toolbus.toml when it changes, and on SIGHUP. An invalid file is reported with the position of the error, and
//! the previous rules stay in force. Only rules and limits change at run time; other changes are reported as needing a
//! restart.

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

const POLL: Duration = Duration::from_millis(250);
/// A file that changed more recently than this may be half written.
const QUIET_PERIOD: Duration = Duration::from_millis(300);

/// Keeps the rules of a host current until the service stops.
pub async fn for_host(
    args: HostingArgs,
    config: Config,
    mode: Identities,
    policy: Arc<LivePolicy>,
    stop: CancellationToken,
) {
    let Some(file) = config.file.clone() else { return };
    let fixed = |config: &Config| (config.listen, config.data.clone(), config.name.clone(), config.servers.clone());
    let mut running = fixed(&config);
    let path = file.path.clone();
    watch_file(&path, stop, move || {
        let Some(config) = log_error(args.read_again(&file)) else { return };
        let now = fixed(&config);
        let changed = [
            ("listen", now.0 != running.0),
            ("data", now.1 != running.1),
            ("name", now.2 != running.2),
            ("servers", now.3 != running.3),
        ];
        warn_restart_needed(changed.iter().filter(|(_, changed)| *changed).map(|(key, _)| *key));
        // Warn once for each change.
        running = now;
        replace(&policy, mode.policy(config.policy), &config.warnings);
    })
    .await;
}

/// Keeps the message rules of a broker without a host current until the service stops.
pub async fn for_broker(local: LocalBroker, mode: Identities, policy: Arc<LivePolicy>, stop: CancellationToken) {
    let Some(file) = local.file.clone() else { return };
    let mut running = (local.listen, local.data);
    let path = file.path.clone();
    watch_file(&path, stop, move || {
        let Some(local) = log_error(LocalBroker::load_from(file.clone())) else { return };
        let changed = [("listen", local.listen != running.0), ("data", local.data != running.1)];
        warn_restart_needed(changed.iter().filter(|(_, changed)| *changed).map(|(key, _)| *key));
        running = (local.listen, local.data);
        replace(&policy, mode.policy(local.policy), &local.warnings);
    })
    .await;
}

fn log_error<T>(loaded: Result<T, ConfigFailure>) -> Option<T> {
    loaded
        .inspect_err(|failure| {
            tracing::error!("{failure}; the previous rules stay in force. hint: {}", failure.hint());
        })
        .ok()
}

fn warn_restart_needed<'a>(changed: impl Iterator<Item = &'a str>) {
    let changed: Vec<&str> = changed.collect();
    if !changed.is_empty() {
        tracing::warn!("changes of {} take effect after a restart", changed.join(", "));
    }
}

fn replace(policy: &LivePolicy, set: PolicySet, warnings: &[String]) {
    warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    // A truncated file can still be valid TOML, and a file without roles allows more than one with roles.
    if policy.current().has_own_roles() && !set.has_own_roles() {
        return tracing::error!(
            "the file no longer has any roles; the previous rules stay in force. hint: restart to run without roles"
        );
    }
    policy.replace(set);
    tracing::info!("reloaded the rules");
}

/// Calls `reload` when the file has changed and is complete, and on SIGHUP.
async fn watch_file(file: &Path, stop: CancellationToken, mut reload: impl FnMut()) {
    let mut hang_up = match signal(SignalKind::hangup()) {
        Ok(hang_up) => hang_up,
        Err(error) => return tracing::warn!(%error, "changes of {} won't be noticed", file.display()),
    };
    let mut poll = tokio::time::interval(POLL);
    poll.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut changes = ChangeDetector::new(Stamp::of(file));
    loop {
        tokio::select! {
            _ = poll.tick() => if changes.should_read(Stamp::of(file), Instant::now()) {
                reload();
            },
            // Not reloaded at once: the file may be half written.
            _ = hang_up.recv() => changes.forced = true,
            () = stop.cancelled() => return,
        }
    }
}

/// Metadata that changes with the content of a file. A missing file has none.
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

/// Detects changes of a file that have settled.
struct ChangeDetector {
    /// The version that was read last.
    read: Option<Stamp>,
    /// The version that was seen last, and since when.
    seen: Option<(Option<Stamp>, Instant)>,
    /// Read the file even if it is unchanged.
    forced: bool,
}

impl ChangeDetector {
    fn new(read: Option<Stamp>) -> Self {
        Self { read, seen: None, forced: false }
    }

    fn should_read(&mut self, stamp: Option<Stamp>, now: Instant) -> bool {
        if stamp == self.read && !self.forced {
            self.seen = None;
            return false;
        }
        match self.seen {
            Some((seen, since)) if seen == stamp => {
                let quiet = now.duration_since(since) >= QUIET_PERIOD;
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
    fn a_changed_file_is_read_once_after_the_quiet_period() {
        let begin = Instant::now();
        let mut changes = ChangeDetector::new(stamp(1));
        let mut at = |stamp, millis| changes.should_read(stamp, begin + Duration::from_millis(millis));
        assert!(!at(stamp(1), 0));
        assert!(!at(stamp(2), 250));
        assert!(!at(stamp(3), 500), "it is growing");
        assert!(!at(stamp(3), 750), "unchanged for 250 ms only");
        assert!(at(stamp(3), 1000));
        assert!(!at(stamp(3), 1250));
        assert!(!at(None, 1500));
        assert!(!at(stamp(3), 1750), "it was missing for a moment");
        assert!(!at(None, 2000));
        assert!(at(None, 2500), "a removed file is reported too");
        assert!(!at(None, 2750));
    }

    #[test]
    fn a_forced_read_waits_for_the_quiet_period() {
        let begin = Instant::now();
        let mut changes = ChangeDetector::new(stamp(1));
        changes.forced = true;
        let mut at = |stamp, millis| changes.should_read(stamp, begin + Duration::from_millis(millis));
        assert!(!at(stamp(1), 0) && !at(stamp(0), 250) && !at(stamp(1), 500), "it is being written");
        assert!(at(stamp(1), 800) && !at(stamp(1), 1200));
    }

    #[test]
    fn a_file_without_roles_does_not_replace_rules_with_roles() {
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
