//! What an opening found, and what was counted since.

use crate::checkpoint::StateId;

/// How far a checkpoint could be trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Trust {
    /// There was none: the source is new to this store.
    New,
    /// There was one in which nothing is archived yet.
    Empty,
    /// The stream holds its newest record unchanged: all of it stands.
    Whole,
    /// The stream no longer holds what the checkpoint archived, and nothing contradicts it: it stands, record by record.
    ByTime,
    /// The stream forked since: what is archived stands through this sequence, and spans above it that were read back.
    Through(u64),
    /// Nothing of it stands: another stream under the same name, or one restored from before the archive began.
    Nothing,
    /// It was damaged and is kept aside; archiving begins again from the stream's first message.
    Damaged,
}

/// What an opening found and decided.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct OpenReport {
    /// The state id of this source.
    pub state_id: StateId,
    /// How far the checkpoint could be trusted.
    pub trust: Trust,
    /// Where archiving began.
    pub origin: u64,
    /// The highest sequence through which everything is archived.
    pub floor: u64,
    /// How many spans the coverage has.
    pub spans: usize,
    /// What of the checkpoint was damaged, one sentence each. With a [`Trust`] other than `Damaged` an older state served.
    pub damaged: Vec<String>,
    /// Where the damaged checkpoint was put.
    pub set_aside: Option<String>,
    /// The stream's creation time in the checkpoint and now, Unix nanoseconds, where they differ.
    pub created: Option<(i64, i64)>,
    /// How many spans of the sink's claims joined the coverage.
    pub claimed: usize,
    /// How many spans of the sink's claims do not stand in the stream, or are no claims of this source.
    pub history: usize,
    /// Sequences above the newest archived record that the stream dropped before they were archived: first and last. For a
    /// filtered source some, or all, of them may have been other people's.
    pub passed_by: Option<(u64, u64)>,
    /// Where the consumer must be moved before the first delivery is taken; report it with
    /// [`Guard::moved`](crate::Guard::moved).
    pub move_to: Option<u64>,
}

/// What was counted since the guard was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Deliveries offered.
    pub offered: u64,
    /// Records handed to the sink and taken.
    pub written: u64,
    /// Records the sink rejected.
    pub rejected: u64,
    /// Rejected records that the dead-letter hook took.
    pub reported: u64,
    /// Times the dead-letter hook failed, or did not answer and was cut off.
    pub reports_failed: u64,
    /// Deliveries not written because they are archived.
    pub skipped: u64,
    /// Deliveries not written because that very record is with the sink.
    pub pending: u64,
    /// Records that became durable and were verified.
    pub archived: u64,
    /// Flushes.
    pub flushes: u64,
    /// Checkpoints saved.
    pub saves: u64,
    /// Requests to read a message back.
    pub reads: u64,
    /// Flushes, session starts and checks at which the stream could not be asked.
    pub unknown: u64,
    /// Forks.
    pub forks: u64,
    /// Records of the old life that were with the sink when a fork was found.
    pub orphaned: u64,
    /// Runs of skipped deliveries that began, and fast-forwards.
    pub rewinds: u64,
    /// Times the consumer was moved over archived messages unread.
    pub fast_forwards: u64,
    /// Gaps between spans closed on the stream's answer that nothing of the source lies in them.
    pub gaps_closed: u64,
    /// Spans forgotten at the limit.
    pub spans_forgotten: u64,
    /// Times a span was relied on by its times only.
    pub by_time: u64,
    /// Ids that the sink called durable and nobody waited for.
    pub ids_ignored: u64,
    /// Sequences that the stream dropped before they were archived (purged, expired, beyond a limit), so many at most: what
    /// stood there is not known any more. See the event `passed_by`.
    pub passed_by: u64,
    /// Times the consumer was moved.
    pub moves: u64,
}

impl Counters {
    /// Both together.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            offered: self.offered + other.offered,
            written: self.written + other.written,
            rejected: self.rejected + other.rejected,
            reported: self.reported + other.reported,
            reports_failed: self.reports_failed + other.reports_failed,
            skipped: self.skipped + other.skipped,
            pending: self.pending + other.pending,
            archived: self.archived + other.archived,
            flushes: self.flushes + other.flushes,
            saves: self.saves + other.saves,
            reads: self.reads + other.reads,
            unknown: self.unknown + other.unknown,
            forks: self.forks + other.forks,
            orphaned: self.orphaned + other.orphaned,
            rewinds: self.rewinds + other.rewinds,
            fast_forwards: self.fast_forwards + other.fast_forwards,
            gaps_closed: self.gaps_closed + other.gaps_closed,
            spans_forgotten: self.spans_forgotten + other.spans_forgotten,
            by_time: self.by_time + other.by_time,
            ids_ignored: self.ids_ignored + other.ids_ignored,
            passed_by: self.passed_by + other.passed_by,
            moves: self.moves + other.moves,
        }
    }
}
