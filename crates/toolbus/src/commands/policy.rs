//! `toolbus policy check`: the policy's decision about a call, the rule behind it, and the rule's position in the file.
//! Nothing is called.

use crate::config::LocalBroker;
use crate::failure::Failure;
use crate::output::{print_error, print_line};
use clap::{ArgGroup, Args, Subcommand};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use toolbus_policy::{Arguments, Decision, Effect, Item, Limit, Position, Question, Reason};

#[derive(Subcommand)]
pub enum PolicyCommand {
    /// Check whether a role may use a tool, resource or prompt. Exit code: 0 allow, 1 deny, 2 ask, 3 no decision.
    Check(CheckArgs),
}

#[derive(Args)]
#[command(
    group(ArgGroup::new("item").required(true).args(["tool", "resource", "prompt"])),
    after_help = "\
Without --args the decision is whether any call could be allowed, as for lists.

Examples:
  toolbus policy check --role reader --tool write_file --server files --args '{\"path\": \"/tmp/x\"}'
  toolbus policy check --role reader --resource file:///etc/passwd --json"
)]
pub struct CheckArgs {
    /// The role of the caller.
    #[arg(long, value_name = "ROLE")]
    role: String,
    /// The tool, by the name that workers see.
    #[arg(long, value_name = "TOOL")]
    tool: Option<String>,
    /// The URI of a resource.
    #[arg(long, value_name = "URI")]
    resource: Option<String>,
    /// The prompt, by the name that workers see.
    #[arg(long, value_name = "NAME")]
    prompt: Option<String>,
    /// The server of the tool, resource or prompt. Default: each server of the configuration.
    #[arg(long, value_name = "NAME")]
    server: Option<String>,
    /// The arguments of the call, as JSON; - reads them from standard input.
    #[arg(long, value_name = "JSON")]
    args: Option<String>,
    /// The toolbus.toml to read. Default: toolbus.toml in the working folder, or in ~/.config/toolbus.
    #[arg(long, env = "TOOLBUS_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Placeholder for a server that no rule names.
const ANY_SERVER: &str = "(any)";

pub fn run(command: PolicyCommand) -> Result<ExitCode, Failure> {
    let PolicyCommand::Check(args) = command;
    let rules = LocalBroker::load(args.config.as_deref())?;
    for warning in &rules.warnings {
        print_error(format_args!("warning: {warning}"));
    }
    let arguments = args.arguments()?;
    let arguments = arguments.as_ref().map_or(Arguments::Unknown, |arguments| Arguments::Known(arguments.get()));
    let servers = match (&args.server, rules.servers.as_slice()) {
        (Some(server), _) => vec![server.clone()],
        (None, []) => vec![ANY_SERVER.to_owned()],
        (None, servers) => servers.to_vec(),
    };
    let ask = |server: &str| {
        let question = Question { role: Some(&args.role), server, item: args.item(), arguments };
        rules.policy.decide(&question)
    };
    let decisions: Vec<(&str, Decision<'_>)> = servers.iter().map(|server| (server.as_str(), ask(server))).collect();
    let strictest = decisions.iter().map(|(_, decision)| decision.effect).max().unwrap_or(Effect::Deny);
    let shown = Shown {
        args: &args,
        file: rules.file.as_ref().map(|file| file.path.as_path()),
        own_roles: rules.policy.has_own_roles(),
    };
    print_line(&if args.json { shown.as_json(&decisions) } else { shown.as_text(&decisions) })?;
    Ok(ExitCode::from(match strictest {
        Effect::Allow => 0,
        Effect::Deny => 1,
        Effect::Ask => 2,
    }))
}

impl CheckArgs {
    fn item(&self) -> Item<'_> {
        let tool = self.tool.as_deref().map(Item::Tool);
        let resource = self.resource.as_deref().map(Item::Resource);
        tool.or(resource).or(self.prompt.as_deref().map(Item::Prompt)).unwrap_or(Item::Server)
    }

    fn arguments(&self) -> Result<Option<Box<RawValue>>, Failure> {
        let Some(given) = &self.args else { return Ok(None) };
        let mut text = given.clone();
        if given == "-" {
            text.clear();
            std::io::stdin().lock().read_to_string(&mut text).map_err(Failure::Stdin)?;
        }
        let arguments = RawValue::from_string(text.trim().to_owned());
        arguments.map(Some).map_err(|error| crate::arguments::ArgumentsError::NotJson(error).into())
    }
}

struct Shown<'a> {
    args: &'a CheckArgs,
    file: Option<&'a Path>,
    own_roles: bool,
}

impl Shown<'_> {
    fn as_text(&self, decisions: &[(&str, Decision<'_>)]) -> String {
        let mut lines = Vec::new();
        // The same decision for all servers is printed once.
        let alike = decisions.windows(2).all(|pair| {
            pair[0].1.effect == pair[1].1.effect && pair[0].1.reason.to_string() == pair[1].1.reason.to_string()
        });
        for (server, decision) in if alike { &decisions[..1] } else { decisions } {
            let on = if alike { String::new() } else { format!(" on server {server}") };
            lines.push(format!("{}{on}: {}", decision.effect, decision.reason));
            if let Some(rule) = decision.rule() {
                lines.push(format!("  at {}", self.at(rule.position)));
                if self.args.args.is_none() && !rule.conditions.is_empty() {
                    lines.push("  for some arguments; check specific ones with --args".to_owned());
                }
            }
            lines.extend(decision.limits.iter().map(|limit| format!("  limit: {}", described(limit))));
        }
        if let Some(note) = self.note(decisions) {
            lines.push(format!("  {note}"));
        }
        lines.join("\n")
    }

    /// An explanation if the role is unknown.
    fn note(&self, decisions: &[(&str, Decision<'_>)]) -> Option<String> {
        let role = &self.args.role;
        let is_unknown = decisions.iter().any(|(_, decision)| matches!(decision.reason, Reason::UnknownRole));
        if is_unknown && self.own_roles {
            return Some(format!("to allow something, add [roles.{role}] to toolbus.toml"));
        }
        is_unknown.then(|| {
            format!(
                "no [roles] are configured: only the built-in roles local and operator may use anything; to allow \
                 something, add [roles.{role}] to toolbus.toml. With a shared token and no [roles], every role may use \
                 everything"
            )
        })
    }

    fn as_json(&self, decisions: &[(&str, Decision<'_>)]) -> String {
        let item = self.args.item();
        let decision = |(server, decision): &(&str, Decision<'_>)| {
            let rule = decision.rule().map(|rule| {
                let Position { line, column } = rule.position;
                json!({"text": rule.to_string(), "file": self.file, "line": line, "column": column})
            });
            let limits: Vec<Value> = decision.limits.iter().map(|limit| limit_json(limit)).collect();
            json!({"server": server, "effect": decision.effect.as_str(), "reason": decision.reason.to_string(),
                "rule": rule, "limits": limits})
        };
        let decisions: Vec<Value> = decisions.iter().map(decision).collect();
        json!({"role": self.args.role, "kind": item.noun(), "name": item.name(), "decisions": decisions}).to_string()
    }

    fn at(&self, position: Position) -> String {
        match self.file {
            Some(file) if position != Position::NOWHERE => {
                format!("{}:{}:{}", file.display(), position.line, position.column)
            }
            _ => "(built in)".to_owned(),
        }
    }
}

fn described(limit: &Limit) -> String {
    let parts = [
        limit.rate.map(|rate| format!("{rate}")),
        limit.concurrency.map(|most| format!("{most} concurrent calls")),
        limit.max_result.map(|bytes| format!("results of at most {bytes} bytes")),
        limit.deadline.map(|time| format!("deadline {time:?}")),
    ];
    format!(
        "{} (line {}): {}",
        limit.kind,
        limit.position.line,
        parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
    )
}

fn limit_json(limit: &Limit) -> Value {
    json!({
        "of": limit.kind.to_string(), "line": limit.position.line, "rate": limit.rate.map(|rate| rate.to_string()),
        "concurrency": limit.concurrency, "max_result": limit.max_result,
        "deadline_ms": limit.deadline.map(|time| time.as_millis() as u64),
    })
}
