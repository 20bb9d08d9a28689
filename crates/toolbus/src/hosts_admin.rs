//! Questions to hosts: one host, or all of them that are there. A host that can't be asked hides no other.

use crate::failure::Failure;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::time::Duration;
use toolbus_client::{HostEntry, MultiplexedClient};
use toolbus_host::pins::diff::escaped;
use toolbus_mcp::{AdminRequest, HostReply, HostRequest, Outcome, Raw};
use toolbus_protocol::{Body, InboxKind, InboxMessage};

/// A host that is there answers at once.
const PATIENCE: Duration = Duration::from_secs(10);

/// All hosts, or the one that is meant, in the order of their names.
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

/// Says which of them are not there to be asked.
pub fn tell_absent(hosts: &[HostEntry], consequence: &str) {
    for host in hosts.iter().filter(|host| !host.online) {
        eprintln!("note: host {} is away; {consequence}", escaped(&host.id));
    }
}

/// Asks each of them that is there. Fails only if none answers.
pub async fn ask_all<T: DeserializeOwned>(
    client: &MultiplexedClient,
    hosts: &[HostEntry],
    request: &AdminRequest,
) -> Result<Vec<(String, T)>, Failure> {
    let (mut answers, mut failed) = (Vec::new(), None);
    for host in hosts.iter().filter(|host| host.online) {
        match ask(client, &host.id, request.clone()).await {
            Ok(answer) => answers.push((host.id.to_string(), answer)),
            Err(failure) => {
                eprintln!("warning: host {} was left out: {failure}", escaped(&host.id));
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
    let answer = ask_raw(client, host, HostRequest::Admin(request)).await?;
    serde_json::from_str(answer.get()).map_err(|error| Failure::BadReply(error.to_string()))
}

pub async fn ask_raw(client: &MultiplexedClient, host: &str, request: HostRequest) -> Result<Raw, Failure> {
    let body = Body::parse(request.into_json())?;
    let message = InboxMessage::new(client.client().me(), InboxKind::McpRequest, body);
    let reply = client.request_message(host, message, PATIENCE).await?;
    let text = std::str::from_utf8(reply.body.as_bytes()).map_err(|error| Failure::BadReply(error.to_string()))?;
    match HostReply::parse(text)? {
        HostReply::Rpc(Outcome::Result(result)) => Ok(result),
        HostReply::Rpc(Outcome::Error(error)) => Err(Failure::refused_by_host(host, &error)),
        HostReply::Task(_) => Err(Failure::BadReply("a task where none was asked for".to_owned())),
        HostReply::Cancelled => Err(Failure::BadReply("the request was cancelled".to_owned())),
    }
}

/// What begins with these letters, if it is one thing only.
pub fn meant<T>(all: Vec<T>, id: &str, id_of: impl Fn(&T) -> &str) -> Result<T, Failure> {
    let mut found: Vec<T> = all.into_iter().filter(|one| id_of(one).starts_with(id)).collect();
    // Whoever gives all of an id means that one, whatever else begins with it.
    if let Some(exact) = found.iter().position(|one| id_of(one) == id) {
        return Ok(found.swap_remove(exact));
    }
    match (found.pop(), found.len()) {
        (Some(one), 0) => Ok(one),
        _ => Err(Failure::NoCall { id: id.to_owned() }),
    }
}
