//! The simulation in every test run: thousands of seeds without a broken promise, a crash at every call to the disk, and
//! every planted defect found.

mod crash_points;
mod planted;
mod seeds;
