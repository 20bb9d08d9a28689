//! The log through its public API: writing, detection of tampering, and recovery after a crash.

mod recovery;
mod sealing;
mod support;
mod tampering;
mod writing;
