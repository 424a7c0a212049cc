//! What goes wrong in a guard.

use crate::checkpoint::{DecodeError, EncodeError};
use crate::observer::ObserveError;
use crate::record::RecordId;
use crate::source::Source;
use crate::store::StoreError;

/// Any error of a sink.
pub type SinkFailure = Box<dyn std::error::Error + Send + Sync>;

/// Why a guard could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The checkpoint store failed, or is in use.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The stream could not be asked.
    #[error(transparent)]
    Observe(#[from] ObserveError),
    /// The sink could not say what it holds.
    #[error("the sink could not say what it holds")]
    Sink(#[source] SinkFailure),
    /// The store holds the checkpoint of another source.
    #[error("{location} belongs to {found}, not to {expected}")]
    Foreign {
        /// Where the checkpoint lives.
        location: String,
        /// The source that was to be opened.
        expected: Box<Source>,
        /// The source inside.
        found: Box<Source>,
    },
    /// No whole checkpoint is left, and the policy is to refuse.
    #[error("the checkpoint {location} cannot be read ({}); it was left as it is", damaged.join("; "))]
    Damaged {
        /// Where the checkpoint lives.
        location: String,
        /// What is damaged.
        damaged: Vec<String>,
    },
    /// A whole checkpoint of an unknown version is there, and the policy is to refuse.
    #[error("the checkpoint {location} cannot be used")]
    Undecodable {
        /// Where the checkpoint lives.
        location: String,
        /// Why.
        source: DecodeError,
    },
    /// The checkpoint could not be turned into bytes.
    #[error(transparent)]
    Encode(#[from] EncodeError),
}

/// Why a guard cannot go on.
///
/// After each of these but [`FlushDue`](Self::FlushDue) and [`MovePending`](Self::MovePending) the guard is closed and its
/// sink was dropped. Going on means opening a new guard over a new sink.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GuardError {
    /// An earlier call failed or was dropped half way.
    #[error("the guard was closed by an earlier failure or a cancelled call; open a new one")]
    Closed,
    /// The sink failed.
    #[error("the sink failed to {action}")]
    Sink {
        /// What it was to do: `write`, `flush`, ...
        action: &'static str,
        /// What it said.
        source: SinkFailure,
    },
    /// The checkpoint store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The stream may not be read, so nothing can ever be verified.
    #[error(transparent)]
    Observe(ObserveError),
    /// The sink was told to make everything durable and did not.
    #[error("the sink left {left} records that are not durable although everything was to be flushed")]
    NotEverything {
        /// How many.
        left: usize,
    },
    /// The sink was full, or the stream could not be asked at the last flush: flush before the next record.
    #[error("a flush is due before the next record")]
    FlushDue,
    /// The consumer has to be moved first; see [`Guard::moved`](crate::Guard::moved).
    #[error("the consumer has to be moved to sequence {to} first")]
    MovePending {
        /// Where to.
        to: u64,
    },
    /// The stream forked twice at one place with nothing new delivered between: asking it does not lead on.
    #[error(
        "the stream {source_name} contradicts the archive twice in a row above sequence {at}: archived {archived:?}, found {found:?}"
    )]
    ForkAgain {
        /// Which source.
        source_name: String,
        /// The last sequence that stands.
        at: u64,
        /// The record that was archived.
        archived: Option<RecordId>,
        /// What the stream holds in its place.
        found: Option<RecordId>,
    },
    /// The checkpoint could not be turned into bytes.
    #[error(transparent)]
    Encode(#[from] EncodeError),
}

/// An error with what caused it, in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let more = cause.to_string();
        if !text.ends_with(&more) {
            text = format!("{text}: {more}");
        }
        source = cause.source();
    }
    text
}
