//! `toolbus tools`: lists the tools of all hosts, and reports hosts that are away and servers that are down. With a name,
//! shows one tool.

mod one;

use crate::catalog::{Catalog, KnownHost, KnownTool};
use crate::failure::{Failure, ROLE_HINT, caller_description};
use crate::output::print_line;
use crate::pools::ShownPool;
use crate::reach::{LocalAgent, ReachArgs, transient_agent};
use crate::table::{age, table, terminal_width};
use clap::Args;
use serde::Serialize;
use serde_json::json;
use toolbus_base::terminal_line;
use toolbus_mcp::{Members, Raw, ServerManifest, ServerState, raw};

#[derive(Args)]
pub struct ToolsArgs {
    /// Show only this tool, with its arguments.
    #[arg(value_name = "TOOL")]
    tool: Option<String>,
    /// List only the tools of this host.
    #[arg(long, value_name = "NAME")]
    host: Option<String>,
    /// Role to act in. Only tools that it may use are listed.
    #[arg(long, env = "TOOLBUS_ROLE")]
    role: Option<String>,
    #[command(flatten)]
    reach: ReachArgs,
}

pub async fn run(args: ToolsArgs) -> Result<(), Failure> {
    let client = args.reach.connect(LocalAgent::Worker, transient_agent(args.role.clone()), false).await?;
    let role = client.me().role.map(|role| role.to_string());
    if let Some(tool) = &args.tool {
        let catalog = Catalog::fetch_for(&client, args.host.as_deref(), tool).await?;
        client.close().await;
        let tool = catalog.tool(tool, role.as_deref())?;
        return print_line(&if args.reach.json {
            tool_json(tool).get().to_owned()
        } else {
            one::as_text(tool, terminal_width())
        });
    }
    let catalog = Catalog::fetch(&client, args.host.as_deref()).await?;
    client.close().await;
    if args.reach.json {
        return print_line(&as_json(&catalog));
    }
    print_line(&as_text(&catalog, role.as_deref(), terminal_width()))
}

fn as_json(catalog: &Catalog) -> String {
    let server = |(host, server): (&KnownHost, &ServerManifest)| {
        json!({
            "name": server.name, "host": host.name, "state": server.state, "down": server.down, "eras": server.eras,
            "tools": server.tools.len(), "resources": server.resources.len(),
            "resource_templates": server.resource_templates.len(), "prompts": server.prompts.len(),
        })
    };
    let host = |host: &KnownHost| {
        json!({
            "name": host.name, "online": host.online, "since_ms": host.since_ms, "problems": host.manifest.problems,
            "pool": host.manifest.pool,
        })
    };
    let pool = |pool: &ShownPool| {
        let hosts: Vec<&str> = pool.hosts.iter().map(|index| catalog.hosts[*index].name.as_str()).collect();
        json!({"name": pool.name, "hosts": hosts, "problems": pool.merged.manifest.problems})
    };
    let servers = catalog.hosts.iter().flat_map(|host| host.manifest.servers.iter().map(move |server| (host, server)));
    let mut members = Members::default();
    members.set("tools", raw(&catalog.tools().map(tool_json).collect::<Vec<_>>()));
    members.set("servers", raw(&servers.map(server).collect::<Vec<_>>()));
    members.set("hosts", raw(&catalog.hosts.iter().map(host).collect::<Vec<_>>()));
    members.set("pools", raw(&catalog.pools.iter().map(pool).collect::<Vec<_>>()));
    members.into_raw().get().to_owned()
}

fn tool_json(tool: KnownTool<'_>) -> Raw {
    raw(&ToolJson {
        name: tool.name(),
        server: tool.server.name.clone(),
        host: tool.host.name.clone(),
        pool: tool.pool.map(|pool| pool.name.clone()),
        online: tool.host.online,
        hints: tool.hints(),
        definition: tool.definition.clone(),
    })
}

#[derive(Serialize)]
struct ToolJson {
    name: String,
    server: String,
    host: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pool: Option<String>,
    online: bool,
    hints: Vec<&'static str>,
    /// Raw JSON, as the server wrote it.
    definition: Raw,
}

fn as_text(catalog: &Catalog, role: Option<&str>, width: Option<usize>) -> String {
    if catalog.hosts.is_empty() {
        return "No host has announced any tools yet.\n\
            Start one with `toolbus up` (it hosts a demo server if none is configured) or `toolbus host --broker URL`."
            .to_owned();
    }
    let mut rows = vec![["NAME", "SERVER", "HOST", "HINTS", "DESCRIPTION"].map(str::to_owned)];
    for tool in catalog.tools() {
        let host = tool.shown_host();
        let hints = tool.hints().join(", ");
        rows.push([tool.name(), tool.server.name.clone(), host, hints, terminal_line(&tool.description())]);
    }
    let mut text = match rows.len() {
        1 if catalog.has_no_tools_for_role() => {
            format!("The hosts offer no tools to {}.\nhint: {ROLE_HINT}", caller_description(role))
        }
        1 => "The hosts offer no tools at the moment.".to_owned(),
        _ => table(&rows, width),
    };
    let differences = catalog.pools.iter().flat_map(|pool| &pool.merged.manifest.problems);
    for note in catalog.hosts.iter().flat_map(notes).chain(differences.map(|problem| terminal_line(problem))) {
        text.push_str("\n\n");
        text.push_str(&note);
    }
    text
}

/// Notes about a host: its absence, servers that are not up, and problems of its manifest.
fn notes(host: &KnownHost) -> Vec<String> {
    let mut notes = Vec::new();
    if !host.online {
        let calls = match host.manifest.pool {
            Some(_) => "calls go to the other hosts of its pool",
            None => "calls to it wait until their deadline",
        };
        notes.push(format!("{} is away (for {}): {calls}", host.name, age(host.since_ms)));
    }
    for server in &host.manifest.servers {
        match (&server.down, server.state) {
            (Some(down), ServerState::Down) => {
                let mut note = format!("{} on {} is down: {}", server.name, host.name, terminal_line(&down.reason));
                for line in &down.stderr {
                    note.push_str(&format!("\n  | {}", terminal_line(line)));
                }
                notes.push(note);
            }
            (_, ServerState::Down) => notes.push(format!("{} on {} is down", server.name, host.name)),
            (_, ServerState::Starting) => notes.push(format!("{} on {} is starting", server.name, host.name)),
            (_, ServerState::Up) => {}
        }
    }
    notes.extend(
        host.manifest.problems.iter().map(|problem| format!("problem on {}: {}", host.name, terminal_line(problem))),
    );
    notes
}
