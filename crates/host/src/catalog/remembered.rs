//! The last known lists of the servers, in a file of the host's state folder: a restarted host lists servers that are still
//! starting, so that their tools don't disappear for a while.

use super::{Catalog, Entry, Lists};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::path::Path;
use std::sync::Arc;
use toolbus_mcp::{Raw, ServerState};
use toolbus_upstream::{Eras, TransportConfig};

/// Name of the file in the state folder.
pub const CATALOG_FILE: &str = "catalog.json";

/// What was known about a server.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct RememberedServer {
    name: String,
    #[serde(default)]
    origin: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    initialize: Option<Raw>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    discover: Option<Raw>,
    #[serde(default)]
    tools: Vec<Raw>,
    #[serde(default)]
    resources: Vec<Raw>,
    #[serde(default)]
    resource_templates: Vec<Raw>,
    #[serde(default)]
    prompts: Vec<Raw>,
}

/// A hash of the program or address of a server. Another program under the same name has other tools.
pub fn origin_of(transport: &TransportConfig) -> String {
    let origin = match transport {
        TransportConfig::Stdio { command, args, cwd, .. } => json!([command, args, cwd]),
        TransportConfig::Http { url, .. } | TransportConfig::Sse { url, .. } => json!(url),
        TransportConfig::InProcess(_) => json!(null),
    };
    toolbus_audit::argument_hash(Some(&origin.to_string()))
}

impl Catalog {
    /// With the lists of a file. Without one, or if it can't be read, servers are listed once they have started.
    pub fn with_remembered(self, file: Option<&Path>) -> Self {
        let Some(file) = file else { return self };
        let servers: Vec<RememberedServer> = match toolbus_base::read_private_text(file) {
            Ok(text) => serde_json::from_str(&text).unwrap_or_else(|error| {
                tracing::warn!(file = %file.display(), %error, "the remembered lists can't be read");
                Vec::new()
            }),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(error) => {
                tracing::warn!(file = %file.display(), %error, "the remembered lists can't be read");
                Vec::new()
            }
        };
        for server in servers {
            let is_same = |entry: &Entry| entry.name == server.name && entry.origin == server.origin;
            let index = self.lock().entries.iter().position(is_same);
            if let Some(index) = index {
                self.change(index, |entry| entry.recall(server));
            }
        }
        self
    }

    /// The content of the file for the present lists.
    pub fn to_remember(&self) -> Vec<u8> {
        let state = self.lock();
        let servers: Vec<RememberedServer> = state.entries.iter().filter_map(Entry::to_remember).collect();
        serde_json::to_vec(&servers).unwrap_or_default()
    }
}

impl Entry {
    fn recall(&mut self, server: RememberedServer) {
        let RememberedServer { initialize, discover, tools, resources, resource_templates, prompts, .. } = server;
        if self.state == ServerState::Starting && (initialize.is_some() || discover.is_some()) {
            self.eras = Some(Arc::new(Eras { modern: discover, legacy: initialize, legacy_untried: false }));
            self.lists = Lists { tools, resources, resource_templates, prompts, ..Lists::default() };
        }
    }

    fn to_remember(&self) -> Option<RememberedServer> {
        let eras = self.eras.as_deref()?;
        let Lists { tools, resources, resource_templates, prompts, .. } = self.lists.clone();
        let (initialize, discover) = (eras.legacy.clone(), eras.modern.clone());
        Some(RememberedServer {
            name: self.name.clone(),
            origin: self.origin.clone(),
            initialize,
            discover,
            tools,
            resources,
            resource_templates,
            prompts,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use toolbus_upstream::ServerConfig;

    #[test]
    fn lists_are_recalled_for_the_same_program_only() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join(CATALOG_FILE);
        let [one, other] = ["one", "other"].map(|arg| ServerConfig::stdio("s", "python3", &[arg]));
        let catalog = Catalog::new([&one]);
        let eras = Eras { modern: None, legacy: Some(toolbus_mcp::empty_object()), legacy_untried: false };
        catalog.set_up(0, Arc::new(eras), Lists::default(), Vec::new());
        std::fs::write(&file, catalog.to_remember()).expect("written");
        for (config, is_known) in [(&one, true), (&other, false)] {
            let restarted = Catalog::new([config]).with_remembered(Some(&file));
            assert_eq!(restarted.lock().entries[0].eras.is_some(), is_known);
        }
    }
}
