//! Queries about accepted tasks.

use super::World;
use crate::simulation::scenario::pick;
use toolbus_journal::{Known, TaskRow};

impl World {
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
        let Some(process) = self.hosts[host].process.as_ref() else { return };
        match process.journal.index().task(&id, Some(&agent)) {
            // Corruption may cost the entry of a task.
            None if self.oracle.is_forgetful(host) => {}
            None => self.oracle.violated(format!("{id} was accepted and is lost")),
            Some(TaskRow { known: Known::Answered { reply, .. }, .. }) => match self.read_answer(host, &reply) {
                Ok(answer) => self.oracle.task_answered(no, &answer),
                Err(why) => self.oracle.violated(format!("the answer to {id} can't be read: {why}")),
            },
            Some(row) if must_have_ended => self.oracle.violated(format!("the task {id} never ended: {:?}", row.known)),
            Some(_) => {}
        }
    }
}
