//! The broker's state machine, without I/O, clock or randomness.
//!
//! Inputs are calls on [`Engine`] that carry the time; outputs are [`Effect`]s for the shell to carry out and
//! [`Batch`]es for a store to write. The shell reports completed syncs and reads back to the engine. The engine has no
//! other inputs, so it is deterministic, and a whole broker can be simulated from one seed.
//!
//! ```
//! use toolbus_engine::{Command, Delivery, Effect, Effects, Engine, EngineOptions, Outgoing, Peer, Purpose, Rights};
//!
//! let mut engine = Engine::new(EngineOptions::default());
//! let (now, mut effects) = (0, Effects::default());
//! let rights = Rights::UNRESTRICTED;
//! let alice = engine.connect(now, Peer { name: "alice".into(), role: None, numbered_receipts: false, rights, incarnation: 0 });
//! let delivery = Delivery {
//!     to: "bob".into(),
//!     id: "m-1".into(),
//!     correlation_id: None,
//!     purpose: Purpose::Other,
//!     sealed: "the sealed envelope".into(),
//!     content: 1,
//!     deadline_ms: None,
//!     ack: None,
//!     age_ms: None,
//! };
//! engine.handle(now, alice, Command::Deliver(delivery), &mut effects);
//! // The shell writes and fsyncs the batch; only then is the receipt sent.
//! let batch = engine.take_batch(now).expect("due at once, because bob is absent");
//! engine.synced(batch.number, &mut effects);
//! assert!(matches!(&effects.0[..], [Effect::Send { outgoing: Outgoing::Receipt { number: 1, .. }, .. }]));
//! ```
//!
//! - `engine`: connections, command dispatch, time; `mailboxes`: commands, answers, and the trait for connections.
//! - `accept`, `push`, `settle` and `durability`: the stages of a message's life.
//! - `rights`: authorisation of commands and deliveries.
//! - `cancel`: withdrawal of a message by its sender; `agent_end`: removal of all messages of an agent.
//! - `fence`: messages that an earlier subscriber may have started; `claim`: the journal of a subscriber.
//! - `inspect` and `status`: read-only views of queues and connections; `follow`: notifications of their changes.
//! - `ledger`: ids for deduplication; `mailbox`: the state of one recipient; `unsettled`: accepted messages that are
//!   neither durable nor settled.

mod accept;
mod agent_end;
mod cancel;
mod claim;
mod durability;
mod engine;
mod fence;
mod follow;
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
mod totals;
mod unsettled;

pub use agent_end::{AgentEnd, EndedMessages};
pub use cancel::CancelOutcome;
pub use claim::JournalClaim;
pub use durability::{AttemptsNote, Batch, Settled};
pub use engine::{Effect, Effects, Engine};
pub use fence::Fence;
pub use follow::{Follow, FollowView};
pub use inspect::{Inspect, InspectView, MessageAt, MessageView};
pub use ledger::{Fingerprint, fingerprint};
pub use mailboxes::{Command, Delivery, Mailboxes, Outbox, Outgoing, Peer};
pub use message::{ConnId, Message, Millis, Sender, Seq};
pub use options::{EngineOptions, Window};
pub use planted::PlantedBug;
pub use push::Page;
pub use recovery::RestoredMessage;
pub use refusal::Refusal;
pub use rights::{Names, Purpose};
pub use status::{ConnectionView, MailboxView, StatusView};
pub use toolbus_base::{DEAD_LETTER_SUFFIX, Rights, Share};

/// Maximum length of a mailbox name, as in the protocol.
pub const MAX_MAILBOX_NAME_BYTES: usize = 256;
