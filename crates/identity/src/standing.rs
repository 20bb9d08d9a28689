//! How long an identity holds: until its credential expires or is taken back.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};
use tokio_util::sync::CancellationToken;

/// Why an identity stopped to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndReason {
    Expired,
    Revoked,
}

/// The longest sleep before the clock is looked at again: it may be set.
const LONGEST_SLEEP: Duration = Duration::from_secs(30);

/// Shared by all connections of one credential. Whoever keeps credentials ends it.
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
    pub fn forever() -> Self {
        Self { shared: Arc::default(), expires: None }
    }

    pub fn until(expires: SystemTime) -> Self {
        Self { shared: Arc::default(), expires: Some(expires) }
    }

    /// Whether the two end together.
    pub fn is_same_as(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared) && self.expires == other.expires
    }

    pub fn expires(&self) -> Option<SystemTime> {
        self.expires
    }

    /// Ends it for everybody who has it, at once.
    pub fn end(&self, reason: EndReason) {
        // The first reason counts.
        self.shared.reason.set(reason).ok();
        self.shared.ended.cancel();
    }

    /// Why it no longer holds, if it doesn't.
    pub fn ended(&self) -> Option<EndReason> {
        if self.shared.ended.is_cancelled() {
            return Some(self.shared.reason.get().copied().unwrap_or(EndReason::Revoked));
        }
        self.expires.filter(|expires| *expires <= SystemTime::now()).map(|_| EndReason::Expired)
    }

    /// Resolves when it no longer holds.
    pub async fn wait(&self) -> EndReason {
        loop {
            if let Some(reason) = self.ended() {
                return reason;
            }
            let left = self.expires.map(|expires| expires.duration_since(SystemTime::now()).unwrap_or_default());
            let sleep = async {
                match left {
                    // A little later, so that the clock has passed the moment when it is looked at.
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
    async fn it_ends_once_for_all_who_share_it() {
        let standing = Standing::forever();
        let other = standing.clone();
        assert_eq!(other.ended(), None);
        standing.end(EndReason::Revoked);
        assert_eq!(other.wait().await, EndReason::Revoked);
        standing.end(EndReason::Expired);
        assert_eq!(other.ended(), Some(EndReason::Revoked));
    }

    #[tokio::test]
    async fn it_ends_by_itself_when_its_time_is_over() {
        let standing = Standing::until(SystemTime::now() + Duration::from_millis(20));
        assert_eq!(standing.ended(), None);
        assert_eq!(standing.wait().await, EndReason::Expired);
    }
}
