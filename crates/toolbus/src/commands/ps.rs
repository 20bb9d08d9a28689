//! `toolbus ps`: connections, hosts with their calls, and mailboxes with their queued messages.

use crate::commands::calls::{Call, all_calls, by_state};
use crate::failure::Failure;
use crate::hosts_admin::hosts;
use crate::output::print_line;
use crate::pools::{ShownPool, pools_of};
use crate::reach::{LocalAgent, ReachArgs, transient_agent};
use crate::table::{age, fitted, short_mailbox, terminal_width};
use clap::Args;
use serde_json::json;
use toolbus_base::terminal_line;
use toolbus_client::HostEntry;
use toolbus_mcp::HostManifest;
use toolbus_protocol::{Body, Status};

#[derive(Args)]
pub struct PsArgs {
    #[command(flatten)]
    reach: ReachArgs,
}

pub async fn run(args: PsArgs) -> Result<(), Failure> {
    let client = args.reach.connect(LocalAgent::Operator, transient_agent(None), false).await?;
    // The connection of this command itself is not shown. Its name comes from the credential.
    let me = client.me();
    let mut status = client.status().await?;
    status.connections.retain(|connection| connection.agent.session_id != me.session_id);
    let client = client.into_multiplexed();
    let hosts = hosts(&client, None).await?;
    // A warning was printed for each host that did not answer; the rest is shown.
    let calls = all_calls(&client, &hosts, true).await.map(|(calls, _)| calls).unwrap_or_default();
    client.close().await;
    let shown = Shown { status, hosts, calls };
    print_line(&if args.reach.json { as_json(&shown) } else { as_table(&shown, terminal_width()) })
}

struct Shown {
    status: Status,
    hosts: Vec<HostEntry>,
    calls: Vec<Call>,
}

/// The states in the order in which a call passes through them.
const STATES: [&str; 7] = ["queued", "waiting for approval", "running", "done", "failed", "cancelled", "unknown"];

fn as_json(shown: &Shown) -> String {
    let Shown { status, hosts, calls } = shown;
    let counts = by_state(calls);
    let hosts = hosts.iter().map(|host| {
        let manifest = manifest_of(host);
        json!({
            "name": &*host.id, "online": host.online, "since_ms": host.since_ms, "pool": manifest.pool,
            "calls": counts.get(&*host.id).cloned().unwrap_or_default(), "problems": manifest.problems,
        })
    });
    let pools = pools(&shown.hosts).into_iter().map(|pool| {
        let members: Vec<&str> = pool.hosts.iter().map(|index| &*shown.hosts[*index].id).collect();
        json!({"name": pool.name, "hosts": members, "problems": pool.merged.manifest.problems})
    });
    let connections = status.connections.iter().map(|c| {
        json!({
            "agent": &*c.agent.session_id, "role": c.agent.role.as_deref(),
            "subscribed": c.subscribed, "connected_ms": c.connected_ms,
        })
    });
    let mailboxes = status.mailboxes.iter().map(|m| {
        json!({
            "name": &*m.name, "messages": m.messages, "bytes": m.bytes,
            "in_flight": m.in_flight, "oldest_ms": m.oldest_ms,
        })
    });
    json!({
        "connections": connections.collect::<Vec<_>>(),
        "hosts": hosts.collect::<Vec<_>>(),
        "pools": pools.collect::<Vec<_>>(),
        "mailboxes": mailboxes.collect::<Vec<_>>(),
        "more_mailboxes": status.more_mailboxes,
        "set_aside": status.set_aside,
    })
    .to_string()
}

fn as_table(shown: &Shown, width: Option<usize>) -> String {
    let Shown { status, hosts, calls } = shown;
    let mut rows = vec![["AGENT", "ROLE", "CONNECTED", "RECEIVES"].map(str::to_owned)];
    for c in &status.connections {
        rows.push([
            short_mailbox(&c.agent.session_id),
            c.agent.role.as_deref().unwrap_or("-").to_owned(),
            age(c.connected_ms),
            if c.subscribed { "yes" } else { "no" }.to_owned(),
        ]);
    }
    let mut text = fitted(&rows, width);
    if !hosts.is_empty() {
        text.push_str(&format!("\n\n{}", hosts_table(hosts, calls, width)));
        for host in hosts {
            for problem in manifest_of(host).problems {
                text.push_str(&format!("\nproblem on {}: {}", host.id, terminal_line(&problem)));
            }
        }
        for problem in pools(hosts).into_iter().flat_map(|pool| pool.merged.manifest.problems) {
            text.push_str(&format!("\n{}", terminal_line(&problem)));
        }
    }
    let mut rows = vec![["MAILBOX", "WAITING", "IN FLIGHT", "BYTES", "OLDEST"].map(str::to_owned)];
    for m in &status.mailboxes {
        rows.push([
            short_mailbox(&m.name),
            (m.messages - m.in_flight).to_string(),
            m.in_flight.to_string(),
            m.bytes.to_string(),
            m.oldest_ms.map_or("-".to_owned(), age),
        ]);
    }
    text.push_str("\n\n");
    text.push_str(&fitted(&rows, width));
    if status.more_mailboxes > 0 {
        text.push_str(&format!("\nand {} more mailboxes", status.more_mailboxes));
    }
    if status.set_aside > 0 {
        text.push_str(&format!("\n{} corrupt records were set aside; see the broker's log", status.set_aside));
    }
    text
}

/// With the problems that the host or the broker reports, such as names that belong to another host.
fn manifest_of(host: &HostEntry) -> HostManifest {
    let read = |manifest: &Body| serde_json::from_slice(manifest.as_bytes()).ok();
    host.manifest.as_ref().and_then(read).unwrap_or_default()
}

fn pools(hosts: &[HostEntry]) -> Vec<ShownPool> {
    let manifests: Vec<HostManifest> = hosts.iter().map(manifest_of).collect();
    pools_of(hosts.iter().zip(&manifests).map(|(host, manifest)| (&*host.id, host.online, manifest)))
}

fn hosts_table(hosts: &[HostEntry], calls: &[Call], width: Option<usize>) -> String {
    let counts = by_state(calls);
    let manifests: Vec<HostManifest> = hosts.iter().map(manifest_of).collect();
    let mut rows = vec![["HOST", "STATE", "CALLS"].map(str::to_owned)];
    for (host, manifest) in hosts.iter().zip(manifests) {
        let of_host = counts.get(&*host.id);
        let count = |state: &&str| {
            let count = of_host.and_then(|counts| counts.get(*state))?;
            Some(format!("{count} {state}"))
        };
        let words: Vec<String> = STATES.iter().filter_map(count).collect();
        let state = match host.online {
            true if manifest.draining => "stopping",
            true => "online",
            false => "away",
        };
        let pool = manifest.pool.map_or_else(String::new, |pool| format!(" (pool {pool})"));
        let calls = if words.is_empty() { "-".to_owned() } else { words.join(", ") };
        rows.push([format!("{}{pool}", host.id), format!("{state} for {}", age(host.since_ms)), calls]);
    }
    fitted(&rows, width)
}

#[cfg(test)]
mod tests {
    use super::*;
    use toolbus_protocol::{AgentRef, Connection, MailboxStatus};

    #[test]
    fn the_table_fits_80_columns() {
        let name = "planner-of-the-nightly-build#connect-7c0e1f42-0000-4000-8000-000000000001";
        let agent = AgentRef::new(name).with_role("a-role-with-a-rather-long-name");
        let connections = vec![Connection { agent, subscribed: true, connected_ms: 7_200_000 }];
        let mailbox = MailboxStatus {
            name: name.into(),
            messages: 1234,
            bytes: 123_456_789,
            in_flight: 12,
            oldest_ms: Some(90_000),
        };
        let status = Status { connections, mailboxes: vec![mailbox], ..Status::default() };
        let text = as_table(&Shown { status, hosts: Vec::new(), calls: Vec::new() }, Some(80));
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.contains("planner-of-the-nightly-build#con"), "{text}");
    }
}
