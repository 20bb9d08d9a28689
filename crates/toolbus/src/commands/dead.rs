//! `toolbus dead`: dead letters. At hosts, these are calls that crashed their server or host on every attempt; at the
//! broker, messages that could not be delivered.

use crate::failure::Failure;
use crate::hosts_admin::{ask, ask_all, find_by_prefix, hosts, note_hosts_away};
use crate::output::{print_error, print_line};
use crate::reach::{LocalAgent, ReachArgs, transient_agent};
use crate::table::{age, table};
use clap::{Args, Subcommand};
use serde_json::json;
use toolbus_base::escaped;
use toolbus_base::{DEAD_LETTER_SUFFIX, now_ms};
use toolbus_client::MultiplexedClient;
use toolbus_mcp::{AdminRequest, DeadLetter, DeadList, TaskView};

#[derive(Args)]
#[command(after_help = "\
Examples:
  toolbus dead list
  toolbus dead show 7c0e1f
  toolbus dead retry 7c0e1f
  toolbus dead drop 7c0e1f

Messages that the broker could not deliver are in the mailboxes NAME#dead, which `list` counts. Read them with `toolbus
recv --as NAME#dead --no-ack`, and drop them with the same command without --no-ack.")]
pub struct DeadArgs {
    #[command(subcommand)]
    action: Action,
    /// Ask this host only.
    #[arg(long, global = true, value_name = "NAME")]
    host: Option<String>,
    #[command(flatten)]
    reach: ReachArgs,
}

#[derive(Subcommand)]
enum Action {
    /// List the dead letters of all hosts, and the mailboxes of the broker that hold some.
    List,
    /// Show one dead letter with its arguments and the history of its attempts.
    Show {
        /// The id of the call, or a unique prefix of it.
        id: String,
    },
    /// Run a call once more, as a task of its caller's agent.
    Retry {
        /// The id of the call, or a unique prefix of it.
        id: String,
    },
    /// Delete a dead letter. Its caller has already received an error.
    Drop {
        /// The id of the call, or a unique prefix of it.
        id: String,
    },
}

/// A dead letter, and the host that keeps it.
struct HostLetter {
    host: String,
    letter: DeadLetter,
}

/// A mailbox of dead letters at the broker.
struct Mailbox {
    name: String,
    messages: u64,
    oldest_ms: Option<u64>,
}

pub async fn run(args: DeadArgs) -> Result<(), Failure> {
    let client = args.reach.connect(LocalAgent::Operator, transient_agent(None), false).await?.into_multiplexed();
    let done = match &args.action {
        Action::List => list(&client, &args).await,
        Action::Show { id } => show(&client, &args, id).await,
        Action::Retry { id } => retry(&client, &args, id).await,
        Action::Drop { id } => drop_letter(&client, &args, id).await,
    };
    client.close().await;
    done
}

async fn list(client: &MultiplexedClient, args: &DeadArgs) -> Result<(), Failure> {
    let letters = letters(client, args).await?;
    let mailboxes = mailboxes(client, args).await;
    print_line(&if args.reach.json { as_json(&letters, &mailboxes) } else { as_table(&letters, &mailboxes) })
}

async fn show(client: &MultiplexedClient, args: &DeadArgs, id: &str) -> Result<(), Failure> {
    let HostLetter { host, letter } = find_by_prefix(letters(client, args).await?, id, |kept| &kept.letter.id)?;
    let letter: DeadLetter = ask(client, &host, AdminRequest::DeadShow { id: letter.id }).await?;
    if args.reach.json {
        return print_line(&json!({"host": host, "letter": letter}).to_string());
    }
    let params = letter.params.as_ref().map_or("{}", |params| params.get());
    let name = format!("{}/{}", letter.server, letter.tool);
    let mut lines = vec![
        format!("{}  {} of {} at {}", escaped(&letter.id), escaped(&name), escaped(&letter.agent), escaped(&host)),
        format!("  {} attempts, given up {} ago", letter.attempts, age(ago(letter.at_ms))),
        format!("  params: {}", escaped(params)),
    ];
    lines.extend(letter.story.iter().map(|line| format!("  {}", escaped(line))));
    print_line(&lines.join("\n"))
}

async fn retry(client: &MultiplexedClient, args: &DeadArgs, id: &str) -> Result<(), Failure> {
    let HostLetter { host, letter } = find_by_prefix(letters(client, args).await?, id, |kept| &kept.letter.id)?;
    let task: TaskView = ask(client, &host, AdminRequest::DeadRetry { id: letter.id.clone() }).await?;
    if args.reach.json {
        return print_line(&json!({"host": host, "letter": letter, "task": task}).to_string());
    }
    let name = format!("{}/{}", letter.server, letter.tool);
    print_line(&format!("{} runs once more as task {} of {}", escaped(&name), task.id, escaped(&task.agent)))
}

async fn drop_letter(client: &MultiplexedClient, args: &DeadArgs, id: &str) -> Result<(), Failure> {
    let HostLetter { host, letter } = find_by_prefix(letters(client, args).await?, id, |kept| &kept.letter.id)?;
    let letter: DeadLetter = ask(client, &host, AdminRequest::DeadDrop { id: letter.id }).await?;
    print_line(&match args.reach.json {
        true => json!({"host": host, "letter": letter}).to_string(),
        false => format!("{} dropped", escaped(&letter.id)),
    })
}

async fn letters(client: &MultiplexedClient, args: &DeadArgs) -> Result<Vec<HostLetter>, Failure> {
    let hosts = hosts(client, args.host.as_deref()).await?;
    note_hosts_away(&hosts, "its dead letters are not included");
    let lists: Vec<(String, DeadList)> = ask_all(client, &hosts, &AdminRequest::DeadList).await?;
    let mut letters = Vec::new();
    for (host, list) in lists {
        if list.more > 0 {
            print_error(format_args!(
                "warning: host {} has {} more dead letters that are not listed",
                escaped(&host),
                list.more
            ));
        }
        letters.extend(list.letters.into_iter().map(|letter| HostLetter { host: host.clone(), letter }));
    }
    letters.sort_by_key(|kept| kept.letter.at_ms);
    Ok(letters)
}

/// The broker's mailboxes of dead letters. Empty unless the client is an operator.
async fn mailboxes(client: &MultiplexedClient, args: &DeadArgs) -> Vec<Mailbox> {
    let Ok(status) = client.client().status().await else { return Vec::new() };
    let is_selected = |name: &str| match &args.host {
        Some(host) => name.strip_suffix(DEAD_LETTER_SUFFIX) == Some(host),
        None => name.ends_with(DEAD_LETTER_SUFFIX),
    };
    let dead = status.mailboxes.into_iter().filter(|mailbox| mailbox.messages > 0 && is_selected(&mailbox.name));
    dead.map(|it| Mailbox { name: it.name.to_string(), messages: it.messages, oldest_ms: it.oldest_ms }).collect()
}

fn ago(at_ms: u64) -> u64 {
    now_ms().saturating_sub(at_ms)
}

fn as_json(letters: &[HostLetter], mailboxes: &[Mailbox]) -> String {
    let letter = |kept: &HostLetter| {
        let mut value = json!(kept.letter);
        value["host"] = kept.host.as_str().into();
        value
    };
    let mailbox = |it: &Mailbox| json!({"name": it.name, "messages": it.messages, "oldest_ms": it.oldest_ms});
    json!({
        "letters": letters.iter().map(letter).collect::<Vec<_>>(),
        "mailboxes": mailboxes.iter().map(mailbox).collect::<Vec<_>>(),
    })
    .to_string()
}

fn as_table(letters: &[HostLetter], mailboxes: &[Mailbox]) -> String {
    let mut parts = Vec::new();
    if letters.is_empty() {
        parts.push("no dead letters at the hosts".to_owned());
    } else {
        let mut rows = vec![["ID", "TOOL", "AGENT", "ATTEMPTS", "AGE", "HOST", "LAST FAILURE"].map(str::to_owned)];
        for HostLetter { host, letter } in letters {
            rows.push([
                escaped(&letter.id),
                escaped(&format!("{}/{}", letter.server, letter.tool)),
                escaped(&letter.agent),
                letter.attempts.to_string(),
                age(ago(letter.at_ms)),
                escaped(host),
                escaped(letter.story.last().map_or("", String::as_str)),
            ]);
        }
        parts.push(table(&rows, None));
    }
    if !mailboxes.is_empty() {
        let mut rows = vec![["MAILBOX", "MESSAGES", "OLDEST"].map(str::to_owned)];
        for it in mailboxes {
            rows.push([escaped(&it.name), it.messages.to_string(), it.oldest_ms.map_or("-".to_owned(), age)]);
        }
        parts.push(table(&rows, None));
    }
    parts.join("\n\n")
}
