//! Servers as they are and as they should not be: real processes and real sockets, through the public interface.

mod config;
mod http;
mod misbehaviour;
mod probing;
mod process;
mod real;
mod secrets;
mod stdio;
mod support;
