//! The decisions of a worker about its calls, for the simulation.

pub use crate::bus_client::{inspect_call, is_untouched};
pub use crate::frontend::call_state::{CallState, Leave, NoReply};
pub use crate::frontend::planted::PlantedBug;
