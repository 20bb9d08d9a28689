//! Configuration: toolbus.toml and the JSON of `--mcp-config`. No text makes the readers panic, errors have a position in
//! the text, and the value of a variable with a secret name is neither in an error nor in the log.

use std::path::Path;
use toolbus_config::{ConfigError, Document};
use toolbus_identity::read_auth;
use toolbus_policy::PolicySet;
use toolbus_upstream::{ServersRead, read_mcp_servers, read_servers};

const CANARY: &str = "canary-7c0e1d3a";

pub fn config(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let env = |name: &str| name.contains("TOKEN").then(|| CANARY.to_owned());
    check(text, Document::parse_json(text).and_then(|file| read_mcp_servers(&file, &env)));
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
            let names: Vec<&str> = read.servers.iter().map(|server| server.name.as_str()).collect();
            assert!(names.iter().all(|name| names.iter().filter(|other| other == &name).count() == 1));
            let warnings: Vec<String> = read.warnings.iter().map(|warning| warning.text.clone()).collect();
            assert!(text.contains(CANARY) || !warnings.concat().contains(CANARY), "{warnings:?}");
        }
    }
}

fn check_error(text: &str, error: &ConfigError) {
    let lines = text.lines().count() + 1;
    assert!(error.position.line <= lines, "{error} in {lines} lines");
    let message = format!("{error} {}", error.hint());
    assert!(text.contains(CANARY) || !message.contains(CANARY), "{message}");
}
