//! Well-behaved and misbehaving servers: real processes and real sockets, through the public API.

mod clients;
mod config;
mod event_stream;
mod http;
mod in_process;
mod misbehaviour;
mod probing;
mod process;
mod real;
mod secrets;
mod stdio;
mod support;
