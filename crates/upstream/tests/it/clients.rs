//! Files of MCP clients, as their users have them.

use std::cell::Cell;
use std::io;
use std::path::Path;
use std::time::Duration;
use toolbus_config::ConfigError;
use toolbus_mcp::Era;
use toolbus_upstream::{Input, ServerConfig, ServersRead, Surroundings, TransportConfig, read_mcp_servers};

fn env(name: &str) -> Option<String> {
    let value = match name {
        "TOKEN" => "s3cret",
        "HOME" => "/home/ada",
        "INPUT_REGION" => "eu",
        _ => return None,
    };
    Some(value.to_owned())
}

fn read_file(path: &Path) -> io::Result<String> {
    match path.to_str() {
        Some("/work/.env") => Ok("# c\nexport A=1\nB=\"two words\"\nC='${TOKEN}' \nD=x # y\n\nbroken\n".to_owned()),
        _ => Err(io::ErrorKind::NotFound.into()),
    }
}

fn try_read(file: &str, text: &str) -> Result<ServersRead, ConfigError> {
    let around = Surroundings { file: Path::new(file), env: &env, read: &read_file, ask: &|_| None };
    read_mcp_servers(text, &around)
}

fn read(file: &str, text: &str) -> ServersRead {
    try_read(file, text).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// The only server of a file that has neither problems nor warnings.
fn only(file: &str, text: &str) -> ServerConfig {
    let mut read = read(file, text);
    assert_eq!((read.unusable.len(), read.servers.len()), (0, 1), "{:?}", read.unusable);
    assert_eq!(read.warnings, [], "{file}");
    read.servers.remove(0)
}

fn stdio(server: &ServerConfig) -> (&str, Vec<&str>, Vec<(&str, &str)>) {
    let TransportConfig::Stdio { command, args, env, .. } = &server.transport else { panic!("{server:?}") };
    let env = env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    (command, args.iter().map(String::as_str).collect(), env)
}

/// Whether it is the old transport, its URL and its headers.
fn web(server: &ServerConfig) -> (bool, &str, Vec<(&str, &str)>) {
    let (is_old, url, headers) = match &server.transport {
        TransportConfig::Http { url, headers } => (false, url, headers),
        TransportConfig::Sse { url, headers } => (true, url, headers),
        other => panic!("{other:?}"),
    };
    (is_old, url, headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect())
}

#[test]
fn vs_code_files_are_read_with_their_inputs_and_comments() {
    let text = r#"{
        // the servers of this project
        "inputs": [{"type": "promptString", "id": "key", "description": "API key", "password": true},
                   {"type": "pickString", "id": "tier", "options": ["a", "b"], "default": "b"}],
        "servers": {"s": {
            "type": "stdio", "command": "${workspaceFolder}/run", "args": ["${input:tier}", "${userHome}", 8080],
            "env": {"KEY": "${input:key}", "AGAIN": "${input:key}", "PORT": 80, "ON": true, "NONE": null}, "envFile": "${workspaceFolder}/.env",
        }},
    }"#;
    let asked = Cell::new(0);
    let ask = |input: &Input| {
        asked.set(asked.get() + 1);
        (input.id == "key" && input.password && input.description == "API key").then(|| "typed-secret".to_owned())
    };
    let around = Surroundings { file: Path::new("/work/.vscode/mcp.json"), env: &env, read: &read_file, ask: &ask };
    let read = read_mcp_servers(text, &around).expect("a valid file");
    assert_eq!((read.warnings, read.unusable), (vec![], vec![]));
    let (command, args, env) = stdio(&read.servers[0]);
    assert_eq!((command, args), ("/work/run", vec!["b", "/home/ada", "8080"]));
    let expected = [
        ("A", "1"),
        ("AGAIN", "typed-secret"),
        ("B", "two words"),
        ("C", "${TOKEN}"),
        ("D", "x"),
        ("KEY", "typed-secret"),
        ("ON", "true"),
        ("PORT", "80"),
    ];
    assert_eq!(env, expected);
    assert_eq!(asked.get(), 2, "each input is asked for once");
}

#[test]
fn an_input_without_a_user_comes_from_the_environment_or_disables_its_server() {
    let text = r#"{"servers": {"a": {"command": "x", "args": ["${input:region}"]},
                               "b": {"command": "x", "args": ["${input:my-key}"]}}}"#;
    let read = read("mcp.json", text);
    assert_eq!(stdio(&read.servers[0]).1, ["eu"]);
    let error = &read.unusable[0].error;
    assert_eq!(error.to_string(), "line 2, column 63: servers.b.args[0]: the input my-key has no value");
    assert_eq!(error.hint(), "start the host in a terminal to be asked for it, or set INPUT_MY_KEY");
}

#[test]
fn urls_have_the_names_and_transports_of_their_clients() {
    let check = |file: &str, entry: &str, is_old: bool| {
        let server = only(file, &format!(r#"{{"mcpServers": {{"s": {entry}}}}}"#));
        assert_eq!((web(&server).0, web(&server).1), (is_old, "https://h/x"), "{file} {entry}");
        assert_eq!(server.era, is_old.then_some(Era::Legacy));
    };
    check("mcp_config.json", r#"{"serverUrl": "https://h/x"}"#, false);
    check("settings.json", r#"{"httpUrl": "https://h/x"}"#, false);
    check("settings.json", r#"{"url": "https://h/x", "type": "sse"}"#, true);
    check("cline_mcp_settings.json", r#"{"url": "https://h/x"}"#, true);
    check("cline_mcp_settings.json", r#"{"url": "https://h/x", "type": "streamableHttp"}"#, false);
    check("cline_mcp_settings.json", r#"{"transport": {"type": "streamableHttp", "url": "https://h/x"}}"#, false);
    check(
        "cline_mcp_settings.json",
        r#"{"transport": {"type": "sse", "url": "https://h/x"}, "autoApprove": []}"#,
        true,
    );
    check("mcp_settings.json", r#"{"url": "https://h/x", "type": "streamable-http"}"#, false);
    check(".mcp.json", r#"{"url": "https://h/x", "type": "http"}"#, false);
    check("mcp.json", r#"{"url": "https://h/x"}"#, false);
    let old = only("mcp.json", r#"{"mcpServers": {"s": {"url": "https://h/sse"}}}"#);
    assert_eq!(web(&old), (true, "https://h/sse", vec![]));
}

#[test]
fn a_timeout_is_in_the_unit_of_its_client() {
    let check = |file: &str, entry: &str, seconds: u64| {
        let server = &read(file, &format!(r#"{{"mcpServers": {{"s": {{"command": "x", {entry}}}}}}}"#)).servers[0];
        assert_eq!(server.timeout, Some(Duration::from_secs(seconds)), "{file} {entry}");
    };
    check(".mcp.json", r#""timeout": 600000"#, 600);
    check("/home/ada/.gemini/settings.json", r#""timeout": 3000"#, 3);
    check("mcp.json", r#""timeout": 3000, "trust": true"#, 3);
    check("cline_mcp_settings.json", r#""timeout": 3000"#, 3000);
    check("/work/.roo/mcp.json", r#""timeout": 3000"#, 3000);
    check("mcp.json", r#""timeout": 3000, "alwaysAllow": []"#, 3000);
    // Without a sign of the client, only one of the units makes sense.
    check("mcp.json", r#""timeout": 60"#, 60);
    check("mcp.json", r#""timeout": 600000"#, 600);
    check(".mcp.json", r#""timeout": "90s""#, 90);
    assert_eq!(only("mcp_settings.json", r#"{"mcpServers": {"s": {"command": "x", "timeout": 0}}}"#).timeout, None);
}

#[test]
fn gemini_and_zed_settings_are_read_among_other_settings() {
    let gemini = r#"{"theme": "x", "mcp": {"allowed": ["s"]}, "mcpServers": {"s": {
        "command": "x", "args": ["$5", "a$TOKEN/", "${TOKEN}"], "env": {"K": "$TOKEN"}, "trust": true}}}"#;
    let server = only("settings.json", gemini);
    assert_eq!(stdio(&server), ("x", vec!["$5", "as3cret/", "s3cret"], vec![("K", "s3cret")]));
    let zed = r#"{ /* Zed */ "theme": "x", "context_servers": {
        "s": {"source": "custom", "enabled": true, "command": "x", "args": ["a"], "env": {}, "timeout": 60},
        "old": {"command": {"path": "y", "args": ["b"], "env": {"A": "1"}}, "settings": {}},
        "ext": {"settings": {"key": 1}}, "quiet": {"enabled": false, "settings": {}}}}"#;
    let read = read("settings.json", zed);
    assert_eq!(stdio(&read.servers[0]), ("x", vec!["a"], vec![]));
    assert_eq!(read.servers[0].timeout, Some(Duration::from_secs(60)));
    assert_eq!(stdio(&read.servers[1]), ("y", vec!["b"], vec![("A", "1")]));
    let warnings: Vec<String> = read.warnings.iter().map(|warning| warning.text.clone()).collect();
    let expected = [
        "server \"old\": unknown key \"settings\" is ignored",
        "server \"ext\" is not hosted: it is an extension of Zed",
    ];
    assert_eq!(warnings, expected);
}

#[test]
fn open_code_files_are_read_in_both_versions() {
    let text = r#"{"$schema": "x", "mcp": {
        "s": {"type": "local", "command": ["npx", "-y", "pkg", "{env:TOKEN}"], "environment": {"K": "{env:TOKEN} {x}"}, "timeout": 20000},
        "web": {"type": "remote", "url": "https://h/mcp", "headers": {"Authorization": "Bearer {file:~/token}"}, "enabled": false}}}"#;
    let read = read("opencode.jsonc", text);
    assert_eq!((&read.warnings, &read.unusable), (&vec![], &vec![]));
    assert_eq!(stdio(&read.servers[0]), ("npx", vec!["-y", "pkg", "s3cret"], vec![("K", "s3cret {x}")]));
    assert_eq!(read.servers[0].timeout, Some(Duration::from_secs(20)));
    assert!(read.servers[1].disabled && !web(&read.servers[1]).0);
    assert!(format!("{:?}", read.servers[1].secrets).contains("${file:/home/ada/token}"));
    let later = r#"{"mcp": {"servers": {"s": {"type": "local", "command": ["x"], "timeout": {"startup": 1000, "request": 2000}}}}}"#;
    let server = only("opencode.json", later);
    assert_eq!((server.start_timeout, server.timeout), (Some(Duration::from_secs(1)), Some(Duration::from_secs(2))));
    let vs_code = only("settings.json", r#"{"mcp": {"servers": {"s": {"command": "x"}}}}"#);
    assert_eq!(stdio(&vs_code).0, "x");
}

#[test]
fn codex_files_are_read_without_expanding_variables() {
    let text = r#"
        model = "m"
        [mcp_servers.s]
        command = "sh"
        args = ["-c", "echo ${NOT_OURS}"]
        env = { A = "${B}" }
        env_vars = ["TOKEN", "NOT_SET", { name = "HOME", source = "local" }]
        startup_timeout_sec = 20
        tool_timeout_sec = 90.5
        [mcp_servers.web]
        url = "https://h/mcp"
        bearer_token_env_var = "TOKEN"
        http_headers = { X = "1" }
        env_http_headers = { Y = "HOME" }
        enabled_tools = ["a"]
        [mcp_servers.off]
        url = "https://h/mcp"
        bearer_token_env_var = "NOT_SET"
        enabled = false
        [mcp_servers.unset]
        url = "https://h/mcp"
        bearer_token_env_var = "NOT_SET"
    "#;
    let read = read("config.toml", text);
    let s = &read.servers[0];
    let env = vec![("A", "${B}"), ("HOME", "/home/ada"), ("TOKEN", "s3cret")];
    assert_eq!(stdio(s), ("sh", vec!["-c", "echo ${NOT_OURS}"], env));
    assert_eq!((s.start_timeout, s.timeout), (Some(Duration::from_secs(20)), Some(Duration::from_millis(90_500))));
    let headers = vec![("Authorization", "Bearer s3cret"), ("X", "1"), ("Y", "/home/ada")];
    assert_eq!(web(&read.servers[1]), (false, "https://h/mcp", headers));
    assert!(read.servers[2].disabled);
    let unset = read.unusable[0].error.to_string();
    assert_eq!(
        unset,
        "line 22, column 32: mcp_servers.unset.bearer_token_env_var: the environment variable NOT_SET is not set"
    );
    assert!(
        read.warnings[0].text.contains("\"enabled_tools\" is ignored: all of its tools are offered"),
        "{:?}",
        read.warnings
    );
}

#[test]
fn goose_files_are_read_without_what_belongs_to_goose() {
    let text = "
GOOSE_PROVIDER: x
extensions:
  developer: {enabled: true, type: builtin, name: developer, bundled: true, timeout: 300}
  memory: {enabled: false, type: builtin, name: memory}
  s:
    enabled: true
    type: stdio
    name: s
    cmd: npx
    args: [-y, pkg, 8080]
    envs: {A: 1}
    env_keys: [TOKEN]
    timeout: 300
    available_tools: []
  web: {enabled: true, type: streamable_http, name: web, uri: https://h/mcp, headers: {X: '${Y}'}}
  old: {enabled: true, config: {type: sse, name: old, uri: https://h/s}}
";
    let read = read("config.yaml", text);
    let names: Vec<&str> = read.servers.iter().map(|server| server.name.as_str()).collect();
    assert_eq!(names, ["s", "web", "old"]);
    assert_eq!(stdio(&read.servers[0]), ("npx", vec!["-y", "pkg", "8080"], vec![("A", "1"), ("TOKEN", "s3cret")]));
    assert_eq!(read.servers[0].timeout, Some(Duration::from_secs(300)));
    assert_eq!(web(&read.servers[1]), (false, "https://h/mcp", vec![("X", "${Y}")]));
    assert!(web(&read.servers[2]).0);
    let warnings: Vec<&str> = read.warnings.iter().map(|warning| warning.text.as_str()).collect();
    assert_eq!(warnings, ["server \"developer\" is not hosted: it is a part of Goose"]);
}

#[test]
fn continue_and_libre_chat_files_are_read() {
    let text = "
name: x
mcpServers:
  - name: s
    command: x
    args: ['${{ secrets.TOKEN }}']
    connectionTimeout: 5000
  - name: web
    type: streamable-http
    url: https://h/mcp
    requestOptions: {headers: {Authorization: 'Bearer ${{secrets.TOKEN}}'}}
  - name: old
    type: sse
    url: https://h/x
  - command: x
  - 5
";
    let continued = read("config.yaml", text);
    assert_eq!(stdio(&continued.servers[0]).1, ["s3cret"]);
    assert_eq!(continued.servers[0].start_timeout, Some(Duration::from_secs(5)));
    assert_eq!(web(&continued.servers[1]).2, [("Authorization", "Bearer s3cret")]);
    assert!(web(&continued.servers[2]).0);
    assert_eq!(
        continued.unusable[0].error.to_string(),
        "line 16, column 5: mcpServers[4] has to be an object with the settings of the server"
    );

    let text = "
version: 1.2
mcpServers:
  s: {command: x, timeout: 60000, initTimeout: 10000, iconPath: /x, serverInstructions: true}
  old: {url: http://h/x}
  web: {type: streamable-http, url: http://h/x, headers: {K: '${TOKEN}', U: '{{LIBRECHAT_USER_ID}}'}}
";
    let libre = read("librechat.yaml", text);
    assert_eq!((&libre.warnings, &libre.unusable), (&vec![], &vec![]));
    let s = &libre.servers[0];
    assert_eq!((s.timeout, s.start_timeout), (Some(Duration::from_secs(60)), Some(Duration::from_secs(10))));
    assert!(web(&libre.servers[1]).0);
    assert_eq!(web(&libre.servers[2]).2, [("K", "s3cret"), ("U", "{{LIBRECHAT_USER_ID}}")]);
}

#[test]
fn an_entry_that_cannot_be_used_leaves_the_others() {
    let text = r#"{"mcpServers": {
        "good": {"command": "x"},
        "unset": {"command": "x", "env": {"K": "${NOT_SET}"}},
        "typo": {"comand": "x"},
        "file": {"command": "x", "envFile": "missing.env"},
        "ws": {"type": "ws", "url": "wss://h/"},
        "text": "x",
        "github.com/a/b": {"command": "x"}
    }}"#;
    let read = read("mcp.json", text);
    let names: Vec<&str> = read.servers.iter().map(|server| server.name.as_str()).collect();
    assert_eq!(names, ["good", "github.com-a-b"]);
    assert_eq!(read.warnings[0].text, "server \"github.com/a/b\" is hosted as \"github.com-a-b\"");
    let unusable: Vec<String> = read.unusable.iter().map(|it| format!("{}: {}", it.name, it.error)).collect();
    let expected = [
        "unset: line 3, column 48: mcpServers.unset.env.K: the environment variable NOT_SET is not set",
        "typo: line 4, column 18: unknown key mcpServers.typo.comand",
        "file: line 5, column 45: mcpServers.file.envFile: missing.env can't be read: entity not found",
        "ws: line 6, column 24: mcpServers.ws.type has to be \"stdio\", \"http\", \"streamable-http\" or \"sse\"",
        "text: line 7, column 17: mcpServers.text has to be an object with the settings of the server",
    ];
    assert_eq!(unusable, expected);
    // Nothing to host: the file as a whole is refused.
    assert!(try_read("mcp.json", r#"{"mcpServers": {"unset": {"command": "${NOT_SET}"}}}"#).is_err());
}
