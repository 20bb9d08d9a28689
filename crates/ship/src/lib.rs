//! Copies the lines of an audit log to another place: a file, syslog, or an OpenTelemetry collector.
//!
//! There is no queue in memory: [`Shipper`] reads the files of the log on a thread of its own, behind the writer, and
//! remembers durably how far it came. A target that is away costs no line as long as the local log has it, and no call
//! ever waits for a target.

mod error;
mod file;
mod otlp;
mod shipper;
mod state;
mod syslog;
mod target;

pub use error::ShipError;
pub use shipper::{ShipOptions, Shipper};
pub use state::{Outage, ShipState};
pub use target::Target;
