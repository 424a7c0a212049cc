//! The guard's counterpart on the server, for those who drive a [`Guard`](crate::Guard) with a loop of their own.
//!
//! [`StreamObserver`] asks the stream's leader what stands where, [`Consumer`] looks after the durable pull consumer:
//! its configuration, its mark and its position. Neither knows the other.

mod ack;
mod api;
mod builder;
mod consumer;
mod denials;
mod driver;
mod error;
mod observe;
mod pace;
mod plan;
mod position;
mod pull;
mod resume;
mod run;
mod session;
mod settings;
mod time;

pub use builder::DriverBuilder;
pub use driver::{Driver, DriverError, Ended, Status};
pub use resume::{Start, StartError};

pub use consumer::Consumer;
pub use denials::Denials;
pub use error::ConsumerError;
pub use observe::StreamObserver;
pub use position::{Moved, Position};
pub use settings::{Expected, METADATA_KEY, Warning};
