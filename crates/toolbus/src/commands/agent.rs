//! `toolbus agent`: manages the agents that may connect to a broker. It edits a file in the broker's data folder, which
//! a running broker polls.

use super::parse_duration;
use crate::config::local_broker;
use crate::failure::Failure;
use crate::folders;
use crate::output::{print_error, print_line};
use crate::roles::role_without_rules;
use crate::table::table;
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;
use toolbus_identity::{AgentInfo, AgentsFolder, Issued, KeyInfo, NewAgent, local_token_file};

/// The default role of a host. It needs no rules, because hosts answer calls and don't make any.
const HOST_ROLE: &str = "host";
const OPERATOR_ROLE: &str = "operator";

#[derive(Args)]
#[command(after_help = "\
Examples:
  toolbus agent add planner --role reader --expires 30d   prints the token, which is not shown again
  toolbus agent add build-7 --host --token-file build-7.token
  toolbus agent rotate planner --overlap 1h               a new token; the old one stays valid for an hour
  toolbus agent revoke planner                            everything it began ends within two seconds")]
pub struct AgentArgs {
    #[command(subcommand)]
    command: AgentCommand,
}

#[derive(Subcommand)]
enum AgentCommand {
    /// Add an agent and print its token, which is not shown again.
    Add(AddArgs),
    /// List the agents and their keys.
    List(ListArgs),
    /// Issue a new token for an agent.
    Rotate(RotateArgs),
    /// Revoke all tokens of an agent and close its connections.
    Revoke(RevokeArgs),
}

#[derive(Args)]
struct FolderArgs {
    /// The broker's data folder. Default: the one in toolbus.toml, or TOOLBUS_DATA, or toolbus in the user's data
    /// folder.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct AddArgs {
    /// The agent's name. It owns the mailbox NAME and all mailboxes NAME#suffix.
    name: String,
    /// The agent's role. The rules of toolbus.toml say what the role may use.
    #[arg(long, required_unless_present_any = ["host", "operator"])]
    role: Option<String>,
    /// Allow the agent to act as a host: announce tools and answer calls.
    #[arg(long)]
    host: bool,
    /// Allow the agent to see all mailboxes and connections, and to send to all mailboxes.
    #[arg(long)]
    operator: bool,
    /// How long the token is valid, such as 30d. Default: until it is revoked.
    #[arg(long, value_parser = parse_duration, value_name = "DURATION")]
    expires: Option<Duration>,
    /// Write the token to this file instead of standard output.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    #[command(flatten)]
    folder: FolderArgs,
}

#[derive(Args)]
struct ListArgs {
    #[command(flatten)]
    folder: FolderArgs,
}

#[derive(Args)]
struct RotateArgs {
    name: String,
    /// How long the previous tokens stay valid.
    #[arg(long, value_parser = parse_duration, default_value = "1h", value_name = "DURATION")]
    overlap: Duration,
    /// How long the new token is valid. Default: the lifetime of the previous one.
    #[arg(long, value_parser = parse_duration, value_name = "DURATION")]
    expires: Option<Duration>,
    /// Write the token to this file instead of standard output. By default, the tokens of `local`, `host` and
    /// `operator` are written to their files in the data folder.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    #[command(flatten)]
    folder: FolderArgs,
}

#[derive(Args)]
struct RevokeArgs {
    name: String,
    #[command(flatten)]
    folder: FolderArgs,
}

pub fn run(args: AgentArgs) -> Result<(), Failure> {
    match args.command {
        AgentCommand::Add(args) => add(&args),
        AgentCommand::List(args) => list(&args),
        AgentCommand::Rotate(args) => rotate(&args),
        AgentCommand::Revoke(args) => revoke(&args),
    }
}

impl FolderArgs {
    fn data(&self) -> Result<PathBuf, Failure> {
        let configured = match &self.data {
            Some(folder) => Some(folder.clone()),
            None => local_broker()?.data,
        };
        let data = folders::data_root(configured)?;
        toolbus_migrate::check_here(&data)?;
        Ok(data)
    }
}

fn add(args: &AddArgs) -> Result<(), Failure> {
    let data = args.folder.data()?;
    let local = local_broker().unwrap_or_default();
    let roles: Vec<&str> = local.roles.iter().map(String::as_str).collect();
    let role = args.role.as_deref().unwrap_or(if args.host { HOST_ROLE } else { OPERATOR_ROLE });
    let token_file = args.token_file.clone().or_else(|| local_token_file(&data, &args.name));
    check_token_file(token_file.as_deref())?;
    // An existing file may hold the only copy of another agent's token.
    if let Some(file) = args.token_file.as_ref().filter(|file| file.exists()) {
        return Err(Failure::TokenFileInUse { file: file.clone() });
    }
    let new = NewAgent { name: &args.name, role, host: args.host, operator: args.operator, lifetime: args.expires };
    let issued = AgentsFolder::new(&data).add(&new)?;
    if !args.host
        && let Some(warning) = role_without_rules("--role", role, &roles)
    {
        print_error(warning);
    }
    let done = format!("added agent {} with role {role} to {}", args.name, data.display());
    output_token(&args.name, &issued, token_file, args.folder.json, &done)
}

fn rotate(args: &RotateArgs) -> Result<(), Failure> {
    let data = args.folder.data()?;
    let token_file = args.token_file.clone().or_else(|| local_token_file(&data, &args.name));
    check_token_file(token_file.as_deref())?;
    let issued = AgentsFolder::new(&data).rotate(&args.name, args.overlap, args.expires)?;
    let overlap =
        issued.overlap_ends.map_or_else(String::new, |end| format!("; the previous one is valid until {end:.0}"));
    let done = format!("issued a new token for agent {}{overlap}", args.name);
    output_token(&args.name, &issued, token_file, args.folder.json, &done)
}

fn revoke(args: &RevokeArgs) -> Result<(), Failure> {
    let data = args.folder.data()?;
    let is_new = AgentsFolder::new(&data).revoke(&args.name)?;
    if args.folder.json {
        return print_line(&json!({"name": args.name, "revoked": true, "already": !is_new}).to_string());
    }
    let done = if is_new {
        "revoked; its connections, calls and messages end within two seconds"
    } else {
        "was already revoked"
    };
    print_line(&format!("agent {} {done}", args.name))
}

fn list(args: &ListArgs) -> Result<(), Failure> {
    let agents = AgentsFolder::new(args.folder.data()?).list()?;
    if args.folder.json {
        let agents: Vec<Value> = agents.iter().map(as_json).collect();
        return print_line(&json!({"agents": agents}).to_string());
    }
    let mut rows = vec![["AGENT", "ROLE", "RIGHTS", "KEY", "CREATED", "STATE"].map(str::to_owned)];
    for agent in &agents {
        for key in &agent.keys {
            rows.push([
                agent.name.clone(),
                agent.role.clone(),
                rights(agent).to_owned(),
                key.id.clone(),
                format!("{:.0}", key.created),
                state(agent, key),
            ]);
        }
    }
    print_line(&table(&rows, None))
}

/// Writes the token to a file, or alone on standard output, so that a shell can capture it. It is not stored anywhere
/// else.
fn output_token(
    name: &str,
    issued: &Issued,
    token_file: Option<PathBuf>,
    as_json: bool,
    done: &str,
) -> Result<(), Failure> {
    if let Some(file) = &token_file {
        let text = format!("{}\n", issued.token.expose());
        toolbus_base::replace_file(file, text.as_bytes())
            .map_err(|source| Failure::Write { file: file.clone(), source })?;
    }
    if as_json {
        let token = token_file.is_none().then(|| issued.token.expose());
        return print_line(
            &json!({
                "name": name, "role": issued.role, "key": issued.key, "token": token, "token_file": token_file,
                "expires": issued.expires.map(|end| end.to_string()),
                "overlap_ends": issued.overlap_ends.map(|end| end.to_string()),
            })
            .to_string(),
        );
    }
    let end = issued.expires.map_or_else(String::new, |end| format!(" It expires at {end:.0}."));
    match token_file {
        Some(file) => print_line(&format!("{done}. The token is in {}.{end}", file.display())),
        None => {
            print_error(format_args!("{done}. The token is shown only once.{end}"));
            print_line(issued.token.expose())
        }
    }
}

/// Refuses to overwrite a file that is not a token. Called before anything is changed.
fn check_token_file(file: Option<&Path>) -> Result<(), Failure> {
    let Some(file) = file else { return Ok(()) };
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let unusable = |source| Failure::Write { file: file.to_owned(), source };
    fs::metadata(folder).map_err(unusable)?;
    match fs::read_to_string(file) {
        // A single word is a token of toolbus or of the original.
        Ok(text) if text.split_whitespace().count() <= 1 && text.len() <= 4096 => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Ok(_) => Err(Failure::NotATokenFile { file: file.to_owned() }),
        Err(source) => Err(Failure::Write { file: file.to_owned(), source }),
    }
}

fn as_json(agent: &AgentInfo) -> Value {
    let key = |key: &KeyInfo| {
        json!({
            "id": key.id, "created": key.created.to_string(), "expires": key.expires.map(|end| end.to_string()),
            "valid_until": key.valid_until.map(|end| end.to_string()), "valid": key.is_valid,
        })
    };
    json!({
        "name": agent.name, "role": agent.role, "host": agent.host, "operator": agent.operator,
        "created": agent.created.to_string(), "revoked": agent.revoked.map(|at| at.to_string()),
        "keys": agent.keys.iter().map(key).collect::<Vec<_>>(),
    })
}

fn rights(agent: &AgentInfo) -> &'static str {
    match (agent.host, agent.operator) {
        (true, true) => "host, operator",
        (true, false) => "host",
        (false, true) => "operator",
        (false, false) => "-",
    }
}

fn state(agent: &AgentInfo, key: &KeyInfo) -> String {
    match (agent.revoked, key.valid_until, key.expires) {
        (Some(at), ..) => format!("revoked {at:.0}"),
        (None, Some(end), _) if key.is_valid => format!("replaced, valid until {end:.0}"),
        (None, None, Some(end)) if key.is_valid => format!("valid until {end:.0}"),
        (None, None, None) => "valid".into(),
        (None, Some(end), _) => format!("replaced {end:.0}"),
        (None, None, Some(end)) => format!("expired {end:.0}"),
    }
}
