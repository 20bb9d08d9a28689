//! `toolbus migrate`: moves the data of a stopped broker from its folder into a cluster, or back.

use crate::cluster::NatsArgs;
use crate::failure::Failure;
use crate::folders;
use crate::output::{print_error, print_line};
use crate::table::table;
use clap::Args;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use toolbus_migrate::{MoveOptions, MoveReport, Totals, abandon, to_cluster, to_folder};

#[derive(Args)]
#[command(after_help = "\
Examples:
  toolbus migrate --from DIR --to nats://n1:4222 --nats-monitor n1:8222,n2:8222,n3:8222
  toolbus migrate --from nats://n1:4222 --to DIR --nats-monitor n1:8222,n2:8222,n3:8222

No broker may run meanwhile. If the command is interrupted, run it again: it goes on where it
stopped. Nothing is deleted at the source, but it can't be started any more after the move.")]
pub struct MigrateArgs {
    /// The data to move: the data folder of a broker, or the addresses of the NATS servers of a cluster.
    #[arg(long, value_name = "DIR|URL,...")]
    from: String,
    /// Where to: the addresses of NATS servers, for a cluster that does not exist yet, or an empty folder.
    // The options of NATS require an argument of this id.
    #[arg(long = "to", id = "nats", value_name = "DIR|URL,...")]
    to: String,
    /// Only count what would be moved.
    #[arg(long)]
    dry_run: bool,
    /// Move what can be read if a part of the source is damaged.
    #[arg(long)]
    accept_damage: bool,
    /// Give up the move that this command began: the source can be started again, and what was copied stays at the target
    /// unused.
    #[arg(long, conflicts_with_all = ["dry_run", "accept_damage"])]
    abandon: bool,
    /// With --abandon: also after the move was finished. Messages since then are lost, and calls may run again.
    #[arg(long, requires = "abandon")]
    force: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    options: NatsArgs,
}

/// The two sides, in either direction.
enum Sides {
    ToCluster { folder: PathBuf, servers: Vec<String> },
    ToFolder { folder: PathBuf, servers: Vec<String> },
}

impl Sides {
    fn of(from: &str, to: &str) -> Result<Self, Failure> {
        match (servers_of(from), servers_of(to)) {
            (None, Some(servers)) => Ok(Self::ToCluster { folder: absolute(from)?, servers }),
            (Some(servers), None) => Ok(Self::ToFolder { folder: absolute(to)?, servers }),
            _ => Err(Failure::MoveSides),
        }
    }

    fn servers(&self) -> &[String] {
        match self {
            Self::ToCluster { servers, .. } | Self::ToFolder { servers, .. } => servers,
        }
    }
}

fn servers_of(side: &str) -> Option<Vec<String>> {
    side.contains("://").then(|| side.split(',').map(str::to_owned).collect())
}

/// Both sides remember each other by name, so that a folder has one name.
fn absolute(folder: &str) -> Result<PathBuf, Failure> {
    let folder = Path::new(folder);
    let failed = |source| Failure::Folder { folder: folder.to_owned(), source };
    let path = std::path::absolute(folder).map_err(failed)?;
    if path.exists() { folders::root(&path) } else { Ok(path) }
}

pub async fn run(args: MigrateArgs) -> Result<(), Failure> {
    let sides = Sides::of(&args.from, &args.to)?;
    let partitions = args.options.check()?;
    let options = MoveOptions {
        cluster: args.options.connect(sides.servers()).await?,
        name: args.options.cluster.clone(),
        partitions,
        accept_damage: args.accept_damage,
        dry_run: args.dry_run,
        progress: Arc::new(print_error),
    };
    if args.abandon {
        let from = if let Sides::ToCluster { folder, .. } = &sides { Some(folder.as_path()) } else { None };
        abandon(from, &options, args.force).await?;
        return match args.json {
            true => print_line(&json!({"abandoned": true}).to_string()),
            false => {
                print_line("The move is given up. The source can be started again; what was copied can't be used.")
            }
        };
    }
    let (report, end) = match &sides {
        Sides::ToCluster { folder, .. } => {
            let report = to_cluster(folder, options).await?;
            let end = format!(
                "Start the brokers of the cluster {}, each with a data folder of its own. {} can't be started any more; \
                 nothing in it was deleted.",
                args.options.cluster,
                folder.display()
            );
            (report, end)
        }
        Sides::ToFolder { folder, .. } => {
            let report = to_folder(folder, options).await?;
            let end = format!(
                "Start the broker with --data {}. The cluster {} can't be started any more; nothing in it was deleted.",
                folder.display(),
                args.options.cluster
            );
            (report, end)
        }
    };
    if args.json {
        return print_line(&to_json(&report, args.dry_run).to_string());
    }
    print_line(&text_of(&report, args.dry_run, &end))
}

fn text_of(report: &MoveReport, dry_run: bool, end: &str) -> String {
    if report.was_complete {
        return format!("An earlier run has moved everything, and this one has finished the move. {end}");
    }
    let mut text = table(&rows(report), None);
    if report.left_out > 0 {
        text.push_str(&format!(
            "\n{} messages are not moved: their agents have ended, or they are corrupt.",
            report.left_out
        ));
    }
    text.push_str(&match dry_run {
        true => "\nNothing was changed.".to_owned(),
        false => format!("\nBoth sides are equal. {end}"),
    });
    text
}

fn rows(report: &MoveReport) -> Vec<[String; 3]> {
    let target = |cell: fn(&Totals) -> String| report.target.as_ref().map(cell).unwrap_or_default();
    let row = |title: &str, cell: fn(&Totals) -> String| [title.to_owned(), cell(&report.source), target(cell)];
    vec![
        ["".into(), "SOURCE".into(), if report.target.is_some() { "TARGET".into() } else { String::new() }],
        row("messages", |totals| totals.messages.to_string()),
        row("bytes", |totals| totals.bytes.to_string()),
        row("settled ids", |totals| totals.ids.to_string()),
        row("claims of hosts", |totals| totals.claims.to_string()),
        row("fences", |totals| totals.fences.to_string()),
        row("agents", |totals| totals.agents.to_string()),
        row("generations", |totals| totals.generations.to_string()),
        row("hosts", |totals| totals.hosts.to_string()),
        row("names of hosts", |totals| totals.names.to_string()),
        row("checksum", |totals| format!("{:032x}", totals.checksum)),
    ]
}

fn to_json(report: &MoveReport, dry_run: bool) -> Value {
    let totals = |totals: &Totals| {
        let Totals { messages, bytes, ids, claims, fences, generations, agents, hosts, names, checksum } = totals;
        json!({
            "messages": messages, "bytes": bytes, "ids": ids, "claims": claims, "fences": fences,
            "generations": generations, "agents": agents, "hosts": hosts, "names": names,
            "checksum": format!("{checksum:032x}"),
        })
    };
    json!({
        "finished": !dry_run,
        "was_complete": report.was_complete,
        "written": report.written,
        "left_out": report.left_out,
        "source": totals(&report.source),
        "target": report.target.as_ref().map(totals),
    })
}
