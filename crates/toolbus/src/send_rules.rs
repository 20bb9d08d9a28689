//! The broker's rules for plain messages, taken from the policy.

use std::sync::Arc;
use toolbus_broker::{SendRules, Share};
use toolbus_host::LivePolicy;
use toolbus_identity::Authenticator;

pub struct PolicySendRules {
    pub policy: Arc<LivePolicy>,
    /// Looks up the roles of recipients.
    pub authenticator: Arc<dyn Authenticator>,
}

impl SendRules for PolicySendRules {
    fn may_message(&self, from_role: Option<&str>, _from_name: &str, to: &str) -> bool {
        self.policy.current().may_message(from_role, to, |name| self.authenticator.role_of(name))
    }

    fn may_message_any(&self, role: Option<&str>) -> bool {
        self.policy.current().may_message_any(role)
    }

    fn share(&self, role: Option<&str>) -> Option<Share> {
        self.policy.current().share(role)
    }
}
