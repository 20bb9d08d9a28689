//! The tools of all hosts, from the manifests at the broker: the list of `tools`, and the lookup of `call`. The hosts of a
//! pool have one tool of each name, which is called at one of them.

use crate::failure::Failure;
use crate::output::print_error;
use crate::pools::{ShownPool, pools_of};
use serde_json::Value;
use std::time::Duration;
use tokio::time::Instant;
use toolbus_base::nearest;
use toolbus_client::{BrokerClient, KnownHosts};
use toolbus_mcp::{HostManifest, ListKind, Members, Raw, ServerManifest, ServerState};

/// Hosts by name, and servers in the order of the host's configuration. If several tools have the same name, the first
/// one is called, as in a worker.
#[derive(Debug, Default)]
pub struct Catalog {
    pub hosts: Vec<KnownHost>,
    pub pools: Vec<ShownPool>,
    /// Spreads the calls of different commands over the hosts of a pool.
    random: usize,
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
    /// The pool that the host is a member of, unless it was chosen by its own name.
    pub pool: Option<&'a ShownPool>,
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
            let is_pool = |host: &KnownHost| host.manifest.pool.is_some() && host.manifest.pool.as_deref() == only_host;
            catalog.hosts.retain(|host| only_host.is_none_or(|only| only == host.name || is_pool(host)));
            if only_host.is_none() || catalog.hosts.iter().any(is_pool) {
                let hosts = catalog.hosts.iter().map(|host| (host.name.as_str(), host.online, &host.manifest));
                catalog.pools = pools_of(hosts);
            }
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
        let random = uuid::Uuid::new_v4().as_u64_pair().0 as usize;
        Ok(Self { hosts, pools: Vec::new(), random })
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
        let listed = self.hosts.iter().enumerate().flat_map(move |(index, host)| {
            let servers = host.manifest.servers.iter();
            servers.flat_map(move |server| {
                let pool = self.pools.iter().find(|pool| pool.hosts.contains(&index));
                let tools = server.tools.iter();
                tools.map(move |definition| (index, KnownTool { host, server, definition, pool }))
            })
        });
        listed
            .filter(|(index, tool)| self.chosen_host(tool).is_none_or(|chosen| chosen == *index))
            .map(|(_, tool)| tool)
    }

    /// The host of a pool that gets the calls of the tool; a connected one if there is one.
    fn chosen_host(&self, tool: &KnownTool<'_>) -> Option<usize> {
        let pool = tool.pool?;
        let server = pool.merged.manifest.servers.iter().position(|server| server.name == tool.server.name)?;
        let serving = pool.merged.serving[server].of(ListKind::Tools, &tool.name());
        let serving: Vec<usize> = serving.iter().map(|member| pool.hosts[*member]).collect();
        let is_usable = |index: &usize| self.hosts[*index].online && !self.hosts[*index].manifest.draining;
        let usable: Vec<usize> = serving.iter().copied().filter(is_usable).collect();
        let choice = if usable.is_empty() { serving } else { usable };
        (!choice.is_empty()).then(|| choice[self.random % choice.len()])
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

    /// The host, or the pool with the number of its hosts.
    pub fn shown_host(&self) -> String {
        match (self.pool, self.host.online) {
            (Some(pool), true) => format!("{} (pool of {})", pool.name, pool.hosts.len()),
            (Some(pool), false) => format!("{} (pool of {}, away)", pool.name, pool.hosts.len()),
            (None, true) => self.host.name.clone(),
            (None, false) => format!("{} (away)", self.host.name),
        }
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
        let catalog = Catalog {
            hosts: vec![host("a", &["read_file", "stat"]), host("b", &["stat", "write_file"])],
            ..Catalog::default()
        };
        assert_eq!(catalog.tools().count(), 4);
        let stat = catalog.tool("stat", None).expect("a tool");
        assert_eq!((stat.host.name.as_str(), stat.hints()), ("a", vec!["read-only"]));
        let error = catalog.tool("raed_file", None).expect_err("an unknown tool");
        assert!(matches!(error, Failure::UnknownTool { nearest, .. } if nearest == ["read_file"]));
        let catalog = Catalog { hosts: vec![host("a", &[])], ..Catalog::default() };
        let error = catalog.tool("stat", Some("clerk")).expect_err("no tools");
        assert!(matches!(error, Failure::NoToolsForRole { role: Some(role), .. } if role == "clerk"));
    }

    #[test]
    fn a_pool_has_each_tool_once_at_a_connected_host() {
        let mut hosts = vec![host("a", &["draw"]), host("b", &["draw", "look"]), host("c", &["draw"])];
        hosts.iter_mut().for_each(|host| host.manifest.pool = Some("render".to_owned()));
        hosts[0].online = false;
        for random in 0..4 {
            let pools = pools_of(hosts.iter().map(|host| (host.name.as_str(), host.online, &host.manifest)));
            let catalog = Catalog { pools, random, hosts: std::mem::take(&mut hosts) };
            let tools: Vec<_> = catalog.tools().map(|tool| (tool.name(), tool.shown_host())).collect();
            let expected = ["draw", "look"].map(|name| (name.to_owned(), "render (pool of 3)".to_owned()));
            let mut sorted = tools.clone();
            sorted.sort();
            assert_eq!(sorted, expected);
            let chosen = catalog.tool("draw", None).expect("a tool").host.name.clone();
            assert_eq!(chosen, ["b", "c"][random % 2]);
            hosts = catalog.hosts;
        }
    }
}
