//! The guard's counterpart on the server, for those who drive a [`Guard`](crate::Guard) with a loop of their own.
//!
//! [`StreamObserver`] asks the stream's leader what stands where, [`Consumer`] looks after the durable pull consumer:
//! its configuration, its mark and its position. Neither knows the other.

pub(crate) mod ack;
pub(crate) mod api;
pub(crate) mod builder;
pub(crate) mod consumer;
mod dead_letters;
mod denials;
pub(crate) mod driver;
pub(crate) mod error;
pub(crate) mod observe;
pub(crate) mod pace;
mod permissions;
pub(crate) mod plan;
pub(crate) mod position;
mod pull;
pub(crate) mod resume;
mod run;
pub(crate) mod session;
pub(crate) mod settings;
pub(crate) mod switch;
pub(crate) mod time;

pub use builder::DriverBuilder;
pub use dead_letters::{DeadLetterError, DeadLetterSubject};
pub use driver::{Driver, DriverError, Ended, Status};
pub use resume::{Start, StartError};

pub use consumer::Consumer;
pub use denials::Denials;
pub use error::ConsumerError;
pub use observe::StreamObserver;
pub use position::{Moved, Position};
pub use settings::{Expected, METADATA_KEY, Warning};
