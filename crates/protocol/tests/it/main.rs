//! The wire protocol from outside: golden vectors, hostile input, properties, and the docs that describe it.

mod bodies;
mod compact;
mod docs;
mod golden;
mod hostile;
mod properties;
mod samples;
mod strategies;
mod tolerance;
mod wire;
