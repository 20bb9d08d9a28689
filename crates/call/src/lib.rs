//! The call machine: decides what each tool call at a host does next, without I/O, clock or randomness.
//!
//! One [`CallMachine`] holds all calls of a host, because joins, limits, circuit breakers and drain concern several
//! calls. The host feeds it [`Event`]s and carries out the [`Effect`]s that it returns, in order. Whatever a call waits
//! for arrives as an event, and every wait has a deadline that the machine keeps itself ([`CallMachine::next_wake`]).
//! The simulation runs the same machine on simulated journals, servers and brokers.
//!
//! The way of a call, one file per step:
//!
//! - `admission`: what the journal knows about the request decides whether it runs
//! - `join`: a call that repeats an abandoned one gets that one's answer
//! - `waits`: approval, a connected caller, session order, permits
//! - `attempts`: connection, START, the server's answer or death, further attempts
//! - `finish`: RESULT, then the reply
//! - `cancel`, `orphans`, `drain`: ends that come from outside
//!
//! `call` has the states of a call, `permits`, `session_order`, `circuit_breaker` and `timers` the state between calls.
//!
//! ```
//! use toolbus_call::{CallMachine, Effects, Event, MachineOptions, Now};
//! use toolbus_journal::{CallIndex, Limits};
//!
//! // `u32` stands for the answers of servers, which the machine never looks into.
//! let mut machine = CallMachine::<u32>::new(MachineOptions::default());
//! let journal = CallIndex::new(Limits::default(), 0);
//! let mut effects = Effects::default();
//! machine.handle(Now { ms: 5, wall: 1_763_000_000_000 }, Event::Tick, &journal, &mut effects);
//! assert!(effects.is_empty() && machine.next_wake().is_none());
//! ```

mod admission;
mod attempts;
mod call;
mod cancel;
mod circuit_breaker;
mod drain;
mod effect;
mod event;
mod finish;
mod join;
mod machine;
mod options;
mod orphans;
mod permits;
mod planted;
mod request;
mod session_order;
mod timers;
mod views;
mod waits;

pub use call::Stage;
pub use cancel::Cause;
pub use circuit_breaker::{BreakerChange, TripSettings};
pub use effect::{Answer, Effect, Effects, Failure, Record, RecordKind};
pub use event::{AskNo, CallNo, CancelBy, Event, Inspected, Millis, NotificationNo, Now, ServerNo};
pub use machine::CallMachine;
pub use options::{MachineOptions, ServerOptions};
pub use planted::PlantedBug;
pub use request::{Grant, JoinMode, Limit, Origin, ReplaySetting, Request, SessionHold, SessionKey, TaskRequest};
pub use views::CallView;
