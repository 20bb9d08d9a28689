//! The document of a configuration file: toolbus.toml, or the file of an MCP client in JSON, TOML or YAML.
//!
//! - [`Document`] parses the text once. Each section is read from its [`Table`] by the crate that uses it: servers by
//!   `upstream`, roles and limits by `policy`, authentication by `identity`, the other keys by the binary.
//! - [`Setting`] is a value with its path and position. Its typed accessors return a [`ConfigError`], so every error
//!   has the same form: position, full name of the key, a sentence and a hint.
//!
//! ```
//! use toolbus_config::{Document, Setting};
//!
//! let file = Document::parse_toml("[journal]\nsync_results = 'yes'").expect("valid TOML");
//! let journal = file.root().read("journal", |journal| journal.table("a table")).expect("a table").expect("present");
//! let error = journal.read("sync_results", Setting::flag).expect_err("not a flag");
//! assert_eq!(error.to_string(), "line 2, column 16: journal.sync_results has to be true or false");
//! assert_eq!(error.hint(), "correct the value");
//! ```
//!
//! There is no I/O here: the caller reads the file and adds its name to an error.

mod document;
mod error;
mod jsonc;
mod parse_json;
mod parse_toml;
mod parse_yaml;
mod position;
mod setting;
mod values;

pub use document::{Document, Table};
pub use error::{ConfigError, Problem, Warning};
pub use position::Position;
pub use setting::{Setting, Value};
pub use values::{parse_duration, parse_size};
