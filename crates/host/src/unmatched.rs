//! Tells the operator of patterns that match nothing, once everything that there is is known.

use crate::host::Host;
use std::collections::HashSet;
use toolbus_policy::PolicySet;

/// A reader looks at the first few.
const MOST_WARNINGS: usize = 20;

/// What was said already; the same is not said again when the lists change.
#[derive(Default)]
pub struct Unmatched {
    told: HashSet<String>,
}

impl Unmatched {
    pub fn warn(&mut self, host: &Host, policy: &PolicySet) {
        let Some(names) = host.catalog.names() else { return };
        let names: Vec<(&str, &str)> = names.iter().map(|(server, name)| (server.as_str(), name.as_str())).collect();
        let warnings: Vec<String> = policy.unmatched(&names).iter().map(ToString::to_string).collect();
        for warning in warnings.iter().filter(|warning| !self.told.contains(*warning)).take(MOST_WARNINGS) {
            tracing::warn!("the rules, {warning}");
        }
        self.told = warnings.into_iter().collect();
    }
}
