//! What a host learns from the broker about callers: answers to its questions, and follows. Both outlive links: they are
//! sent again on the next one. A broker without `follow` is asked from time to time instead.

use super::World;
use bytestring::ByteString;
use std::collections::{BTreeMap, BTreeSet};
use toolbus_call::{AskNo, CallNo, Effect, Event, Inspected};
use toolbus_engine::{Command, Follow, FollowView, Inspect, InspectView, MessageAt};

/// The questions and follows of a process.
#[derive(Default)]
pub struct Callers {
    /// Questions without an answer, by request id.
    asks: BTreeMap<ByteString, (CallNo, AskNo, Inspect)>,
    /// The last answered question that named a mailbox.
    pub inspected: BTreeMap<ByteString, ByteString>,
    /// What the broker reported last about each followed caller; `None` while the link is lost.
    followed: BTreeMap<ByteString, Option<bool>>,
    /// Followed callers with news for the machine, which gets only the latest.
    changed: BTreeSet<ByteString>,
    /// The last question about all followed callers to a broker without `follow`.
    poll: Option<(ByteString, Vec<ByteString>)>,
}

impl Callers {
    fn report(&mut self, caller: &ByteString, connected: Option<bool>) {
        if let Some(known) = self.followed.get_mut(caller) {
            *known = connected;
            self.changed.insert(caller.clone());
        }
    }

    /// The link is lost.
    pub fn link_lost(&mut self) {
        self.poll = None;
        self.followed.values_mut().for_each(|known| *known = None);
        self.changed.extend(self.followed.keys().cloned());
    }
}

impl World {
    pub fn inspect(&mut self, host: usize, call: CallNo, ask: AskNo, inspect: Inspect) {
        let id = ByteString::from(format!("inspect-{}", self.fresh_id()));
        let (peers, replies) = (inspect.peers.len() as u64, inspect.messages.len() as u64);
        self.note("inspect", &[("host", host as u64), ("ask", ask.0), ("peers", peers), ("replies", replies)]);
        let Some(process) = self.process(host) else { return };
        process.callers.asks.insert(id.clone(), (call, ask, inspect.clone()));
        let conn = self.hosts[host].conn;
        self.send(conn, Command::Inspect { request_id: id, inspect: Box::new(inspect) });
    }

    pub fn follow(&mut self, host: usize, caller: ByteString) {
        let Some(process) = self.process(host) else { return };
        process.callers.followed.insert(caller.clone(), None);
        if process.callers.followed.len() > process.calls.len() + 1 {
            self.oracle.violated("a host follows more callers than it has calls");
        }
        self.send_follow(host, caller);
    }

    fn send_follow(&mut self, host: usize, caller: ByteString) {
        if self.plan.follows {
            let follow = Box::new(Follow { peers: vec![caller.clone()], messages: Vec::new() });
            self.send(self.hosts[host].conn, Command::Follow { request_id: caller, follow });
        }
    }

    pub fn unfollow(&mut self, host: usize, caller: ByteString) {
        let Some(process) = self.process(host) else { return };
        process.callers.changed.remove(&caller);
        if process.callers.followed.remove(&caller).is_none() {
            self.oracle.violated("a caller that was not followed is unfollowed");
        }
        if self.plan.follows {
            self.send(self.hosts[host].conn, Command::Unfollow { request_id: caller });
        }
    }

    /// On a new link: asks and follows again. Questions of calls that ended are dropped.
    pub fn ask_again(&mut self, host: usize) {
        let Some(process) = self.process(host) else { return };
        process.callers.asks.retain(|_, (call, ..)| process.machine.view(*call).is_some());
        let asks: Vec<_> =
            process.callers.asks.iter().map(|(id, (.., inspect))| (id.clone(), inspect.clone())).collect();
        let followed: Vec<ByteString> = process.callers.followed.keys().cloned().collect();
        let conn = self.hosts[host].conn;
        for (request_id, inspect) in asks {
            self.send(conn, Command::Inspect { request_id, inspect: Box::new(inspect) });
        }
        followed.into_iter().for_each(|caller| self.send_follow(host, caller));
    }

    /// Asks a broker without `follow` about all followed callers.
    pub fn poll_callers(&mut self, host: usize) {
        let id = ByteString::from(format!("inspect-{}", self.fresh_id()));
        let conn = self.hosts[host].conn;
        let Some(process) = self.process(host) else { return };
        let peers: Vec<ByteString> = process.callers.followed.keys().cloned().collect();
        if peers.is_empty() || conn.is_none() {
            return;
        }
        process.callers.poll = Some((id.clone(), peers.clone()));
        let inspect = Inspect { peers, messages: Vec::new(), rows_of: None };
        self.send(conn, Command::Inspect { request_id: id, inspect: Box::new(inspect) });
    }

    pub fn host_followed(&mut self, host: usize, caller: &ByteString, view: &FollowView) {
        self.note("followed", &[("host", host as u64), ("connected", u64::from(view.peers.contains(&true)))]);
        if let Some(process) = self.process(host) {
            process.callers.report(caller, view.peers.first().copied());
        }
    }

    pub fn inspection_answered(&mut self, host: usize, id: &ByteString, view: InspectView) {
        let Some(process) = self.process(host) else { return };
        if let Some((_, callers)) = process.callers.poll.take_if(|(poll, _)| poll == id) {
            let reports = callers.iter().zip(view.peers);
            return reports.for_each(|(caller, connected)| process.callers.report(caller, Some(connected)));
        }
        let Some((call, ask, inspect)) = process.callers.asks.remove(id) else { return };
        process.callers.inspected.extend(inspect.peers.into_iter().map(|peer| (peer, id.clone())));
        // The simulated broker remembers all settled messages.
        let found = view.messages.iter().zip(&view.settled);
        let uncollected: Vec<bool> =
            found.map(|(position, settled)| Inspected::is_uncollected(position.is_some(), *settled, true)).collect();
        let count = |of: &[bool]| of.iter().filter(|it| **it).count() as u64;
        let (connected, kept) = (count(&view.peers), count(&uncollected));
        let facts = [("host", host as u64), ("ask", ask.0), ("connected", connected), ("uncollected", kept)];
        self.note("inspected", &facts);
        let view = Inspected { connected: view.peers, uncollected };
        self.feed(host, Event::Inspected { call, ask, view });
    }

    /// Gives the machine the latest news about one caller. Returns whether there was any.
    pub fn report_caller(&mut self, host: usize) -> bool {
        let Some(process) = self.process(host) else { return false };
        let Some(caller) = process.callers.changed.pop_first() else { return false };
        let connected = process.callers.followed.get(&caller).copied().flatten();
        self.feed(host, Event::Followed { caller, connected });
        true
    }

    /// No call is cancelled as an orphan when its caller was reported as connected.
    pub fn check_orphans(&mut self, host: usize, effects: &[Effect<super::wire::Outcome>]) {
        let Some(process) = self.hosts[host].process.as_ref() else { return };
        let is_orphan = |effect: &&Effect<_>| matches!(effect, Effect::CancelAtServer { reason: Some(reason), .. } if reason == "the caller is gone");
        for effect in effects.iter().filter(is_orphan) {
            let Effect::CancelAtServer { call, .. } = effect else { continue };
            let Some(key) = process.calls.get(call).map(|call| &call.key) else { continue };
            let callers = &process.callers;
            if callers.followed.get(&key.caller) == Some(&Some(true)) && !callers.changed.contains(&key.caller) {
                self.oracle.violated(format!("{} was cancelled as an orphan of a connected caller", key.id));
                return;
            }
        }
    }
}

/// A question as the broker gets it.
pub fn question(peers: Vec<ByteString>, replies: Vec<(ByteString, ByteString)>) -> Inspect {
    let messages = replies.into_iter().map(|(to, id)| MessageAt { to, id }).collect();
    Inspect { peers, messages, rows_of: None }
}
