//! Session order: the messages of one client session reach the server in the order of their arrival.
//!
//! A call keeps its position until it is sent or leaves the order. It takes permits only when its predecessors have
//! theirs, because a predecessor that waits for a permit of a successor would wait forever, and it is sent only when they
//! are sent. Its START need not wait for theirs to be synced, so that one sync can serve many calls of a session.

use crate::event::{CallNo, NotificationNo};
use crate::request::SessionKey;
use hashbrown::HashMap;
use std::collections::VecDeque;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Member {
    Call { call: CallNo, granted: bool },
    Notification { notification: NotificationNo, forwarded: bool },
}

/// The members of all sessions that have not been sent yet.
#[derive(Debug, Default)]
pub(crate) struct SessionOrders {
    sessions: HashMap<SessionKey, VecDeque<Member>>,
    notifications: HashMap<NotificationNo, SessionKey>,
}

impl SessionOrders {
    /// Adds a call at the end.
    pub fn push(&mut self, session: SessionKey, call: CallNo) {
        self.sessions.entry(session).or_default().push_back(Member::Call { call, granted: false });
    }

    pub fn push_notification(&mut self, session: SessionKey, notification: NotificationNo) {
        self.notifications.insert(notification, session.clone());
        let member = Member::Notification { notification, forwarded: false };
        self.sessions.entry(session).or_default().push_back(member);
    }

    /// Whether all predecessors have their permits.
    pub fn may_take_permits(&self, session: &SessionKey, call: CallNo) -> bool {
        let members = self.sessions.get(session).into_iter().flatten();
        let mut before = members.take_while(|member| !matches!(member, Member::Call { call: it, .. } if *it == call));
        before.all(|member| matches!(member, Member::Call { granted: true, .. } | Member::Notification { .. }))
    }

    pub fn set_granted(&mut self, session: &SessionKey, call: CallNo) {
        for member in self.sessions.get_mut(session).into_iter().flatten() {
            if let Member::Call { call: it, granted } = member
                && *it == call
            {
                *granted = true;
            }
        }
    }

    /// Whether all predecessors are sent.
    pub fn is_first(&self, session: &SessionKey, call: CallNo) -> bool {
        let first = self.sessions.get(session).and_then(VecDeque::front);
        first.is_none_or(|member| matches!(member, Member::Call { call: it, .. } if *it == call))
    }

    /// Whether the call has a position.
    pub fn contains(&self, session: &SessionKey, call: CallNo) -> bool {
        let mut members = self.sessions.get(session).into_iter().flatten();
        members.any(|member| matches!(member, Member::Call { call: it, .. } if *it == call))
    }

    /// Takes a call out of the order. Returns whether it was in it.
    pub fn remove(&mut self, session: &SessionKey, call: CallNo) -> bool {
        self.remove_if(session, |member| matches!(member, Member::Call { call: it, .. } if *it == call))
    }

    /// Takes a notification out of the order; returns its session.
    pub fn remove_notification(&mut self, notification: NotificationNo) -> Option<SessionKey> {
        let session = self.notifications.remove(&notification)?;
        self.remove_if(
            &session,
            |member| matches!(member, Member::Notification { notification: it, .. } if *it == notification),
        );
        Some(session)
    }

    fn remove_if(&mut self, session: &SessionKey, is_it: impl Fn(&Member) -> bool) -> bool {
        let Some(members) = self.sessions.get_mut(session) else { return false };
        let before = members.len();
        members.retain(|member| !is_it(member));
        let removed = members.len() < before;
        if members.is_empty() {
            self.sessions.remove(session);
        }
        removed
    }

    /// The notification to forward now: the first member, once.
    pub fn next_notification(&mut self, session: &SessionKey) -> Option<NotificationNo> {
        match self.sessions.get_mut(session)?.front_mut()? {
            Member::Notification { notification, forwarded } if !*forwarded => {
                *forwarded = true;
                Some(*notification)
            }
            _ => None,
        }
    }

    /// The calls of a session that may go on: the first one, which may be sent, and the first one without permits. All
    /// others have to wait for one of them. A session can have very many calls, so they are not all asked.
    pub fn next_calls(&self, session: &SessionKey) -> impl Iterator<Item = CallNo> + use<> {
        let members = self.sessions.get(session).into_iter().flatten();
        let first = members.clone().next().and_then(|member| match member {
            Member::Call { call, .. } => Some(*call),
            Member::Notification { .. } => None,
        });
        let without_permits = members.clone().find_map(|member| match member {
            Member::Call { call, granted: false } => Some(*call),
            Member::Call { .. } | Member::Notification { .. } => None,
        });
        first.into_iter().chain(without_permits.filter(|call| Some(*call) != first))
    }

    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }
}
