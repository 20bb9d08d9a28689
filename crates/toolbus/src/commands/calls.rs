//! `toolbus calls`: lists the calls at the hosts and in their mailboxes, and cancels one.

use crate::failure::Failure;
use crate::hosts_admin::{ask, ask_all, find_by_prefix, hosts, note_hosts_away};
use crate::output::print_line;
use crate::queue::{self, pending_of};
use crate::reach::{LocalAgent, ReachArgs, transient_agent};
use crate::table::{age, table};
use clap::{Args, Subcommand};
use serde_json::json;
use std::collections::{BTreeMap, HashSet};
use toolbus_base::escaped;
use toolbus_client::{CancelOutcome, HostEntry, MultiplexedClient};
use toolbus_mcp::{AdminRequest, CallList, CallRow, CallState};
use toolbus_protocol::{ErrorCode, MsgId, principal_of};

#[derive(Args)]
#[command(after_help = "\
Examples:
  toolbus calls
  toolbus calls --all --host attic
  toolbus calls cancel 7c0e1f

States: queued (waits for a permit, or for a host that is away), waiting for approval, running, done, failed, cancelled,
unknown (started, but whether it had its effect is not known). The content of messages that are queued for a host is not
inspected, so other requests, such as queries about tasks, are listed as queued calls too. An agent sees its own calls,
an operator sees all.")]
pub struct CallsArgs {
    #[command(subcommand)]
    action: Option<Action>,
    /// Also list ended calls that their hosts still remember.
    #[arg(long)]
    all: bool,
    /// List only the calls of this host.
    #[arg(long, value_name = "NAME")]
    host: Option<String>,
    #[command(flatten)]
    reach: ReachArgs,
}

#[derive(Subcommand)]
enum Action {
    /// Cancel a call: withdraw it if it is queued, or cancel it at its server if it is running.
    Cancel {
        /// The id of the call, or a unique prefix of it.
        id: String,
    },
}

/// A call, and where it is.
pub struct Call {
    host: String,
    row: CallRow,
    /// Whether it is in the host's mailbox and not at the host.
    is_at_broker: bool,
}

pub async fn run(args: CallsArgs) -> Result<(), Failure> {
    let client = args.reach.connect(LocalAgent::Operator, transient_agent(None), false).await?.into_multiplexed();
    let done = match &args.action {
        None => list(&client, &args).await,
        Some(Action::Cancel { id }) => cancel(&client, &args, id).await,
    };
    client.close().await;
    done
}

async fn list(client: &MultiplexedClient, args: &CallsArgs) -> Result<(), Failure> {
    let hosts = hosts(client, args.host.as_deref()).await?;
    let (calls, more) = all_calls(client, &hosts, args.all).await?;
    note_hosts_away(&hosts, "only calls in its mailbox are shown");
    print_line(&if args.reach.json { as_json(&calls, more) } else { as_table(&calls, more, args.all) })
}

/// The calls at the hosts and those in their mailboxes. The number is positive if some are not listed.
pub async fn all_calls(
    client: &MultiplexedClient,
    hosts: &[HostEntry],
    ended: bool,
) -> Result<(Vec<Call>, u64), Failure> {
    let lists: Vec<(String, CallList)> = ask_all(client, hosts, &AdminRequest::CallsList { ended }).await?;
    let (mut calls, mut more) = (Vec::new(), 0);
    for (host, list) in lists {
        more += list.more;
        calls.extend(list.calls.into_iter().map(|row| Call { host: host.clone(), row, is_at_broker: false }));
    }
    let known: HashSet<String> = calls.iter().map(|call| call.row.id.clone()).collect();
    for host in hosts {
        let Some(waiting) = pending_of(client, &host.id).await else { continue };
        more += u64::from(waiting.more);
        let queued = waiting.rows.into_iter().filter(|row| !row.in_flight && !known.contains(&*row.id));
        calls.extend(queued.map(|row| Call {
            host: host.id.to_string(),
            row: CallRow {
                id: row.id.to_string(),
                agent: principal_of(&row.from).to_owned(),
                server: None,
                tool: None,
                state: CallState::Queued,
                age_ms: row.age_ms,
                attempts: row.attempt,
                note: (!host.online).then(|| format!("host away for {}", age(host.since_ms))),
            },
            is_at_broker: true,
        }));
    }
    Ok((calls, more))
}

async fn cancel(client: &MultiplexedClient, args: &CallsArgs, id: &str) -> Result<(), Failure> {
    let hosts = hosts(client, args.host.as_deref()).await?;
    let (calls, _) = all_calls(client, &hosts, true).await?;
    let Call { host, row, is_at_broker } = find_by_prefix(calls, id, |call| &call.row.id)?;
    let row = match is_at_broker {
        true => withdraw(client, &host, row).await?,
        false => ask(client, &host, AdminRequest::CallsCancel { id: row.id }).await?,
    };
    if args.reach.json {
        return print_line(&json!({"host": host, "call": row}).to_string());
    }
    print_line(&match row.state {
        CallState::Cancelled => format!("{} cancelled", row.id),
        state => format!("{}: cancellation requested, state is {}", row.id, state_name(state)),
    })
}

/// Withdraws a queued call at the broker. If the host may have received it, the host cancels it; while the host is away,
/// the state of such a call is unknown.
async fn withdraw(client: &MultiplexedClient, host: &str, row: CallRow) -> Result<CallRow, Failure> {
    let cancelled = |row| CallRow { state: CallState::Cancelled, ..row };
    match queue::withdraw(client, host, &MsgId::from(row.id.clone())).await? {
        CancelOutcome::Withdrawn => Ok(cancelled(row)),
        CancelOutcome::Unknown => Err(Failure::NotWithdrawn { id: row.id }),
        CancelOutcome::Running | CancelOutcome::Finished if !queue::is_online(client, host).await => {
            Ok(CallRow { state: CallState::Unknown, ..row })
        }
        CancelOutcome::Running | CancelOutcome::Finished => {
            match ask(client, host, AdminRequest::CallsCancel { id: row.id.clone() }).await {
                Err(Failure::RefusedByHost { code: Some(ErrorCode::UnknownCall), .. }) => Ok(cancelled(row)),
                answer => answer,
            }
        }
    }
}

pub fn state_name(state: CallState) -> &'static str {
    match state {
        CallState::Queued => "queued",
        CallState::WaitingForApproval => "waiting for approval",
        CallState::Running => "running",
        CallState::Done => "done",
        CallState::Failed => "failed",
        CallState::Cancelled => "cancelled",
        CallState::Unknown => "unknown",
    }
}

/// Counts the calls of each host by state.
pub fn by_state(calls: &[Call]) -> BTreeMap<&str, BTreeMap<&'static str, u64>> {
    let mut counts: BTreeMap<&str, BTreeMap<&'static str, u64>> = BTreeMap::new();
    for call in calls {
        *counts.entry(&call.host).or_default().entry(state_name(call.row.state)).or_default() += 1;
    }
    counts
}

fn as_json(calls: &[Call], more: u64) -> String {
    let call = |call: &Call| {
        let mut value = json!(call.row);
        value["host"] = call.host.as_str().into();
        value
    };
    json!({"calls": calls.iter().map(call).collect::<Vec<_>>(), "more": more}).to_string()
}

fn as_table(calls: &[Call], more: u64, ended: bool) -> String {
    if calls.is_empty() {
        return if ended { "no calls" } else { "no calls under way; --all also lists ended calls" }.to_owned();
    }
    let mut rows = vec![["ID", "TOOL", "AGENT", "STATE", "AGE", "ATTEMPTS", "HOST", "NOTE"].map(str::to_owned)];
    for Call { host, row, .. } in calls {
        let tool = match (&row.server, &row.tool) {
            (Some(server), Some(tool)) => format!("{server}/{tool}"),
            _ => "-".to_owned(),
        };
        rows.push([
            escaped(&row.id),
            escaped(&tool),
            escaped(&row.agent),
            state_name(row.state).to_owned(),
            age(row.age_ms),
            row.attempts.to_string(),
            escaped(host),
            escaped(row.note.as_deref().unwrap_or_default()),
        ]);
    }
    let mut text = table(&rows, None);
    if more > 0 {
        text.push_str("\nthe list is incomplete: there are more calls");
    }
    text
}
