//! What connections and servers ask of the embedded mailboxes.

use super::{BrokerCore, abort_after_panic};
use crate::backend::Backend;
use crate::directory::HostDirectory;
use crate::error::BrokerError;
use crate::subscription;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use toolbus_audit::AuditLog;
use toolbus_base::{BoxFuture, principal_of};
use toolbus_engine::{Command, ConnId, Mailboxes, Names, Outbox, Outgoing, Peer, Window};
use toolbus_identity::{Agents, Identity};

impl Backend for BrokerCore {
    fn identity(&self) -> &str {
        &self.identity
    }

    fn hosts(&self) -> Arc<dyn HostDirectory> {
        BrokerCore::hosts(self)
    }

    fn window(&self, host: bool) -> Window {
        self.shared.lock().engine.options().window(host)
    }

    fn set_names(&self, names: Arc<dyn Names>) {
        BrokerCore::set_names(self, names);
    }

    fn is_current(&self, identity: &Identity) -> bool {
        self.generations.is_current(identity.principal(), identity.incarnation)
    }

    fn update_agents(&self, agents: &Agents, is_excepted: &dyn Fn(&str) -> bool, audit: Option<&AuditLog>) -> bool {
        BrokerCore::update_agents(self, agents, is_excepted, audit)
    }

    fn unready(&self) -> Option<String> {
        let is_low = self.shared.lock().engine.disk_low();
        is_low.then(|| "the disk is nearly full; new messages are refused".into())
    }

    fn has_failed(&self) -> bool {
        BrokerCore::has_failed(self)
    }

    fn failed(&self) -> BoxFuture<'_, BrokerError> {
        Box::pin(BrokerCore::failed(self))
    }

    fn drain(&self, limit: Duration) -> BoxFuture<'_, ()> {
        Box::pin(BrokerCore::drain(self, limit))
    }

    fn set_served(&self, is_served: bool) {
        self.abandoned.store(!is_served, Ordering::Relaxed);
    }
}

impl Mailboxes for BrokerCore {
    fn attach(&self, peer: Peer, outbox: Arc<dyn Outbox>) -> ConnId {
        let (name, incarnation) = (peer.name.clone(), peer.incarnation);
        let conn = {
            let mut state = self.shared.lock();
            let conn = state.engine.connect(self.shared.clock.now(), peer);
            state.dispatcher.attach(conn, Arc::clone(&outbox));
            conn
        };
        // Another broker of a cluster may know a change of the agents earlier or later.
        if !self.generations.is_current(principal_of(&name), incarnation) {
            self.detach(conn);
            outbox.deliver(&mut vec![Outgoing::Moved]);
            return conn;
        }
        self.shared.step(|engine, _, effects| engine.notify_followers(effects));
        conn
    }

    fn submit(&self, conn: ConnId, commands: &mut Vec<Command>) {
        if self.has_failed() {
            commands.clear();
            return;
        }
        if commands.iter().any(|command| matches!(command, Command::Claim { .. } | Command::Subscribe)) {
            return self.submit_in_order(conn, commands);
        }
        self.shared.submit(conn, commands.drain(..));
    }

    fn detach(&self, conn: ConnId) {
        self.claimed.lock().unwrap_or_else(|_| abort_after_panic()).remove(&conn);
        self.shared.step(|engine, now, effects| engine.disconnect(now, conn, effects));
        self.shared.lock().dispatcher.detach(conn);
    }

    fn congested(&self) -> bool {
        self.shared.lock().engine.congested()
    }
}

impl BrokerCore {
    /// Carries out claims and subscriptions, which the engine alone can't, in order with the other commands.
    fn submit_in_order(&self, conn: ConnId, commands: &mut Vec<Command>) {
        for command in commands.drain(..) {
            let claimed = || self.claimed.lock().unwrap_or_else(|_| abort_after_panic());
            match command {
                Command::Claim { claim } => {
                    let Some(mailbox) = self.shared.lock().engine.claimant(conn) else { continue };
                    // The write is awaited before the subscription.
                    drop(subscription::claim(&self.shared, &self.claims, &mailbox, (*claim).clone()));
                    claimed().insert(conn, (mailbox, *claim));
                }
                Command::Subscribe => {
                    let claim = claimed().get(&conn).cloned();
                    match claim {
                        Some((mailbox, claim)) => {
                            subscription::subscribe(&self.shared, &self.claims, conn, mailbox, claim);
                        }
                        None => self.shared.submit(conn, [Command::Subscribe]),
                    }
                }
                command => self.shared.submit(conn, [command]),
            }
        }
    }
}
