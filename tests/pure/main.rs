//! Tests that need no server: stores on real directories, the conformance kit for sinks, the walls between the modules, and the documentation.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod conformance;
mod docs;
mod formats;
mod store;
mod walls;
