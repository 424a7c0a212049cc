//! What the example archivers share: their command line, the connection, how the driver is put together and stopped. And
//! the servers that the tests and the demonstration run.

#![allow(clippy::missing_errors_doc, reason = "each error says what failed")]

mod connect;
mod failure;
pub mod killing;
pub mod nats;
mod port;
mod process;
pub mod progress;
pub mod python;
mod run;
mod settings;
pub mod streams;
pub mod wheel;

pub use failure::Failure;
pub use port::Port;
pub use process::Process;
pub use progress::Progress;
pub use run::{Job, Stop, Target, main, run};
pub use settings::{FlushSettings, ServerSettings, SourceSettings, StartAt, seconds};
