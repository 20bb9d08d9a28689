//! The tools of all hosts, as the broker knows them: what `tools` shows and where `call` finds its way.

use crate::failure::Failure;
use crate::nearest::nearest;
use serde_json::Value;
use std::time::Duration;
use tokio::time::Instant;
use toolbus_client::{BrokerClient, KnownHosts};
use toolbus_mcp::{HostManifest, Members, Raw, ServerManifest, ServerState};

/// Hosts in the order of their names, servers in the order of their host's configuration: where a name is there twice,
/// the first one is meant, as it is for a worker.
#[derive(Debug, Default)]
pub struct Catalog {
    pub hosts: Vec<HostSeen>,
}

#[derive(Debug)]
pub struct HostSeen {
    pub name: String,
    pub online: bool,
    /// For how long it has been online or away.
    pub since_ms: u64,
    pub manifest: HostManifest,
}

#[derive(Debug, Clone, Copy)]
pub struct ToolSeen<'a> {
    pub host: &'a HostSeen,
    pub server: &'a ServerManifest,
    pub definition: &'a Raw,
}

/// How long a host that is just starting may take to tell what it has.
pub const PATIENCE: Duration = Duration::from_secs(2);

impl Catalog {
    /// Asks the broker, and again for a short while as long as there is nothing to see or a server is starting.
    pub async fn fetch(client: &BrokerClient, only_host: Option<&str>) -> Result<Self, Failure> {
        const PAUSE: Duration = Duration::from_millis(100);
        let patience = Instant::now() + PATIENCE;
        loop {
            let mut catalog = Self::now(client).await?;
            let known: Vec<String> = catalog.hosts.iter().map(|host| host.name.clone()).collect();
            catalog.hosts.retain(|host| only_host.is_none_or(|only| only == host.name));
            if catalog.is_settled() || Instant::now() >= patience {
                return match only_host {
                    Some(host) if catalog.hosts.is_empty() => {
                        Err(Failure::UnknownHost { host: host.to_owned(), known })
                    }
                    _ => Ok(catalog),
                };
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn now(client: &BrokerClient) -> Result<Self, Failure> {
        let mut hosts = Vec::new();
        for entry in client.hosts(&KnownHosts::default()).await? {
            let manifest = entry.manifest.as_ref().and_then(|manifest| manifest.to().ok()).unwrap_or_default();
            hosts.push(HostSeen {
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
        let starting = |server: &ServerManifest| server.state == ServerState::Starting;
        !self.hosts.is_empty()
            && !self.hosts.iter().any(|host| host.online && host.manifest.servers.iter().any(starting))
    }

    pub fn tools(&self) -> impl Iterator<Item = ToolSeen<'_>> {
        self.hosts.iter().flat_map(|host| {
            let servers = host.manifest.servers.iter();
            servers.flat_map(move |server| {
                server.tools.iter().map(move |definition| ToolSeen { host, server, definition })
            })
        })
    }

    /// Whether the hosts are there, and well, and still have nothing to offer: a matter of the caller's role.
    pub fn has_nothing_for_role(&self) -> bool {
        let well = |host: &HostSeen| host.manifest.servers.iter().all(|server| server.state == ServerState::Up);
        !self.hosts.is_empty() && self.tools().next().is_none() && self.hosts.iter().all(well)
    }

    /// The tool of that name, or an error that proposes others.
    pub fn tool(&self, name: &str, role: Option<&str>) -> Result<ToolSeen<'_>, Failure> {
        if let Some(tool) = self.tools().find(|tool| tool.name() == name) {
            return Ok(tool);
        }
        let names: Vec<String> = self.tools().map(|tool| tool.name()).collect();
        let similar = nearest(name, names.iter().map(String::as_str)).into_iter().map(str::to_owned).collect();
        let tool = name.to_owned();
        if self.has_nothing_for_role() {
            return Err(Failure::NothingForRole { tool, role: role.map(str::to_owned) });
        }
        Err(Failure::UnknownTool { tool, nearest: similar, hosts: self.hosts.len() })
    }
}

impl ToolSeen<'_> {
    pub fn name(&self) -> String {
        self.text("name").unwrap_or_default()
    }

    pub fn description(&self) -> String {
        self.text("description").or_else(|| self.text("title")).unwrap_or_default()
    }

    fn text(&self, member: &str) -> Option<String> {
        Members::of(Some(self.definition)).ok()?.text(member)
    }

    /// The schema of the arguments; anything goes where there is none.
    pub fn input_schema(&self) -> Value {
        let schema = || {
            let members = Members::of(Some(self.definition)).ok()?;
            serde_json::from_str(members.get("inputSchema")?.get()).ok()
        };
        schema().unwrap_or(Value::Bool(true))
    }

    /// What the server says about the tool, in words. Only what it says: the protocol's assumptions are not shown.
    pub fn hints(&self) -> Vec<&'static str> {
        let annotations = || -> Option<Value> {
            let members = Members::of(Some(self.definition)).ok()?;
            serde_json::from_str(members.get("annotations")?.get()).ok()
        };
        let annotations = annotations().unwrap_or_default();
        let said = [
            ("readOnlyHint", "read-only"),
            ("destructiveHint", "destructive"),
            ("idempotentHint", "idempotent"),
            ("openWorldHint", "open-world"),
        ];
        said.into_iter().filter(|(key, _)| annotations[key] == Value::Bool(true)).map(|(_, word)| word).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn host(name: &str, tools: &[&str]) -> HostSeen {
        let tools: Vec<Value> = tools
            .iter()
            .map(|name| json!({"name": name, "annotations": {"readOnlyHint": true, "destructiveHint": false}}))
            .collect();
        let manifest = json!({"servers": [{"name": "s", "state": "up", "tools": tools}]});
        let manifest = serde_json::from_value(manifest).expect("a manifest");
        HostSeen { name: name.into(), online: true, since_ms: 0, manifest }
    }

    #[test]
    fn the_first_host_keeps_a_name_and_an_unknown_one_proposes_others() {
        let catalog = Catalog { hosts: vec![host("a", &["read_file", "stat"]), host("b", &["stat", "write_file"])] };
        assert_eq!(catalog.tools().count(), 4);
        let stat = catalog.tool("stat", None).expect("it is there");
        assert_eq!((stat.host.name.as_str(), stat.hints()), ("a", vec!["read-only"]));
        let error = catalog.tool("raed_file", None).expect_err("it is not there");
        assert!(matches!(error, Failure::UnknownTool { nearest, .. } if nearest == ["read_file"]));
        let catalog = Catalog { hosts: vec![host("a", &[])] };
        let error = catalog.tool("stat", Some("clerk")).expect_err("nothing is there");
        assert!(matches!(error, Failure::NothingForRole { role: Some(role), .. } if role == "clerk"));
    }
}
