//! Shutdown: no call starts any more, running calls may end.

use crate::call::{Call, State};
use crate::effect::Answer;
use crate::event::CallNo;
use crate::machine::{CallMachine, Context};
use crate::planted::PlantedBug;
use crate::request::Origin;
use toolbus_journal::{End, Replay};

impl<A: Clone> CallMachine<A> {
    /// Calls that were not started are handed back or stay in the mailbox, tasks in the journal. The entry of a task that is being accepted, and
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
            self.pass_on(no, cx);
        }
    }

    /// Hands a call back to a caller that can run it at another host of the pool, and leaves any other to the next host. A
    /// handed-back call is journaled like one that was cancelled before its start, so that no redelivery runs it here.
    pub(crate) fn pass_on(&mut self, no: CallNo, cx: &mut Context<'_, A>) {
        match self.calls.get(&no).is_some_and(is_handed_back) {
            true => self.give_up_wait(no, Answer::HandedBack, End::Cancelled, cx),
            false => self.leave(no, cx),
        }
    }
}

/// Whether the caller takes the call back, and it had no effect or may run twice. The follow-up of a suspended call has its
/// state at this host.
pub(crate) fn is_handed_back<A>(call: &Call<A>) -> bool {
    let request = &call.request;
    let is_plain = request.hands_back && request.task.is_none() && !request.continues;
    is_plain && matches!(request.origin, Origin::Mailbox { .. }) && call.begun != Some(Replay::Never)
}

/// A read that the server has already: it is answered or ends with its server.
fn is_open_read<A>(call: &Call<A>) -> bool {
    !call.request.has_effect && matches!(call.state, State::Sending | State::Running | State::Cancelling)
}
