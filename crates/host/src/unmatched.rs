//! Warns the operator of policy patterns that match nothing, once the lists of all servers are known.

use crate::host::Host;
use std::collections::HashSet;
use toolbus_policy::PolicySet;

/// Maximum warnings at a time.
const MAX_WARNINGS: usize = 20;

/// Remembers previous warnings, so that they are not repeated when lists change.
#[derive(Default)]
pub struct Unmatched {
    warned: HashSet<String>,
}

impl Unmatched {
    pub fn warn(&mut self, host: &Host, policy: &PolicySet) {
        let Some(names) = host.catalog.names() else { return };
        let names: Vec<(&str, &str)> = names.iter().map(|(server, name)| (server.as_str(), name.as_str())).collect();
        let warnings: Vec<String> = policy.unmatched(&names).iter().map(ToString::to_string).collect();
        for warning in warnings.iter().filter(|warning| !self.warned.contains(*warning)).take(MAX_WARNINGS) {
            tracing::warn!("policy: {warning}");
        }
        self.warned = warnings.into_iter().collect();
    }
}
