//! Authorization: the rules of toolbus.toml, and the one function that decides by them.
//!
//! - [`PolicySet`] holds `[roles]` and `[limits]`. [`PolicySet::decide`] answers a [`Question`] with a [`Decision`]
//!   that names its rule. Lists, calls, resources, prompts, completions and tasks all use this function.
//! - `read` reads a set from a document. `pattern` and `index` find the rules that
//!   match a name, `condition` and `pointer` evaluate a call's arguments, `normalize` detects path traversal and
//!   equivalent URIs.
//! - [`PolicySet::offer`] says which host may offer a name.
//! - [`Limit`] restricts rate, concurrency, result size and duration. The host does the counting, with [`Bucket`].
//!
//! There is no I/O, clock or randomness here: the same question to the same set always gets the same decision.

mod condition;
mod decide;
mod index;
mod limits;
mod normalize;
mod offers;
mod pattern;
mod pointer;
mod question;
mod rate;
mod read;
mod role_names;
mod rule;
mod send;
mod set;
mod unmatched;

pub use condition::Condition;
pub use limits::{Limit, LimitKind, Rate};
pub use normalize::normal_uri;
pub use offers::Offer;
pub use pointer::ArgumentsProblem;
pub use question::{Arguments, Decision, Effect, Item, Question, Reason};
pub use rate::Bucket;
pub use role_names::confusable_key;
pub use rule::Rule;
pub use set::PolicySet;
pub use toolbus_config::{ConfigError, Position, Warning};
