//! The tools that one connection to a server lists. A server may run as several processes, and each of them is compared with
//! the pins by its own list before it gets a call.

use super::{PinnedServer, Pins, name_of};
use hashbrown::HashMap;
use toolbus_mcp::{Era, Raw};
use toolbus_upstream::PinMode;

/// The hashes of the definitions that a connection lists, by the server's own names. A name that is listed twice has two.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ListedTools(HashMap<String, Vec<String>>);

impl ListedTools {
    /// Whether the tool is listed, under exactly this name.
    pub fn contains(&self, tool: &str) -> bool {
        self.0.contains_key(tool)
    }
}

/// Why a tool must not be called on a connection.
#[derive(Debug, PartialEq, Eq)]
pub enum CallRefusal {
    /// The connection does not list it.
    Unlisted,
    /// The definition on this connection is not approved.
    HeldBack,
}

impl Pins {
    /// Checks all tools of a fresh list.
    pub fn inspect(&self, server: PinnedServer<'_>, era: Option<Era>, tools: &[Raw]) -> ListedTools {
        let mut listed: HashMap<String, Vec<String>> = HashMap::with_capacity(tools.len());
        for tool in tools {
            let Some(name) = name_of(tool) else { continue };
            let hash = self.examine(server, era, &name, tool).map(|examined| examined.hash);
            listed.entry(name).or_default().extend(hash);
        }
        ListedTools(listed)
    }

    /// Whether the tool may be called on a connection that lists these tools. `dynamic`: also tools that it does not list.
    pub fn check_call(
        &self,
        server: PinnedServer<'_>,
        listed: &ListedTools,
        tool: &str,
        dynamic: bool,
    ) -> Result<(), CallRefusal> {
        let mode = self.mode_of(server);
        match listed.0.get(tool) {
            None if dynamic => Ok(()),
            None => Err(CallRefusal::Unlisted),
            Some(_) if mode == PinMode::Off => Ok(()),
            Some(hashes) => {
                let state = self.lock();
                let is_approved = |hash: &String| state.approves(server.name, mode, tool, hash);
                if hashes.iter().all(is_approved) { Ok(()) } else { Err(CallRefusal::HeldBack) }
            }
        }
    }
}
