//! The broker attacked from outside: over the wire, over HTTP, and through the trait that its mailboxes implement.
//!
//! Every test has a bus of its own on a free port, with short timeouts where time matters, and every wait is bounded.

mod apps;
mod attach;
mod bad_frames;
mod bearer;
mod congestion;
mod first_frame;
mod health;
mod hoarding;
mod holes;
mod host_manifests;
mod hosts_and_origins;
mod leaving;
mod limits;
mod mailboxes_contract;
mod origins;
mod ownership;
mod rights_matrix;
mod silence;
mod slow_reader;
mod standing;
mod storage;
mod support;
mod taking_back;
mod witness;
