//! Translates an entry of a client's file into the settings of toolbus.toml. Values keep their positions and full names, so
//! that errors point into the file.

use super::dialect::Client;
use super::variables::Variables;
use toolbus_config::{ConfigError, Setting, Table, Value};

pub(super) enum Normalised {
    /// The entry, with the keys of toolbus.toml and perhaps unknown ones.
    Server(Setting),
    /// Not a server that another program than the client can run, and why.
    Foreign(&'static str),
    /// The same, and it is switched off.
    Off,
}

/// Keys of clients that mean the same as one of ours.
const ALIASES: &[(&str, &str)] = &[
    ("httpUrl", "url"),
    ("serverUrl", "url"),
    ("uri", "url"),
    ("cmd", "command"),
    ("envs", "env"),
    ("environment", "env"),
    ("http_headers", "headers"),
];

/// Keys of clients that say how long something may take, ours, and the unit in seconds.
const TIMEOUTS: &[(&str, &str, f64)] = &[
    ("startup_timeout_sec", "start_timeout", 1.0),
    ("startup_timeout_ms", "start_timeout", 0.001),
    ("tool_timeout_sec", "timeout", 1.0),
    ("initTimeout", "start_timeout", 0.001),
    ("connectionTimeout", "start_timeout", 0.001),
];

/// Keys that only describe the server, or concern only the client.
const DESCRIPTIONS: &[&str] = &[
    "$schema",
    "bundled",
    "chatMenu",
    "description",
    "displayName",
    "display_name",
    "gallery",
    "icon",
    "iconPath",
    "id",
    "name",
    "serverInstructions",
    "source",
    "title",
    "trust",
    "version",
];

/// Whether the key says which of the server's tools the client uses.
pub(super) fn restricts_tools(key: &str) -> bool {
    const KEYS: &[&str] = &[
        "includeTools",
        "excludeTools",
        "enabled_tools",
        "disabled_tools",
        "disabledTools",
        "available_tools",
        "tools",
    ];
    KEYS.contains(&key)
}

/// Whether such a key leaves all tools enabled.
pub(super) fn restricts_nothing(key: &str, value: &Setting) -> bool {
    let Value::List(list) = &value.value else { return false };
    let names_all = list.iter().any(|tool| tool.as_text() == Some("*"));
    let excludes = matches!(key, "excludeTools" | "disabled_tools" | "disabledTools" | "available_tools");
    if excludes { list.is_empty() } else { names_all }
}

pub(super) fn normalize(entry: &Setting, client: Client, variables: &Variables<'_>) -> Result<Normalised, ConfigError> {
    let mut table = entry.table("an object with the settings of the server")?.clone();
    if client == Client::Goose {
        lift(&mut table, "config");
    }
    lift(&mut table, "transport");
    let is_approval = |key: &str| matches!(key, "autoApprove" | "alwaysAllow");
    let is_empty = |value: &Value| matches!(value, Value::List(list) if list.is_empty());
    table.retain(|key, setting| {
        let is_set = !matches!(setting.value, Value::Other);
        is_set && !DESCRIPTIONS.contains(&key) && !(is_approval(key) && is_empty(&setting.value))
    });
    table.values_mut().for_each(|setting| rewrite(setting, client, variables));
    if let Some(enabled) = table.remove("enabled") {
        let disabled = Value::Flag(!enabled.flag()?);
        table.set("disabled", enabled.with(disabled));
    }
    let disabled = table.get("disabled").is_some_and(|flag| flag.flag() == Ok(true));
    if let Some(reason) = foreign(&table, client) {
        return Ok(if disabled { Normalised::Off } else { Normalised::Foreign(reason) });
    }
    let is_streamable = table.get("httpUrl").is_some();
    for (theirs, ours) in ALIASES {
        table.rename(theirs, ours);
    }
    split_command(&mut table)?;
    transport_type(&mut table, client, is_streamable);
    if let Some(list) = table.remove("args") {
        table.set("args", as_texts(list));
    }
    headers(&mut table, variables, disabled)?;
    environment(&mut table, variables, disabled)?;
    timeouts(&mut table, client);
    let secret: Vec<Setting> = variables.secret_inputs().map(|name| entry.with(Value::Literal(name))).collect();
    if !secret.is_empty() && table.get("secrets").is_none() {
        table.set("secrets", entry.with(Value::List(secret)));
    }
    Ok(Normalised::Server(entry.with(Value::Table(table))))
}

/// Moves the entries of an inner table up, unless the table has them already.
fn lift(table: &mut Table, key: &str) {
    if !matches!(table.get(key).map(|inner| &inner.value), Some(Value::Table(_))) {
        return;
    }
    if let Some(Setting { value: Value::Table(inner), .. }) = table.remove(key) {
        add_missing(table, &inner);
    }
}

fn add_missing(table: &mut Table, other: &Table) {
    for (name, _, setting) in other.entries() {
        if table.get(name).is_none() {
            table.set(name, setting.clone());
        }
    }
}

/// Brings the references in all strings into our notation.
fn rewrite(setting: &mut Setting, client: Client, variables: &Variables<'_>) {
    match &mut setting.value {
        Value::Text(text) if client.is_literal() => setting.value = Value::Literal(std::mem::take(text)),
        Value::Text(text) => *text = variables.in_our_notation(text),
        Value::List(list) => list.iter_mut().for_each(|item| rewrite(item, client, variables)),
        Value::Table(table) => table.values_mut().for_each(|value| rewrite(value, client, variables)),
        _ => {}
    }
}

fn foreign(table: &Table, client: Client) -> Option<&'static str> {
    let kind = table.get("type").and_then(Setting::as_text);
    let has_transport = ["command", "cmd", "url", "uri"].iter().any(|key| table.get(key).is_some());
    match client {
        Client::Goose if matches!(kind, Some("builtin" | "platform" | "frontend" | "inline_python")) => {
            Some("it is a part of Goose")
        }
        Client::Zed if !has_transport => Some("it is an extension of Zed"),
        _ => None,
    }
}

/// A command may be a list with its arguments, or a table.
fn split_command(table: &mut Table) -> Result<(), ConfigError> {
    match table.get("command").map(|command| &command.value) {
        Some(Value::List(_)) => {}
        Some(Value::Table(_)) => {
            if let Some(Setting { value: Value::Table(mut inner), .. }) = table.remove("command") {
                inner.rename("path", "command");
                add_missing(table, &inner);
            }
            return Ok(());
        }
        _ => return Ok(()),
    }
    let Some(command) = table.remove("command") else { return Ok(()) };
    let [program, args @ ..] = command.list("a list of strings")? else {
        return Err(command.invalid("the command is empty", "write the program and its arguments"));
    };
    let mut all = args.to_vec();
    if let Some(Setting { value: Value::List(more), .. }) = table.remove("args") {
        all.extend(more);
    }
    table.set("command", program.clone());
    table.set("args", command.with(Value::List(all)));
    Ok(())
}

/// One word per transport. Where the client needs none, the URL decides.
fn transport_type(table: &mut Table, client: Client, is_streamable: bool) {
    let url = table.get("url").cloned();
    let kind = table.get("type").or(table.get("transport")).and_then(Setting::as_text).map(str::to_owned);
    let word = match (kind.as_deref(), &url) {
        (Some("local"), _) => "stdio",
        (Some("streamableHTTP"), _) => "http",
        (None | Some("remote"), Some(url)) => {
            let is_sse = !is_streamable && url.as_text().is_some_and(|url| client.means_sse(url));
            if is_sse { "sse" } else { "http" }
        }
        _ => return,
    };
    if let Some(place) = table.remove("type").or(url).or_else(|| table.get("command").cloned()) {
        table.set("type", place.with(Value::Literal(word.to_owned())));
    }
}

fn headers(table: &mut Table, variables: &Variables<'_>, disabled: bool) -> Result<(), ConfigError> {
    if let Some(Setting { value: Value::Table(mut options), .. }) = table.remove("requestOptions")
        && let Some(headers) = options.remove("headers")
        && table.get("headers").is_none()
    {
        table.set("headers", headers);
    }
    let mut added = Vec::new();
    if let Some(named) = table.remove("env_http_headers") {
        for (name, _, variable) in named.table("a table")?.entries() {
            added.extend(variables.named(variable, disabled)?.map(|value| (name.to_owned(), variable.clone(), value)));
        }
    }
    if let Some(variable) = table.remove("bearer_token_env_var") {
        let token = variables.named(&variable, disabled)?;
        added.extend(token.map(|token| ("Authorization".to_owned(), variable, format!("Bearer {token}"))));
    }
    add_texts(table, "headers", added)
}

fn environment(table: &mut Table, variables: &Variables<'_>, disabled: bool) -> Result<(), ConfigError> {
    let mut added = Vec::new();
    for (key, required) in [("env_keys", true), ("env_vars", false)] {
        let Some(list) = table.remove(key) else { continue };
        for item in list.list("a list of variables")? {
            let name = match &item.value {
                Value::Table(named) => named.get("name").unwrap_or(item),
                _ => item,
            };
            let value = variables.named(name, disabled || !required)?;
            added.extend(value.map(|value| (name.as_text().unwrap_or_default().to_owned(), name.clone(), value)));
        }
    }
    if let Some(file) = table.remove("envFile").filter(|_| !disabled) {
        added.extend(variables.of_file(&file)?.into_iter().map(|(name, value)| (name, file.clone(), value)));
    }
    add_texts(table, "env", added)
}

/// Adds strings to a table of strings that doesn't have them. Its numbers and flags become strings, and nulls are removed.
fn add_texts(table: &mut Table, key: &str, added: Vec<(String, Setting, String)>) -> Result<(), ConfigError> {
    let present = table.remove(key);
    let Some(place) = present.as_ref().or(added.first().map(|(_, place, _)| place)).cloned() else { return Ok(()) };
    let mut texts = match present {
        Some(Setting { value: Value::Table(texts), .. }) => texts,
        Some(other) => return Err(other.wrong("a table")),
        None => place.empty_table(),
    };
    texts.retain(|_, setting| !matches!(setting.value, Value::Other));
    texts.values_mut().for_each(to_text);
    for (name, place, value) in added {
        if texts.get(&name).is_none() {
            texts.set(&name, place.with(Value::Literal(value)));
        }
    }
    table.set(key, place.with(Value::Table(texts)));
    Ok(())
}

fn as_texts(mut list: Setting) -> Setting {
    if let Value::List(items) = &mut list.value {
        items.iter_mut().for_each(to_text);
    }
    list
}

fn to_text(setting: &mut Setting) {
    let text = match &setting.value {
        Value::Whole(whole) => whole.to_string(),
        Value::Float(float) => float.to_string(),
        Value::Flag(flag) => flag.to_string(),
        _ => return,
    };
    setting.value = Value::Literal(text);
}

/// Numbers in the client's unit become seconds. Zero means that there is no limit.
fn timeouts(table: &mut Table, client: Client) {
    if let Some(Setting { value: Value::Table(mut split), .. }) = table.get("timeout").cloned() {
        table.remove("timeout");
        split.rename("request", "timeout");
        split.rename("startup", "start_timeout");
        for key in ["timeout", "start_timeout"] {
            if let Some(setting) = split.remove(key) {
                table.set(key, setting);
                in_seconds(table, key, |number| client.timeout(number).map(|time| time.as_secs_f64()));
            }
        }
    } else {
        in_seconds(table, "timeout", |number| client.timeout(number).map(|time| time.as_secs_f64()));
    }
    for (theirs, ours, unit) in TIMEOUTS {
        if let Some(setting) = table.remove(theirs) {
            table.set(ours, setting);
            in_seconds(table, ours, |number| Some(number * unit));
        }
    }
}

fn in_seconds(table: &mut Table, key: &str, convert: impl Fn(f64) -> Option<f64>) {
    let Some(setting) = table.get(key) else { return };
    let number = match setting.value {
        Value::Whole(whole) => whole as f64,
        Value::Float(float) => float,
        _ => return,
    };
    if number == 0.0 {
        table.remove(key);
    } else if let Some(seconds) = convert(number) {
        let setting = setting.with(Value::Float(seconds));
        table.set(key, setting);
    }
}
