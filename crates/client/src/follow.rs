//! Follows: notifications about peers and messages, without polling. They are renewed after a reconnect.

use crate::client::BrokerClient;
use crate::shared::Shared;
use crate::{BrokerError, BrokerResult};
use bytestring::ByteString;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::{oneshot, watch};
use toolbus_protocol::{ClientFrame, Follow as FollowFrame, Followed, MAX_INSPECTED, MessageRef, MsgId};

impl BrokerClient {
    /// Follows whether peers are connected and whether messages of this agent are uncollected. Takes at most
    /// [`MAX_INSPECTED`] peers and as many messages. Returns once the broker has answered; fails if it refuses, or does
    /// not answer within [`crate::ClientOptions::receipt_timeout`], as an older broker does.
    pub async fn follow(&self, peers: Vec<ByteString>, messages: Vec<MessageRef>) -> BrokerResult<Follow> {
        self.check_supports("follows")?;
        if peers.len().max(messages.len()) > MAX_INSPECTED {
            let reason = format!("more than {MAX_INSPECTED} peers or messages in one follow");
            return Err(BrokerError::Rejected { code: None, reason, id: None });
        }
        let frame = FollowFrame { request_id: MsgId::new().into_inner(), peers, messages };
        let (first_answer, answer) = oneshot::channel();
        let (state, changes) = watch::channel(FollowState::unknown(&frame));
        let follow = Follow { shared: Arc::clone(&self.shared), request_id: frame.request_id.clone(), changes };
        self.shared.change(|session| {
            if let Some(closed) = &session.closed {
                return Err(closed.clone());
            }
            session.send(ClientFrame::Follow(frame.clone()));
            let entry = FollowEntry { frame, state, first_answer: Some(first_answer) };
            session.follows.entries.insert(follow.request_id.clone(), entry);
            Ok(())
        })?;
        self.await_receipt(answer).await?;
        Ok(follow)
    }
}

/// A running follow. Dropping it ends it.
pub struct Follow {
    shared: Arc<Shared>,
    request_id: ByteString,
    changes: watch::Receiver<FollowState>,
}

impl Follow {
    /// Returns the current state, and then, on each call, the latest state once it differs from the last one. `None`
    /// when the client is closed, or when the broker refused the follow after a reconnect. Cancellation-safe.
    pub async fn changed(&mut self) -> Option<FollowState> {
        self.changes.changed().await.ok()?;
        Some(self.changes.borrow_and_update().clone())
    }
}

impl Drop for Follow {
    fn drop(&mut self) {
        self.shared.change(|session| {
            let request_id = self.request_id.clone();
            if session.follows.entries.remove(&request_id).is_some() {
                session.send(ClientFrame::Unfollow { request_id });
            }
        });
    }
}

/// The state of a [`Follow`], in the order of its request. All values are `None` while the connection is lost.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FollowState {
    /// Whether each peer is connected.
    pub peers: Vec<Option<bool>>,
    /// Whether each message is pending in its mailbox.
    pub uncollected: Vec<Option<bool>>,
}

impl FollowState {
    fn unknown(frame: &FollowFrame) -> Self {
        Self { peers: vec![None; frame.peers.len()], uncollected: vec![None; frame.messages.len()] }
    }
}

/// The follows of a session. They outlive connections.
#[derive(Default)]
pub struct Follows {
    entries: BTreeMap<ByteString, FollowEntry>,
}

struct FollowEntry {
    frame: FollowFrame,
    state: watch::Sender<FollowState>,
    first_answer: Option<oneshot::Sender<BrokerResult<()>>>,
}

impl FollowEntry {
    fn set(&self, state: FollowState) {
        self.state.send_if_modified(|current| {
            let is_new = *current != state;
            *current = state;
            is_new
        });
    }
}

impl Follows {
    /// On a new connection: returns frames that renew the follows.
    pub fn renew(&self) -> impl Iterator<Item = ClientFrame> {
        self.entries.values().map(|entry| ClientFrame::Follow(entry.frame.clone()))
    }

    pub fn connection_lost(&self) {
        self.entries.values().for_each(|entry| entry.set(FollowState::unknown(&entry.frame)));
    }

    pub fn reported(&mut self, followed: Followed) {
        let Some(entry) = self.entries.get_mut(&followed.request_id) else { return };
        let known = |values: Vec<bool>| values.into_iter().map(Some).collect();
        entry.set(FollowState { peers: known(followed.peers), uncollected: known(followed.uncollected) });
        entry.first_answer.take().into_iter().for_each(|first| drop(first.send(Ok(()))));
    }

    pub fn refused(&mut self, request_id: &ByteString, error: &BrokerError) {
        if let Some(first) = self.entries.remove(request_id).and_then(|entry| entry.first_answer) {
            first.send(Err(error.clone())).ok();
        }
    }

    /// Ends all follows.
    pub fn close(&mut self, error: &BrokerError) {
        for entry in std::mem::take(&mut self.entries).into_values() {
            entry.first_answer.into_iter().for_each(|first| drop(first.send(Err(error.clone()))));
        }
    }
}
