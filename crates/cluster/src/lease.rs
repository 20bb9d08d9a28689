//! Decides when a broker claims, renews and gives up one partition. Without I/O or a clock: events carry the time of this
//! broker's own clock, and effects are return values.
//!
//! The lease is a record in a key-value bucket that is changed by compare-and-set. Observers time its silence on their own
//! clocks, so that clocks need not agree. The lease only keeps brokers from competing. If two believe that they own a
//! partition, the log rejects the appends of one of them; until then both could push a message, which is a duplicate and
//! not a loss. To make that rare, an owner whose writes and renewals are not confirmed suspends pushing and eliding before
//! its lease can have ended elsewhere.

use crate::planted::{self, PlantedBug};

/// After this time without a failure, the next one counts as the first.
const FORGIVEN: Millis = 600_000;
/// How often the pause after a failure is doubled.
const LONGEST_PAUSE: u32 = 2;

/// Milliseconds of this broker's monotonic clock.
pub type Millis = u64;

/// The durations of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseOptions {
    /// How long the record of another broker must be unchanged before it may be claimed. Longer than the election in the
    /// key-value bucket, during which no owner can renew.
    pub silence: Millis,
    /// The interval between renewals.
    pub renewal: Millis,
    /// How long an owner serves without a confirmation.
    pub suspension: Millis,
    /// How long the answer to a write of the record is awaited before it is written again.
    pub answer: Millis,
    /// A defect for the simulation to find. Has no effect without the feature `planted`.
    pub planted: Option<PlantedBug>,
}

impl Default for LeaseOptions {
    fn default() -> Self {
        Self { silence: 12_000, renewal: 2_000, suspension: 10_000, answer: 1_000, planted: None }
    }
}

/// The record of a partition: who owns it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseRecord {
    /// The owner, or `None` after it has released the partition.
    pub owner: Option<String>,
    /// Increases with every claim.
    pub epoch: u64,
}

/// An input of a [`Lease`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseEvent {
    /// The record as it is now, with its revision; revision 0 if there is none. Reported for every change.
    Seen {
        /// The revision.
        revision: u64,
        /// The record.
        record: LeaseRecord,
    },
    /// The write of a record failed, because its revision was not the expected one.
    Conflict,
    /// A broker is certain to be gone: its address refuses connections.
    Gone {
        /// The broker.
        broker: String,
    },
    /// The takeover of that epoch ended.
    TakenOver {
        /// The epoch.
        epoch: u64,
        /// Whether this broker owns the log now.
        ok: bool,
    },
    /// The log confirmed an append of that epoch.
    Confirmed {
        /// The epoch.
        epoch: u64,
    },
    /// The log rejected an append of that epoch, or did not answer in time.
    Closed {
        /// The epoch.
        epoch: u64,
    },
    /// This broker stops, or gives the partition to another one. It claims it again only after [`LeaseEvent::Wanted`].
    Release,
    /// This broker may claim the partition after so many milliseconds, and not before.
    Wanted {
        /// How long it is left to others.
        after: Millis,
    },
    /// Time has passed.
    Tick,
}

/// What the shell has to do for a [`Lease`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseEffect {
    /// Write the record if its revision is still this one.
    Write {
        /// The expected revision; 0 to create it.
        revision: u64,
        /// The new record.
        record: LeaseRecord,
    },
    /// Take the log over with this epoch, and report [`LeaseEvent::TakenOver`].
    TakeOver {
        /// The epoch.
        epoch: u64,
    },
    /// Push nothing and elide nothing until [`LeaseEffect::Resume`].
    Suspend,
    /// Serve again.
    Resume,
    /// Close the partition: end its connections, and forget its state.
    Close,
}

/// The state of one partition at one broker.
pub struct Lease {
    me: String,
    options: LeaseOptions,
    seen: Option<Seen>,
    state: State,
    /// The partition is left to others until then.
    yields_until: Millis,
    /// How often serving it has failed lately, and when it did last.
    failures: u32,
    failed_at: Millis,
}

/// The record, and when it last changed.
struct Seen {
    revision: u64,
    record: LeaseRecord,
    since: Millis,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Another broker owns it, or none.
    Watching,
    /// A claim was written at that time and has not been seen.
    Claiming {
        epoch: u64,
        since: Millis,
    },
    /// The claim was seen; the log is being taken over.
    TakingOver {
        epoch: u64,
        renewed: Millis,
    },
    Owning {
        epoch: u64,
        confirmed: Millis,
        renewed: Millis,
        is_suspended: bool,
    },
    /// The release was written and has not been seen.
    Releasing {
        since: Millis,
    },
}

impl Lease {
    /// Begins to watch a partition as that broker.
    pub fn new(me: impl Into<String>, options: LeaseOptions) -> Self {
        Self { me: me.into(), options, seen: None, state: State::Watching, yields_until: 0, failures: 0, failed_at: 0 }
    }

    /// The epoch that this broker serves now.
    pub fn serving(&self) -> Option<u64> {
        match self.state {
            State::Owning { epoch, is_suspended: false, .. } => Some(epoch),
            _ => None,
        }
    }

    /// The owner according to the record.
    pub fn owner(&self) -> Option<&str> {
        self.seen.as_ref()?.record.owner.as_deref()
    }

    /// The epoch of the record; 0 if none was seen.
    pub fn record_epoch(&self) -> u64 {
        self.seen.as_ref().map_or(0, |seen| seen.record.epoch)
    }

    /// How long the record has not changed.
    pub fn silent_for(&self, now: Millis) -> Millis {
        self.seen.as_ref().map_or(0, |seen| now.saturating_sub(seen.since))
    }

    /// Handles an event. The time must not decrease.
    pub fn handle(&mut self, now: Millis, event: LeaseEvent) -> Vec<LeaseEffect> {
        let mut effects = Vec::new();
        match event {
            LeaseEvent::Seen { revision, record } => self.record_seen(now, revision, record, &mut effects),
            LeaseEvent::Conflict => self.conflict(),
            LeaseEvent::Gone { broker } => self.gone(now, &broker, &mut effects),
            LeaseEvent::TakenOver { epoch, ok } => self.taken_over(now, epoch, ok, &mut effects),
            LeaseEvent::Confirmed { epoch } => self.confirmed(now, epoch, &mut effects),
            LeaseEvent::Closed { epoch } => self.closed(now, epoch, &mut effects),
            LeaseEvent::Release => {
                self.yields_until = Millis::MAX;
                self.release(now, &mut effects);
            }
            LeaseEvent::Wanted { after } => self.yields_until = now.saturating_add(after),
            LeaseEvent::Tick => self.tick(now, &mut effects),
        }
        effects
    }

    fn is_mine(&self) -> bool {
        self.owner() == Some(&*self.me)
    }

    fn record_seen(&mut self, now: Millis, revision: u64, record: LeaseRecord, effects: &mut Vec<LeaseEffect>) {
        // Watches may repeat an older revision after a reconnect.
        if self.seen.as_ref().is_none_or(|seen| seen.revision < revision) {
            self.seen = Some(Seen { revision, record, since: now });
        }
        let (is_mine, seen_epoch) = (self.is_mine(), self.record_epoch());
        match &mut self.state {
            State::Claiming { epoch, .. } if is_mine && seen_epoch == *epoch => {
                let epoch = *epoch;
                self.state = State::TakingOver { epoch, renewed: now };
                effects.push(LeaseEffect::TakeOver { epoch });
            }
            State::Claiming { epoch, .. } if seen_epoch >= *epoch => self.state = State::Watching,
            State::TakingOver { epoch, .. } if !is_mine || seen_epoch != *epoch => {
                self.state = State::Watching;
                effects.push(LeaseEffect::Close);
            }
            State::Owning { epoch, .. } if is_mine && seen_epoch == *epoch => {
                let epoch = *epoch;
                self.confirmed(now, epoch, effects);
            }
            State::Owning { .. } => {
                self.state = State::Watching;
                effects.push(LeaseEffect::Close);
            }
            State::Releasing { .. } if !is_mine => self.state = State::Watching,
            _ => {}
        }
        self.claim_if_free(now, effects);
    }

    /// Claims a partition that has no owner, or whose owner has been silent for too long.
    fn claim_if_free(&mut self, now: Millis, effects: &mut Vec<LeaseEffect>) {
        let Some(seen) = self.seen.as_ref().filter(|_| self.state == State::Watching) else { return };
        let is_free = seen.record.owner.is_none() || now.saturating_sub(seen.since) >= self.options.silence;
        if is_free && now >= self.yields_until {
            self.claim(now, effects);
        }
    }

    /// The watch will report the record that won.
    fn conflict(&mut self) {
        if let State::Claiming { .. } = self.state {
            self.state = State::Watching;
        }
    }

    fn gone(&mut self, now: Millis, broker: &str, effects: &mut Vec<LeaseEffect>) {
        let is_owner = self.owner() == Some(broker) && !self.is_mine();
        if self.state == State::Watching && is_owner && now >= self.yields_until {
            self.claim(now, effects);
        }
    }

    fn claim(&mut self, now: Millis, effects: &mut Vec<LeaseEffect>) {
        let epoch = self.record_epoch() + 1;
        self.state = State::Claiming { epoch, since: now };
        effects.push(self.write(Some(self.me.clone()), epoch));
    }

    fn write(&self, owner: Option<String>, epoch: u64) -> LeaseEffect {
        let revision = self.seen.as_ref().map_or(0, |seen| seen.revision);
        LeaseEffect::Write { revision, record: LeaseRecord { owner, epoch } }
    }

    fn taken_over(&mut self, now: Millis, taken: u64, ok: bool, effects: &mut Vec<LeaseEffect>) {
        match self.state {
            State::TakingOver { epoch, renewed } if epoch == taken && ok => {
                self.state = State::Owning { epoch, confirmed: now, renewed, is_suspended: false };
            }
            State::TakingOver { epoch, .. } if epoch == taken => self.closed(now, epoch, effects),
            _ => {}
        }
    }

    fn confirmed(&mut self, now: Millis, of: u64, effects: &mut Vec<LeaseEffect>) {
        if let State::Owning { epoch, confirmed, is_suspended, .. } = &mut self.state
            && *epoch == of
        {
            *confirmed = now;
            if std::mem::take(is_suspended) {
                effects.push(LeaseEffect::Resume);
            }
        }
    }

    /// The partition is released and left alone for a while, longer after each failure, so that a broker that can serve it
    /// claims it.
    fn closed(&mut self, now: Millis, of: u64, effects: &mut Vec<LeaseEffect>) {
        if matches!(self.state, State::Owning { epoch, .. } | State::TakingOver { epoch, .. } if epoch == of) {
            if now.saturating_sub(self.failed_at) > FORGIVEN {
                self.failures = 0;
            }
            let pause = self.options.renewal.saturating_mul(3 << self.failures.min(LONGEST_PAUSE));
            (self.failures, self.failed_at) = (self.failures + 1, now);
            self.yields_until = self.yields_until.max(now + pause);
            self.release(now, effects);
        }
    }

    fn release(&mut self, now: Millis, effects: &mut Vec<LeaseEffect>) {
        if matches!(self.state, State::Owning { .. } | State::TakingOver { .. }) {
            effects.push(LeaseEffect::Close);
            self.state = State::Releasing { since: now };
            effects.push(self.write(None, self.record_epoch()));
        }
    }

    fn tick(&mut self, now: Millis, effects: &mut Vec<LeaseEffect>) {
        let LeaseOptions { renewal, suspension, answer, planted, .. } = self.options;
        let late = |since: Millis, after: Millis| now.saturating_sub(since) >= after;
        let goes_on = planted::has(planted, PlantedBug::GoesOnAfterLease);
        match &mut self.state {
            State::Watching => self.claim_if_free(now, effects),
            State::Claiming { since, .. } if late(*since, answer) => self.state = State::Watching,
            State::TakingOver { renewed, epoch } if late(*renewed, renewal) => {
                *renewed = now;
                let epoch = *epoch;
                effects.push(self.write(Some(self.me.clone()), epoch));
            }
            State::Owning { epoch, confirmed, renewed, is_suspended } => {
                let epoch = *epoch;
                if late(*confirmed, suspension) && !*is_suspended && !goes_on {
                    *is_suspended = true;
                    effects.push(LeaseEffect::Suspend);
                }
                if late(*renewed, renewal) {
                    *renewed = now;
                    effects.push(self.write(Some(self.me.clone()), epoch));
                }
            }
            State::Releasing { since } if late(*since, answer) => {
                // The record stays ours if the write was lost; others claim it after the silence.
                self.state = State::Watching;
            }
            _ => {}
        }
    }
}

#[cfg(test)]
#[path = "lease_tests.rs"]
mod tests;
