//! Whose call began which task: what a role may not call, it may not look at as a task either.

use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;
use toolbus_mcp::{Members, Outcome};

/// Tasks that are remembered; the oldest are forgotten first.
const REMEMBERED: usize = 4096;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskOwner {
    /// The agent, without the suffix of its mailbox.
    pub agent: String,
    /// Under the name that workers see.
    pub tool: String,
}

#[derive(Default)]
pub struct TaskOwners(Mutex<Table>);

#[derive(Default)]
struct Table {
    owners: HashMap<(usize, String), TaskOwner>,
    order: VecDeque<(usize, String)>,
}

impl TaskOwners {
    /// Remembers the task that a call's result speaks of, if it does.
    pub fn remember(&self, server: usize, outcome: &Outcome, mailbox: &str, tool: &str) {
        let Some(id) = begun_task(outcome) else { return };
        let mut table = self.0.lock().expect("nothing panics while it holds this lock");
        let key = (server, id);
        let owner = TaskOwner { agent: agent_of(mailbox).to_owned(), tool: tool.to_owned() };
        // The first to have it keeps it: a server that repeats an id must not hand a task over.
        if table.owners.contains_key(&key) {
            return;
        }
        if table.order.len() == REMEMBERED
            && let Some(oldest) = table.order.pop_front()
        {
            table.owners.remove(&oldest);
        }
        table.order.push_back(key.clone());
        table.owners.insert(key, owner);
    }

    pub fn owner(&self, server: usize, task: &str) -> Option<TaskOwner> {
        let table = self.0.lock().expect("nothing panics while it holds this lock");
        table.owners.get(&(server, task.to_owned())).cloned()
    }
}

pub fn agent_of(mailbox: &str) -> &str {
    mailbox.split_once('#').map_or(mailbox, |(agent, _)| agent)
}

/// `{"task": {"taskId": …}}` in one era, `{"resultType": "task", "taskId": …}` in the other.
fn begun_task(outcome: &Outcome) -> Option<String> {
    let Outcome::Result(result) = outcome else { return None };
    if !result.get().contains("\"taskId\"") {
        return None;
    }
    let result = Members::of(Some(result)).ok()?;
    match result.get("task") {
        Some(task) => Members::of(Some(task)).ok()?.text("taskId"),
        None => result.text("taskId"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use toolbus_mcp::raw;

    #[test]
    fn a_task_belongs_to_whoever_began_it() {
        let owners = TaskOwners::default();
        for result in [json!({"task": {"taskId": "a"}}), json!({"resultType": "task", "taskId": "b"})] {
            owners.remember(1, &Outcome::Result(raw(&result)), "w#x", "tool");
        }
        owners.remember(1, &Outcome::Result(raw(&json!({"taskId": "a"}))), "thief", "other");
        owners.remember(1, &Outcome::Result(raw(&json!({"content": []}))), "w", "tool");
        let owner = TaskOwner { agent: "w".into(), tool: "tool".into() };
        assert_eq!((owners.owner(1, "a"), owners.owner(1, "b")), (Some(owner.clone()), Some(owner)));
        assert_eq!(owners.owner(2, "a"), None);
    }
}
