//! The folder of a log, as a real folder.

mod folder;
