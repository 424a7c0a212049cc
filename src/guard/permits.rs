//! What a flush allows.

use crate::observer::ObserveError;
use crate::record::RecordId;
use crate::skip::SkipRun;

/// A fork: the stream lost its tail, or was made anew, and holds other messages where archived ones were.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fork {
    /// The last sequence of the archive that stands unchanged; what lies above is archived again. 0 where nothing stands.
    pub at: u64,
    /// The archived or delivered record that the stream does not hold: the newest of the old life that was asked about.
    pub archived: Option<RecordId>,
    /// What stands in its place: a record of the new life. `None` where the stream ends below it.
    pub found: Option<RecordId>,
    /// The stream's last sequence when the fork was found.
    pub last: u64,
    /// Records of the old life that were with the sink: they stay there and are named in no checkpoint.
    pub orphaned: Vec<RecordId>,
    /// Whether the stream was made anew, as far as its creation time tells: old and new, Unix nanoseconds.
    pub created: Option<(i64, i64)>,
}

/// What a flush allows, and the only licence to ack: nobody else can make one.
#[derive(Debug, Default)]
#[must_use = "what is permitted must be acked, and a fork needs the consumer to be moved"]
pub struct Permits {
    pub(super) acks: Vec<RecordId>,
    pub(super) rejected: Vec<RecordId>,
    pub(super) floor: u64,
    pub(super) pending: usize,
    pub(super) unreported: usize,
    pub(super) flush_due: bool,
    pub(super) verified_through: Option<u64>,
    pub(super) fork: Option<Box<Fork>>,
    pub(super) move_to: Option<u64>,
    pub(super) unknown: Option<ObserveError>,
    pub(super) ended: Option<SkipRun>,
}

impl Permits {
    /// The deliveries to ack, in no order. A delivery of the session at hand only: the acker of an older one must not be
    /// used, since its sequence may be another message's by now.
    pub fn acks(&self) -> &[RecordId] {
        &self.acks
    }

    /// Those of the deliveries to ack that the sink rejected, and the dead-letter hook took. With explicit acks they may be
    /// terminated instead; with ack-all never, since that acks everything below.
    pub fn rejected(&self) -> &[RecordId] {
        &self.rejected
    }

    /// The highest sequence through which everything from the origin, or the stream's first message, on is archived. With
    /// ack-all, the highest delivery of the session at or below it is the one to ack.
    pub const fn floor(&self) -> u64 {
        self.floor
    }

    /// How many records are still with the sink: not durable yet, not verified, or rejected and not reported. They need
    /// another flush.
    pub const fn pending(&self) -> usize {
        self.pending
    }

    /// How many of the pending ones are rejected and wait for the dead-letter hook. They need
    /// [`Guard::report_rejected`](crate::Guard::report_rejected) first.
    pub const fn unreported(&self) -> usize {
        self.unreported
    }

    /// Whether the sink, full before the session began, must be flushed before the next record.
    pub const fn flush_due(&self) -> bool {
        self.flush_due
    }

    /// At the start of a session: the sequence through which everything is archived, if the stream was seen to hold the record
    /// there unchanged, nothing above it is archived, and the stream keeps what is acked. Then a consumer that stands below
    /// may be moved to just above it instead of delivering what would be skipped.
    pub const fn verified_through(&self) -> Option<u64> {
        self.verified_through
    }

    /// The fork that was found, if there was one. Then nothing is permitted, every acker is void, and the consumer must be
    /// moved to [`move_to`](Self::move_to).
    pub fn fork(&self) -> Option<&Fork> {
        self.fork.as_deref()
    }

    /// Where the consumer must be moved before anything else: its next delivery shall be the first message at or above this
    /// sequence. Report it with [`Guard::moved`](crate::Guard::moved).
    pub const fn move_to(&self) -> Option<u64> {
        self.move_to
    }

    /// Why nothing could be verified. Nothing is permitted; durable records are held. Take no more deliveries, and flush
    /// again after a while.
    pub const fn unknown(&self) -> Option<&ObserveError> {
        self.unknown.as_ref()
    }

    /// A run of skipped deliveries that has come to its end.
    pub const fn skip_run(&self) -> Option<SkipRun> {
        self.ended
    }
}

/// Permits for tests of what is done with them.
#[cfg(test)]
impl Permits {
    pub(crate) fn for_acks(acks: &[RecordId], floor: u64) -> Self {
        Self { acks: acks.to_vec(), floor, ..Self::default() }
    }

    pub(crate) fn with_rejected(self, rejected: &[RecordId]) -> Self {
        Self { rejected: rejected.to_vec(), ..self }
    }

    pub(crate) fn with_pending(self, pending: usize, unreported: usize) -> Self {
        Self { pending, unreported, ..self }
    }

    pub(crate) fn with_flush_due(self) -> Self {
        Self { flush_due: true, ..self }
    }

    pub(crate) fn with_verified_through(self, through: u64) -> Self {
        Self { verified_through: Some(through), ..self }
    }

    pub(crate) fn with_move_to(self, to: u64) -> Self {
        Self { move_to: Some(to), ..self }
    }

    pub(crate) fn with_unknown(self) -> Self {
        Self { unknown: Some(ObserveError::Unavailable { reason: "no leader".to_owned() }), ..self }
    }
}
