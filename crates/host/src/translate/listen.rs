//! Filters of `subscriptions/listen`: what a client asks for, and which notifications it gets.

use super::server_flag;
use serde_json::json;
use std::collections::BTreeSet;
use toolbus_mcp::{Members, MembersError, Raw, meta, raw};

pub const LISTEN: &str = "subscriptions/listen";
pub const ACKNOWLEDGED: &str = "notifications/subscriptions/acknowledged";
pub const RESOURCE_UPDATED: &str = "notifications/resources/updated";
const LIST_CHANGES: [(&str, &str, &str); 3] = [
    ("toolsListChanged", "tools", "notifications/tools/list_changed"),
    ("promptsListChanged", "prompts", "notifications/prompts/list_changed"),
    ("resourcesListChanged", "resources", "notifications/resources/list_changed"),
];

/// The notifications that a listen asks for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Notification methods.
    list_changes: BTreeSet<&'static str>,
    pub uris: BTreeSet<String>,
}

impl Filter {
    /// From the params of a `subscriptions/listen`.
    pub fn of_listen(params: Option<&Raw>) -> Result<Self, MembersError> {
        let params = Members::of(params)?;
        let wanted = Members::of(params.get("notifications"))?;
        let list_changes = LIST_CHANGES
            .iter()
            .filter(|(name, _, _)| wanted.get(name).is_some_and(|value| value.get() == "true"))
            .map(|(_, _, method)| *method)
            .collect();
        let uris = match wanted.get("resourceSubscriptions") {
            Some(uris) => serde_json::from_str(uris.get())?,
            None => BTreeSet::new(),
        };
        Ok(Self { list_changes, uris })
    }

    /// All list changes that the server supports, and these resources.
    pub fn everything(server: &Raw, uris: BTreeSet<String>) -> Self {
        let list_changes = LIST_CHANGES.iter().map(|(_, _, method)| *method).collect();
        Self { list_changes, uris }.honoured_by(server)
    }

    /// Removes what the server's capabilities don't cover.
    pub fn honoured_by(mut self, server: &Raw) -> Self {
        for (_, capability, method) in LIST_CHANGES {
            if !server_flag(server, capability, "listChanged") {
                self.list_changes.remove(method);
            }
        }
        if !server_flag(server, "resources", "subscribe") {
            self.uris.clear();
        }
        self
    }

    pub fn is_empty(&self) -> bool {
        self.list_changes.is_empty() && self.uris.is_empty()
    }

    pub fn wants(&self, method: &str, params: Option<&Raw>) -> bool {
        if method == RESOURCE_UPDATED {
            let uri = Members::of(params).ok().and_then(|params| params.text("uri"));
            return uri.is_some_and(|uri| self.uris.contains(&uri));
        }
        self.list_changes.contains(method)
    }

    /// As the `notifications` of a listen request or of its acknowledgement.
    pub fn to_raw(&self) -> Raw {
        let mut members = serde_json::Map::new();
        for (name, _, method) in LIST_CHANGES {
            if self.list_changes.contains(method) {
                members.insert(name.to_owned(), json!(true));
            }
        }
        if !self.uris.is_empty() {
            members.insert("resourceSubscriptions".to_owned(), json!(self.uris));
        }
        raw(&members)
    }

    /// The params of the first notification of a listen stream.
    pub fn acknowledgement(&self, subscription: &str) -> Raw {
        raw(&json!({"_meta": {meta::SUBSCRIPTION_ID: subscription}, "notifications": self.to_raw()}))
    }
}

/// Whether modern clients get the notification only on a listen stream.
pub fn is_listen_notification(method: &str) -> bool {
    method == RESOURCE_UPDATED || LIST_CHANGES.iter().any(|(_, _, known)| *known == method)
}

/// Adds the listen stream's id to a notification.
pub fn tagged(params: Option<&Raw>, subscription: &str) -> Result<Raw, MembersError> {
    meta::set(params, meta::SUBSCRIPTION_ID, raw(subscription))
}

/// Removes the listen stream's id from a notification.
pub fn untagged(params: Option<&Raw>) -> Option<Raw> {
    let stripped = meta::without(params, &[meta::SUBSCRIPTION_ID]).ok()??;
    (stripped.get() != "{}").then_some(stripped)
}

/// The result that ends a listen in order.
pub fn end(subscription: &str) -> Raw {
    raw(&json!({"resultType": "complete", "_meta": {meta::SUBSCRIPTION_ID: subscription}}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_limited_to_the_servers_capabilities() {
        let params = raw(&json!({"notifications": {"toolsListChanged": true, "promptsListChanged": true,
            "resourceSubscriptions": ["a://b"]}}));
        let server = raw(&json!({"capabilities": {"tools": {"listChanged": true}, "prompts": {},
            "resources": {"subscribe": true, "listChanged": true}}}));
        let filter = Filter::of_listen(Some(&params)).expect("an object").honoured_by(&server);

        assert_eq!(filter.to_raw().get(), r#"{"resourceSubscriptions":["a://b"],"toolsListChanged":true}"#);
        assert!(filter.wants("notifications/tools/list_changed", None));
        assert!(!filter.wants("notifications/prompts/list_changed", None));
        assert!(!filter.wants("notifications/resources/list_changed", None));
        assert!(filter.wants(RESOURCE_UPDATED, Some(&raw(&json!({"uri": "a://b"})))));
        assert!(!filter.wants(RESOURCE_UPDATED, Some(&raw(&json!({"uri": "a://c"})))));
        assert!(!filter.wants("notifications/message", None));
    }

    #[test]
    fn untagged_reverts_tagged() {
        let plain = raw(&json!({"uri": "a://b", "_meta": {"x": 1.0}}));
        let tagged = tagged(Some(&plain), "L").expect("an object");
        assert!(tagged.get().contains(r#""io.modelcontextprotocol/subscriptionId":"L""#));
        assert_eq!(untagged(Some(&tagged)).expect("params").get(), plain.get());
        assert!(untagged(Some(&self::tagged(None, "L").expect("an object"))).is_none());
    }
}
