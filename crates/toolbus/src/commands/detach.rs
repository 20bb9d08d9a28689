//! `toolbus call --detach`: runs the call as a task. Its id is printed once the broker has stored the request or the
//! host has accepted the task, so that a later failure can't lose it.

use super::outcome::{OutputOptions, report};
use crate::catalog::KnownTool;
use crate::failure::Failure;
use crate::output::{print_error, print_line};
use crate::queue;
use serde_json::json;
use std::process::ExitCode;
use std::time::Duration;
use toolbus_base::terminal_line;
use toolbus_client::{Call, CallItem, CancelOutcome, MultiplexedClient};
use toolbus_mcp::{ClientHello, HostReply, HostRequest, Outcome, Raw, Rpc, TaskName, TaskWish};
use toolbus_protocol::{Body, InboxKind, InboxMessage};

/// How long to wait for a connected host to accept or refuse the task. After that it stays in the host's mailbox.
const ACCEPT_TIMEOUT: Duration = Duration::from_secs(10);

/// Minimum deadline of the request, even if the task's time to live is shorter.
const MIN_DEADLINE: Duration = Duration::from_secs(60);

pub async fn start(
    client: &MultiplexedClient,
    tool: &KnownTool<'_>,
    params: Raw,
    (wish, fail_fast): (TaskWish, bool),
    output: &OutputOptions<'_>,
) -> Result<ExitCode, Failure> {
    let offline = || Failure::HostOffline { tool: output.tool.to_owned(), host: tool.host.name.clone() };
    if fail_fast && !tool.host.online {
        return Err(offline());
    }
    let request = HostRequest::Rpc(Rpc {
        server: tool.server.name.clone(),
        session: "detached".to_owned(),
        client: ClientHello::modern(),
        method: "tools/call".into(),
        params: Some(params),
        task: Some(wish),
        hand_back: false,
    });
    let host = tool.host.name.as_str();
    let message =
        InboxMessage::new(client.client().me(), InboxKind::McpRequest, Body::parse(request.to_json().into_bytes())?);
    let id = message.id.clone();
    let name = TaskName { host: host.to_owned(), id: message.id.to_string() };
    // The request may wait for its host for the lifetime of the task.
    let limit = Duration::from_millis(wish.granted_ttl_ms()).max(MIN_DEADLINE);
    let mut call = client.start_call(host, message, limit).await?;
    let accepted = match tool.host.online {
        true => tokio::time::timeout(ACCEPT_TIMEOUT, answer(&mut call)).await.ok().transpose()?,
        false => None,
    };
    match accepted {
        Some(Answer::Task) => print_task(&name, None, output.json),
        Some(Answer::Other(outcome)) => report(output, outcome),
        None => {
            call.receipt().await?;
            call.detach();
            if fail_fast
                && queue::was_never_pushed(client, host, &id).await
                && queue::withdraw(client, host, &id).await? == CancelOutcome::Withdrawn
            {
                return Err(offline());
            }
            let reason = match queue::is_online(client, host).await {
                true => "has not answered yet; the task is in its mailbox",
                false => "is away; the task waits for it",
            };
            print_task(&name, Some(reason), output.json)
        }
    }
}

enum Answer {
    Task,
    /// A refusal, or the result from a host that does not support tasks.
    Other(Outcome),
}

async fn answer(call: &mut Call) -> Result<Answer, Failure> {
    let reply = loop {
        match call.next().await {
            Some(CallItem::Event(_)) => {}
            Some(CallItem::Reply(reply)) => break reply?,
            None => return Err(Failure::Client(toolbus_client::BrokerError::Closed)),
        }
    };
    match HostReply::parse(&*String::from_utf8_lossy(reply.body.as_bytes()))? {
        HostReply::Task(_) => Ok(Answer::Task),
        HostReply::Rpc(outcome) => Ok(Answer::Other(outcome)),
        HostReply::Cancelled | HostReply::HandedBack => Err(Failure::TaskCancelled),
    }
}

/// Prints the id alone on standard output, for scripts. If the host has not accepted the task yet, a note goes to
/// standard error.
fn print_task(name: &TaskName, not_accepted: Option<&str>, json: bool) -> Result<ExitCode, Failure> {
    let id = name.to_string();
    if json {
        let task = json!({"task": id, "host": name.host, "accepted": not_accepted.is_none()});
        print_line(&task.to_string())?;
        return Ok(ExitCode::SUCCESS);
    }
    print_line(&id)?;
    if let Some(reason) = not_accepted {
        print_error(format_args!("{} {reason}", terminal_line(&name.host)));
    }
    Ok(ExitCode::SUCCESS)
}
