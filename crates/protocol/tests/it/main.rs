//! Tests of the wire protocol through its public API: golden files, hostile input, properties, and the reference docs.

mod bodies;
mod compact;
mod docs;
mod event_batches;
mod golden;
mod hostile;
mod properties;
mod samples;
mod strategies;
mod tolerance;
mod wire;
