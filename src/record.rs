//! One message as a sink sees it, and what identifies it.

use async_nats::{HeaderMap, Subject};
use bytes::Bytes;

/// What identifies a record: the stream sequence **and** the publish time.
///
/// Never the sequence alone: after a fork two different messages share it. Both numbers stand in every
/// delivery's ack subject and survive restart, restore and mirroring of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct RecordId {
    /// The stream sequence.
    pub sequence: u64,
    /// The server's publish time, Unix nanoseconds. A wall clock: it may step back while the sequence rises.
    pub published: i64,
}

impl RecordId {
    /// An id from its two numbers; `published` in Unix nanoseconds.
    pub const fn new(sequence: u64, published: i64) -> Self {
        Self { sequence, published }
    }
}

impl std::fmt::Display for RecordId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}@{}", self.sequence, self.published)
    }
}

/// One message as a sink sees it.
///
/// It can be built without a client, so a sink is testable without a server:
///
/// ```
/// use replay_guard::Record;
///
/// let record = Record::new(7, 1_700_000_000_000_000_000, "orders.new", "payload");
/// assert_eq!(record.id().sequence, 7);
/// assert!(record.headers.is_empty());
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Record {
    /// The stream sequence.
    pub sequence: u64,
    /// The server's publish time, Unix nanoseconds.
    pub published: i64,
    /// The subject the message was published to.
    pub subject: Subject,
    /// The headers as delivered; empty where the message has none. Repeated names are kept.
    pub headers: HeaderMap,
    /// The payload; may be empty.
    pub payload: Bytes,
}

impl Record {
    /// A record without headers; `published` in Unix nanoseconds.
    pub fn new(sequence: u64, published: i64, subject: impl Into<Subject>, payload: impl Into<Bytes>) -> Self {
        Self { sequence, published, subject: subject.into(), headers: HeaderMap::new(), payload: payload.into() }
    }

    /// The same record with these headers.
    #[must_use]
    pub fn with_headers(mut self, headers: HeaderMap) -> Self {
        self.headers = headers;
        self
    }

    /// What identifies it.
    pub const fn id(&self) -> RecordId {
        RecordId::new(self.sequence, self.published)
    }
}
