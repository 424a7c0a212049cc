//! replay-guard

mod claim;
mod observer;
mod record;
mod sink;
mod source;
mod store;
mod witness;

pub use async_nats;
pub use claim::{Claim, ClaimError};
pub use observer::{ObserveError, Observer, Reading, StreamView};
pub use record::{Record, RecordId};
pub use sink::{BoxSink, BoxSinkError, Durable, Flush, Reason, Recovered, Sink, Written};
pub use source::Source;
pub use store::{CheckpointStore, FileStore, MemoryStore, Saved, StoreError, Stored};
pub use witness::Witness;
