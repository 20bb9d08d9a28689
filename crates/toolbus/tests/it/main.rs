//! The bus as its users meet it: the binary, its commands, and the client library, over real sockets.

mod agents;
mod bad_clients;
mod calls;
mod calls_seen;
mod canary;
mod cli;
mod client;
mod configuration;
mod credentials;
mod deny_by_default;
mod fidelity;
mod guarded;
mod hostile_servers;
mod hosts;
mod kill;
mod local;
mod mcp_client;
mod mcp_process;
mod one_effect;
mod policy;
mod process;
mod support;
mod tokens_stay_home;
mod up;
mod up_trouble;
