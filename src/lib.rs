#![doc = include_str!("../README.md")]

mod checkpoint;
mod claim;
mod coverage;
#[cfg(feature = "crash-points")]
#[doc(hidden)]
pub mod crash;
mod dead_letter;
mod error;
mod events;
mod fault;
mod guard;
pub mod jetstream;
mod ledger;
mod memory_stream;
mod observer;
mod record;
#[cfg(any(test, feature = "testing"))]
mod rng;
#[cfg(test)]
#[allow(clippy::pedantic, reason = "a model reads best as long, flat code")]
mod sim;
mod sink;
mod skip;
mod source;
mod store;
#[cfg(feature = "testing")]
pub mod testing;
mod trust;
mod witness;

/// Outside the tests that kill, a point is nothing.
#[cfg(not(feature = "crash-points"))]
mod crash {
    pub(crate) const fn point(_name: &str) {}

    pub(crate) fn during<T>(_name: &str, work: impl FnOnce() -> T) -> T {
        work()
    }
}

#[cfg(doc)]
pub mod docs {
    //! Long texts.

    #[doc = include_str!("docs/events.md")]
    pub mod events {}
    #[doc = include_str!("docs/format.md")]
    pub mod format {}
    #[doc = include_str!("docs/guarantees.md")]
    pub mod guarantees {}
    #[doc = include_str!("docs/running.md")]
    pub mod running {}
    #[cfg(feature = "testing")]
    #[doc = include_str!("docs/sinks.md")]
    pub mod sinks {}
    #[doc = include_str!("docs/testing.md")]
    pub mod testing {}
}

pub use async_nats;
pub use checkpoint::{DecodeError, EncodeError, StateId, Totals};
pub use claim::{Claim, ClaimError};
pub use coverage::{Coverage, Span};
pub use dead_letter::{DeadLetter, DeadLetters};
pub use error::{GuardError, OpenError, SinkFailure};
pub use guard::{
    ConsumerPosition, Counters, Fork, Guard, Offer, OnDamage, OpenReport, Opening, Origin, Permits, Placement,
    Reported, Trust,
};
pub use jetstream::{
    DeadLetterError, DeadLetterSubject, Driver, DriverBuilder, DriverError, Ended, Start, StartError, Status,
};
pub use memory_stream::MemoryStream;
pub use observer::{ObserveError, Observer, Reading, StreamView};
pub use record::{Record, RecordId};
pub use sink::{BoxSink, BoxSinkError, Durable, Flush, Reason, Recovered, Sink, Written};
pub use skip::SkipRun;
pub use source::Source;
pub use store::{CheckpointStore, FileStore, MemoryStore, Saved, StoreError, Stored};
pub use witness::Witness;
