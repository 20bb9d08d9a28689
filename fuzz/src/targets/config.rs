//! Configuration: toolbus.toml and the files of MCP clients for `--mcp-config`. No text makes the readers panic, errors have a position in
//! the text, and the value of a variable with a secret name is neither in an error nor in the log.

use std::path::Path;
use toolbus_config::{ConfigError, Document};
use toolbus_identity::read_auth;
use toolbus_policy::PolicySet;
use toolbus_upstream::{Input, ServersRead, Surroundings, read_mcp_servers, read_servers};

const CANARY: &str = "canary-7c0e1d3a";

/// Names that select the parser, and the client where the content leaves it open.
const FILES: &[&str] = &[
    "mcp.json",
    ".mcp.json",
    "settings.json",
    ".roo/mcp.json",
    "opencode.jsonc",
    "config.toml",
    "config.yaml",
    "other",
];

pub fn config(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let env = |name: &str| name.contains("TOKEN").then(|| CANARY.to_owned());
    let read = |_: &Path| Ok(format!("A=1\nB='${{X_TOKEN}}'\n{text}"));
    let ask = |input: &Input| input.password.then(|| CANARY.to_owned());
    for file in FILES {
        let around = Surroundings { file: Path::new(file), env: &env, read: &read, ask: &ask };
        check(text, read_mcp_servers(text, &around));
    }
    let file = match Document::parse_toml(text) {
        Ok(file) => file,
        Err(error) => return check_error(text, &error),
    };
    check(text, read_servers(&file, &env));
    PolicySet::read_from(&file).map_or_else(|error| check_error(text, &error), drop);
    read_auth(&file, Path::new("/etc/toolbus")).map_or_else(|error| check_error(text, &error), drop);
}

fn check(text: &str, read: Result<ServersRead, ConfigError>) {
    match read {
        Err(error) => check_error(text, &error),
        Ok(read) => {
            for server in &read.servers {
                assert!(!server.name.is_empty() && !server.name.contains('/'));
                // A command can hold a variable too, but `env`, `headers` and the URL are where secrets are.
                assert!(text.contains(CANARY) || !format!("{:?}", server.secrets).contains(CANARY));
            }
            read.unusable.iter().for_each(|unusable| check_error(text, &unusable.error));
            let names: Vec<&str> = read.servers.iter().map(|server| server.name.as_str()).collect();
            assert!(names.iter().all(|name| names.iter().filter(|other| other == &name).count() == 1));
            let warnings: Vec<String> = read.warnings.iter().map(|warning| warning.text.clone()).collect();
            assert!(text.contains(CANARY) || !warnings.concat().contains(CANARY), "{warnings:?}");
        }
    }
}

fn check_error(text: &str, error: &ConfigError) {
    // In YAML a carriage return alone ends a line as well.
    let lines = text.matches(['\n', '\r']).count() + 2;
    assert!(error.position.line <= lines, "{error} in {lines} lines");
    let message = format!("{error} {}", error.hint());
    assert!(text.contains(CANARY) || !message.contains(CANARY), "{message}");
}
