//! What `toolbus up` says at start: where it is, what it hosts, and lines to paste that work as they stand.

use crate::commands::broker::{DEFAULT_PORT, OpenBroker};
use crate::endpoint;
use crate::folders;
use crate::hosting::Hosting;
use crate::reach::from_here;
use serde_json::json;

/// The role of the agent that a broker makes for its own machine.
const LOCAL_ROLE: &str = "local";

pub struct Welcome<'a> {
    pub broker: &'a OpenBroker,
    pub hosting: &'a Hosting,
    /// Those that have rules.
    pub roles: Vec<&'a str>,
    /// About the roles of HTTP clients.
    pub warnings: Vec<String>,
    pub mcp_role: Option<&'a str>,
}

impl Welcome<'_> {
    /// Everything in one piece: whoever reads it may stop reading at any line.
    pub fn text(&self) -> String {
        let mut text = format!("{}\nhosting {}\n", self.broker.whereabouts(), self.hosted());
        for warning in &self.warnings {
            text.push_str(&format!("\n{warning}\n"));
        }
        text.push_str(&self.for_agents());
        text.push_str(&self.for_stdio());
        text.push_str(&self.for_http());
        if self.broker.address.ip().is_unspecified() {
            text.push_str(self.words_for_elsewhere());
        }
        text.push_str(&format!("\nTry in another terminal:\n{}", self.next_commands()));
        text
    }

    fn words_for_elsewhere(&self) -> &'static str {
        if self.broker.is_secure {
            return "\nFrom other machines: put a name that the certificate is for in the place of 127.0.0.1, and give \
                    them a token (`toolbus agent add`).\n";
        }
        "\nFrom other machines: put this machine's name or address in the place of 127.0.0.1 (--allow-host NAME lets \
         clients in by a name), and give them a token. There is no TLS: use a private network.\n"
    }

    fn hosted(&self) -> String {
        if self.hosting.demo {
            return "the demo server; `toolbus init` writes a toolbus.toml for servers of your own".to_owned();
        }
        self.hosting.server_names()
    }

    /// Whether the token of this machine is of use: its agent has a role like any other.
    fn local_has_rules(&self) -> bool {
        self.broker.shared_token || self.roles.is_empty() || self.roles.contains(&LOCAL_ROLE)
    }

    fn for_agents(&self) -> String {
        if self.broker.shared_token {
            return String::new();
        }
        let mut data = String::new();
        if folders::users_data_folder().is_none_or(|usual| usual != self.broker.data) {
            data = format!(" --data {}", quoted(&self.broker.data.to_string_lossy()));
        }
        let command = format!("{} agent add NAME --role ROLE{data}", quoted(&program()));
        match (self.local_has_rules(), self.roles.is_empty()) {
            (true, true) => format!(
                "\nThe agent \"{LOCAL_ROLE}\" of this machine may use everything. Others get a token and a role of their \
                 own,\nand what [roles.ROLE] in toolbus.toml allows:\n  {command}\n"
            ),
            (true, false) => format!("\nMore agents, each with a token and a role of its own:\n  {command}\n"),
            (false, _) => format!(
                "\nEach agent gets a token and a role of its own (the role \"{LOCAL_ROLE}\" of this machine's token has no \
                 rules):\n  {command} --token-file NAME.token\n  where ROLE is one of {}\n",
                self.roles.join(", ")
            ),
        }
    }

    fn for_stdio(&self) -> String {
        let mut args = vec!["connect".to_owned(), "--broker".to_owned(), self.bus_url()];
        args.extend(self.token_args());
        args.extend(self.role_args());
        let line: Vec<String> = args.iter().map(|arg| quoted(arg)).collect();
        let connect = json!({"command": program(), "args": args});
        let snippet = json!({"mcpServers": {"toolbus": connect}});
        let note = match self.roles.len() {
            _ if !self.broker.shared_token => String::new(),
            0 | 1 => String::new(),
            _ => format!("  where ROLE is one of {}\n", self.roles.join(", ")),
        };
        format!(
            "\nMCP clients that start a program (stdio):\n  claude mcp add toolbus -- {} {}\n  or in their \
             configuration:\n  {snippet}\n{note}",
            quoted(&program()),
            line.join(" "),
        )
    }

    fn for_http(&self) -> String {
        let note = match (self.roles.is_empty(), self.mcp_role) {
            _ if !self.broker.shared_token => String::new(),
            (true, _) => String::new(),
            (false, Some(role)) => format!("  they act in the role {role} (--mcp-role)\n"),
            (false, None) => {
                "  they have no role, so they may use nothing; --mcp-role ROLE gives them one\n".to_owned()
            }
        };
        format!(
            "\nMCP clients that speak HTTP:\n  {}{}\n  with the header \"Authorization: Bearer $(cat {})\"\n{note}",
            self.broker.web_address(),
            endpoint::PATH,
            quoted(&self.token_file()),
        )
    }

    fn next_commands(&self) -> String {
        let mut to = String::new();
        if self.broker.address.port() != DEFAULT_PORT {
            to.push_str(&format!(" --broker {}", self.bus_url()));
        }
        for arg in self.token_args().into_iter().chain(self.role_args()) {
            to.push_str(&format!(" {}", quoted(&arg)));
        }
        let program = quoted(&program());
        let commands = match self.hosting.demo {
            true => ["tools", "call now --arg zone=Asia/Tokyo", "call countdown --arg from=20"],
            false => ["tools", "call TOOL --arg NAME=VALUE", "tools --json"],
        };
        commands.map(|command| format!("  {program} {command}{to}")).join("\n")
    }

    fn bus_url(&self) -> String {
        let scheme = if self.broker.is_secure { "wss" } else { "ws" };
        format!("{scheme}://{}/bus", from_here(self.broker.address))
    }

    fn token_file(&self) -> String {
        if !self.local_has_rules() {
            return "NAME.token".to_owned();
        }
        let file = &self.broker.token_file;
        std::path::absolute(file).unwrap_or_else(|_| file.clone()).to_string_lossy().into_owned()
    }

    /// Clients are started anywhere: only the user's own data folder is where they look by themselves.
    fn token_args(&self) -> Vec<String> {
        let usual = folders::users_data_folder().map(|folder| folder.join(folders::TOKEN_FILE));
        let file = self.token_file();
        if usual.is_some_and(|usual| usual.to_string_lossy() == file) {
            return Vec::new();
        }
        vec!["--token-file".to_owned(), file]
    }

    fn role_args(&self) -> Vec<String> {
        let role = match self.roles[..] {
            _ if !self.broker.shared_token => return Vec::new(),
            [] => return Vec::new(),
            [only] => only,
            _ => "ROLE",
        };
        vec!["--role".to_owned(), role.to_owned()]
    }
}

/// What a client should start: the name if it is on the path, else where this program is.
fn program() -> String {
    let me = std::env::current_exe().unwrap_or_default();
    let on_path = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join("toolbus") == me));
    if on_path { "toolbus".to_owned() } else { me.to_string_lossy().into_owned() }
}

/// For a shell.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./:=,@+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}
