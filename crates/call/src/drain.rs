//! Shutdown: no call starts any more, running calls may end.

use crate::call::State;
use crate::event::CallNo;
use crate::machine::{CallMachine, Context};
use crate::planted::PlantedBug;

impl<A: Clone> CallMachine<A> {
    /// Calls that were not started stay in the mailbox, tasks in the journal. The entry of a task that is being accepted, and
    /// answers that are being journaled, are awaited.
    pub(crate) fn drain(&mut self, cx: &mut Context<'_, A>) {
        self.draining = true;
        if self.is_planted(PlantedBug::DrainStarts) {
            return;
        }
        let is_waiting =
            |state: &State<A>| !matches!(state, State::Accepting | State::Finishing { .. } | State::DeadLettering);
        let waiting = self.calls.iter().filter(|(_, call)| !call.attempt_begun && is_waiting(&call.state));
        let waiting: Vec<CallNo> = waiting.filter(|(_, call)| !is_open_read(call)).map(|(no, _)| *no).collect();
        for no in waiting {
            self.leave(no, cx);
        }
    }
}

/// A read that the server has already: it is answered or ends with its server.
fn is_open_read<A>(call: &crate::call::Call<A>) -> bool {
    !call.request.has_effect && matches!(call.state, State::Sending | State::Running | State::Cancelling)
}
