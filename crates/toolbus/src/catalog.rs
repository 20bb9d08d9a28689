//! The tools of all hosts, from the manifests at the broker: the list of `tools`, and the lookup of `call`.

use crate::failure::Failure;
use crate::output::print_error;
use serde_json::Value;
use std::time::Duration;
use tokio::time::Instant;
use toolbus_base::nearest;
use toolbus_client::{BrokerClient, KnownHosts};
use toolbus_mcp::{HostManifest, Members, Raw, ServerManifest, ServerState};

/// Hosts by name, and servers in the order of the host's configuration. If several tools have the same name, the first
/// one is called, as in a worker.
#[derive(Debug, Default)]
pub struct Catalog {
    pub hosts: Vec<KnownHost>,
}

#[derive(Debug)]
pub struct KnownHost {
    pub name: String,
    pub online: bool,
    /// How long the host has been online or away.
    pub since_ms: u64,
    pub manifest: HostManifest,
}

#[derive(Debug, Clone, Copy)]
pub struct KnownTool<'a> {
    pub host: &'a KnownHost,
    pub server: &'a ServerManifest,
    pub definition: &'a Raw,
}

/// How long to wait for the manifest of a host that is starting, and for the lists of its servers.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(2);
/// A host that is away since so shortly may be about to announce itself, as after a restart with another configuration.
const JUST_AWAY: Duration = Duration::from_secs(5);
/// How long to wait for a tool that a server may have that is starting. A package runner may have to download it first.
const START_TIMEOUT: Duration = Duration::from_secs(60);

impl Catalog {
    /// Asks the broker for the manifests. If there is no host or a server is starting, waits a short time for changes.
    pub async fn fetch(client: &BrokerClient, only_host: Option<&str>) -> Result<Self, Failure> {
        Self::fetch_until(client, only_host, SETTLE_TIMEOUT, Self::is_settled).await
    }

    /// The same for a command that needs this tool: it waits until the tool is listed, as long as a server is starting.
    pub async fn fetch_for(client: &BrokerClient, only_host: Option<&str>, tool: &str) -> Result<Self, Failure> {
        let is_enough = |catalog: &Self| catalog.is_settled() || catalog.has(tool);
        let catalog = Self::fetch_until(client, only_host, SETTLE_TIMEOUT, is_enough).await?;
        let starting = catalog.starting();
        if is_enough(&catalog) || starting.is_empty() {
            return Ok(catalog);
        }
        print_error(format!("waiting for {tool}: starting {}", starting.join(", ")));
        Self::fetch_until(client, only_host, START_TIMEOUT, is_enough).await
    }

    async fn fetch_until(
        client: &BrokerClient,
        only_host: Option<&str>,
        limit: Duration,
        is_enough: impl Fn(&Self) -> bool,
    ) -> Result<Self, Failure> {
        let until = Instant::now() + limit;
        let mut changes = None;
        loop {
            let mut catalog = Self::now(client).await?;
            let known: Vec<String> = catalog.hosts.iter().map(|host| host.name.clone()).collect();
            catalog.hosts.retain(|host| only_host.is_none_or(|only| only == host.name));
            if is_enough(&catalog) || Instant::now() >= until {
                return match only_host {
                    Some(host) if catalog.hosts.is_empty() => {
                        Err(Failure::UnknownHost { host: host.to_owned(), known })
                    }
                    _ => Ok(catalog),
                };
            }
            match &mut changes {
                // What changed before the watch began is in the next answer.
                None => changes = Some(client.watch_hosts()),
                Some(changes) => drop(tokio::time::timeout_at(until, changes.changed()).await),
            }
        }
    }

    async fn now(client: &BrokerClient) -> Result<Self, Failure> {
        let mut hosts = Vec::new();
        for entry in client.hosts(&KnownHosts::default()).await? {
            let manifest = entry.manifest.as_ref().and_then(|manifest| manifest.to().ok()).unwrap_or_default();
            hosts.push(KnownHost {
                name: entry.id.to_string(),
                online: entry.online,
                since_ms: entry.since_ms,
                manifest,
            });
        }
        hosts.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(Self { hosts })
    }

    fn is_settled(&self) -> bool {
        let is_returning = |host: &KnownHost| !host.online && host.since_ms < JUST_AWAY.as_millis() as u64;
        !self.hosts.is_empty() && self.starting().is_empty() && !self.hosts.iter().any(is_returning)
    }

    /// The servers of connected hosts that are starting.
    fn starting(&self) -> Vec<&str> {
        let servers = self.hosts.iter().filter(|host| host.online).flat_map(|host| &host.manifest.servers);
        let starting = servers.filter(|server| server.state == ServerState::Starting);
        starting.map(|server| server.name.as_str()).collect()
    }

    /// Whether the tool is listed, or held back.
    fn has(&self, name: &str) -> bool {
        let mut servers = self.hosts.iter().flat_map(|host| &host.manifest.servers);
        self.tools().any(|tool| tool.name() == name)
            || servers.any(|server| server.withheld.iter().any(|withheld| withheld == name))
    }

    pub fn tools(&self) -> impl Iterator<Item = KnownTool<'_>> {
        self.hosts.iter().flat_map(|host| {
            let servers = host.manifest.servers.iter();
            servers.flat_map(move |server| {
                server.tools.iter().map(move |definition| KnownTool { host, server, definition })
            })
        })
    }

    /// Whether all servers are up and none offers a tool, which means that the caller's role may use none.
    pub fn has_no_tools_for_role(&self) -> bool {
        let is_up = |host: &KnownHost| host.manifest.servers.iter().all(|server| server.state == ServerState::Up);
        !self.hosts.is_empty() && self.tools().next().is_none() && self.hosts.iter().all(is_up)
    }

    /// Finds the tool, or returns an error that suggests similar names.
    pub fn tool(&self, name: &str, role: Option<&str>) -> Result<KnownTool<'_>, Failure> {
        if let Some(tool) = self.tools().find(|tool| tool.name() == name) {
            return Ok(tool);
        }
        let mut servers = self.hosts.iter().flat_map(|host| &host.manifest.servers);
        if let Some(server) = servers.find(|server| server.withheld.iter().any(|withheld| withheld == name)) {
            return Err(Failure::HeldBackTool { tool: name.to_owned(), server: server.name.clone() });
        }
        let names: Vec<String> = self.tools().map(|tool| tool.name()).collect();
        let similar = nearest(name, names.iter().map(String::as_str)).into_iter().map(str::to_owned).collect();
        let tool = name.to_owned();
        if self.has_no_tools_for_role() {
            return Err(Failure::NoToolsForRole { tool, role: role.map(str::to_owned) });
        }
        Err(Failure::UnknownTool { tool, nearest: similar, hosts: self.hosts.len() })
    }
}

impl KnownTool<'_> {
    pub fn name(&self) -> String {
        self.text("name").unwrap_or_default()
    }

    pub fn description(&self) -> String {
        self.text("description").or_else(|| self.text("title")).unwrap_or_default()
    }

    fn text(&self, member: &str) -> Option<String> {
        Members::of(Some(self.definition)).ok()?.text(member)
    }

    /// The schema of the arguments, or `true` (which accepts anything) if there is none.
    pub fn input_schema(&self) -> Value {
        let schema = || {
            let members = Members::of(Some(self.definition)).ok()?;
            serde_json::from_str(members.get("inputSchema")?.get()).ok()
        };
        schema().unwrap_or(Value::Bool(true))
    }

    /// The title that the server gives the tool, if it differs from its name.
    pub fn title(&self) -> Option<String> {
        let annotations =
            || Members::of(Members::of(Some(self.definition)).ok()?.get("annotations")).ok()?.text("title");
        self.text("title").or_else(annotations).filter(|title| *title != self.name())
    }

    /// A schema of the definition, `inputSchema` or `outputSchema`.
    pub fn schema(&self, member: &str) -> Option<Raw> {
        Members::of(Some(self.definition)).ok()?.get(member).cloned()
    }

    /// The tool's annotations in words. The protocol's defaults for missing annotations are not shown.
    pub fn hints(&self) -> Vec<&'static str> {
        let annotations = || -> Option<Value> {
            let members = Members::of(Some(self.definition)).ok()?;
            serde_json::from_str(members.get("annotations")?.get()).ok()
        };
        let annotations = annotations().unwrap_or_default();
        let words = [
            ("readOnlyHint", "read-only"),
            ("destructiveHint", "destructive"),
            ("idempotentHint", "idempotent"),
            ("openWorldHint", "open-world"),
        ];
        words.into_iter().filter(|(key, _)| annotations[key] == Value::Bool(true)).map(|(_, word)| word).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn host(name: &str, tools: &[&str]) -> KnownHost {
        let tools: Vec<Value> = tools
            .iter()
            .map(|name| json!({"name": name, "annotations": {"readOnlyHint": true, "destructiveHint": false}}))
            .collect();
        let manifest = json!({"servers": [{"name": "s", "state": "up", "tools": tools}]});
        let manifest = serde_json::from_value(manifest).expect("a manifest");
        KnownHost { name: name.into(), online: true, since_ms: 0, manifest }
    }

    #[test]
    fn the_first_host_wins_a_name_and_unknown_names_get_suggestions() {
        let catalog = Catalog { hosts: vec![host("a", &["read_file", "stat"]), host("b", &["stat", "write_file"])] };
        assert_eq!(catalog.tools().count(), 4);
        let stat = catalog.tool("stat", None).expect("a tool");
        assert_eq!((stat.host.name.as_str(), stat.hints()), ("a", vec!["read-only"]));
        let error = catalog.tool("raed_file", None).expect_err("an unknown tool");
        assert!(matches!(error, Failure::UnknownTool { nearest, .. } if nearest == ["read_file"]));
        let catalog = Catalog { hosts: vec![host("a", &[])] };
        let error = catalog.tool("stat", Some("clerk")).expect_err("no tools");
        assert!(matches!(error, Failure::NoToolsForRole { role: Some(role), .. } if role == "clerk"));
    }
}
