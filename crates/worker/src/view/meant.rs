//! Finds the one server that a message of an unknown method can be meant for. Each rule decides if exactly one server fits;
//! a message that none decides about goes to no server, because the others must not get to know its params. Of several hosts
//! with one namespace, the broker leaves it to the first.

use super::{Upstream, View};
use std::sync::Arc;
use toolbus_mcp::{Members, NameKey, Raw};

impl View {
    /// The server, if only one can be meant.
    pub fn meant(&self, method: &str, params: Option<&Raw>) -> Option<&Arc<Upstream>> {
        let method = method.strip_prefix("notifications/").unwrap_or(method);
        let is_of = |namespace: &str| {
            method.strip_prefix(namespace).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let declares = |upstream: &Arc<Upstream>| upstream.vendor_namespaces().iter().any(|name| is_of(name));
        let is_named =
            |upstream: &Arc<Upstream>| is_of(upstream.server()) && upstream.may_have_namespace(upstream.server());
        let owned = self.owners_of_named(params);
        let owns = |upstream: &Arc<Upstream>| owned.contains(&upstream.index);
        let has_any = |upstream: &Arc<Upstream>| !upstream.vendor_namespaces().is_empty();
        let by_name = || self.only(declares).or_else(|| self.only(is_named)).or_else(|| self.only(owns));
        self.only(|_| true).or_else(by_name).or_else(|| self.only(has_any))
    }

    fn only(&self, fits: impl Fn(&Arc<Upstream>) -> bool) -> Option<&Arc<Upstream>> {
        let mut fitting = self.upstreams.iter().filter(|upstream| fits(upstream));
        let first = fitting.next()?;
        fitting.next().is_none().then_some(first)
    }

    /// The owners of the items that the params may name.
    fn owners_of_named(&self, params: Option<&Raw>) -> Vec<usize> {
        let Ok(params) = Members::of(params) else { return Vec::new() };
        let name = params.text("name");
        let keys = name.iter().flat_map(|name| [NameKey::Tool(name.clone()), NameKey::Prompt(name.clone())]);
        let uri = params.text("uri");
        let by_scheme = uri.as_ref().and_then(|uri| self.owner_of_scheme(uri));
        let by_uri = uri.clone().and_then(|uri| self.owner(&NameKey::Uri(uri))).or(by_scheme);
        keys.filter_map(|key| self.owner(&key)).chain(by_uri).map(|upstream| upstream.index).collect()
    }
}

impl Upstream {
    /// The namespaces that the server declares and that no other host has.
    fn vendor_namespaces(&self) -> Vec<String> {
        let mut declared = self.manifest().vendor_capabilities();
        declared.retain(|name| self.may_have_namespace(name));
        declared
    }
}
