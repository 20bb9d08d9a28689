//! The broker's decisions, without I/O, clock or randomness.
//!
//! Inputs are calls on [`Engine`] that carry the time; outputs are [`Effect`]s for the shell to carry out and
//! [`Batch`]es for a store to write. The shell reports back what was synced and what was read. Because nothing else
//! goes in, a whole broker can be simulated from one seed.
//!
//! - `engine` ties the parts together: connections, limits, time.
//! - `accept`, `settle`, `push` and `durability` are what can happen to a message, in the order of its life.
//! - `rights` says who may send what to whom.
//! - `cancel` is how a sender takes one back.
//! - `look` and `status` show what is there.
//! - `ledger` remembers ids, `mailbox` the state of one recipient, `unsettled` what is not yet safe.

mod accept;
mod cancel;
mod durability;
mod engine;
mod inspect;
mod ledger;
mod mailbox;
mod mailboxes;
mod message;
mod options;
mod planted;
mod push;
mod recovery;
mod refusal;
mod rights;
mod settle;
mod status;
mod unsettled;

pub use durability::{AttemptsNote, Batch, Settled};
pub use engine::{Command, Delivery, Effect, Effects, Engine, Outgoing, Peer};
pub use inspect::{Inspect, InspectView, MessageAt, MessageView};
pub use ledger::{Fingerprint, fingerprint};
pub use mailboxes::{Mailboxes, Outbox};
pub use message::{ConnId, Message, Millis, Sender, Seq};
pub use options::{EngineOptions, Window};
pub use planted::PlantedBug;
pub use push::Page;
pub use recovery::RestoredMessage;
pub use refusal::Refusal;
pub use rights::{Names, Purpose, Rights};
pub use status::{ConnectionView, MailboxView, StatusView};

/// The longest name of a mailbox that a peer can have, as the protocol limits it.
pub const MAX_MAILBOX_NAME_BYTES: usize = 256;

/// Where messages go that were delivered too often: the mailbox `NAME#dead`, readable like any other.
pub const DEAD_LETTER_SUFFIX: &str = "#dead";
