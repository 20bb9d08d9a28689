//! Tasks: calls that are answered when they are accepted and then continue, across restarts of their host.

use super::World;
use super::host::{MAX_ATTEMPTS, Reply, replay_of};
use super::running::{Run, Stage, Tag};
use super::wire::{Answer, Outcome, Work};
use crate::simulation::scenario::pick;
use bytestring::ByteString;
use toolbus_journal::{CallKey, Decision, Entry, Known, Task, TaskRow, decide};

/// Longer than any simulated run.
const TTL: u64 = 1 << 40;

impl World {
    /// Admits a task that is not in progress in this process. A known task is answered as accepted again.
    pub fn admit_task(&mut self, host: usize, run: Run, known: &Known) {
        let key = run.key.clone();
        if *known != Known::New {
            return self.reply_accepted(host, &key, run.tag);
        }
        if run.is_expired(self.now) {
            return self.not_run(host, &run);
        }
        let (server, tool) = ("s".into(), ByteString::from(format!("tool{}", run.work.tool)));
        let (request, content) = (run.work.body(), run.content);
        self.hosts[host].runs.insert(key.clone(), Run { stage: Stage::Accepting, ..run });
        let task = Task { key, server, tool, content, request, role: None, ttl_ms: TTL, at: self.now };
        self.write_entry(host, Entry::Task(task), true);
    }

    /// The task's entry is durable: reply to the caller and run the call.
    pub fn is_accepted(&mut self, host: usize, key: &CallKey) {
        let Some(run) = self.hosts[host].runs.get_mut(key) else { return };
        let tag = run.tag.take();
        // The deadline applied to the acceptance only.
        run.deadline = None;
        self.reply_accepted(host, key, tag);
        self.begin(host, key);
    }

    pub fn reply_accepted(&mut self, host: usize, key: &CallKey, tag: Option<Tag>) {
        let answer = Answer { outcome: Outcome::Accepted, of: key.id.clone(), joined: false };
        let reply_id = ByteString::from(format!("accepted-{}", key.id));
        self.reply(host, reply_id, Reply { key: key.clone(), answer }, tag);
    }

    /// A restarted host resumes the unfinished tasks of its journal.
    pub fn resume_tasks(&mut self, host: usize) {
        for row in self.hosts[host].journal.book().unfinished_tasks() {
            let (key, content) = (row.manifest.key.clone(), row.manifest.content);
            let request = self.hosts[host].journal.reply(&row.manifest.request);
            let Some(work) = request.ok().and_then(|body| Work::parse(&body)) else {
                return self.oracle.violated(format!("the request of {} can't be read", key.id));
            };
            let run =
                Run { key: key.clone(), work, content, tag: None, deadline: None, attempt: 1, stage: Stage::Admitted };
            match decide(Ok(row.known), replay_of(work), MAX_ATTEMPTS) {
                Decision::Run { attempt } => {
                    self.hosts[host].runs.insert(key.clone(), Run { attempt, ..run });
                    self.begin(host, &key);
                }
                Decision::Unknown(start) => self.finish_interrupted(host, run, &start, Outcome::Unknown),
                Decision::Poisoned(start) => self.finish_interrupted(host, run, &start, Outcome::Poisoned),
                other => self.oracle.violated(format!("an unfinished task was recovered as {other:?}")),
            }
        }
    }

    /// A client queries the state of a random accepted task.
    pub fn query_a_task(&mut self) {
        let accepted = self.oracle.accepted();
        if !accepted.is_empty() {
            let no = *pick(&mut self.rng, &accepted);
            self.query_task(no, false);
        }
    }

    pub fn query_all_tasks(&mut self) {
        self.oracle.accepted().into_iter().for_each(|no| self.query_task(no, true));
    }

    fn query_task(&mut self, no: usize, must_have_ended: bool) {
        let request = &self.oracle.requests[no];
        let (host, id, agent) = (request.host, request.id.clone(), format!("agent{}", request.agent));
        let journal = &self.hosts[host].journal;
        match journal.book().task(&id, Some(&agent)) {
            None => self.oracle.violated(format!("{id} was accepted and is lost")),
            Some(TaskRow { known: Known::Answered { reply, .. }, .. }) => {
                match journal.reply(&reply).ok().and_then(|body| Answer::parse(&body)) {
                    Some(answer) => self.oracle.task_answered(no, &answer),
                    None => self.oracle.violated(format!("the answer to {id} can't be read")),
                }
            }
            Some(row) if must_have_ended => self.oracle.violated(format!("the task {id} never ended: {:?}", row.known)),
            Some(_) => {}
        }
    }
}
