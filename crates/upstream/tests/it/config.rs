//! Valid configurations, and the errors for invalid ones.

use std::path::Path;
use std::time::Duration;
use toolbus_config::{ConfigError, Document};
use toolbus_mcp::Era;
use toolbus_upstream::{
    CallSettings, Join, Offline, Replay, ServersRead, SessionMode, Surroundings, TransportConfig, TripSettings,
    read_mcp_servers, read_servers,
};

fn env(name: &str) -> Option<String> {
    (name == "TOKEN").then(|| "s3cret".to_owned())
}

fn json(text: &str) -> Result<ServersRead, ConfigError> {
    let nothing = |_: &Path| Err(std::io::ErrorKind::NotFound.into());
    let around = Surroundings { file: Path::new("mcp.json"), env: &env, read: &nothing, ask: &|_| None };
    read_mcp_servers(text, &around)
}

fn toml(text: &str) -> Result<ServersRead, ConfigError> {
    read_servers(&Document::parse_toml(text)?, &env)
}

fn check(read: Result<ServersRead, ConfigError>, message: &str, hint: &str) {
    let error = read.expect_err(message);
    assert_eq!(error.to_string(), message);
    assert_eq!(error.hint(), hint);
}

#[test]
fn mcp_servers_json_is_parsed_in_order_with_variables() {
    let read = json(
        r#"{"mcpServers": {
            "z": {"command": "npx", "args": ["-y", "pkg", "${HOME:-/root}"], "env": {"KEY": "${TOKEN}"}, "cwd": "/tmp",
                  "autoApprove": ["x"], "timeout": 60},
            "a": {"type": "streamable-http", "url": "https://example.org/mcp", "headers": {"Authorization": "Bearer ${TOKEN}"}},
            "off": {"command": "x", "args": ["${NOT_SET}"], "disabled": true}
        }, "other": 1}"#,
    )
    .expect("valid configuration");
    let names: Vec<&str> = read.servers.iter().map(|server| server.name.as_str()).collect();
    assert_eq!(names, ["z", "a", "off"]);
    let TransportConfig::Stdio { command, args, env, cwd } = &read.servers[0].transport else {
        panic!("not a stdio server")
    };
    assert_eq!((command.as_str(), args[2].as_str(), env["KEY"].as_str()), ("npx", "/root", "s3cret"));
    assert_eq!(cwd.as_deref(), Some(Path::new("/tmp")));
    assert_eq!(read.servers[0].timeout, Some(Duration::from_secs(60)));
    assert!(read.servers[2].disabled);
    let warnings: Vec<String> = read.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(warnings, ["line 3, column 19: server \"z\": unknown key \"autoApprove\" is ignored"]);
}

#[test]
fn toolbus_settings_are_parsed_from_both_formats() {
    let from_toml = toml(
        r#"
        [broker]
        listen = "whatever"
        [servers.screen]
        command = "screen-server"
        prefix = "scr_"
        session = "shared"
        max_sessions = 2
        max_concurrency = 1
        timeout = "90s"
        idle = "1m"
        era = "legacy"
        tool_timeouts = { slow = "5m", "quick.one" = 0.5 }
        "#,
    );
    let from_json = json(
        r#"{"mcpServers": {"screen": {"command": "screen-server", "prefix": "scr_", "session": "shared",
            "max_sessions": 2, "max_concurrency": 1, "timeout": 90, "idle": "60s", "era": "legacy",
            "tool_timeouts": {"slow": 300, "quick.one": "500ms"}}}}"#,
    );
    let server = from_toml.expect("valid TOML").servers.remove(0);
    assert_eq!(from_json.expect("valid JSON").servers, std::slice::from_ref(&server));
    assert_eq!(server.session, SessionMode::Shared);
    assert_eq!(server.era, Some(Era::Legacy));
    assert_eq!(server.timeout_of("slow"), Some(Duration::from_secs(300)));
    assert_eq!(server.timeout_of("quick.one"), Some(Duration::from_millis(500)));
    assert_eq!(server.timeout_of("other"), Some(Duration::from_secs(90)));
}

#[test]
fn call_settings_are_parsed_from_both_formats() {
    let from_toml = toml(
        r#"
        [servers.a]
        command = "x"
        replay = "safe"
        tool_replay = { pay = "never" }
        trust_hints = true
        join = "always"
        tool_join = { pay = "gone", "read.one" = "never" }
        join_window = "1m"
        offline = "fail"
        tool_offline = { read = "wait" }
        trip_after = 3
        trip_window = "10s"
        trip_pause = 5
        "#,
    );
    let from_json = json(
        r#"{"mcpServers": {"a": {"command": "x", "replay": "safe", "tool_replay": {"pay": "never"}, "trust_hints": true,
            "join": "always", "tool_join": {"pay": "gone", "read.one": "never"}, "join_window": 60, "offline": "fail",
            "tool_offline": {"read": "wait"}, "trip_after": 3, "trip_window": 10, "trip_pause": "5s"}}}"#,
    );
    let server = from_toml.expect("valid TOML").servers.remove(0);
    assert_eq!(from_json.expect("valid JSON").servers, std::slice::from_ref(&server));
    let calls = &server.calls;
    assert_eq!(
        (calls.replay, calls.replay_of("pay"), calls.replay_of("other")),
        (Replay::Safe, Some(Replay::Never), None)
    );
    assert_eq!(
        [calls.join_of("pay"), calls.join_of("read.one"), calls.join_of("x")],
        [Join::Gone, Join::Never, Join::Always]
    );
    assert_eq!((calls.offline, calls.tool_offline["read"]), (Offline::Fail, Offline::Wait));
    let (window, pause) = (Duration::from_secs(10), Duration::from_secs(5));
    assert_eq!(calls.trip, TripSettings { after: 3, window, pause });
    let defaults = toml("[servers.a]\ncommand = 'x'").expect("valid TOML").servers.remove(0).calls;
    assert_eq!(defaults, CallSettings::default());
    assert_eq!((defaults.replay, defaults.join, defaults.trust_hints), (Replay::Never, Join::Gone, false));
}

#[test]
fn an_invalid_call_setting_is_rejected_with_its_position() {
    let rejected = |line: &str, message: &str| {
        check(toml(&format!("[servers.a]\ncommand = 'x'\n{line}")), message, "correct the value");
    };
    rejected("replay = 'yes'", "line 3, column 10: servers.a.replay has to be \"never\" or \"safe\"");
    rejected(
        "tool_replay = { pay = true }",
        "line 3, column 23: servers.a.tool_replay.pay has to be \"never\" or \"safe\"",
    );
    rejected("tool_replay = 'safe'", "line 3, column 15: servers.a.tool_replay has to be a table");
    rejected("join = 'gon'", "line 3, column 8: servers.a.join has to be \"gone\", \"always\" or \"never\"");
    rejected("offline = 1", "line 3, column 11: servers.a.offline has to be \"wait\" or \"fail\"");
    rejected("trip_after = 0", "line 3, column 14: servers.a.trip_after has to be a whole number of at least 1");
    check(
        toml("[servers.a]\ncommand = 'x'\nreplays = 'safe'"),
        "line 3, column 1: unknown key servers.a.replays",
        "did you mean replay?",
    );
}

#[test]
fn servers_in_a_toml_file_keep_their_order() {
    let read =
        toml("[servers.z]\ncommand='1'\n[servers.m]\nurl='http://h/'\n[servers.a]\ncommand='3'\n").expect("valid TOML");
    let names: Vec<&str> = read.servers.iter().map(|server| server.name.as_str()).collect();
    assert_eq!(names, ["z", "m", "a"]);
    assert!(toml("[broker]\nx = 1\n").expect("no servers").servers.is_empty());
}

#[test]
fn a_missing_variable_is_reported_with_its_server_and_position() {
    check(
        json(r#"{"mcpServers": {"git": {"command": "x", "env": {"KEY": "a${GIT_TOKEN}"}}}}"#),
        "line 1, column 56: mcpServers.git.env.KEY: the environment variable GIT_TOKEN is not set",
        "set GIT_TOKEN before you start the host, or write ${GIT_TOKEN:-default}",
    );
    check(
        toml("[servers.git]\ncommand = 'x'\nargs = [\n  'a',\n  '${GIT_TOKEN}',\n]"),
        "line 5, column 3: servers.git.args[1]: the environment variable GIT_TOKEN is not set",
        "set GIT_TOKEN before you start the host, or write ${GIT_TOKEN:-default}",
    );
}

#[test]
fn a_mistyped_key_is_reported_before_the_missing_one() {
    let (message, hint) = ("line 2, column 1: unknown key servers.a.comand", "did you mean command?");
    check(toml("[servers.a]\ncomand = 'x'"), message, hint);
    let before = "{\"a\": \"a\", \"mcpServers\": {\"b\": {\"command\": \"comand\"}, \"a\":";
    let message = "line 2, column 2: unknown key mcpServers.a.comand";
    let read = json(&format!("{before}\n{{\"comand\": \"x\"}}}}}}")).expect("one server can be used");
    check(Err(read.unusable[0].error.clone()), message, hint);
    let slash = "use letters, digits, `-`, `_` and `.`, at most 64 of them";
    check(
        toml("[servers.'a/b']\ncommand = 'x'"),
        "line 1, column 10: servers.\"a/b\": invalid server name: it has a slash",
        slash,
    );
}

#[test]
fn invalid_json_configurations_are_rejected() {
    check(
        json(r#"{"mcpServers": {"a": {"command": "x"}, "a": {"command": "y"}}}"#),
        "line 1, column 45: mcpServers.a: the server is configured twice",
        "give one of them another name",
    );
    check(
        json(r#"{"mcpServers": {"a": {"args": []}}}"#),
        "line 1, column 22: mcpServers.a: the server has neither a command nor a url",
        "add `command` for a stdio server, or `url` for an HTTP server",
    );
    check(
        json(r#"{"mcpServers": {"a": {"command": "x", "url": "http://h/"}}}"#),
        "line 1, column 22: mcpServers.a: the server has both a command and a url",
        "remove one of them",
    );
    check(
        json(r#"{"mcpServers": {"a": {"command": "x", "args": "-v"}}}"#),
        "line 1, column 47: mcpServers.a.args has to be a list of strings",
        "correct the value",
    );
    check(
        json("{\"mcpServers\": {\n  \"a\": {,}}}"),
        "line 2, column 9: key must be a string",
        "correct the file at that position",
    );
    check(
        json("{\"server\": {}}"),
        "line 1, column 1: mcpServers is missing",
        "the file has the form {\"mcpServers\": {\"NAME\": {\"command\": …}}}, or is that of an MCP client with \
         `servers` (VS Code), `context_servers` (Zed), `mcp` (OpenCode), `mcp_servers` (Codex) or `extensions` (Goose)",
    );
}

#[test]
fn invalid_toml_configurations_are_rejected_with_their_position() {
    check(
        toml("[servers.a]\ncommand = \"x\"\n  colour = 1\nmax-sessions = 3\n"),
        "line 3, column 3: unknown key servers.a.colour",
        "known keys: command, args, env, cwd, url, headers, type, transport, disabled, prefix, session, max_sessions, \
         max_concurrency, timeout, start_timeout, tool_timeouts, idle, era, secrets, secret_ttl, redact_results, pin, dynamic_tools, \
         replay, tool_replay, trust_hints, join, tool_join, join_window, offline, tool_offline, trip_after, trip_window, \
         trip_pause",
    );
    check(
        toml("[servers.a]\ncommand = \"x\"\nmax-sessions = 3\n"),
        "line 3, column 1: unknown key servers.a.max-sessions",
        "did you mean max_sessions?",
    );
    check(
        toml("[servers.a]\ncommand = \"x\"\ntimeout = \"soon\"\n"),
        "line 3, column 11: servers.a.timeout has to be seconds, or a time such as \"500ms\", \"30s\", \"5m\"",
        "correct the value",
    );
    let error = toml("[servers.a]\ncommand = \"x\"\n[servers.a]\nurl = \"http://h\"\n").expect_err("duplicate table");
    assert!(error.to_string().contains("line 3") && error.to_string().contains("duplicate"), "{error}");
    let error = toml("[servers.a]\nargs = []\n").expect_err("no command");
    assert_eq!(error.to_string(), "line 1, column 1: servers.a: the server has neither a command nor a url");
}

#[test]
fn debug_output_shows_no_secrets() {
    let read = json(
        r#"{"mcpServers": {
            "a": {"command": "x", "args": ["--key=${TOKEN}"], "env": {"KEY": "${TOKEN}"}},
            "b": {"url": "https://u:${TOKEN}@h/mcp?key=${TOKEN}", "headers": {"Authorization": "Bearer ${TOKEN}"}}
        }}"#,
    );
    let shown = format!("{read:?}");
    assert!(!shown.contains("s3cret"), "{shown}");
    assert!(shown.contains("Authorization") && shown.contains("https://h/mcp"), "{shown}");
}
