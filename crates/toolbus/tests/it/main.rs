//! The bus as its users meet it: the binary, its commands, and the client library, over real sockets.

mod calls;
mod cli;
mod client;
mod configuration;
mod hosts;
mod kill;
mod local;
mod process;
mod support;
mod up;
