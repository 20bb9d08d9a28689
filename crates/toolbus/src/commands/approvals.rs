//! `toolbus approvals`: lists the calls that wait for approval at all hosts, and approves or denies them. The hosts
//! check whether the caller may decide.

use crate::failure::Failure;
use crate::hosts_admin::{ask_raw, from_all};
use crate::output::print_line;
use crate::reach::{LocalAgent, ReachArgs, transient_agent};
use crate::table::{age, table};
use clap::{Args, Subcommand};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::BTreeMap;
use toolbus_base::escaped;
use toolbus_base::now_ms;
use toolbus_client::MultiplexedClient;
use toolbus_mcp::{ApprovalDecision, HostRequest, Members, Raw, TaskWish};

#[derive(Args)]
#[command(after_help = "\
Examples:
  toolbus approvals
  toolbus approvals show 7c0e1f
  toolbus approvals approve 7c0e1f
  toolbus approvals deny 7c0e1f")]
pub struct ApprovalsArgs {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    reach: ReachArgs,
}

#[derive(Subcommand)]
enum Action {
    /// List the calls that wait for approval.
    List,
    /// Show one call with everything that reaches its server.
    Show {
        /// The id of the call, or a unique prefix of it.
        id: String,
    },
    /// Approve a call: it runs.
    Approve {
        /// The id of the call, or a unique prefix of it.
        id: String,
    },
    /// Deny a call: it is refused.
    Deny {
        /// The id of the call, or a unique prefix of it.
        id: String,
    },
}

/// The list shows this many characters of the arguments; `show` prints all of them.
const SHOWN_ARGUMENTS: usize = 200;

#[derive(Serialize, Deserialize)]
struct Pending {
    #[serde(default)]
    host: String,
    id: String,
    hash: String,
    server: String,
    method: String,
    name: String,
    arguments: Option<Raw>,
    /// The beginning of arguments that are too long for the list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    arguments_begin: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    arguments_bytes: Option<u64>,
    /// In the list: the number and size of the other members of the params.
    #[serde(default)]
    more_members: u64,
    #[serde(default)]
    more_bytes: u64,
    /// All members of the params; not in the list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    params: Option<Raw>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    task: Option<TaskWish>,
    caller: String,
    role: Option<String>,
    rule: String,
    since_ms: u64,
    until_ms: Option<u64>,
}

pub async fn run(args: ApprovalsArgs) -> Result<(), Failure> {
    let client = args.reach.connect(LocalAgent::Operator, transient_agent(None), false).await?.into_multiplexed();
    let done = match &args.action {
        None | Some(Action::List) => list(&client, args.reach.json).await,
        Some(Action::Show { id }) => show(&client, id, args.reach.json).await,
        Some(Action::Approve { id }) => decide(&client, id, true, args.reach.json).await,
        Some(Action::Deny { id }) => decide(&client, id, false, args.reach.json).await,
    };
    client.close().await;
    done
}

async fn list(client: &MultiplexedClient, as_json: bool) -> Result<(), Failure> {
    let all = waiting(client).await?;
    if as_json {
        return print_line(&json!({"approvals": all}).to_string());
    }
    if all.is_empty() {
        return print_line("no calls wait for approval");
    }
    let now = now_ms();
    let mut rows = vec![["ID", "TOOL", "CALLER", "ROLE", "AGE", "TIME LEFT", "HOST"].map(str::to_owned)];
    for pending in &all {
        rows.push([
            pending.id.clone(),
            escaped(&format!("{}/{}", pending.server, pending.name)),
            escaped(&pending.caller),
            escaped(pending.role.as_deref().unwrap_or("-")),
            age(now.saturating_sub(pending.since_ms)),
            pending.until_ms.map_or("-".to_owned(), |until| age(until.saturating_sub(now))),
            escaped(&pending.host),
        ]);
    }
    let mut text = table(&rows, None);
    for pending in &all {
        let begin = pending.arguments_begin.as_deref();
        let arguments = escaped(begin.unwrap_or(pending.arguments.as_ref().map_or("{}", |arguments| arguments.get())));
        let mut shown: String = arguments.chars().take(SHOWN_ARGUMENTS).collect();
        if begin.is_some() || shown.len() < arguments.len() {
            shown.push_str(&format!("… (complete: toolbus approvals show {})", pending.id));
        }
        shown.push_str(&pending.more());
        text.push_str(&format!("\n\n{}  {}\n  rule: {}", pending.id, shown, escaped(&pending.rule)));
    }
    print_line(&text)
}

async fn show(client: &MultiplexedClient, id: &str, as_json: bool) -> Result<(), Failure> {
    let Pending { id, host, .. } = find(client, id).await?;
    let answer = ask_raw(client, &host, HostRequest::ApprovalsShow { id }).await?;
    let members = Members::of(Some(&answer)).map_err(|error| Failure::BadReply(error.to_string()))?;
    let call = members.get("approval").map_or("null", |call| call.get());
    if as_json {
        return print_line(call);
    }
    let call: Pending = serde_json::from_str(call).map_err(|error| Failure::BadReply(error.to_string()))?;
    let arguments = call.arguments.as_ref().map_or("{}", |arguments| arguments.get());
    let (tool, caller) = (format!("{}/{}", call.server, call.name), escaped(&call.caller));
    let mut text = format!("{}  {} of {caller}\n{}", call.id, escaped(&tool), escaped(arguments));
    let params = Members::of(call.params.as_ref()).map_err(|error| Failure::BadReply(error.to_string()))?;
    for (key, value) in params.iter().filter(|(key, _)| !matches!(*key, "name" | "arguments")) {
        text.push_str(&format!("\n  {}: {}", escaped(key), escaped(value.get())));
    }
    if call.task.is_some() {
        text.push_str("\n  runs as a task, without its caller");
    }
    print_line(&format!("{text}\n  rule: {}", escaped(&call.rule)))
}

impl Pending {
    /// What the list does not show of the call.
    fn more(&self) -> String {
        let members = match self.more_members {
            0 => String::new(),
            1 => format!("\n  +1 more member, {} bytes", self.more_bytes),
            count => format!("\n  +{count} more members, {} bytes", self.more_bytes),
        };
        format!("{members}{}", if self.task.is_some() { "\n  runs as a task, without its caller" } else { "" })
    }
}

/// Finds the only waiting call whose id begins with `id`.
async fn find(client: &MultiplexedClient, id: &str) -> Result<Pending, Failure> {
    let mut matches = waiting(client).await?.into_iter().filter(|pending| pending.id.starts_with(id));
    match (matches.next(), matches.next()) {
        (Some(pending), None) => Ok(pending),
        _ => Err(Failure::NoApproval { id: id.to_owned() }),
    }
}

async fn decide(client: &MultiplexedClient, id: &str, approve: bool, as_json: bool) -> Result<(), Failure> {
    let pending = find(client, id).await?;
    // The hash binds the decision to the listed call: the host rejects it if anything of the call differs.
    let decision = ApprovalDecision { id: pending.id.clone(), hash: pending.hash.clone(), approve };
    ask_raw(client, &pending.host, HostRequest::ApprovalsDecide(decision)).await?;
    let word = if approve { "approved" } else { "denied" };
    print_line(&match as_json {
        true => json!({"id": pending.id, "decision": word, "call": pending}).to_string(),
        false => format!("{} {word}: {} of {}", pending.id, escaped(&pending.name), escaped(&pending.caller)),
    })
}

/// The waiting calls of all connected hosts, oldest first. A host that fails to answer does not hide the others.
async fn waiting(client: &MultiplexedClient) -> Result<Vec<Pending>, Failure> {
    let hosts = client.client().hosts(&BTreeMap::new()).await?;
    let of_hosts = from_all(&hosts, |host| waiting_at(client, host)).await?;
    let mut all: Vec<Pending> = of_hosts.into_iter().flat_map(|(_, of_host)| of_host).collect();
    all.sort_by_key(|pending| pending.since_ms);
    Ok(all)
}

async fn waiting_at(client: &MultiplexedClient, host: &str) -> Result<Vec<Pending>, Failure> {
    let bad = |error: &dyn std::fmt::Display| Failure::BadReply(error.to_string());
    let answer = ask_raw(client, host, HostRequest::ApprovalsList).await?;
    let members = Members::of(Some(&answer)).map_err(|error| bad(&error))?;
    let approvals = members.get("approvals").map_or("[]", |approvals| approvals.get());
    let of_host: Vec<Pending> = serde_json::from_str(approvals).map_err(|error| bad(&error))?;
    Ok(of_host.into_iter().map(|pending| Pending { host: host.to_owned(), ..pending }).collect())
}
