//! The lists of one server.

use std::collections::HashMap;
use toolbus_mcp::{ListKind, Raw};

/// The lists of one server, under the server's own names.
#[derive(Debug, Clone, Default)]
pub struct Lists {
    pub tools: Vec<Raw>,
    pub resources: Vec<Raw>,
    pub resource_templates: Vec<Raw>,
    pub prompts: Vec<Raw>,
    /// What else the server says in the result of each list.
    pub rest: HashMap<ListKind, Raw>,
}

impl Lists {
    pub fn of(&self, kind: ListKind) -> &[Raw] {
        match kind {
            ListKind::Tools => &self.tools,
            ListKind::Resources => &self.resources,
            ListKind::ResourceTemplates => &self.resource_templates,
            ListKind::Prompts => &self.prompts,
        }
    }

    pub fn of_mut(&mut self, kind: ListKind) -> &mut Vec<Raw> {
        match kind {
            ListKind::Tools => &mut self.tools,
            ListKind::Resources => &mut self.resources,
            ListKind::ResourceTemplates => &mut self.resource_templates,
            ListKind::Prompts => &mut self.prompts,
        }
    }
}
