//! Tests of the call machine through its public API: events and time in, effects out, on a real journal.

mod admission;
mod attempts;
mod cancel;
mod circuit_breaker;
mod describe;
mod drain;
mod finish;
mod joins;
mod joins_of_ended;
mod journal_failures;
mod order_and_permits;
mod orphans;
mod policy_changes;
mod requests;
mod states;
mod support;
mod tasks;
mod waits;
