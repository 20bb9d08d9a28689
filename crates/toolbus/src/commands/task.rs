//! `toolbus task`: calls that run detached from their caller. Their hosts keep them and their results until their time
//! to live is over. Each agent sees its own tasks, an operator sees all.

mod view;

use self::view::{as_json, as_table, pick, status_name};
use super::outcome::{OutputOptions, report};
use super::parse_duration;
use crate::failure::Failure;
use crate::hosts_admin::from_all;
use crate::output::{print_error, print_line};
use crate::queue;
use crate::reach::{LocalAgent, ReachArgs, transient_agent};
use crate::stop::stop_signal;
use crate::table::terminal_width;
use clap::{Args, Subcommand};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use tokio::time::Instant;
use toolbus_base::terminal_line;
use toolbus_client::{BrokerError, CancelOutcome, MultiplexedClient};
use toolbus_mcp::{
    AdminRequest, HostReply, HostRequest, Members, Outcome, Raw, TaskList, TaskName, TaskStatus, TaskView, raw,
};
use toolbus_protocol::{Body, InboxKind, InboxMessage, MsgId};

#[derive(Args)]
#[command(after_help = "\
Examples:
  toolbus task
  toolbus task wait toolbus:attic:7c0e1f42-…
  toolbus task result 7c0e
  toolbus task cancel 7c0e

Exit code of wait and result: 0 result of the tool, 1 error of the tool, 2 no answer, 130 cancelled.")]
pub struct TaskArgs {
    #[command(subcommand)]
    action: Option<Action>,
    /// Act as the operator, on the tasks of all agents.
    #[arg(long, global = true)]
    all: bool,
    /// Role to act in.
    #[arg(long, global = true, env = "TOOLBUS_ROLE")]
    role: Option<String>,
    #[command(flatten)]
    reach: ReachArgs,
}

#[derive(Subcommand)]
enum Action {
    /// List the tasks at the hosts.
    List,
    /// Wait until a task has ended.
    Wait {
        /// The id of the task, or a unique prefix of its last part.
        id: String,
        /// How long to wait.
        #[arg(long, value_parser = parse_duration, default_value = "1h", value_name = "DURATION")]
        timeout: Duration,
    },
    /// Print the result of a task in the same form as `toolbus call`.
    Result {
        /// The id of the task, or a unique prefix of its last part.
        id: String,
        /// How long to wait for the result (0s: fail at once if there is none yet).
        #[arg(long, value_parser = parse_duration, default_value = "1h", value_name = "DURATION")]
        timeout: Duration,
        /// Folder for images and other files in the result; created if it does not exist.
        #[arg(long, default_value = ".", value_name = "DIR")]
        out: PathBuf,
    },
    /// Cancel a task.
    Cancel {
        /// The id of the task, or a unique prefix of its last part.
        id: String,
    },
}

/// Timeout of an admin query; a connected host answers at once.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);
/// How long one `task_wait` query waits for the end of a task before it is repeated.
const WAIT_SLICE: Duration = Duration::from_secs(20);
/// Minimum interval between two queries.
const MIN_QUERY_INTERVAL: Duration = Duration::from_millis(500);
/// Maximum number of pages that are read of one host's list.
const MAX_PAGES: usize = 256;
const CANCELLED: u8 = 130;

pub async fn run(args: TaskArgs) -> Result<ExitCode, Failure> {
    let local_agent = if args.all { LocalAgent::Operator } else { LocalAgent::Worker };
    let client = args.reach.connect(local_agent, transient_agent(args.role), true).await?.into_multiplexed();
    let admin = Admin { client: &client, json: args.reach.json, all: args.all };
    let stop = stop_signal()?;
    let done = tokio::select! {
        done = admin.run(args.action.unwrap_or(Action::List)) => done,
        () = stop.cancelled() => Ok(ExitCode::from(CANCELLED)),
    };
    client.close().await;
    done
}

struct Admin<'a> {
    client: &'a MultiplexedClient,
    json: bool,
    all: bool,
}

/// A task with its name on the bus.
struct Named {
    name: TaskName,
    view: TaskView,
}

impl Admin<'_> {
    async fn run(&self, action: Action) -> Result<ExitCode, Failure> {
        match action {
            Action::List => self.list().await,
            Action::Wait { id, timeout } => {
                let name = self.resolve(&id).await?;
                let view = self.wait_until_ended(&name, timeout).await?;
                self.print_status(&name, &view)?;
                Ok(code_of(&view))
            }
            Action::Result { id, timeout, out } => {
                let unusable = |source| Failure::OutFolder { folder: out.clone(), source };
                std::fs::create_dir_all(&out).map_err(unusable)?;
                let name = self.resolve(&id).await?;
                let view = self.wait_until_ended(&name, timeout).await?;
                self.show(view, &out)
            }
            Action::Cancel { id } => {
                let name = self.resolve(&id).await?;
                self.cancel(&name).await
            }
        }
    }

    /// Cancels a task at its host. If the host is away and never received the task, it is withdrawn at the broker.
    async fn cancel(&self, name: &TaskName) -> Result<ExitCode, Failure> {
        let request = AdminRequest::TaskCancel { id: name.id.clone() };
        if self.is_away(&name.host).await? {
            let id = MsgId::from(name.id.clone());
            let was_never_pushed = queue::was_never_pushed(self.client, &name.host, &id).await;
            if !was_never_pushed {
                return Err(Failure::TaskHostAway { host: name.host.clone() });
            }
            match queue::withdraw(self.client, &name.host, &id).await? {
                CancelOutcome::Withdrawn => {
                    let status =
                        json!({"task": name.to_string(), "host": name.host, "status": "cancelled"}).to_string();
                    print_line(&if self.json {
                        status
                    } else {
                        format!("{name} cancelled: withdrawn from the queue")
                    })?;
                    return Ok(ExitCode::SUCCESS);
                }
                CancelOutcome::Unknown => return Err(Failure::NotWithdrawn { id: name.to_string() }),
                CancelOutcome::Running | CancelOutcome::Finished if self.is_away(&name.host).await? => {
                    return Err(Failure::TaskHostAway { host: name.host.clone() });
                }
                CancelOutcome::Running | CancelOutcome::Finished => {}
            }
        }
        let view = self.task(name, request, REPLY_TIMEOUT).await?;
        self.print_status(name, &view)?;
        Ok(ExitCode::SUCCESS)
    }

    async fn list(&self) -> Result<ExitCode, Failure> {
        let tasks = self.tasks().await?;
        if self.json {
            let tasks: Vec<Raw> = tasks.iter().map(|task| as_json(&task.name, &task.view)).collect();
            let mut list = Members::default();
            list.set("tasks", raw(&tasks));
            print_line(list.into_raw().get())?;
        } else if tasks.is_empty() {
            print_line("no tasks")?;
        } else {
            print_line(&as_table(&tasks, self.all, terminal_width()))?;
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Waits until the task has ended, also across outages of its host.
    async fn wait_until_ended(&self, name: &TaskName, timeout: Duration) -> Result<TaskView, Failure> {
        let end = Instant::now() + timeout;
        let mut noted = false;
        loop {
            let asked = Instant::now();
            let is_away = self.is_away(&name.host).await?;
            if is_away && !std::mem::replace(&mut noted, true) && !timeout.is_zero() {
                print_error(format_args!("note: host {} is away; waiting until it is back", terminal_line(&name.host)));
            }
            let slice = end.saturating_duration_since(asked).min(WAIT_SLICE);
            let request = AdminRequest::TaskWait { id: name.id.clone(), limit_ms: slice.as_millis() as u64 };
            if !is_away {
                match self.task(name, request, slice + REPLY_TIMEOUT).await {
                    Ok(view) if view.status.has_ended() => return Ok(view),
                    // The host may have disconnected meanwhile.
                    Ok(_) | Err(Failure::Client(BrokerError::Timeout(_))) => {}
                    Err(failure) => return Err(failure),
                }
            }
            if Instant::now() >= end {
                return Err(match is_away {
                    true => Failure::TaskHostAway { host: name.host.clone() },
                    false => Failure::TaskRunning { id: name.to_string() },
                });
            }
            // A host with too many waiting queries answers at once, so limit the rate of repetition.
            tokio::time::sleep_until(end.min(asked + MIN_QUERY_INTERVAL)).await;
        }
    }

    async fn is_away(&self, host: &str) -> Result<bool, Failure> {
        let hosts = self.client.client().hosts(&BTreeMap::new()).await?;
        Ok(hosts.iter().any(|entry| *entry.id == *host && !entry.online))
    }

    fn show(&self, view: TaskView, out: &std::path::Path) -> Result<ExitCode, Failure> {
        let output = OutputOptions { tool: &view.tool, json: self.json, out };
        match (view.result, view.error) {
            (Some(result), _) => report(&output, Outcome::Result(result)),
            (None, Some(error)) => report(&output, Outcome::Error(error)),
            (None, None) => {
                print_error("cancelled");
                Ok(ExitCode::from(CANCELLED))
            }
        }
    }

    fn print_status(&self, name: &TaskName, view: &TaskView) -> Result<(), Failure> {
        if self.json {
            return print_line(as_json(name, view).get());
        }
        let message = view.message.as_ref().map_or(String::new(), |message| format!(": {}", terminal_line(message)));
        print_line(&format!("{name} {}{message}", status_name(view)))
    }

    /// Resolves a full name, or finds the only task whose name or id begins with `id`.
    async fn resolve(&self, id: &str) -> Result<TaskName, Failure> {
        if let Some(name) = TaskName::parse(id).filter(|name| uuid::Uuid::try_parse(&name.id).is_ok()) {
            return Ok(name);
        }
        let mut names: Vec<TaskName> = self.tasks().await?.into_iter().map(|task| task.name).collect();
        names.extend(self.queued().await?);
        pick(names, id).ok_or_else(|| Failure::NoTask { id: id.to_owned() })
    }

    /// The pending messages of hosts that are away, which include tasks.
    async fn queued(&self) -> Result<Vec<TaskName>, Failure> {
        let mut names = Vec::new();
        for host in self.client.client().hosts(&BTreeMap::new()).await?.iter().filter(|host| !host.online) {
            let inspected = queue::pending_of(self.client, &host.id).await.unwrap_or_default();
            names.extend(
                inspected.rows.iter().map(|row| TaskName { host: host.id.to_string(), id: row.id.to_string() }),
            );
        }
        Ok(names)
    }

    /// The tasks of all connected hosts. A host that fails to answer does not hide the others.
    async fn tasks(&self) -> Result<Vec<Named>, Failure> {
        let hosts = self.client.client().hosts(&BTreeMap::new()).await?;
        for host in hosts.iter().filter(|host| !host.online) {
            print_error(format_args!("warning: host {} is away; its tasks are not shown", terminal_line(&host.id)));
        }
        let of_hosts = from_all(&hosts, |host| self.tasks_at(host)).await?;
        Ok(of_hosts.into_iter().flat_map(|(_, of_host)| of_host).collect())
    }

    async fn tasks_at(&self, host: &str) -> Result<Vec<Named>, Failure> {
        let (mut tasks, mut after) = (Vec::new(), None);
        for _ in 0..MAX_PAGES {
            let page = self.ask(host, AdminRequest::TaskList { after }, REPLY_TIMEOUT).await?;
            let page: TaskList = read(&page)?;
            let named = |view: TaskView| Named { name: TaskName { host: host.to_owned(), id: view.id.clone() }, view };
            tasks.extend(page.tasks.into_iter().map(named));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        Ok(tasks)
    }

    async fn task(&self, name: &TaskName, request: AdminRequest, timeout: Duration) -> Result<TaskView, Failure> {
        read(&self.ask(&name.host, request, timeout).await?)
    }

    async fn ask(&self, host: &str, request: AdminRequest, timeout: Duration) -> Result<Raw, Failure> {
        let body = Body::parse(HostRequest::Admin(request).to_json().into_bytes())?;
        let message = InboxMessage::new(self.client.client().me(), InboxKind::McpRequest, body);
        let reply = self.client.request_message(host, message, timeout).await?;
        match HostReply::parse(&*String::from_utf8_lossy(reply.body.as_bytes()))? {
            HostReply::Rpc(Outcome::Result(result)) => Ok(result),
            HostReply::Rpc(Outcome::Error(error)) => Err(Failure::refused_by_host(host, &error)),
            HostReply::Task(_) | HostReply::Cancelled | HostReply::HandedBack => {
                Err(Failure::BadReply("it is neither a result nor an error".to_owned()))
            }
        }
    }
}

fn read<T: serde::de::DeserializeOwned>(answer: &Raw) -> Result<T, Failure> {
    serde_json::from_str(answer.get()).map_err(|error| Failure::BadReply(error.to_string()))
}

fn code_of(view: &TaskView) -> ExitCode {
    match view.status {
        TaskStatus::Completed if !view.tool_failed => ExitCode::SUCCESS,
        TaskStatus::Cancelled => ExitCode::from(CANCELLED),
        _ => ExitCode::from(1),
    }
}
