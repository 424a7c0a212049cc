//! The laws that must hold.

/// A law that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Broken {
    pub(crate) law: Law,
    pub(crate) why: String,
}

/// What must hold, always.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Law {
    /// A message is acked, or counted as archived at the end, only if it is durable in the sink.
    Lost,
    /// What the sink rejected is acked, or covered, only after the dead-letter hook took that very record; and no more waits for
    /// the hook than a flush holds.
    Rejected,
    /// A record is durable once, and once more for each thing that allows it.
    Twice,
    /// What is acked is covered by a checkpoint that survives a power cut at this moment.
    AckBeforeCheckpoint,
    /// An ack reaches the message it was meant for.
    AckOfAnotherLife,
    /// Every message of the source in a span is durable.
    Claim,
    /// The floor falls only where the archive was cut.
    Floor,
    /// A consumer is not made to begin above a message that is not archived.
    BeginsAbove,
    /// After a fork nothing is pulled before the consumer was moved.
    MoveFirst,
    /// No fork is reported of a stream that kept its history.
    ForkWithoutCause,
    /// The number of spans stays within the limit.
    Spans,
    /// The archiver goes on without a person.
    Stopped,
    /// Once accidents stop, everything is archived and acked, and nothing moves any more.
    Rest,
    /// A delivery comes again only where an ack was lost, the server fell back, or the process stood still.
    ComesAgain,
    /// What the stream dropped before it was archived is told, and nothing else.
    Dropped,
    /// That somebody else takes deliveries, or paused the consumer, is said only where that is so.
    Told,
    /// Nothing panics.
    Panic,
}

pub(crate) fn broken<T>(law: Law, why: impl Into<String>) -> Result<T, Broken> {
    Err(Broken { law, why: why.into() })
}
