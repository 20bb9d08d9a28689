//! `toolbus call --detach`: the call becomes a task. Its id is printed as soon as the broker has the request, so that nothing
//! that happens afterwards can lose it.

use super::outcome::{Reader, report};
use super::print_line;
use crate::catalog::ToolSeen;
use crate::failure::Failure;
use crate::progress::one_line;
use crate::queue::{self, Withdrawal};
use serde_json::json;
use std::process::ExitCode;
use std::time::Duration;
use toolbus_client::{Call, CallItem, MultiplexedClient, SendOptions};
use toolbus_mcp::{ClientHello, HostReply, HostRequest, Outcome, Raw, Rpc, TaskName, TaskWish};
use toolbus_protocol::{Body, InboxKind, InboxMessage};

/// How long a host that is there may take to accept or refuse the task. Then it is left in its mailbox.
const PATIENCE: Duration = Duration::from_secs(10);

/// The request waits for its host at least so long, however soon the task is to be forgotten.
const SHORTEST_WAIT: Duration = Duration::from_secs(60);

pub async fn begin(
    client: &MultiplexedClient,
    tool: &ToolSeen<'_>,
    params: Raw,
    (wish, hasty): (TaskWish, bool),
    reader: &Reader<'_>,
) -> Result<ExitCode, Failure> {
    let offline = || Failure::HostOffline { tool: reader.tool.to_owned(), host: tool.host.name.clone() };
    if hasty && !tool.host.online {
        return Err(offline());
    }
    let request = HostRequest::Rpc(Rpc {
        server: tool.server.name.clone(),
        session: "detached".to_owned(),
        client: ClientHello::modern(),
        method: "tools/call".into(),
        params: Some(params),
        task: Some(wish),
    });
    let host = tool.host.name.as_str();
    let message = InboxMessage::new(client.client().me(), InboxKind::McpRequest, Body::parse(request.into_json())?);
    let id = message.id.clone();
    let name = TaskName { host: host.to_owned(), id: message.id.to_string() };
    // It waits for its host as long as the task may live.
    let limit = Duration::from_millis(wish.granted_ttl_ms()).max(SHORTEST_WAIT);
    let mut call = client.start_call(host, message.clone(), limit).await?;
    let accepted = match tool.host.online {
        true => tokio::time::timeout(PATIENCE, answer(&mut call)).await.ok().transpose()?,
        false => None,
    };
    match accepted {
        Some(Answer::Task) => say(&name, None, reader.json),
        Some(Answer::Other(outcome)) => report(reader, outcome),
        None => {
            // The same message sent again is stored once, and gets a receipt.
            client.client().deliver_with(host, message, SendOptions { deadline: Some(limit) }).await?;
            call.detach();
            if hasty
                && queue::is_untouched(client, host, &id).await
                && queue::take_back(client, host, &id).await? == Withdrawal::Gone
            {
                return Err(offline());
            }
            let waits = match queue::is_there(client, host).await {
                true => "has not answered yet; the task is in its mailbox",
                false => "is away; the task waits for it",
            };
            say(&name, Some(waits), reader.json)
        }
    }
}

enum Answer {
    Task,
    /// A refusal; or the result, of a host that keeps no tasks.
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
    match HostReply::parse(&String::from_utf8_lossy(reply.body.as_bytes()))? {
        HostReply::Task(_) => Ok(Answer::Task),
        HostReply::Rpc(outcome) => Ok(Answer::Other(outcome)),
        HostReply::Cancelled => Err(Failure::TaskCancelled),
    }
}

/// The id alone on standard output, so that it can be used in a script. A host that has not accepted the task is spoken of
/// beside it.
fn say(name: &TaskName, waits: Option<&str>, json: bool) -> Result<ExitCode, Failure> {
    let id = name.to_string();
    if json {
        let task = json!({"task": id, "host": name.host, "accepted": waits.is_none()});
        print_line(&task.to_string())?;
        return Ok(ExitCode::SUCCESS);
    }
    print_line(&id)?;
    if let Some(waits) = waits {
        eprintln!("{} {waits}", one_line(&name.host));
    }
    Ok(ExitCode::SUCCESS)
}
