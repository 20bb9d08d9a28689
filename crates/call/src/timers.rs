//! When the machine has to look at which call.

use crate::event::{CallNo, Millis};
use std::collections::BTreeSet;

#[derive(Debug, Default)]
pub(crate) struct Timers(BTreeSet<(Millis, CallNo)>);

impl Timers {
    /// Sets the time of a call. `timer` is the time for which the call is listed now; `None` if the call is gone.
    pub fn update(&mut self, call: CallNo, timer: Option<&mut Option<Millis>>, next: Option<Millis>) {
        let Some(timer) = timer else { return };
        if *timer == next {
            return;
        }
        if let Some(old) = timer.take() {
            self.0.remove(&(old, call));
        }
        self.0.extend(next.map(|next| (next, call)));
        *timer = next;
    }

    pub fn remove(&mut self, call: CallNo, timer: Option<Millis>) {
        if let Some(timer) = timer {
            self.0.remove(&(timer, call));
        }
    }

    /// The calls whose time has come. They stay listed until their times are updated.
    pub fn due(&self, now: Millis) -> Vec<CallNo> {
        self.0.iter().take_while(|(at, _)| *at <= now).map(|(_, call)| *call).collect()
    }

    pub fn next(&self) -> Option<Millis> {
        self.0.first().map(|(at, _)| *at)
    }
}
