//! How a guard asks about the stream.

use futures_util::future::BoxFuture;

use crate::witness::Witness;

/// The stream as its leader describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamView {
    /// When the stream was created, Unix nanoseconds. Neither necessary nor sufficient as an identity: it moves for the
    /// same stream on servers before 2.14.6 and stays the same for a stream that lost its tail.
    pub created: i64,
    /// The first sequence that is still there; 0 or last + 1 where the stream is empty.
    pub first: u64,
    /// The last sequence ever given in this life; 0 for a new stream.
    pub last: u64,
    /// Publish time of the last message, Unix nanoseconds; 0 where there is none.
    pub last_published: i64,
    /// Whether an ack removes the message from the stream (work-queue and interest retention): then it is ordinary that
    /// what was archived is gone.
    pub acked_are_removed: bool,
}

impl StreamView {
    /// A view of a stream with limits retention from its numbers; times in Unix nanoseconds.
    pub const fn new(created: i64, first: u64, last: u64, last_published: i64) -> Self {
        Self { created, first, last, last_published, acked_are_removed: false }
    }

    /// The same for a stream from which acked messages are removed.
    #[must_use]
    pub const fn with_acked_removed(mut self, removed: bool) -> Self {
        self.acked_are_removed = removed;
        self
    }
}

/// What stands at one sequence of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reading {
    /// A message, whatever its subject.
    Message(Witness),
    /// Nothing stands there, and the sequence is at or below the stream's last, as asked afterwards.
    Gone,
    /// The sequence is beyond the stream's last, and was so again when asked a second time a second later.
    Above,
}

/// Why the stream could not be asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ObserveError {
    /// No answer, or one that says nothing about the stream: a time-out, no leader, no responder. Asking again may help.
    #[error("the stream could not be asked: {reason}")]
    Unavailable {
        /// What the client or the server said.
        reason: String,
    },
    /// There is no such stream.
    #[error("there is no stream {stream}")]
    NoStream {
        /// Its name.
        stream: String,
    },
    /// The server refuses the request to this user.
    #[error("permission denied for {subject}: {reason}")]
    Denied {
        /// The API subject that was refused.
        subject: String,
        /// What the server said.
        reason: String,
    },
}

impl ObserveError {
    /// Whether asking again may help. A missing permission stays missing; a missing stream may come back.
    pub const fn is_retriable(&self) -> bool {
        !matches!(self, Self::Denied { .. })
    }
}

/// How a [`Guard`](crate::Guard) asks about the stream it archives.
///
/// Every answer is evidence that the guard skips and acks upon, so an implementation must ask the stream's **leader**:
/// a direct get is answered by mirrors and replicas that lag and is never evidence. Calls must not be answered from a
/// cache. All methods are cancel safe: they only read. They are called at openings and flushes, several at a time, never
/// once per record.
pub trait Observer: Send + Sync {
    /// Identity and bounds of the stream.
    fn stream(&self) -> BoxFuture<'_, Result<StreamView, ObserveError>>;

    /// What stands at this sequence now.
    ///
    /// [`Reading::Above`] must have been seen twice, a second apart, since a new leader may answer before it knows its
    /// own log's end.
    fn read(&self, sequence: u64) -> BoxFuture<'_, Result<Reading, ObserveError>>;

    /// The first message of the source at or above this sequence; `None` where the stream holds none.
    fn next(&self, sequence: u64) -> BoxFuture<'_, Result<Option<Witness>, ObserveError>>;
}

impl<O: Observer + ?Sized> Observer for Box<O> {
    fn stream(&self) -> BoxFuture<'_, Result<StreamView, ObserveError>> {
        (**self).stream()
    }
    fn read(&self, sequence: u64) -> BoxFuture<'_, Result<Reading, ObserveError>> {
        (**self).read(sequence)
    }
    fn next(&self, sequence: u64) -> BoxFuture<'_, Result<Option<Witness>, ObserveError>> {
        (**self).next(sequence)
    }
}

impl<O: Observer + ?Sized> Observer for std::sync::Arc<O> {
    fn stream(&self) -> BoxFuture<'_, Result<StreamView, ObserveError>> {
        (**self).stream()
    }
    fn read(&self, sequence: u64) -> BoxFuture<'_, Result<Reading, ObserveError>> {
        (**self).read(sequence)
    }
    fn next(&self, sequence: u64) -> BoxFuture<'_, Result<Option<Witness>, ObserveError>> {
        (**self).next(sequence)
    }
}
