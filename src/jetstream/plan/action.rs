//! What a plan says, and is told.

use std::time::Duration;

use async_nats::Subject;

use crate::guard::ConsumerPosition;
use crate::jetstream::ack::Answer;
use crate::sink::Reason;

/// The connection: whether it is up, and how many there were. Deliveries and acks belong to one count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Connection {
    pub(crate) up: bool,
    pub(crate) count: u64,
}

/// What to do next.
#[derive(Debug)]
pub(crate) enum Action {
    /// Wait until the connection is up.
    Connect,
    /// Wait until this time.
    Wait(Duration),
    /// Begin a session with the guard; then [`Plan::began`].
    Begin,
    /// Ask the server about the consumer; then [`Plan::found`].
    Find,
    /// Make the consumer, to begin at this sequence; then [`Plan::made`].
    Make(u64),
    /// Mark the consumer; then [`Plan::found`].
    Mark,
    /// Let the guard compare this position with what is archived; then [`Plan::looked`].
    Look(ConsumerPosition),
    /// Let the guard read its newest witness back, with the consumer where it was; then [`Plan::looked`].
    Reread(ConsumerPosition),
    /// Subscribe and pull; then [`Plan::subscribed`].
    Subscribe,
    /// Take the next message if one comes before this time; then [`Plan::delivered`] and, once it was offered,
    /// [`Plan::offered`], or [`Plan::ended`].
    Pull(Duration),
    /// Let the guard hand a rejected record to the dead-letter hook; then [`Plan::reported`].
    Report,
    /// Let the guard flush; then [`Plan::flushed`].
    Flush(Reason),
    /// Send these, as long as the connection is the session's.
    Answer(Vec<(Subject, Answer)>),
    /// Send the in-progress acks of [`Plan::keep_alive`] and of what waits in the client.
    KeepAlive,
    /// Move the consumer so that its next delivery is at or above this sequence; then [`Plan::moved`].
    Move(u64),
    /// Let the consumer of the other name take over, to begin at this sequence; then [`Plan::moved`].
    Switch(u64),
    /// The wish to stop is fulfilled.
    End,
}

/// What becomes of a message that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// It is offered to the guard, with the sequence it is known to follow.
    Offer { follows: Option<u64> },
    /// It is thrown away, with its session or alone.
    Dropped,
}

/// Something an operator should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Note {
    SessionBegan {
        floor: u64,
    },
    SessionEnded(String),
    /// From just above the first sequence to the second nothing need be delivered: it is archived.
    FastForward {
        from: u64,
        through: u64,
    },
    Retry {
        what: &'static str,
        why: String,
        wait: Duration,
    },
    PassedOver(u64),
    /// Somebody else takes deliveries of the consumer: so many since the session's first check.
    Shared {
        count: u64,
    },
    /// The consumer delivers nothing until this time, Unix nanoseconds.
    Paused {
        until: i64,
    },
}
