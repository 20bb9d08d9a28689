//! Integration tests of the broker: over the wire protocol, over HTTP, and through the `Mailboxes` trait.
//!
//! Every test starts its own broker on a free port, with short timeouts where time matters, and every wait is bounded.

mod apps;
mod attach;
mod bad_frames;
mod bearer;
mod cancels_and_dead_letters;
mod closing;
mod congestion;
mod first_frame;
mod follows;
mod health;
mod healthy_pair;
mod heartbeat;
mod holes;
mod host_and_origin_headers;
mod host_manifests;
mod host_names;
mod limits;
mod links;
mod mailboxes_contract;
mod memory_bounds;
mod original_clients;
mod origins;
mod ownership;
mod rights_matrix;
mod slots;
mod slow_reader;
mod standing;
mod storage;
mod support;
