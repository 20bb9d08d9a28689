//! Tasks: calls that are answered as soon as they are taken, and then go on by themselves, over restarts of their host.

use super::World;
use super::host::{MAX_ATTEMPTS, Reply, replay_of};
use super::running::{Run, Stage, Tag};
use super::wire::{Answer, Outcome, Work};
use crate::simulation::scenario::pick;
use bytestring::ByteString;
use toolbus_journal::{CallKey, Decision, Entry, Known, Task, TaskRow, decide};

/// Longer than any simulation.
const TTL: u64 = 1 << 40;

impl World {
    /// A task arrives that this process does not deal with yet. If it was taken before, whoever asks is told so again.
    pub fn task_arrives(&mut self, host: usize, run: Run, known: &Known) {
        let key = run.key.clone();
        if *known != Known::New {
            return self.say_accepted(host, &key, run.tag);
        }
        if run.is_over(self.now) {
            return self.not_run(host, &run);
        }
        let (server, tool) = ("s".into(), ByteString::from(format!("tool{}", run.work.tool)));
        let (request, content) = (run.work.body(), run.content);
        self.hosts[host].runs.insert(key.clone(), Run { stage: Stage::Accepting, ..run });
        let task = Task { key, server, tool, content, request, role: None, ttl_ms: TTL, at: self.now };
        self.write_down(host, Entry::Task(task), true);
    }

    /// It is safe that it was taken: its caller has its answer, and the call goes on.
    pub fn is_accepted(&mut self, host: usize, key: &CallKey) {
        let Some(run) = self.hosts[host].runs.get_mut(key) else { return };
        let tag = run.tag.take();
        // The deadline was that of the answer which its caller has now.
        run.deadline = None;
        self.say_accepted(host, key, tag);
        self.begin(host, key);
    }

    pub fn say_accepted(&mut self, host: usize, key: &CallKey, tag: Option<Tag>) {
        let answer = Answer { outcome: Outcome::Accepted, of: key.id.clone(), joined: false };
        let reply_id = ByteString::from(format!("accepted-{}", key.id));
        self.reply(host, reply_id, Reply { key: key.clone(), answer }, tag);
    }

    /// A new process goes on with what the earlier one left.
    pub fn take_tasks_up(&mut self, host: usize) {
        for row in self.hosts[host].paper.book.unfinished_tasks() {
            let (key, content) = (row.manifest.key.clone(), row.manifest.content);
            let request = self.hosts[host].paper.reply(&row.manifest.request);
            let Some(work) = request.ok().and_then(|body| Work::parse(&body)) else {
                return self.truth.violated(format!("the request of {} can't be read", key.id));
            };
            let run =
                Run { key: key.clone(), work, content, tag: None, deadline: None, attempt: 1, stage: Stage::Arrived };
            match decide(Ok(row.known), replay_of(work), MAX_ATTEMPTS) {
                Decision::Run { attempt } => {
                    self.hosts[host].runs.insert(key.clone(), Run { attempt, ..run });
                    self.begin(host, &key);
                }
                Decision::Unknown(start) => self.settle_as(host, run, &start, Outcome::Unknown),
                Decision::Poisoned(start) => self.settle_as(host, run, &start, Outcome::Poisoned),
                other => self.truth.violated(format!("a task that nobody runs is {other:?}")),
            }
        }
    }

    /// Somebody asks what became of a task.
    pub fn look_at_a_task(&mut self) {
        let accepted = self.truth.accepted();
        if !accepted.is_empty() {
            let no = *pick(&mut self.rng, &accepted);
            self.ask_about(no, false);
        }
    }

    pub fn look_at_all_tasks(&mut self) {
        self.truth.accepted().into_iter().for_each(|no| self.ask_about(no, true));
    }

    fn ask_about(&mut self, no: usize, must_have_ended: bool) {
        let request = &self.truth.requests[no];
        let (host, id, agent) = (request.host, request.id.clone(), format!("agent{}", request.agent));
        let paper = &self.hosts[host].paper;
        match paper.book.task(&id, Some(&agent)) {
            None => self.truth.violated(format!("{id} was accepted and is gone")),
            Some(TaskRow { known: Known::Answered { reply, .. }, .. }) => {
                match paper.reply(&reply).ok().and_then(|body| Answer::parse(&body)) {
                    Some(answer) => self.truth.task_seen(no, &answer),
                    None => self.truth.violated(format!("the answer to {id} can't be read")),
                }
            }
            Some(row) if must_have_ended => self.truth.violated(format!("the task {id} never ended: {:?}", row.known)),
            Some(_) => {}
        }
    }
}
