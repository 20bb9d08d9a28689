//! Integration tests of the binary, its commands and the client library, over real sockets and processes.

mod agents;
mod approvals_pins_audit;
mod bad_clients;
mod calls;
mod calls_and_dead_letters;
mod canary;
mod cli;
mod client;
mod configuration;
mod credentials;
mod deny_by_default;
mod fidelity;
mod hostile_servers;
mod hosts;
mod in_process;
mod kill;
mod mcp_client;
mod mcp_process;
mod one_effect;
mod outages;
mod policy;
mod process;
mod snapshots;
mod support;
mod token_scope;
mod up;
