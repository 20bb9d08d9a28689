//! The simulation in every test run: thousands of seeds without a broken promise, and every planted defect found.

mod planted;
mod seeds;
