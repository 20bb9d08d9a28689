//! The banner of `toolbus up`: addresses, hosted servers, and commands that can be pasted unchanged.

use crate::commands::broker::{DEFAULT_PORT, OpenBroker};
use crate::endpoint;
use crate::folders;
use crate::hosting::Hosting;
use crate::reach::dial_address;
use serde_json::json;

/// The role of the agent that a broker creates for its own machine.
const LOCAL_ROLE: &str = "local";

pub struct Banner<'a> {
    pub broker: &'a OpenBroker,
    pub hosting: &'a Hosting,
    /// The roles that have rules.
    pub roles: Vec<&'a str>,
    /// Warnings about the roles of HTTP clients.
    pub warnings: Vec<String>,
    pub mcp_role: Option<&'a str>,
}

impl Banner<'_> {
    /// The whole banner, to be written at once: a reader may close the pipe after any line.
    pub fn text(&self) -> String {
        let mut text = format!("{}\nhosting {}\n", self.broker.startup_lines(), self.hosted());
        for warning in &self.warnings {
            text.push_str(&format!("\n{warning}\n"));
        }
        text.push_str(&self.for_agents());
        text.push_str(&self.for_stdio());
        text.push_str(&self.for_http());
        if self.broker.address.ip().is_unspecified() {
            text.push_str(self.remote_note());
        }
        text.push_str(&format!("\nTry in another terminal:\n{}", self.next_commands()));
        text
    }

    fn remote_note(&self) -> &'static str {
        if self.broker.is_secure {
            return "\nFrom other machines: replace 127.0.0.1 with a name in the certificate, and give each agent a \
                    token (`toolbus agent add`).\n";
        }
        "\nFrom other machines: replace 127.0.0.1 with this machine's name or address (--allow-host NAME accepts a \
         name), and give each agent a token. There is no TLS: use a private network only.\n"
    }

    fn hosted(&self) -> String {
        match (self.hosting.demo, &self.hosting.config_file) {
            (true, Some(file)) => format!("the demo server, because {} has no [servers.NAME]", file.display()),
            (true, None) => "the demo server; `toolbus init` writes a toolbus.toml for your own servers".to_owned(),
            (false, _) => self.hosting.server_names(),
        }
    }

    /// Whether the role of this machine's token has rules. Without any, the token is of no use.
    fn local_has_rules(&self) -> bool {
        self.broker.shared_token || self.roles.is_empty() || self.roles.contains(&LOCAL_ROLE)
    }

    fn for_agents(&self) -> String {
        if self.broker.shared_token {
            return String::new();
        }
        let mut data = String::new();
        if folders::users_data_folder().is_none_or(|default| default != self.broker.data) {
            data = format!(" --data {}", quoted(&self.broker.data.to_string_lossy()));
        }
        let command = format!("{} agent add NAME --role ROLE{data}", quoted(&program()));
        match (self.local_has_rules(), self.roles.is_empty()) {
            (true, true) => format!(
                "\nThe agent \"{LOCAL_ROLE}\" of this machine may use everything. Other agents need their own token and \
                 role,\nand may use what [roles.ROLE] in toolbus.toml allows:\n  {command}\n"
            ),
            (true, false) => format!("\nTo add an agent with its own token and role:\n  {command}\n"),
            (false, _) => format!(
                "\nEach agent needs its own token and role (the role \"{LOCAL_ROLE}\" of this machine's token has no \
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
            "\nMCP clients over stdio:\n  claude mcp add toolbus -- {} {}\n  or in the client's configuration:\n  \
             {snippet}\n{note}",
            quoted(&program()),
            line.join(" "),
        )
    }

    fn for_http(&self) -> String {
        let note = match (self.roles.is_empty(), self.mcp_role) {
            _ if !self.broker.shared_token => String::new(),
            (true, _) => String::new(),
            (false, Some(role)) => format!("  their role is {role} (--mcp-role)\n"),
            (false, None) => {
                "  they have no role, so they may use nothing; --mcp-role ROLE gives them one\n".to_owned()
            }
        };
        format!(
            "\nMCP clients over HTTP:\n  {}{}\n  with the header \"Authorization: Bearer $(cat {})\"\n{note}",
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
        format!("{scheme}://{}/bus", dial_address(self.broker.address))
    }

    fn token_file(&self) -> String {
        if !self.local_has_rules() {
            return "NAME.token".to_owned();
        }
        let file = &self.broker.token_file;
        std::path::absolute(file).unwrap_or_else(|_| file.clone()).to_string_lossy().into_owned()
    }

    /// Clients are started in any folder, and find a token by themselves only in the user's own data folder.
    fn token_args(&self) -> Vec<String> {
        let default = folders::users_data_folder().map(|folder| folder.join(folders::TOKEN_FILE));
        let file = self.token_file();
        if default.is_some_and(|default| default.to_string_lossy() == file) {
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

/// The command that a client starts: the name if this program is on the path, otherwise its full path.
fn program() -> String {
    let me = std::env::current_exe().unwrap_or_default();
    let on_path = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join("toolbus") == me));
    if on_path { "toolbus".to_owned() } else { me.to_string_lossy().into_owned() }
}

/// Quotes a word for a POSIX shell.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./:=,@+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}
