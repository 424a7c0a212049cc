//! Tests that need no server, and, but for those of the stores, no clock and no file system: a small world in memory around
//! the guard.

#![expect(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod docs;
mod guard;
mod lives;
mod store;
mod walls;
mod world;
