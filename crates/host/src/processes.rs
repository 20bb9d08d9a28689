//! The slots of a server's own connections (`max_sessions`), most of which are processes, and each agent's share of them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use tokio::sync::futures::Notified;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use toolbus_base::Share;

pub struct Processes {
    free: Arc<Semaphore>,
    max: usize,
    by_agent: Mutex<HashMap<String, u64>>,
    returned: Notify,
}

/// A slot in use; free again on drop.
pub struct ProcessSlot {
    permit: Option<OwnedSemaphorePermit>,
    processes: Arc<Processes>,
    agent: String,
}

impl Processes {
    pub fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { free: Arc::new(Semaphore::new(max)), max, by_agent: Mutex::default(), returned: Notify::new() })
    }

    /// The share of an agent whose role has none. Of few slots, one agent may use nearly all.
    pub fn default_share(&self) -> Share {
        if self.max < 12 { Share::RUNNING } else { Share::HALF }
    }

    /// A free slot, if the agent has not used up its share.
    pub fn take(self: &Arc<Self>, agent: &str, share: Share) -> Option<ProcessSlot> {
        let own = self.lock().get(agent).copied().unwrap_or_default();
        if !share.admits(own, self.free.available_permits() as u64) {
            return None;
        }
        let permit = Arc::clone(&self.free).try_acquire_owned().ok()?;
        Some(self.slot(agent, permit))
    }

    /// Whether a slot is free, which some agents may not use.
    pub fn has_free(&self) -> bool {
        self.free.available_permits() > 0
    }

    /// Resolves when a slot is returned after this call.
    pub fn returned(&self) -> Notified<'_> {
        self.returned.notified()
    }

    /// Waits for a slot in FIFO order. For tasks, whose number is limited otherwise.
    pub async fn wait(self: &Arc<Self>, agent: &str) -> ProcessSlot {
        let permit = Arc::clone(&self.free).acquire_owned().await.expect("the slots are never closed");
        self.slot(agent, permit)
    }

    fn slot(self: &Arc<Self>, agent: &str, permit: OwnedSemaphorePermit) -> ProcessSlot {
        *self.lock().entry(agent.to_owned()).or_default() += 1;
        ProcessSlot { permit: Some(permit), processes: Arc::clone(self), agent: agent.to_owned() }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, u64>> {
        self.by_agent.lock().expect("no code panics while it holds this lock")
    }
}

impl Drop for ProcessSlot {
    fn drop(&mut self) {
        {
            let mut by_agent = self.processes.lock();
            if let Some(own) = by_agent.get_mut(&self.agent) {
                *own -= 1;
                if *own == 0 {
                    by_agent.remove(&self.agent);
                }
            }
        }
        // Before the waiting calls are woken.
        drop(self.permit.take());
        self.processes.returned.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(processes: &Arc<Processes>, agent: &str, count: usize) -> Vec<ProcessSlot> {
        (0..count).map_while(|_| processes.take(agent, processes.default_share())).collect()
    }

    #[test]
    fn an_agent_gets_its_share_and_others_still_find_a_slot() {
        let processes = Processes::new(32);
        let greedy = take(&processes, "greedy", 100);
        assert_eq!(greedy.len(), 16);
        let others: Vec<_> = (0..3).map(|number| take(&processes, &format!("other{number}"), 1)).collect();
        assert!(others.iter().all(|taken| taken.len() == 1));
        drop(greedy);
        assert_eq!(take(&processes, "greedy", 1).len(), 1);
        drop(others);
        assert!(processes.lock().is_empty());
        assert_eq!(processes.free.available_permits(), 32);
    }

    #[test]
    fn one_agent_can_use_all_of_a_few_slots() {
        for max in 1..=3 {
            assert_eq!(take(&Processes::new(max), "only", 100).len(), max, "of {max}");
        }
    }
}
