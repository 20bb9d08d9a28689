//! Finds the one server that a message of an unknown method can be meant for. Each rule decides if exactly one server fits;
//! a message that none decides about goes to no server, because the others must not get to know its params.

use super::{Upstream, View};
use std::sync::Arc;
use toolbus_mcp::{Members, NameKey, Raw};

/// Capabilities, and prefixes of extensions, that the protocol itself defines.
const STANDARD: [&str; 8] =
    ["tools", "resources", "prompts", "logging", "completions", "tasks", "extensions", "experimental"];
const STANDARD_PREFIX: &str = "io.modelcontextprotocol/";

impl View {
    /// The server, if only one can be meant.
    pub fn meant(&self, method: &str, params: Option<&Raw>) -> Option<&Arc<Upstream>> {
        let method = method.strip_prefix("notifications/").unwrap_or(method);
        let is_of = |namespace: &str| {
            method.strip_prefix(namespace).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let declares = |upstream: &Arc<Upstream>| upstream.vendor_capabilities().iter().any(|name| is_of(name));
        let is_named = |upstream: &Arc<Upstream>| is_of(upstream.server());
        let owned = self.owners_of_named(params);
        let owns = |upstream: &Arc<Upstream>| owned.contains(&upstream.index);
        let has_any = |upstream: &Arc<Upstream>| !upstream.vendor_capabilities().is_empty();
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
        let keys = keys.chain(params.text("uri").map(NameKey::Uri));
        keys.filter_map(|key| self.owner(&key)).map(|upstream| upstream.index).collect()
    }
}

impl Upstream {
    /// The names of the capabilities and extensions that the protocol does not define, in both eras.
    fn vendor_capabilities(&self) -> Vec<String> {
        let greetings = [&self.manifest().initialize, &self.manifest().discover].into_iter().flatten();
        let capabilities =
            greetings.filter_map(|greeting| Members::of(greeting.members().ok()?.get("capabilities")).ok());
        let mut names = Vec::new();
        for capabilities in capabilities {
            let lists =
                ["experimental", "extensions"].map(|list| Members::of(capabilities.get(list)).unwrap_or_default());
            let extensions = lists.into_iter().flat_map(Members::iter).map(|(name, _)| name);
            let others = capabilities.iter().map(|(name, _)| name).filter(|name| !STANDARD.contains(name));
            names.extend(extensions.chain(others).filter(|name| !name.starts_with(STANDARD_PREFIX)).map(str::to_owned));
        }
        names
    }
}
