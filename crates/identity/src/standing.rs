//! The validity of an identity: it ends when its credential expires or is revoked.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};
use tokio_util::sync::CancellationToken;

/// Why an identity is no longer valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndReason {
    /// The credential expired.
    Expired,
    /// The credential was revoked or replaced.
    Revoked,
}

/// Longest sleep before the system clock is read again, since it may be adjusted.
const LONGEST_SLEEP: Duration = Duration::from_secs(30);

/// The validity of one credential, shared by all its connections. Ended by the authenticator.
#[derive(Debug, Clone)]
pub struct Standing {
    shared: Arc<Shared>,
    expires: Option<SystemTime>,
}

#[derive(Debug, Default)]
struct Shared {
    ended: CancellationToken,
    reason: OnceLock<EndReason>,
}

impl Standing {
    /// Valid until ended.
    pub fn forever() -> Self {
        Self { shared: Arc::default(), expires: None }
    }

    /// Valid until `expires`, or until ended.
    pub fn until(expires: SystemTime) -> Self {
        Self { shared: Arc::default(), expires: Some(expires) }
    }

    /// The same validity with another expiry time. Clones made before keep theirs.
    pub(crate) fn with_expiry(&self, expires: Option<SystemTime>) -> Self {
        Self { shared: Arc::clone(&self.shared), expires }
    }

    /// Whether both share one state and expiry time.
    pub fn is_same_as(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared) && self.expires == other.expires
    }

    /// The expiry time, if there is one.
    pub fn expires(&self) -> Option<SystemTime> {
        self.expires
    }

    /// Ends the validity for all holders immediately. Returns false if it was ended before.
    pub fn end(&self, reason: EndReason) -> bool {
        // The first reason wins.
        let is_first = self.shared.reason.set(reason).is_ok();
        self.shared.ended.cancel();
        is_first
    }

    /// Returns the reason if it is no longer valid.
    pub fn ended(&self) -> Option<EndReason> {
        if self.shared.ended.is_cancelled() {
            return Some(self.shared.reason.get().copied().unwrap_or(EndReason::Revoked));
        }
        self.expires.filter(|expires| *expires <= SystemTime::now()).map(|_| EndReason::Expired)
    }

    /// Resolves when it is no longer valid.
    pub async fn wait(&self) -> EndReason {
        loop {
            if let Some(reason) = self.ended() {
                return reason;
            }
            let left = self.expires.map(|expires| expires.duration_since(SystemTime::now()).unwrap_or_default());
            let sleep = async {
                match left {
                    // Slightly longer, so that the clock has passed the expiry time when it is read again.
                    Some(left) => tokio::time::sleep(left.min(LONGEST_SLEEP) + Duration::from_millis(1)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.shared.ended.cancelled() => {}
                () = sleep => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn ending_it_applies_to_all_clones_and_the_first_reason_wins() {
        let standing = Standing::forever();
        let other = standing.clone();
        assert_eq!(other.ended(), None);
        standing.end(EndReason::Revoked);
        assert_eq!(other.wait().await, EndReason::Revoked);
        standing.end(EndReason::Expired);
        assert_eq!(other.ended(), Some(EndReason::Revoked));
    }

    #[tokio::test]
    async fn it_ends_at_its_expiry_time() {
        let standing = Standing::until(SystemTime::now() + Duration::from_millis(20));
        assert_eq!(standing.ended(), None);
        assert_eq!(standing.wait().await, EndReason::Expired);
    }
}
