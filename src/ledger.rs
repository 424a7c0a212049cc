//! What is archived, what is with the sink, what is new. Pure: no I/O, no clock, no async.

use std::collections::{BTreeMap, BTreeSet};

use crate::coverage::{Coverage, Span};
use crate::fault::{self, Fault};
use crate::record::RecordId;
use crate::sink::Durable;
use crate::witness::{Witness, Witnesses};

/// A rise of the publish time by this much, in nanoseconds, may hide a fork: no server loses power, comes back and
/// takes messages within less.
const SEAM: i64 = 100_000_000;

/// What a delivery is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// A span holds it.
    Archived,
    /// This very record is with the sink.
    Pending,
    /// Anything else.
    Fresh,
}

/// Where a pending record stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// With the sink, not durable.
    InSink,
    /// Durable, not verified.
    Held,
    /// The sink can never store it, and nobody was told yet.
    Unreported,
    /// The sink can never store it, which was reported: as good as durable.
    Rejected,
}

impl Stage {
    /// Whether nothing but the stream's word is missing.
    pub(crate) const fn is_done(self) -> bool {
        matches!(self, Self::Held | Self::Rejected)
    }
}

/// The record that was delivered just before, with nothing of the source between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) after: u64,
    /// The segment of the delivery before.
    pub(crate) segment: u32,
}

/// A record that is with the sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) witness: Witness,
    pub(crate) link: Option<Link>,
    /// Records of one segment were published so closely that no fork lies between them.
    pub(crate) segment: u32,
    pub(crate) stage: Stage,
    /// Whether it was fresh although a span contains its sequence.
    pub(crate) inside: bool,
}

impl Entry {
    pub(crate) const fn id(&self) -> RecordId {
        self.witness.id
    }
}

/// The backlog at the start of a session: what is at or below both was published before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Backlog {
    pub(crate) last: u64,
    pub(crate) published: i64,
}

/// What is archived, pending and skipped.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    pub(crate) coverage: Coverage,
    pub(crate) witnesses: Witnesses,
    /// Sorted by id. Almost always grows at its end.
    pending: Vec<Entry>,
    /// Deliveries skipped since the last flush, by id, in the order they came.
    pub(crate) skipped: Vec<RecordId>,
    /// Gaps closed in this session on the stream's answer, first to last sequence. A delivery from there was taken before
    /// its message left the stream, and is not archived.
    holes: BTreeMap<u64, u64>,
    session: u32,
    segment: u32,
    /// The segment of the newest record that was verified.
    settled_in: u32,
    backlog: Backlog,
    before: Option<RecordId>,
}

impl Ledger {
    pub(crate) fn new(coverage: Coverage, witnesses: Witnesses) -> Self {
        Self { coverage, witnesses, session: 1, segment: 1, ..Self::default() }
    }

    /// The session at hand. Counts from 1.
    pub(crate) const fn session(&self) -> u32 {
        self.session
    }

    /// A new session: what was skipped can no longer be acked, and no chain reaches over.
    pub(crate) fn begin_session(&mut self, backlog: Backlog) {
        self.session += 1;
        self.segment += 1;
        self.backlog = backlog;
        self.before = None;
        self.skipped.clear();
        self.holes.clear();
    }

    /// What a delivery is.
    #[inline]
    pub(crate) fn classify(&self, id: RecordId) -> Class {
        if fault::is(Fault::FloorAsHighWater) && self.coverage.last().is_some_and(|span| id.sequence <= span.last) {
            return Class::Archived;
        }
        // First of all: what is with the sink is not durable yet, even where nothing of the source is left beside it.
        if let Ok(at) = self.position(id) {
            let held = self.pending.get(at).is_some_and(|entry| entry.stage == Stage::Held);
            if held && fault::is(Fault::HeldWrittenAgain) {
                return Class::Fresh;
            }
            return Class::Pending;
        }
        let hole = self.holes.range(..=id.sequence).next_back().is_some_and(|(_, last)| id.sequence <= *last);
        if !hole && self.coverage.find(id.sequence).is_some_and(|span| span.knows(id.published)) {
            Class::Archived
        } else {
            Class::Fresh
        }
    }

    /// The stream says that nothing of the source is left from `first` to `last`.
    pub(crate) fn emptied(&mut self, first: u64, last: u64) {
        self.holes.insert(first, last);
    }

    /// Notes a delivery, in the order they come: finds seams, and turns the driver's word that nothing of the source lies
    /// between `follows` and this delivery into a link.
    #[inline]
    pub(crate) fn arrive(&mut self, id: RecordId, follows: Option<u64>) -> Option<Link> {
        let before = self.before.replace(id);
        let segment_before = self.segment;
        let backlog = id.sequence <= self.backlog.last && id.published <= self.backlog.published;
        if let Some(before) = before {
            let falls = id.published < before.published;
            let rises = id.published.saturating_sub(before.published) >= SEAM;
            // A backlog has no forks in it. Where its times fall on the way up, the clock stepped back, and it may be none.
            let seam = if backlog { falls && id.sequence > before.sequence } else { falls || rises };
            self.segment += u32::from(seam && !fault::is(Fault::SeamsIgnored));
        }
        let after = follows.filter(|after| *after < id.sequence)?;
        // Where nothing was delivered before, somebody may have moved the consumer since it was asked where it begins: the
        // stream is asked instead.
        before.filter(|before| before.sequence == after).map(|_| Link { after, segment: segment_before })
    }

    /// A delivery that is archived: to be acked after the next flush.
    #[inline]
    pub(crate) fn skip(&mut self, id: RecordId) {
        self.skipped.push(id);
    }

    /// A record that the sink took, or rejected.
    #[inline]
    pub(crate) fn accept(&mut self, witness: Witness, link: Option<Link>, stage: Stage) {
        let inside = self.coverage.find(witness.sequence()).is_some();
        let entry = Entry { witness, link, segment: self.segment, stage, inside };
        match self.pending.last() {
            Some(last) if last.id() >= witness.id => {
                if let Err(at) = self.position(witness.id) {
                    self.pending.insert(at, entry);
                }
            }
            _ => self.pending.push(entry),
        }
    }

    #[inline]
    fn position(&self, id: RecordId) -> Result<usize, usize> {
        match self.pending.last() {
            Some(last) if last.id() < id => Err(self.pending.len()),
            None => Err(0),
            Some(_) => self.pending.binary_search_by_key(&id, Entry::id),
        }
    }

    /// What lies between the pending records is not known any more.
    pub(crate) fn forget_links(&mut self) {
        for entry in &mut self.pending {
            entry.link = None;
        }
    }

    /// What is pending, lowest id first.
    pub(crate) fn pending(&self) -> &[Entry] {
        &self.pending
    }

    /// The lowest sequences at or above `at` that are archived or with the sink, first and last. `chained`: what lies between
    /// a record with the sink and the one it is known to follow counts as well.
    pub(crate) fn held_from(&self, at: u64, chained: bool) -> Option<(u64, u64)> {
        let span = self.coverage.at_or_above(at).map(|span| (span.first.max(at), span.last));
        let index = self.pending.partition_point(|entry| entry.witness.sequence() < at);
        let record = self.pending.get(index).map(|entry| {
            let sequence = entry.witness.sequence();
            let after = entry.link.filter(|_| chained).map(|link| link.after.saturating_add(1));
            (after.unwrap_or(sequence).max(at), sequence)
        });
        match (span, record) {
            (Some(span), Some(record)) => Some(span.min(record)),
            (span, record) => span.or(record),
        }
    }

    /// Whether the sink holds something that is not durable.
    pub(crate) fn in_sink(&self) -> bool {
        self.pending.iter().any(|entry| entry.stage == Stage::InSink)
    }

    /// Somebody was told that the sink rejected this record.
    pub(crate) fn reported(&mut self, id: RecordId) {
        if let Some(entry) = self.position(id).ok().and_then(|at| self.pending.get_mut(at))
            && entry.stage == Stage::Unreported
        {
            entry.stage = Stage::Rejected;
        }
    }

    /// How many pending records are rejected and not reported.
    pub(crate) fn unreported(&self) -> usize {
        self.pending.iter().filter(|entry| entry.stage == Stage::Unreported).count()
    }

    /// The sink says what is durable. Returns how many of the ids it named were not waited for.
    pub(crate) fn durable(&mut self, durable: &Durable) -> u64 {
        match durable {
            Durable::All => {
                for entry in self.pending.iter_mut().filter(|entry| entry.stage == Stage::InSink) {
                    entry.stage = Stage::Held;
                }
                0
            }
            Durable::Only(ids) => {
                let mut unknown = 0;
                for id in ids {
                    match self.position(*id).ok().and_then(|at| self.pending.get_mut(at)) {
                        Some(entry) if entry.stage == Stage::InSink => entry.stage = Stage::Held,
                        _ => unknown += 1,
                    }
                }
                unknown
            }
        }
    }

    /// The newest record that was verified before this flush.
    pub(crate) fn newest_witness(&self) -> Option<Witness> {
        let span = self.coverage.last().map(|span| span.witness);
        let further = self.witnesses.newest();
        span.into_iter().chain(further).max_by_key(Witness::sequence)
    }

    /// The spans that this flush's skips rely on, by their last sequence. A skipped record whose span is gone since is
    /// left out: it cannot be permitted.
    pub(crate) fn spans_skipped(&self) -> Vec<Span> {
        let mut used: Vec<Span> = Vec::new();
        for id in &self.skipped {
            if used.iter().rev().take(2).any(|span| span.contains(id.sequence)) {
                continue;
            }
            if let Some(span) = self.coverage.find(id.sequence) {
                used.push(*span);
            }
        }
        used.sort_unstable_by_key(|span| span.last);
        used.dedup();
        used
    }

    /// Whether a seam lies between the newest verified record and one of those that are asked about.
    pub(crate) fn crosses_seam(&self, asked: impl Fn(&Entry) -> bool) -> bool {
        self.pending.iter().any(|entry| entry.segment != self.settled_in && asked(entry))
    }

    /// Moves records that were verified from pending to coverage. `keep` says which; `linked` says whose link
    /// holds. Returns their witnesses, lowest first.
    pub(crate) fn settle(&mut self, keep: impl Fn(&Entry) -> bool, linked: impl Fn(&Entry) -> bool) -> Vec<Entry> {
        let mut settled = Vec::with_capacity(self.pending.len());
        self.pending.retain(|entry| {
            let done = entry.stage.is_done() && keep(entry);
            if done {
                settled.push(*entry);
            }
            !done
        });
        // Where a session or a seam begins, another life of the stream may: the first record of it tells the two apart.
        let mut segment = self.settled_in;
        let begins = settled.iter().filter(|entry| {
            let begins = entry.segment > segment;
            segment = segment.max(entry.segment);
            begins
        });
        let begins: Vec<Witness> = begins.map(|entry| entry.witness).collect();
        if let Some(newest) = settled.last() {
            self.settled_in = newest.segment;
        }
        for entry in &settled {
            // What stands in a span by its sequence is covered; its foreign time must not widen the span.
            if entry.inside && self.coverage.find(entry.witness.sequence()).is_some() {
                continue;
            }
            let sequence = entry.witness.sequence();
            let link = entry.link.filter(|_| linked(entry));
            let first = link.map_or(sequence, |link| link.after.saturating_add(1));
            self.coverage.insert(Span::of(first, entry.witness), self.session);
        }
        self.witnesses.extend(settled.iter().map(|entry| entry.witness));
        for witness in begins {
            self.witnesses.insert(witness);
        }
        settled
    }

    /// These stand in their spans by their times as well from now on.
    pub(crate) fn returned(&mut self, ids: &BTreeSet<RecordId>) {
        for entry in self.pending.iter_mut().filter(|entry| ids.contains(&entry.id())) {
            entry.inside = false;
        }
    }

    /// Removes records from pending that lost their place in the stream. They stay in the sink and are named nowhere.
    pub(crate) fn orphan(&mut self, lost: impl Fn(&Entry) -> bool) -> Vec<RecordId> {
        let mut orphaned = Vec::new();
        self.pending.retain(|entry| {
            let gone = lost(entry);
            if gone {
                orphaned.push(entry.id());
            }
            !gone
        });
        orphaned
    }

    /// After a fork, once the coverage was cut: no chain can be relied on, and what lay inside a span may do so no longer.
    pub(crate) fn after_cut(&mut self) {
        for entry in &mut self.pending {
            entry.link = None;
            entry.inside &= self.coverage.find(entry.witness.sequence()).is_some();
        }
    }
}

#[cfg(test)]
mod tests;
