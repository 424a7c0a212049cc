//! Real servers and archivers on file systems that fill up, fail, or lose power. Needs root: it mounts what it needs, in a
//! directory of its own, and unmounts it.

#![allow(clippy::future_not_send, reason = "a test stays on its thread")]

mod cut;
mod disk;
mod trouble;

const PROGRAM: &str = env!("CARGO_BIN_EXE_mortal_archiver");
