//! Which parts of the source are archived. Pure: no I/O, no clock, no async.

use crate::fault::{self, Fault};
use crate::record::RecordId;
use crate::witness::Witness;

/// A run of sequences in which every message of the source is durable in the sink and verified against the stream.
///
/// Sequences inside that hold no message of the source (deleted, expired, filtered out) belong to it as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Span {
    /// The first sequence.
    pub first: u64,
    /// The last sequence; always that of a record.
    pub last: u64,
    /// The earliest publish time inside, Unix nanoseconds.
    pub earliest: i64,
    /// The latest publish time inside, Unix nanoseconds.
    pub latest: i64,
    /// The witness of the last record.
    pub witness: Witness,
}

impl Span {
    /// The span of one record, together with the sequences from `first` on that are known to hold nothing of the source.
    pub(crate) fn of(first: u64, witness: Witness) -> Self {
        let RecordId { sequence, published } = witness.id;
        Self { first: first.min(sequence), last: sequence, earliest: published, latest: published, witness }
    }

    /// Whether a record with this publish time can be one of those inside.
    pub const fn knows(&self, published: i64) -> bool {
        self.earliest <= published && published <= self.latest
    }

    /// Whether the sequence lies inside.
    pub const fn contains(&self, sequence: u64) -> bool {
        self.first <= sequence && sequence <= self.last
    }

    fn absorb(&mut self, other: &Self) {
        self.first = self.first.min(other.first);
        self.earliest = self.earliest.min(other.earliest);
        self.latest = self.latest.max(other.latest);
        if other.last > self.last {
            self.last = other.last;
            self.witness = other.witness;
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    span: Span,
    /// The last session in which the stream was seen to hold the last record unchanged. Two spans merge without a
    /// question only if both were seen in the session at hand: else a fork may lie between them.
    seen: u32,
}

/// The set of spans: sorted, disjoint.
///
/// A lookup costs O(log spans), growing in order amortised O(1).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    entries: Vec<Entry>,
}

impl Coverage {
    /// Coverage from spans that a checkpoint held, none of them seen in a session yet.
    ///
    /// `None` if they are not sorted and disjoint, or a span contradicts itself.
    pub(crate) fn from_spans(spans: Vec<Span>) -> Option<Self> {
        let sane = |span: &Span| {
            span.first <= span.last
                && span.witness.id.sequence == span.last
                && span.earliest <= span.latest
                && span.knows(span.witness.id.published)
        };
        let sorted = spans.windows(2).all(|pair| matches!(pair, [a, b] if a.last < b.first));
        (sorted && spans.iter().all(sane))
            .then(|| Self { entries: spans.into_iter().map(|span| Entry { span, seen: 0 }).collect() })
    }

    /// The spans, lowest first.
    pub fn spans(&self) -> impl DoubleEndedIterator<Item = &Span> + ExactSizeIterator {
        self.entries.iter().map(|entry| &entry.span)
    }

    /// How many spans there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether nothing is covered.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The highest span.
    pub fn last(&self) -> Option<&Span> {
        self.entries.last().map(|entry| &entry.span)
    }

    /// The span at this position, lowest first.
    pub fn get(&self, index: usize) -> Option<&Span> {
        self.entries.get(index).map(|entry| &entry.span)
    }

    /// The position of the first span whose last sequence is at or above this one.
    fn position(&self, sequence: u64) -> usize {
        match self.entries.last() {
            Some(top) if top.span.last < sequence => self.entries.len(),
            Some(top) if top.span.first <= sequence => self.entries.len() - 1,
            _ => self.entries.partition_point(|entry| entry.span.last < sequence),
        }
    }

    /// The span that holds this sequence.
    pub fn find(&self, sequence: u64) -> Option<&Span> {
        self.get(self.position(sequence)).filter(|span| span.contains(sequence))
    }

    /// Whether one span holds both records, by sequence and publish time, and so everything of the source between them.
    pub fn holds(&self, first: RecordId, last: RecordId) -> bool {
        self.find(last.sequence).is_some_and(|span| {
            span.contains(first.sequence) && span.knows(first.published) && span.knows(last.published)
        })
    }

    /// The lowest span that ends at or above this sequence.
    pub(crate) fn at_or_above(&self, sequence: u64) -> Option<&Span> {
        self.get(self.position(sequence))
    }

    /// The highest span that ends below this sequence.
    pub(crate) fn below(&self, sequence: u64) -> Option<&Span> {
        self.position(sequence).checked_sub(1).and_then(|index| self.get(index))
    }

    /// The highest sequence through which everything from `start` on is covered; `start - 1` where `start` is not.
    pub fn floor(&self, start: u64) -> u64 {
        self.find(start).map_or(start.saturating_sub(1), |span| span.last)
    }

    /// Adds what was verified in this session. Joins what it overlaps, and what it touches if that was seen in this
    /// session too.
    pub(crate) fn insert(&mut self, span: Span, session: u32) {
        let joins = |entry: &Entry| {
            let (low, high) = if entry.span.last < span.first { (&entry.span, &span) } else { (&span, &entry.span) };
            let seen = entry.seen == session || fault::is(Fault::AdjacentAcrossSessions);
            low.last >= high.first || (seen && low.last.saturating_add(1) == high.first)
        };
        let mut from = self.position(span.first);
        if from > 0 && self.entries.get(from - 1).is_some_and(joins) {
            from -= 1;
        }
        let count = self.entries.get(from..).unwrap_or_default().iter().take_while(|entry| joins(entry)).count();
        let mut merged = span;
        for entry in self.entries.get(from..from + count).unwrap_or_default() {
            merged.absorb(&entry.span);
        }
        self.entries.splice(from..from + count, [Entry { span: merged, seen: session }]);
    }

    /// Notes that the stream still holds the last record of the span that ends here.
    pub(crate) fn saw(&mut self, last: u64, session: u32) {
        let index = self.position(last);
        if let Some(entry) = self.entries.get_mut(index).filter(|entry| entry.span.last == last) {
            entry.seen = session;
        }
    }

    /// Whether the span that ends here was seen in this session.
    pub(crate) fn was_seen(&self, last: u64, session: u32) -> bool {
        let index = self.position(last);
        self.entries.get(index).is_some_and(|entry| entry.span.last == last && entry.seen == session)
    }

    /// Joins the span at `index` with the next one, on evidence that nothing of the source lies between them.
    pub(crate) fn close_gap(&mut self, index: usize) {
        if index + 1 < self.entries.len() {
            let above = self.entries.remove(index + 1);
            if let Some(entry) = self.entries.get_mut(index) {
                entry.span.absorb(&above.span);
                entry.seen = above.seen;
            }
        }
    }

    /// Lets the span at `index` begin lower, on evidence that nothing of the source lies from `first` to it. Never
    /// reaches into the span below.
    pub(crate) fn extend_down(&mut self, index: usize, first: u64) {
        let bound = index.checked_sub(1).and_then(|below| self.get(below)).map_or(0, |below| below.last + 1);
        if let Some(entry) = self.entries.get_mut(index) {
            entry.span.first = entry.span.first.min(first.max(bound));
        }
    }

    /// Ends the span at `index` at this witness, the newest of its records that is known to stand unchanged.
    ///
    /// The latest time becomes the witness's, or that of the newest record below which is known to stand, if that was inside:
    /// a range that is too narrow writes again, one too wide skips.
    pub(crate) fn truncate(&mut self, index: usize, witness: Witness, latest: i64) {
        if let Some(entry) = self.entries.get_mut(index) {
            debug_assert!(entry.span.contains(witness.id.sequence), "a span ends at one of its own records");
            entry.span.last = witness.id.sequence;
            entry.span.latest = latest.min(entry.span.latest).max(witness.id.published);
            entry.span.earliest = entry.span.earliest.min(witness.id.published);
            entry.span.witness = witness;
        }
    }

    /// Removes the span at `index`.
    pub(crate) fn remove(&mut self, index: usize) -> Option<Span> {
        (index < self.entries.len()).then(|| self.entries.remove(index).span)
    }

    /// Forgets the smallest spans until no more than `limit` are left, some more than needed so that this is rare: those
    /// below `start` first, where the stream holds nothing. Never the span which the floor stands on, nor the last, which
    /// holds the newest witness. Returns how many were forgotten and the lowest and highest sequence concerned.
    pub(crate) fn bound(&mut self, limit: usize, start: u64) -> Option<(usize, u64, u64)> {
        let limit = limit.max(2);
        if self.entries.len() <= limit {
            return None;
        }
        let surplus = self.entries.len() - limit + limit / 16;
        let (top, floor) = (self.entries.len() - 1, self.position(start));
        let mut sizes: Vec<(bool, u64, usize)> = (0..top)
            .filter(|index| *index != floor || fault::is(Fault::FirstSpanForgotten))
            .filter_map(|index| self.get(index).map(|span| (index > floor, span.last - span.first, index)))
            .collect();
        sizes.sort_unstable();
        sizes.truncate(surplus);
        let mut gone: Vec<usize> = sizes.into_iter().map(|(_, _, index)| index).collect();
        gone.sort_unstable();
        let low = gone.first().and_then(|index| self.get(*index)).map_or(0, |span| span.first);
        let high = gone.last().and_then(|index| self.get(*index)).map_or(0, |span| span.last);
        let mut index = 0;
        self.entries.retain(|_| {
            let keep = gone.binary_search(&index).is_err();
            index += 1;
            keep
        });
        Some((gone.len(), low, high))
    }
}

#[cfg(test)]
mod tests;
