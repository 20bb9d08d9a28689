//! Who may use what: the rules of toolbus.toml, and the one function that decides by them.
//!
//! - [`PolicySet`] is what `[roles]` and `[limits]` say. [`PolicySet::decide`] answers a [`Question`] with a [`Decision`]
//!   that names its rule. Lists, calls, resources, prompts, completions and tasks ask the same function.
//! - `read` makes a set from text, with the place of every mistake. `pattern` and `index` find the rules that are about a
//!   name, `condition` and `pointer` look at a call's arguments, `shapes` sees through detours in paths.
//! - [`Limit`] says how often, how many at once, how large and how long; counting is left to the host, with [`Bucket`].
//!
//! There is no I/O, clock or randomness here: the same question to the same set has the same answer.

mod condition;
mod decide;
mod index;
mod limits;
mod pattern;
mod pointer;
mod question;
mod rate;
mod read;
mod role_names;
mod rule;
mod send;
mod set;
mod shapes;
mod unmatched;

pub use condition::Condition;
pub use limits::{Limit, LimitKind, Rate, parse_size};
pub use pointer::ArgumentsProblem;
pub use question::{Arguments, Decision, Effect, Item, Question, Reason};
pub use rate::Bucket;
pub use read::{PolicyError, Position, Warning};
pub use rule::Rule;
pub use set::PolicySet;
