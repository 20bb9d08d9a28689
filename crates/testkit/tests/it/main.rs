//! Runs the simulation: thousands of seeds without a violation, a crash at every disk operation, and every planted
//! defect found.

mod crash_points;
mod planted;
mod planted_calls;
mod planted_cluster;
mod planted_peers;
mod seeds;
