//! Empty: the tests are below `main.rs`.
