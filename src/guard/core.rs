//! The guard without its sink: ledger, store and observer, and what ties them together.

use std::collections::{BTreeMap, BTreeSet};

use super::Permits;
use super::letters::{Letters, Reported};
use super::report::{Counters, OpenReport};
use super::verify::{Scope, Stands, Verdict, verify};
use crate::checkpoint::{Checkpoint, ClaimBody, Override, RejectedRun, StateId, Totals, VERSION, count};
use crate::claim::Claim;
use crate::coverage::{Coverage, Span};
use crate::dead_letter::DeadLetter;
use crate::error::{GuardError, chain};
use crate::events;
use crate::fault::{self, Fault};
use crate::ledger::{Backlog, Class, Entry, Ledger, Link, Stage};
use crate::observer::{ObserveError, Observer, StreamView};
use crate::record::{Record, RecordId};
use crate::sink::{ClaimFor, Durable, Sink, Written};
use crate::skip::SkipTracker;
use crate::source::Source;
use crate::store::CheckpointStore;
use crate::witness::Witness;

/// How many runs of rejected sequences and overrides a checkpoint remembers.
const HISTORY: usize = 1_000;

pub(crate) struct Core {
    pub(super) source: Source,
    pub(super) state_id: StateId,
    pub(super) created: i64,
    pub(super) origin: u64,
    pub(super) consumer: Option<String>,
    pub(super) rejected: Vec<RejectedRun>,
    pub(super) overrides: Vec<Override>,
    pub(super) totals: Totals,
    pub(super) ledger: Ledger,
    pub(super) view: StreamView,
    pub(super) move_pending: Option<u64>,
    pub(super) max_spans: usize,
    pub(super) store: Box<dyn CheckpointStore>,
    pub(super) observer: Box<dyn Observer>,
    pub(super) counters: Counters,
    pub(super) report: OpenReport,
    pub(super) skips: SkipTracker,
    pub(super) letters: Letters,
    /// The sink is full: nothing is written before the next flush.
    pub(super) full: bool,
    /// The stream could not be asked at the last flush or session start: nothing is written before it could.
    pub(super) unverified: bool,
    /// What the last fork took away and found in its place, until others are verified.
    pub(super) last_fork: Option<(RecordId, Option<RecordId>)>,
    /// Gaps that cannot be closed for now, by the sequences beside them: something of the source lies in them, or a record
    /// beside them is gone. Asked again after a while.
    pub(super) blocked: BTreeSet<(u64, u64)>,
    /// Gaps were closed since the checkpoint was saved.
    pub(super) gaps_unsaved: bool,
    /// From here on the next look at the consumer's position goes on.
    pub(super) walked: u64,
    /// What the stream dropped below here before it was archived was reported.
    pub(super) looked_below: u64,
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core")
            .field("source", &self.source)
            .field("ledger", &self.ledger)
            .field("move_pending", &self.move_pending)
            .finish_non_exhaustive()
    }
}

/// A call of the dead-letter hook. Dropped before it was answered, it says so.
struct Call<'a> {
    source: &'a Source,
    sequence: u64,
    answered: bool,
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        if !self.answered {
            events::report_failed(self.source, self.sequence, "it did not answer and was cut off");
        }
    }
}

/// Makes claims for what is pending.
pub(super) struct Claims<'a> {
    ledger: &'a Ledger,
    source: &'a Source,
    state_id: StateId,
    origin: u64,
    created: i64,
}

impl ClaimFor for Claims<'_> {
    fn claim_for(&self, ids: Option<&[RecordId]>) -> Claim {
        let chosen: Option<BTreeSet<&RecordId>> = ids.map(|ids| ids.iter().collect());
        let mut segments: BTreeMap<u32, Vec<Span>> = BTreeMap::new();
        for entry in self.ledger.pending() {
            let named = match entry.stage {
                Stage::InSink => chosen.as_ref().is_none_or(|ids| ids.contains(&entry.id())),
                Stage::Rejected => true,
                Stage::Held | Stage::Unreported => false,
            };
            if named {
                let within = entry.link.filter(|link| link.segment == entry.segment);
                let first = within.map_or(entry.witness.sequence(), |link| link.after.saturating_add(1));
                let segment = if fault::is(Fault::OneWitnessForClaim) { 1 } else { entry.segment };
                segments.entry(segment).or_default().push(Span::of(first, entry.witness));
            }
        }
        // Segments never join: each is verified on its own when the claim is read back. Where two share sequences they may
        // be of two lives; then what the earlier one shares is left out, for a claim may say less than is true.
        let mut coverage = Coverage::default();
        for (segment, records) in segments.iter().rev() {
            for record in records.iter().copied() {
                if coverage.find(record.last).is_some() {
                    continue;
                }
                let free = coverage.below(record.last).map_or(0, |below| below.last.saturating_add(1));
                coverage.insert(Span { first: record.first.max(free), ..record }, *segment);
            }
        }
        let body = ClaimBody {
            state_id: self.state_id,
            source: self.source.clone(),
            origin: self.origin,
            created: self.created,
            coverage,
        };
        body.encode().unwrap_or_else(|error| {
            // Safe: a claim that names nothing only leaves the window open.
            tracing::error!(source = %self.source, %error, "a claim could not be encoded");
            Claim::empty()
        })
    }
}

impl Core {
    pub(super) const fn claims(&self) -> Claims<'_> {
        Claims {
            ledger: &self.ledger,
            source: &self.source,
            state_id: self.state_id,
            origin: self.origin,
            created: self.created,
        }
    }

    #[inline]
    pub(super) const fn move_pending(&self) -> Option<u64> {
        self.move_pending
    }

    /// Where the floor is counted from.
    pub(super) fn start(&self) -> u64 {
        self.origin.max(self.view.first).max(1)
    }

    pub(super) fn floor(&self) -> u64 {
        let floor = self.ledger.coverage.floor(self.start());
        match self.ledger.coverage.last() {
            Some(span) if span.last == floor && fault::is(Fault::EmptyTailClosed) => self.view.last,
            _ => floor,
        }
    }

    /// The floor, if a consumer may be moved there unread: seen unchanged in this session, with nothing archived above it.
    fn verified_through(&self) -> Option<u64> {
        let floor = self.floor();
        let top = self.ledger.coverage.last().is_some_and(|span| span.last == floor);
        let seen = self.ledger.coverage.was_seen(floor, self.ledger.session());
        (top && seen && !self.view.acked_are_removed).then_some(floor)
    }

    /// Classifies a delivery, if it may be offered now.
    #[inline]
    pub(super) fn may_offer(&self, id: RecordId) -> Result<Class, GuardError> {
        if let Some(to) = self.move_pending {
            return Err(GuardError::MovePending { to });
        }
        let class = self.ledger.classify(id);
        if (self.full || self.unverified) && class == Class::Fresh {
            return Err(GuardError::FlushDue);
        }
        Ok(class)
    }

    #[inline]
    pub(super) fn arrive(&mut self, id: RecordId, follows: Option<u64>) -> Option<Link> {
        self.counters.offered += 1;
        self.ledger.arrive(id, follows)
    }

    #[inline]
    pub(super) fn skip(&mut self, id: RecordId) {
        self.ledger.skip(id);
        self.counters.skipped += 1;
        count(&mut self.totals.skipped, 1);
        if self.skips.skipped(id.sequence) {
            self.counters.rewinds += 1;
            events::rewind(&self.source, id.sequence);
        }
    }

    /// `kept`: the record, where a dead-letter hook may need it.
    #[inline]
    pub(super) fn accept(&mut self, witness: Witness, link: Option<Link>, written: &Written, kept: Option<Record>) {
        let stage = match (written, kept) {
            (Written::Rejected(reason), kept) => {
                self.counters.rejected += 1;
                events::rejected(&self.source, witness.sequence(), reason);
                match kept {
                    Some(record) => {
                        self.letters.wait(DeadLetter::new(self.source.clone(), record, reason.clone()));
                        if fault::is(Fault::DoneUnreported) { Stage::Rejected } else { Stage::Unreported }
                    }
                    None => Stage::Rejected,
                }
            }
            (Written::Accepted | Written::Full, _) => {
                self.counters.written += 1;
                Stage::InSink
            }
        };
        self.full = *written == Written::Full;
        self.ledger.accept(witness, link, stage);
        if let Some(run) = self.skips.end() {
            events::skip_run(&self.source, run);
        }
    }

    /// Hands the next rejected record that waits to the hook.
    pub(super) async fn report_rejected(&mut self) -> Reported {
        let Some((id, sending)) = self.letters.send() else { return Reported::Nothing };
        // Counted before it is known, so that a call that is dropped half way counts too.
        self.counters.reports_failed += 1;
        let mut call = Call { source: &self.source, sequence: id.sequence, answered: false };
        let answer = sending.await;
        call.answered = true;
        drop(call);
        match answer {
            Ok(()) => {
                self.counters.reports_failed -= 1;
                self.counters.reported += 1;
                self.letters.taken();
                self.ledger.reported(id);
                events::reported(&self.source, id.sequence);
                Reported::Taken(id)
            }
            Err(error) => {
                events::report_failed(&self.source, id.sequence, &chain(&*error));
                Reported::Failed(error)
            }
        }
    }

    pub(super) fn durable(&mut self, durable: &Durable) {
        let ignored = self.ledger.durable(durable);
        if ignored > 0 {
            self.counters.ids_ignored += ignored;
            events::ids_ignored(&self.source, ignored);
        }
    }

    pub(super) fn moved(&mut self) {
        self.move_pending = None;
        self.counters.moves += 1;
    }

    pub(super) fn fast_forward(&mut self, consumer: &str, from: u64, through: u64) {
        self.counters.rewinds += 1;
        self.counters.fast_forwards += 1;
        events::rewind(&self.source, from.saturating_add(1));
        events::fast_forward(&self.source, consumer, from, through);
    }

    /// Verifies what a flush relies on, and goes on from there.
    pub(super) async fn settle<S: Sink>(&mut self, sink: &mut S) -> Result<Permits, GuardError> {
        let ended = self.skips.flushed();
        if let Some(run) = ended {
            events::skip_run(&self.source, run);
        }
        let removed = self.view.acked_are_removed;
        let mut permits = match verify(&*self.observer, &self.ledger, Scope::Flushed, removed).await {
            Err(error) => self.unknown(error)?,
            Ok(Verdict::Fork(_)) if fault::is(Fault::NoVerification) => self.commit(Stands::default()).await?,
            Ok(Verdict::Fork(evidence)) => self.fork(evidence, sink).await?,
            Ok(Verdict::Stands(stands)) => self.commit(stands).await?,
        };
        self.unverified = permits.unknown.is_some();
        permits.ended = ended;
        Ok(permits)
    }

    /// The stream could not be asked: nothing is permitted.
    pub(super) fn unknown(&mut self, error: ObserveError) -> Result<Permits, GuardError> {
        if !error.is_retriable() {
            return Err(GuardError::Observe(error));
        }
        self.counters.unknown += 1;
        events::unverified(&self.source, self.ledger.pending().len(), &error);
        Ok(Permits { unknown: Some(error), floor: self.floor(), ..Permits::default() })
    }

    pub(super) fn saw(&mut self, stands: &Stands) {
        self.counters.reads += stands.requests;
        let session = self.ledger.session();
        for last in &stands.equal {
            self.ledger.coverage.saw(*last, session);
        }
        for last in &stands.by_time {
            self.counters.by_time += 1;
            events::by_time(&self.source, *last);
        }
    }

    /// All stands: coverage grows, the checkpoint is saved, the acks are permitted.
    async fn commit(&mut self, stands: Stands) -> Result<Permits, GuardError> {
        // Where the floor follows the stream's first message and not the coverage, an old number may be of another life.
        if self.ledger.coverage.floor(self.origin).saturating_add(1) < self.start() {
            self.view = match self.observer.stream().await {
                Ok(view) => view,
                Err(error) => return self.unknown(error),
            };
        }
        if let Err(error) = self.look_for_passed_by().await {
            return self.unknown(error);
        }
        self.saw(&stands);
        let coverage = &self.ledger.coverage;
        let seen =
            |segment: u32, sequence: u64| stands.segments.get(&segment).is_some_and(|newest| sequence <= *newest);
        // A link holds if something at or above its record was read back unchanged, so that what was passed over then is
        // nothing now; over a seam, the record before it must have been read back as well.
        let proven: BTreeSet<RecordId> = self
            .ledger
            .pending()
            .iter()
            .filter(|entry| seen(entry.segment, entry.witness.sequence()) || fault::is(Fault::LinkWithoutRecord))
            .filter(|entry| {
                entry.link.is_some_and(|link| {
                    link.segment == entry.segment
                        || seen(link.segment, link.after)
                        || coverage.find(link.after).is_some_and(|span| stands.equal.contains(&span.last))
                })
            })
            .map(Entry::id)
            .collect();
        self.ledger.returned(&stands.returned);
        let settled = self.ledger.settle(|_| true, |entry| proven.contains(&entry.id()));
        // What is gone may have been of a life that ended since: no witness for later.
        let gone: BTreeSet<RecordId> =
            settled.iter().filter(|entry| !seen(entry.segment, entry.witness.sequence())).map(Entry::id).collect();
        if !gone.is_empty() {
            self.ledger.witnesses.retain(|witness| !gone.contains(&witness.id));
        }
        if let Err(error) = self.close_gaps().await {
            // The flush itself is verified; a gap that could not be asked about is asked about next time.
            tracing::debug!(source = %self.source, %error, "a gap could not be asked about");
        }
        let mut permits = Permits::default();
        self.account(&settled, &mut permits);
        if !settled.is_empty() {
            self.last_fork = None;
        }
        // What was skipped may lie where a gap was: a power cut brings back what was acked, or deleted.
        let skipped = !self.ledger.skipped.is_empty() && self.gaps_unsaved;
        if (skipped || !settled.is_empty()) && !fault::is(Fault::AckBeforeCheckpoint) {
            self.save().await?;
        }
        permits.acks.append(&mut self.ledger.skipped);
        permits.floor = self.floor();
        Ok(permits)
    }

    pub(super) fn account(&mut self, settled: &[Entry], permits: &mut Permits) {
        permits.acks.extend(settled.iter().map(Entry::id));
        for entry in settled {
            if entry.stage == Stage::Rejected {
                permits.rejected.push(entry.id());
                count(&mut self.totals.rejected, 1);
                let sequence = entry.witness.sequence();
                match self.rejected.last_mut() {
                    Some(run) if run.last.checked_add(1) == Some(sequence) => run.last = sequence,
                    _ => self.rejected.push(RejectedRun { first: sequence, last: sequence }),
                }
            } else {
                self.counters.archived += 1;
                count(&mut self.totals.archived, 1);
            }
        }
        let surplus = self.rejected.len().saturating_sub(HISTORY);
        self.rejected.drain(..surplus);
        if let Some((count, first, last)) = self.ledger.coverage.bound(self.max_spans, self.start()) {
            self.counters.spans_forgotten += count as u64;
            events::spans_forgotten(&self.source, count, first, last);
        }
    }

    pub(super) async fn save(&mut self) -> Result<(), GuardError> {
        let checkpoint = Checkpoint {
            state_id: self.state_id,
            source: self.source.clone(),
            created: self.created,
            origin: self.origin,
            coverage: std::mem::take(&mut self.ledger.coverage),
            witnesses: std::mem::take(&mut self.ledger.witnesses),
            rejected: std::mem::take(&mut self.rejected),
            consumer: self.consumer.clone(),
            move_pending: self.move_pending,
            totals: self.totals,
            overrides: std::mem::take(&mut self.overrides),
        };
        let body = checkpoint.encode();
        self.ledger.coverage = checkpoint.coverage;
        self.ledger.witnesses = checkpoint.witnesses;
        self.rejected = checkpoint.rejected;
        self.overrides = checkpoint.overrides;
        self.store.save(VERSION, body?.into()).await?;
        self.counters.saves += 1;
        self.gaps_unsaved = false;
        Ok(())
    }

    pub(super) async fn begin_session<S: Sink>(&mut self, sink: &mut S) -> Result<Permits, GuardError> {
        if let Some(run) = self.skips.end() {
            events::skip_run(&self.source, run);
        }
        self.unverified = true;
        let view = match self.observer.stream().await {
            Ok(view) => view,
            Err(error) => return self.unknown(error),
        };
        self.view = view;
        self.blocked.clear();
        self.walked = 0;
        self.ledger.begin_session(Backlog { last: view.last, published: view.last_published });
        match verify(&*self.observer, &self.ledger, Scope::All, view.acked_are_removed).await {
            Err(error) => self.unknown(error),
            Ok(Verdict::Fork(evidence)) => self.fork(evidence, sink).await,
            Ok(Verdict::Stands(stands)) => {
                self.saw(&stands);
                if let Err(error) = self.look_below_origin(&stands).await {
                    return self.unknown(error);
                }
                if !stands.equal.is_empty() && self.created != view.created {
                    events::created_drifted(&self.source, self.created, view.created);
                    self.created = view.created;
                }
                self.report_passed_by(u64::MAX);
                self.unverified = false;
                let flush_due = self.full;
                let verified_through = self.verified_through();
                Ok(Permits { floor: self.floor(), flush_due, verified_through, ..Permits::default() })
            }
        }
    }

    /// Remembers an operator's wish.
    pub(super) fn wanted(&mut self, from: u64, last: u64) {
        self.overrides.push(Override { from, last });
        let surplus = self.overrides.len().saturating_sub(HISTORY);
        self.overrides.drain(..surplus);
        self.ledger.skipped.clear();
    }
}
