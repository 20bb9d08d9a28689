//! The guard as a program of its own.

fn main() {}
