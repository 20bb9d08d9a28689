//! The log from outside: what is written, what shows when somebody changes it, and how it goes on after a crash.

mod going_on;
mod support;
mod tampering;
mod writing;
