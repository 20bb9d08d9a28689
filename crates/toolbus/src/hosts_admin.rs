//! Admin queries to one host or to all connected hosts. A host that fails to answer does not hide the others.

use crate::failure::Failure;
use crate::output::print_error;
use futures_util::future::join_all;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::time::Duration;
use toolbus_base::escaped;
use toolbus_client::{BrokerError, HostEntry, MultiplexedClient};
use toolbus_mcp::{AdminRequest, HostReply, HostRequest, Outcome, Raw};
use toolbus_protocol::{Body, InboxKind, InboxMessage};

/// Timeout of an admin query; a connected host answers at once.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of a query to all hosts: the answers of the others are shown soon, whatever one of them does.
const ALL_REPLIES_TIMEOUT: Duration = Duration::from_secs(3);

/// All hosts sorted by name, or only the given one.
pub async fn hosts(client: &MultiplexedClient, only: Option<&str>) -> Result<Vec<HostEntry>, Failure> {
    let mut all = client.client().hosts(&BTreeMap::new()).await?;
    all.sort_by(|a, b| a.id.cmp(&b.id));
    let known: Vec<String> = all.iter().map(|host| host.id.to_string()).collect();
    all.retain(|host| only.is_none_or(|only| *host.id == *only));
    match only {
        Some(host) if all.is_empty() => Err(Failure::UnknownHost { host: host.to_owned(), known }),
        _ => Ok(all),
    }
}

/// Prints a note for each host that is away.
pub fn note_hosts_away(hosts: &[HostEntry], consequence: &str) {
    for host in hosts.iter().filter(|host| !host.online) {
        print_error(format_args!("note: host {} is away; {consequence}", escaped(&host.id)));
    }
}

/// Sends the query to all connected hosts at once, so that a silent host delays the answer once and not for every
/// query. Fails only if it failed for at least one host and none answered.
pub async fn ask_all<T: DeserializeOwned>(
    client: &MultiplexedClient,
    hosts: &[HostEntry],
    request: &AdminRequest,
) -> Result<Vec<(String, T)>, Failure> {
    from_all(hosts, |host| query(client, host, request.clone(), ALL_REPLIES_TIMEOUT)).await
}

/// Like [`ask_all`], for any exchange with a host.
pub async fn from_all<'a, T, F: Future<Output = Result<T, Failure>>>(
    hosts: &'a [HostEntry],
    exchange: impl Fn(&'a str) -> F,
) -> Result<Vec<(String, T)>, Failure> {
    let (mut answers, mut failed) = (Vec::new(), None);
    let online: Vec<&HostEntry> = hosts.iter().filter(|host| host.online).collect();
    let asked = join_all(online.iter().map(|host| tokio::time::timeout(ALL_REPLIES_TIMEOUT, exchange(&host.id)))).await;
    let silent = || Failure::Client(BrokerError::Timeout(ALL_REPLIES_TIMEOUT));
    let asked = asked.into_iter().map(|answer| answer.unwrap_or_else(|_| Err(silent())));
    for (host, answer) in online.into_iter().zip(asked) {
        match answer {
            Ok(answer) => answers.push((host.id.to_string(), answer)),
            Err(failure) => {
                print_error(format_args!("warning: host {} is not included: {failure}", escaped(&host.id)));
                failed = failed.or(Some(failure));
            }
        }
    }
    failed.filter(|_| answers.is_empty()).map_or(Ok(answers), Err)
}

pub async fn ask<T: DeserializeOwned>(
    client: &MultiplexedClient,
    host: &str,
    request: AdminRequest,
) -> Result<T, Failure> {
    query(client, host, request, REPLY_TIMEOUT).await
}

async fn query<T: DeserializeOwned>(
    client: &MultiplexedClient,
    host: &str,
    request: AdminRequest,
    limit: Duration,
) -> Result<T, Failure> {
    let answer = send(client, host, HostRequest::Admin(request), limit).await?;
    serde_json::from_str(answer.get()).map_err(|error| Failure::BadReply(error.to_string()))
}

pub async fn ask_raw(client: &MultiplexedClient, host: &str, request: HostRequest) -> Result<Raw, Failure> {
    send(client, host, request, REPLY_TIMEOUT).await
}

async fn send(client: &MultiplexedClient, host: &str, request: HostRequest, limit: Duration) -> Result<Raw, Failure> {
    let body = Body::parse(request.to_json().into_bytes())?;
    let message = InboxMessage::new(client.client().me(), InboxKind::McpRequest, body);
    let reply = client.request_message(host, message, limit).await?;
    let text = reply.body.text().map_err(|error| Failure::BadReply(error.to_string()))?;
    match HostReply::parse(text)? {
        HostReply::Rpc(Outcome::Result(result)) => Ok(result),
        HostReply::Rpc(Outcome::Error(error)) => Err(Failure::refused_by_host(host, &error)),
        HostReply::Task(_) => Err(Failure::BadReply("an unexpected task".to_owned())),
        HostReply::Cancelled | HostReply::HandedBack => Err(Failure::BadReply("the request was cancelled".to_owned())),
    }
}

/// Finds the only item whose id begins with this prefix.
pub fn find_by_prefix<T>(all: Vec<T>, id: &str, id_of: impl Fn(&T) -> &str) -> Result<T, Failure> {
    let mut found: Vec<T> = all.into_iter().filter(|one| id_of(one).starts_with(id)).collect();
    // An exact match wins over longer ids with the same prefix.
    if let Some(exact) = found.iter().position(|one| id_of(one) == id) {
        return Ok(found.swap_remove(exact));
    }
    match (found.pop(), found.len()) {
        (Some(one), 0) => Ok(one),
        _ => Err(Failure::NoCall { id: id.to_owned() }),
    }
}
