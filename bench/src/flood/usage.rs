//! What broker and host use: memory, descriptors, processes, connections, messages. Compared before and after, it shows
//! what hostile agents leave behind.

use std::{collections::HashMap, fs, time::Duration};

use anyhow::Context;
use tokio::time::Instant;

use super::deployment::Deployment;
use crate::{own_broker::memory, process::Running};

/// How long after the end of the hostile agents everything has to be released.
const RELEASE_LIMIT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(250);
/// Descriptors that vary between two idle moments, such as connections that are being closed.
const DESCRIPTOR_SLACK: usize = 8;

#[derive(Clone, Debug, Default)]
pub struct Usage {
    pub broker: ProcessUsage,
    pub host: ProcessUsage,
    /// Descendants of the host.
    pub processes: usize,
    /// Connections of hostile agents. The endpoint's own connection of an agent, which it keeps for later
    /// requests, doesn't count.
    pub connections: usize,
    /// Messages in the mailboxes of neither hostile nor honest agents. Replies that a hostile agent did not read wait for it
    /// as for any other agent.
    pub messages: u64,
}

#[derive(Clone, Debug, Default)]
pub struct ProcessUsage {
    /// Resident memory in MiB, now and at most since the start.
    pub memory: f64,
    pub peak: f64,
    pub descriptors: usize,
}

impl Usage {
    pub async fn of(deployment: &Deployment) -> anyhow::Result<Self> {
        let status = deployment.status().await?;
        let is_hostile = |name: &str| name.starts_with("hostile") && !name.contains("#mcp-");
        let messages = |is_counted: fn(&str) -> bool| {
            status.mailboxes.iter().filter(|mailbox| is_counted(&mailbox.name)).map(|mailbox| mailbox.messages).sum()
        };
        Ok(Self {
            broker: ProcessUsage::of(&deployment.broker)?,
            host: ProcessUsage::of(&deployment.host)?,
            processes: descendants(deployment.host.id()?)?,
            connections: status.connections.iter().filter(|c| is_hostile(&c.agent.session_id)).count(),
            messages: messages(|name| !name.starts_with("hostile") && !name.starts_with("honest")),
        })
    }

    /// Waits until everything above `before` is released. Returns the last usage and what is left over.
    pub async fn released(deployment: &Deployment, before: &Self) -> anyhow::Result<(Self, Vec<String>)> {
        let deadline = Instant::now() + RELEASE_LIMIT;
        loop {
            let (now, left_over) = match Self::of(deployment).await {
                Ok(now) => {
                    let left_over = now.above(before);
                    (now, left_over)
                }
                // The operator may be refused while connections are being closed.
                Err(error) if Instant::now() > deadline => return Err(error),
                Err(_) => (before.clone(), vec!["no status".to_owned()]),
            };
            if left_over.is_empty() || Instant::now() > deadline {
                return Ok((now, left_over));
            }
            tokio::time::sleep(POLL).await;
        }
    }

    fn above(&self, before: &Self) -> Vec<String> {
        let counts = [
            ("connections", self.connections, before.connections),
            ("messages to others", self.messages as usize, before.messages as usize),
            ("processes", self.processes, before.processes),
            ("broker descriptors", self.broker.descriptors, before.broker.descriptors + DESCRIPTOR_SLACK),
            ("host descriptors", self.host.descriptors, before.host.descriptors + DESCRIPTOR_SLACK),
        ];
        let above = counts.into_iter().filter(|(_, now, before)| now > before);
        above.map(|(what, now, before)| format!("{} {what}", now - before)).collect()
    }
}

impl ProcessUsage {
    fn of(process: &Running) -> anyhow::Result<Self> {
        let (memory, peak) = memory(process)?;
        let descriptors = fs::read_dir(format!("/proc/{}/fd", process.id()?)).context("list descriptors")?.count();
        Ok(Self { memory, peak, descriptors })
    }
}

/// CPU time that a process has used, in seconds.
pub fn cpu_seconds(process: u32) -> anyhow::Result<f64> {
    /// Linux reports times in units of 1/100 s.
    const TICKS_PER_SECOND: f64 = 100.0;
    let (_, fields) = stat(process).context("read the CPU time of a process")?;
    let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok()).unwrap_or_default();
    Ok((ticks(11) + ticks(12)) / TICKS_PER_SECOND)
}

fn descendants(of: u32) -> anyhow::Result<usize> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for entry in fs::read_dir("/proc").context("list processes")?.flatten() {
        let Some(id) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        if let Some((parent, _)) = stat(id) {
            children.entry(parent).or_default().push(id);
        }
    }
    let mut found = vec![of];
    let mut next = 0;
    while next < found.len() {
        found.extend(children.remove(&found[next]).unwrap_or_default());
        next += 1;
    }
    Ok(found.len() - 1)
}

/// The parent of a process, and the fields of its `stat` behind the name, which may contain anything.
fn stat(id: u32) -> Option<(u32, Vec<String>)> {
    let text = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    let fields: Vec<String> = text.rsplit_once(')')?.1.split_whitespace().map(str::to_owned).collect();
    Some((fields.get(1)?.parse().ok()?, fields))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_exceeds_the_earlier_usage_is_left_over() {
        let before = Usage { processes: 4, messages: 2, ..Usage::default() };
        let mut after = Usage { processes: 3, messages: 7, ..Usage::default() };
        after.broker.descriptors = DESCRIPTOR_SLACK;
        assert_eq!(after.above(&before), ["5 messages to others"]);
        after.broker.descriptors += 1;
        assert_eq!(after.above(&before), ["5 messages to others", "1 broker descriptors"]);
    }
}
