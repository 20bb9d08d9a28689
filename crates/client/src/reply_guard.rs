//! Reports what became of replies: a host that has to know whether a reply was collected may ask the broker only after
//! the broker has it.

use bytestring::ByteString;
use std::sync::Arc;

/// The end of a reply's way to the broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplySettled {
    /// The mailbox that the reply was sent to.
    pub to: ByteString,
    /// The id of the request that it answers.
    pub request: ByteString,
    /// The broker did not accept the reply, so no caller got it.
    pub refused: bool,
}

/// Called for every reply, with the client's lock held: it must not block or call the client.
pub type ReplyListener = Arc<dyn Fn(ReplySettled) + Send + Sync>;

/// Reports a reply as refused when it is dropped without a receipt.
pub struct ReplyGuard {
    listener: ReplyListener,
    settled: Option<ReplySettled>,
}

impl ReplyGuard {
    pub fn new(listener: &ReplyListener, to: ByteString, request: ByteString) -> Self {
        let settled = Some(ReplySettled { to, request, refused: true });
        Self { listener: Arc::clone(listener), settled }
    }

    pub fn receipted(mut self) {
        if let Some(settled) = &mut self.settled {
            settled.refused = false;
        }
    }
}

impl Drop for ReplyGuard {
    fn drop(&mut self) {
        if let Some(settled) = self.settled.take() {
            (self.listener)(settled);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn a_reply_is_reported_once_as_receipted_or_refused() {
        let reports: Arc<Mutex<Vec<bool>>> = Arc::default();
        let listener: ReplyListener = {
            let reports = Arc::clone(&reports);
            Arc::new(move |settled| reports.lock().expect("no panic").push(settled.refused))
        };
        ReplyGuard::new(&listener, "w".into(), "1".into()).receipted();
        drop(ReplyGuard::new(&listener, "w".into(), "2".into()));
        assert_eq!(*reports.lock().expect("no panic"), [false, true]);
    }
}
