//! Tests that need no server.

mod store;
