//! A conformance kit for sinks: what an author runs against a sink in tests of their own.
//!
//! It needs the feature `testing`, which belongs among the dev-dependencies, and no server:
//!
//! ```toml
//! [dev-dependencies]
//! replay-guard = { version = "0.1", features = ["testing"] }
//! ```
//!
//! The author says how to open a sink over a storage and how to read back what the storage holds ([`Storage`]), and hands
//! [`Conformance::check`] a function that makes an empty storage. The kit runs the sink behind a real
//! [`Guard`](crate::Guard), and alone: it writes, redelivers, kills the process after each step, drops calls wherever they
//! wait, lets the stream fork, and compares what is held with what was promised.
//!
//! ```
//! use std::sync::{Arc, Mutex};
//!
//! use replay_guard::testing::{Conformance, Held, Storage};
//! use replay_guard::{Durable, Flush, Record, Sink, SinkFailure, Source, Written};
//!
//! /// A table: rows with the stream they came from.
//! #[derive(Clone, Default)]
//! struct Table(Arc<Mutex<Vec<(Source, Record)>>>);
//!
//! struct Rows {
//!     table: Table,
//!     source: Source,
//!     buffer: Vec<Record>,
//! }
//!
//! impl Sink for Rows {
//!     type Error = std::io::Error;
//!     async fn write(&mut self, record: Record) -> Result<Written, Self::Error> {
//!         self.buffer.push(record);
//!         Ok(if self.buffer.len() < 50 { Written::Accepted } else { Written::Full })
//!     }
//!     async fn flush(&mut self, _: Flush<'_>) -> Result<Durable, Self::Error> {
//!         let rows = self.buffer.drain(..).map(|record| (self.source.clone(), record));
//!         self.table.0.lock().expect("no panic elsewhere").extend(rows);
//!         Ok(Durable::All)
//!     }
//! }
//!
//! impl Storage for Table {
//!     type Sink = Rows;
//!     async fn open(&self, source: &Source) -> Result<Rows, SinkFailure> {
//!         Ok(Rows { table: self.clone(), source: source.clone(), buffer: Vec::new() })
//!     }
//!     async fn held(&self, source: &Source) -> Result<Vec<Held>, SinkFailure> {
//!         let rows = self.0.lock().expect("no panic elsewhere");
//!         Ok(rows.iter().filter(|(of, _)| of == source).map(|(_, record)| Held::from(record.clone())).collect())
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let report = Conformance::new().cases(20).check(async || Ok(Table::default())).await?;
//! println!("{report}"); // says, too, that durability was not tested: there is no `power_cut`
//! assert!(!report.durability && !report.recovers);
//! # Ok(())
//! # }
//! ```
//!
//! What each scenario does is said at [`Scenario`], what is owed at [`Promise`]. Nothing here sleeps, reads a clock or starts
//! a task; the kit runs on the runtime that the author's test has, and waits for as long as the sink does.

mod books;
mod conformance;
mod life;
mod report;
mod scenarios;
mod watched;

use std::future::{Future, ready};

use async_nats::HeaderMap;
use bytes::Bytes;

use crate::error::SinkFailure;
use crate::record::Record;
use crate::sink::Sink;
use crate::source::Source;

pub use conformance::Conformance;
pub use report::{Broken, Promise, Report};
pub use scenarios::Scenario;

/// A place that sinks write to, empty at first: a directory, a bucket or a prefix in it, a schema of a database.
///
/// All sinks that one storage opens write to that same place. Each case of a scenario gets a storage of its own.
pub trait Storage: Send + Sync {
    /// The sink under test.
    type Sink: Sink;

    /// A new sink, as the factory of a driver makes it. Earlier ones were dropped, perhaps in the middle of a call; two are
    /// open at a time only if they are of two sources.
    ///
    /// What a dropped sink left running (a blocking call on another thread, a task) must have come to its end when this
    /// returns: it is another writer.
    ///
    /// # Errors
    ///
    /// If the sink cannot be opened; that is reported as broken, unless the storage was made to fail.
    fn open(&self, source: &Source) -> impl Future<Output = Result<Self::Sink, SinkFailure>> + Send;

    /// All records of this source in the storage, in any order; one that is in it twice, twice. Called while no call of a
    /// sink is under way.
    ///
    /// Read the storage itself, and not by the way that `recover` takes. What a crash left half written, and readers of the
    /// archive do not see, does not count.
    ///
    /// # Errors
    ///
    /// If the storage cannot be read, or holds what is no record; that breaks [`Promise::Faithful`].
    fn held(&self, source: &Source) -> impl Future<Output = Result<Vec<Held>, SinkFailure>> + Send;

    /// The power goes: forget what was never synced. Called at crashes, when all sinks were dropped.
    ///
    /// The kit cannot see a disk. Without this, durability is not tested, and the report says so. A model of a disk in
    /// memory can do it, or a file system on a loop device that is shut down and mounted again. For a service that makes
    /// durable what it answered, it is a restart, or `Hook::Done` and nothing else.
    ///
    /// # Errors
    ///
    /// If it cannot be done.
    fn power_cut(&self) -> impl Future<Output = Result<Hook, SinkFailure>> + Send {
        ready(Ok(Hook::Missing))
    }

    /// Lets one operation of the storage fail: that of this number from now on, 0 being the next; `None`: no more. An
    /// operation is what can fail by itself: a request, a write, a sync.
    ///
    /// Without this, nobody knows what the sink makes of an error, and the report says so.
    ///
    /// # Errors
    ///
    /// If it cannot be done.
    fn fail_at(&self, operation: Option<u64>) -> impl Future<Output = Result<Hook, SinkFailure>> + Send {
        let _ = operation;
        ready(Ok(Hook::Missing))
    }
}

/// Whether a storage can do what it was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// It was done.
    Done,
    /// The storage cannot; what depends on it is not tested.
    Missing,
}

/// One record that a storage holds.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Held {
    /// The stream sequence.
    pub sequence: u64,
    /// The publish time, Unix nanoseconds; rounded down if the sink keeps coarser times
    /// ([`Conformance::time_unit`]).
    pub published: i64,
    /// The subject.
    pub subject: String,
    /// The headers; `None` if the sink does not keep them, or they are not read back.
    pub headers: Option<HeaderMap>,
    /// The payload.
    pub payload: Bytes,
}

impl Held {
    /// A record whose headers are not read back; `published` in Unix nanoseconds.
    pub fn new(sequence: u64, published: i64, subject: impl Into<String>, payload: impl Into<Bytes>) -> Self {
        Self { sequence, published, subject: subject.into(), headers: None, payload: payload.into() }
    }

    /// The same record with the headers that were read back.
    #[must_use]
    pub fn with_headers(mut self, headers: HeaderMap) -> Self {
        self.headers = Some(headers);
        self
    }
}

impl From<Record> for Held {
    fn from(record: Record) -> Self {
        Self::new(record.sequence, record.published, record.subject.as_str(), record.payload)
            .with_headers(record.headers)
    }
}
