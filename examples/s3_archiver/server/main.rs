//! The archiver as a whole, against real servers: NATS, and `SeaweedFS` as the store.

#![allow(clippy::missing_errors_doc, missing_docs, reason = "tests")]

mod exactly_once;
mod killed;
mod lifeline;
mod nanio;
mod proxy;
mod rig;
mod seaweed;
mod settings;
