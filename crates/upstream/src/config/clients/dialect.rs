//! Recognises the client that a file belongs to, by its keys, its name and its folder. The client decides what a number as
//! `timeout` means, how variables are written, and which transport a URL without `type` has.

use std::path::Path;
use std::time::Duration;
use toolbus_config::{ConfigError, Setting, Table, Value};

/// The clients whose files differ in more than the place of the servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Client {
    /// Claude Code, Claude Desktop and Copilot CLI.
    Claude,
    /// Gemini CLI and its forks.
    Gemini,
    /// Cline and Roo.
    Cline,
    /// `mcpServers` without signs of one of the others: Cursor, Windsurf and many more.
    Common,
    VsCode,
    Zed,
    OpenCode,
    Codex,
    Goose,
    Continue,
    LibreChat,
}

pub(super) struct Recognised<'a> {
    pub client: Client,
    /// The table, or the list, of the servers.
    pub servers: &'a Setting,
}

/// The longest timeout that a person writes in seconds; Cline and Roo accept no longer one. Larger numbers are milliseconds.
const MAX_SECONDS: f64 = 3600.0;

const FORM: &str = "the file has the form {\"mcpServers\": {\"NAME\": {\"command\": …}}}, or is that of an MCP client with \
                    `servers` (VS Code), `context_servers` (Zed), `mcp` (OpenCode), `mcp_servers` (Codex) or `extensions` (Goose)";

impl Client {
    pub fn recognise<'a>(root: &'a Table, file: &Path) -> Result<Recognised<'a>, ConfigError> {
        let found = |client, servers| Ok(Recognised { client, servers });
        if let Some(servers) = root.get("mcpServers") {
            return found(Self::of_mcp_servers(servers, file), servers);
        }
        if let Some(servers) = root.get("servers") {
            return found(Self::VsCode, servers);
        }
        // VS Code and later versions of OpenCode have one more level.
        if let Some(mcp) = root.get("mcp") {
            let inner = table_of(mcp).and_then(|mcp| mcp.get("servers")).filter(|servers| {
                table_of(servers).is_some_and(|servers| servers.get("command").or(servers.get("url")).is_none())
            });
            let is_open_code = |servers: &Setting| any_entry(servers, is_open_code_entry);
            return match inner {
                Some(servers) if is_open_code(servers) => found(Self::OpenCode, servers),
                Some(servers) => found(Self::VsCode, servers),
                None => found(Self::OpenCode, mcp),
            };
        }
        for (key, client) in [("context_servers", Self::Zed), ("mcp_servers", Self::Codex), ("extensions", Self::Goose)]
        {
            if let Some(servers) = root.get(key) {
                return found(client, servers);
            }
        }
        Err(root.missing("mcpServers", FORM))
    }

    fn of_mcp_servers(servers: &Setting, file: &Path) -> Self {
        let name =
            |path: Option<&std::ffi::OsStr>| path.and_then(|name| name.to_str()).unwrap_or_default().to_lowercase();
        let (file_name, folder) = (name(file.file_name()), name(file.parent().and_then(Path::file_name)));
        let has = |keys: &'static [&str]| any_entry(servers, |entry| keys.iter().any(|key| entry.get(key).is_some()));
        let has_type = |word| any_entry(servers, |entry| entry.get("type").and_then(Setting::as_text) == Some(word));
        match (file_name.as_str(), folder.as_str()) {
            _ if matches!(servers.value, Value::List(_)) => Self::Continue,
            (".mcp.json" | ".claude.json" | "claude_desktop_config.json", _) | (_, ".copilot") => Self::Claude,
            ("cline_mcp_settings.json" | "mcp_settings.json", _) | (_, ".roo") => Self::Cline,
            ("settings.json", _) => Self::Gemini,
            (yaml, _) if yaml.ends_with(".yaml") || yaml.ends_with(".yml") => Self::LibreChat,
            (_, ".cursor" | "windsurf") => Self::Common,
            _ if has(&["autoApprove", "alwaysAllow", "disabledTools"]) || has_type("streamableHttp") => Self::Cline,
            _ if has(&["httpUrl", "trust", "includeTools", "excludeTools"]) => Self::Gemini,
            _ if has(&["headersHelper"]) => Self::Claude,
            _ => Self::Common,
        }
    }

    /// What the client means by a number as `timeout`. `None` if it is not a usable number.
    pub fn timeout(self, number: f64) -> Option<Duration> {
        let unit = match self {
            Self::Claude | Self::Gemini | Self::OpenCode | Self::Continue | Self::LibreChat => 0.001,
            Self::Cline | Self::Zed | Self::Codex | Self::Goose => 1.0,
            Self::Common | Self::VsCode if number > MAX_SECONDS => 0.001,
            Self::Common | Self::VsCode => 1.0,
        };
        Duration::try_from_secs_f64(number * unit).ok()
    }

    /// Whether a URL without `type` is that of an event stream of the old HTTP transport.
    pub fn means_sse(self, url: &str) -> bool {
        let path = url.split(['?', '#']).next().unwrap_or_default();
        matches!(self, Self::Cline | Self::LibreChat) || path.trim_end_matches('/').ends_with("/sse")
    }

    /// Whether the client uses values as they are, without references to variables.
    pub fn is_literal(self) -> bool {
        matches!(self, Self::Codex | Self::Goose)
    }
}

fn table_of(setting: &Setting) -> Option<&Table> {
    if let Value::Table(table) = &setting.value { Some(table) } else { None }
}

fn any_entry(servers: &Setting, is: impl Fn(&Table) -> bool) -> bool {
    table_of(servers).is_some_and(|servers| servers.entries().any(|(_, _, entry)| table_of(entry).is_some_and(&is)))
}

fn is_open_code_entry(entry: &Table) -> bool {
    let kind = entry.get("type").and_then(Setting::as_text);
    matches!(kind, Some("local" | "remote"))
        || entry.get("command").is_some_and(|it| matches!(it.value, Value::List(_)))
}
