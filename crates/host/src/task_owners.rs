//! Which agent's call created which task of a server: an agent may access only tasks of its own calls.

use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;
use toolbus_mcp::Outcome;
use toolbus_protocol::principal_of;

/// Maximum remembered tasks; the oldest are evicted first.
const MAX_REMEMBERED: usize = 4096;
/// Maximum remembered tasks per agent, so that one agent can't evict the tasks of others.
const MAX_REMEMBERED_PER_AGENT: usize = 512;

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
    owners: HashMap<TaskKey, TaskOwner>,
    order: VecDeque<TaskKey>,
}

/// The server's name and the task's id.
type TaskKey = (String, String);

impl Table {
    /// Evicts the oldest task: the agent's own if it has its share, or else any agent's if the table is full.
    fn make_room(&mut self, agent: &str) {
        let is_own = |key: &TaskKey| self.owners.get(key).is_some_and(|owner| owner.agent == agent);
        let has_share = self.order.iter().filter(|key| is_own(key)).count() >= MAX_REMEMBERED_PER_AGENT;
        let oldest = match has_share {
            true => self.order.iter().position(is_own),
            false => (self.order.len() >= MAX_REMEMBERED).then_some(0),
        };
        if let Some(key) = oldest.and_then(|place| self.order.remove(place)) {
            self.owners.remove(&key);
        }
    }
}

impl TaskOwners {
    /// Remembers the task that a call's result names, if any.
    pub fn remember(&self, server: &str, outcome: &Outcome, mailbox: &str, tool: &str) {
        let Some(id) = created_task(outcome) else { return };
        let mut table = self.0.lock().expect("no code panics while it holds this lock");
        let key = (server.to_owned(), id);
        let owner = TaskOwner { agent: principal_of(mailbox).to_owned(), tool: tool.to_owned() };
        // The first owner wins: a server that repeats an id must not transfer a task.
        if table.owners.contains_key(&key) {
            return;
        }
        table.make_room(&owner.agent);
        table.order.push_back(key.clone());
        table.owners.insert(key, owner);
    }

    pub fn owner(&self, server: &str, task: &str) -> Option<TaskOwner> {
        let table = self.0.lock().expect("no code panics while it holds this lock");
        table.owners.get(&(server.to_owned(), task.to_owned())).cloned()
    }
}

/// Legacy: `{"task": {"taskId": …}}`; modern: `{"resultType": "task", "taskId": …}`.
fn created_task(outcome: &Outcome) -> Option<String> {
    let Outcome::Result(result) = outcome else { return None };
    let result = result.members().ok()?;
    match result.get("task") {
        Some(task) => task.members().ok()?.text("taskId"),
        None => result.text("taskId"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use toolbus_mcp::raw;

    #[test]
    fn a_task_belongs_to_the_agent_that_created_it() {
        let owners = TaskOwners::default();
        for result in [json!({"task": {"taskId": "a"}}), json!({"resultType": "task", "taskId": "b"})] {
            owners.remember("one", &Outcome::Result(raw(&result)), "w#x", "tool");
        }
        owners.remember("one", &Outcome::Result(raw(&json!({"taskId": "a"}))), "thief", "other");
        owners.remember("one", &Outcome::Result(raw(&json!({"content": []}))), "w", "tool");
        let owner = TaskOwner { agent: "w".into(), tool: "tool".into() };
        assert_eq!((owners.owner("one", "a"), owners.owner("one", "b")), (Some(owner.clone()), Some(owner)));
        assert_eq!(owners.owner("two", "a"), None);
    }

    #[test]
    fn an_agent_can_not_evict_the_tasks_of_others() {
        let owners = TaskOwners::default();
        let begin = |agent: &str, task: String| {
            owners.remember("one", &Outcome::Result(raw(&json!({"task": {"taskId": task}}))), agent, "tool");
        };
        begin("w", "first".to_owned());
        (0..=MAX_REMEMBERED).for_each(|number| begin("busy", number.to_string()));
        assert!(owners.owner("one", "first").is_some());
        assert_eq!(owners.owner("one", "0"), None);
        assert!(owners.owner("one", &MAX_REMEMBERED.to_string()).is_some());
    }
}
