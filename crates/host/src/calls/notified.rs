//! Decides which notifications of a server reach a client outside of its calls. They are asked about one by one, so that a
//! change of the rules applies to subscriptions that are open already.

use crate::host::Host;
use crate::translate::listen::RESOURCE_UPDATED;
use toolbus_mcp::{Members, Raw};
use toolbus_policy::{Arguments, Effect, Item, Question};

/// A notification of a server, and the role of the client that would get it.
pub struct Notified<'a> {
    pub role: Option<&'a str>,
    pub server: &'a str,
    pub method: &'a str,
    pub params: Option<&'a Raw>,
}

impl Host {
    /// For the sessions of legacy clients. A subscription may have been approved.
    pub fn may_notify(&self, notified: &Notified<'_>) -> bool {
        self.may_get(notified, &[Effect::Allow, Effect::Ask])
    }

    /// For listens, which are refused for resources under `ask`.
    pub fn may_listen(&self, notified: &Notified<'_>) -> bool {
        self.may_get(notified, &[Effect::Allow])
    }

    fn may_get(&self, notified: &Notified<'_>, effects: &[Effect]) -> bool {
        let Notified { role, server, method, params } = *notified;
        let policy = self.options.policy.current();
        if policy.is_everyone() {
            return true;
        }
        let text = |name: &str| Members::of(params).ok()?.text(name);
        let may = |item: Item<'_>, arguments: Arguments<'_>| {
            let decision = policy.decide(&Question { role, server, item, arguments });
            effects.contains(&decision.effect)
        };
        if !self.may_see(role, server) {
            return false;
        }
        if method == RESOURCE_UPDATED {
            return text("uri").is_some_and(|uri| may(Item::Resource(&uri), Arguments::Absent));
        }
        match text("taskId").and_then(|task| self.options.policy.task_owners.owner(server, &task)) {
            Some(owner) => may(Item::Tool(&owner.tool), Arguments::Unknown),
            None => true,
        }
    }
}
