//! The guard without its sink: ledger, store and observer, and what ties them together.

use std::collections::{BTreeMap, BTreeSet};

use super::report::{Counters, OpenReport};
use super::verify::{Evidence, Scope, Stands, Verdict, descend, read_all, span_holds, verify};
use super::{ConsumerPosition, Fork, Permits, Placement};
use crate::checkpoint::{Checkpoint, ClaimBody, Override, RejectedRun, StateId, Totals, VERSION};
use crate::claim::Claim;
use crate::coverage::{Coverage, Span};
use crate::error::GuardError;
use crate::events;
use crate::ledger::{Backlog, Class, Entry, Ledger, Link, Stage};
use crate::observer::{ObserveError, Observer, StreamView};
use crate::record::RecordId;
use crate::sink::{ClaimFor, Durable, Written};
use crate::skip::SkipTracker;
use crate::source::Source;
use crate::store::CheckpointStore;
use crate::trust::{Answer, Descent};
use crate::witness::Witness;

/// How many runs of rejected sequences and overrides a checkpoint remembers.
const HISTORY: usize = 1_000;
/// How many gaps are asked about at one flush.
const GAPS: usize = 8;
/// How many spans, or records with the sink, one look at the consumer's position passes over.
const STEPS: usize = 32;

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
    /// The sink is full: nothing is written before the next flush.
    pub(super) full: bool,
    /// The stream could not be asked at the last flush: nothing is written before it could.
    pub(super) unverified: bool,
    /// What the last fork took away and found in its place, until others are verified.
    pub(super) last_fork: Option<(RecordId, Option<RecordId>)>,
    /// Gaps that cannot be closed for now, by the sequences beside them: something of the source lies in them, or a record
    /// beside them is gone. Asked again after a while.
    pub(super) blocked: BTreeSet<(u64, u64)>,
    /// From here on the next look at the consumer's position goes on.
    pub(super) walked: u64,
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
        let mut segments: BTreeMap<u32, Coverage> = BTreeMap::new();
        for entry in self.ledger.pending().iter().filter(|entry| entry.stage != Stage::Held) {
            let named = entry.stage == Stage::Rejected || chosen.as_ref().is_none_or(|ids| ids.contains(&entry.id()));
            if named {
                let sequence = entry.witness.sequence();
                let within = entry.link.filter(|link| link.segment == entry.segment);
                let first = within.map_or(sequence, |link| link.after.saturating_add(1));
                segments.entry(entry.segment).or_default().insert(Span::of(first, entry.witness), 0);
            }
        }
        // Segments never join: each is verified on its own when the claim is read back. Where two share sequences they may
        // be of two lives; then the earlier one is left out, for a claim may say less than is true.
        let mut coverage = Coverage::default();
        for (segment, spans) in segments.iter().rev() {
            for span in spans.spans() {
                if !coverage.overlaps(span) {
                    coverage.insert(*span, *segment);
                }
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

    pub(super) const fn move_pending(&self) -> Option<u64> {
        self.move_pending
    }

    /// Where the floor is counted from.
    fn start(&self) -> u64 {
        self.origin.max(self.view.first).max(1)
    }

    pub(super) fn floor(&self) -> u64 {
        self.ledger.coverage.floor(self.start())
    }

    /// Classifies a delivery, if it may be offered now.
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

    pub(super) fn arrive(&mut self, id: RecordId, follows: Option<u64>) -> Option<Link> {
        self.counters.offered += 1;
        self.ledger.arrive(id, follows)
    }

    pub(super) fn skip(&mut self, id: RecordId) {
        self.ledger.skip(id);
        self.counters.skipped += 1;
        self.totals.skipped += 1;
        if self.skips.skipped(id.sequence) {
            self.counters.rewinds += 1;
            events::rewind(&self.source, id.sequence);
        }
    }

    pub(super) fn accept(&mut self, witness: Witness, link: Option<Link>, written: &Written) {
        let rejected = match written {
            Written::Rejected(reason) => {
                self.counters.rejected += 1;
                events::rejected(&self.source, witness.sequence(), reason);
                true
            }
            Written::Accepted | Written::Full => {
                self.counters.written += 1;
                false
            }
        };
        self.full = *written == Written::Full;
        self.ledger.accept(witness, link, rejected);
        if let Some(run) = self.skips.end() {
            events::skip_run(&self.source, run);
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
        if self.move_pending.take().is_some() {
            self.counters.moves += 1;
        }
    }

    /// Verifies what a flush relies on, and goes on from there.
    pub(super) async fn settle(&mut self) -> Result<Permits, GuardError> {
        let ended = self.skips.flushed();
        if let Some(run) = ended {
            events::skip_run(&self.source, run);
        }
        let removed = self.view.acked_are_removed;
        let mut permits = match verify(&*self.observer, &self.ledger, Scope::Flushed, removed).await {
            Err(error) => self.unknown(error)?,
            Ok(Verdict::Fork(evidence)) => self.fork(evidence).await?,
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
            .filter(|entry| seen(entry.segment, entry.witness.sequence()))
            .filter(|entry| {
                entry.link.is_some_and(|link| {
                    link.segment == entry.segment
                        || link.segment == 0
                        || seen(link.segment, link.after)
                        || coverage.find(link.after).is_some_and(|span| stands.equal.contains(&span.last))
                })
            })
            .map(Entry::id)
            .collect();
        let settled = self.ledger.settle(|_| true, |entry| proven.contains(&entry.id()));
        if let Err(error) = self.close_gaps().await {
            // The flush itself is verified; a gap that could not be asked about is asked about next time.
            tracing::debug!(source = %self.source, %error, "a gap could not be asked about");
        }
        let mut permits = Permits::default();
        self.account(&settled, &mut permits);
        if !settled.is_empty() {
            self.last_fork = None;
            self.save().await?;
        }
        permits.acks.append(&mut self.ledger.skipped);
        permits.floor = self.floor();
        Ok(permits)
    }

    fn account(&mut self, settled: &[Entry], permits: &mut Permits) {
        permits.acks.extend(settled.iter().map(Entry::id));
        for entry in settled {
            if entry.stage == Stage::Rejected {
                permits.rejected.push(entry.id());
                self.totals.rejected += 1;
                let sequence = entry.witness.sequence();
                match self.rejected.last_mut() {
                    Some(run) if run.last.checked_add(1) == Some(sequence) => run.last = sequence,
                    _ => self.rejected.push(RejectedRun { first: sequence, last: sequence }),
                }
            } else {
                self.counters.archived += 1;
                self.totals.archived += 1;
            }
        }
        let surplus = self.rejected.len().saturating_sub(HISTORY);
        self.rejected.drain(..surplus);
        if let Some((count, first, last)) = self.ledger.coverage.bound(self.max_spans) {
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
        Ok(())
    }

    /// Something that was archived or delivered is not in the stream. Finds out how far down, cuts, and saves before
    /// anything else happens.
    pub(super) async fn fork(&mut self, mut evidence: Evidence) -> Result<Permits, GuardError> {
        let view = match self.observer.stream().await {
            Ok(view) => view,
            Err(error) => return self.unknown(error),
        };
        // Every pending record speaks for itself. No link between them can be relied on any more.
        let pending: Vec<Witness> = self.ledger.pending().iter().map(|entry| entry.witness).collect();
        let known_above = |witness: &Witness| evidence.above && witness.sequence() > view.last;
        let (above, asked): (Vec<Witness>, Vec<Witness>) = pending.into_iter().partition(known_above);
        let readings = match read_all(&*self.observer, &asked).await {
            Ok(readings) => readings,
            Err(error) => return self.unknown(error),
        };
        self.counters.reads += asked.len() as u64;
        let mut lost: BTreeSet<RecordId> = above.iter().map(|witness| witness.id).collect();
        let mut against = above.last().map(|witness| (*witness, None));
        let mut stands = BTreeSet::new();
        let mut any_equal = false;
        for (witness, reading) in readings {
            match Answer::of(reading, witness) {
                Answer::Equal => {
                    any_equal = true;
                    stands.insert(witness.id);
                    if self.ledger.coverage.find(witness.sequence()).is_some() {
                        evidence.foreign.push(witness.sequence());
                    }
                }
                Answer::Gone => _ = stands.insert(witness.id),
                Answer::Other | Answer::Above => {
                    lost.insert(witness.id);
                    let found = if let crate::observer::Reading::Message(found) = reading { Some(found) } else { None };
                    against = Some((witness, found));
                }
            }
        }
        let descent = Descent::new(
            self.ledger.coverage.clone(),
            self.ledger.witnesses.clone(),
            evidence.foreign,
            evidence.above.then_some(view.last),
        );
        let cut = match descend(&*self.observer, descent).await {
            Ok(cut) => cut,
            Err(error) => return self.unknown(error),
        };
        if !cut.changed && lost.is_empty() {
            let reason = "the stream answered differently a moment later".to_owned();
            return self.unknown(ObserveError::Unavailable { reason });
        }

        if cut.coverage.is_empty() && cut.equal.is_none() && !any_equal {
            // Nothing that was delivered stands, so the place where archiving began means nothing in this stream either.
            self.origin = 1;
        }
        let against = cut.against.or(against);
        self.ledger.coverage = cut.coverage;
        self.ledger.witnesses = cut.witnesses;
        self.ledger.after_cut();
        let orphaned = self.ledger.orphan(|entry| lost.contains(&entry.id()));
        let settled = self.ledger.settle(|entry| stands.contains(&entry.id()), |_| false);
        let created = (self.created != view.created).then_some((self.created, view.created));
        self.created = view.created;
        self.view = view;
        let floor = self.floor();
        self.ledger.skipped.clear();
        self.blocked.clear();
        self.walked = 0;
        if let Some(run) = self.skips.end() {
            events::skip_run(&self.source, run);
        }
        let report = Fork {
            at: cut
                .equal
                .map_or(floor, |witness| witness.sequence())
                .min(against.map_or(u64::MAX, |(old, _)| old.sequence())),
            archived: against.map(|(old, _)| old.id),
            found: against.and_then(|(_, new)| new).map(|new| new.id),
            last: view.last,
            orphaned,
            created,
        };
        // The same record can only be taken away twice if it was delivered again in between, and then the stream that is
        // read is not the one that delivers.
        let sides = report.archived.map(|archived| (archived, report.found));
        if std::mem::replace(&mut self.last_fork, sides).is_some_and(|before| Some(before) == sides) {
            return Err(GuardError::ForkAgain {
                source_name: self.source.to_string(),
                at: report.at,
                archived: report.archived,
                found: report.found,
            });
        }
        self.counters.forks += 1;
        self.totals.forks += 1;
        self.counters.orphaned += report.orphaned.len() as u64;
        self.totals.orphaned += report.orphaned.len() as u64;
        self.move_pending = Some(floor.saturating_add(1));
        self.account(&settled, &mut Permits::default());
        events::fork(&self.source, &report);
        events::move_required(&self.source, floor.saturating_add(1));
        self.save().await?;
        Ok(Permits { fork: Some(Box::new(report)), move_to: self.move_pending, floor, ..Permits::default() })
    }

    pub(super) async fn begin_session(&mut self) -> Result<Permits, GuardError> {
        if let Some(run) = self.skips.end() {
            events::skip_run(&self.source, run);
        }
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
            Ok(Verdict::Fork(evidence)) => self.fork(evidence).await,
            Ok(Verdict::Stands(stands)) => {
                self.saw(&stands);
                if !stands.equal.is_empty() && self.created != view.created {
                    events::created_drifted(&self.source, self.created, view.created);
                    self.created = view.created;
                }
                self.unverified = false;
                let flush_due = self.full;
                Ok(Permits { floor: self.floor(), flush_due, ..Permits::default() })
            }
        }
    }

    /// Closes gaps between spans on the stream's answer. Both sides must have been seen in this session.
    async fn close_gaps(&mut self) -> Result<(), ObserveError> {
        let session = self.ledger.session();
        let start = self.start();
        let mut questions = 0;
        let mut index = self.ledger.coverage.len();
        while index > 0 && questions < GAPS {
            index -= 1;
            let Some(above) = self.ledger.coverage.get(index).copied().filter(|span| span.last >= start) else { break };
            // What ends below the start is not counted; the lowest gap reaches down to the start.
            let below = index.checked_sub(1).and_then(|below| self.ledger.coverage.get(below)).copied();
            let below = below.filter(|span| span.last >= start);
            let low = below.map_or(start, |span| span.last.saturating_add(1));
            if (below.is_none() && above.first <= low) || self.blocked.contains(&(low, above.first)) {
                continue;
            }
            questions += 1;
            if !self.seen(above, session).await? {
                self.blocked.insert((low, above.first));
                continue;
            }
            if let Some(below) = below
                && !self.seen(below, session).await?
            {
                self.blocked.insert((low, above.first));
                continue;
            }
            if low < above.first {
                self.counters.reads += 1;
                let next = self.observer.next(low).await?;
                if next.is_none_or(|next| next.sequence() < above.first) {
                    self.blocked.insert((low, above.first));
                    continue;
                }
            }
            if below.is_some() {
                self.ledger.coverage.close_gap(index - 1);
            } else {
                self.ledger.coverage.extend_down(index, low);
            }
            if low < above.first {
                self.ledger.emptied(low, above.first - 1);
                self.counters.gaps_closed += 1;
                events::gap_closed(&self.source, low, above.first - 1);
            }
        }
        Ok(())
    }

    /// Whether the stream holds the last record of this span unchanged, seen in this session.
    async fn seen(&mut self, span: Span, session: u32) -> Result<bool, ObserveError> {
        if self.ledger.coverage.was_seen(span.last, session) {
            return Ok(true);
        }
        self.counters.reads += 1;
        let equal = Answer::of(self.observer.read(span.last).await?, span.witness) == Answer::Equal;
        if equal {
            self.ledger.coverage.saw(span.last, session);
        }
        Ok(equal)
    }

    pub(super) async fn check(&mut self, position: ConsumerPosition) -> Result<Placement, GuardError> {
        let outcome = self.try_check(position).await;
        match outcome {
            Ok(placement) => placement,
            Err(error) => {
                let mut permits = self.unknown(error)?;
                let reason = || ObserveError::Unavailable { reason: "no answer".to_owned() };
                Ok(Placement::Unknown(permits.unknown.take().unwrap_or_else(reason)))
            }
        }
    }

    async fn try_check(&mut self, position: ConsumerPosition) -> Result<Result<Placement, GuardError>, ObserveError> {
        self.view = self.observer.stream().await?;
        self.blocked.clear();
        let forked = |permits: Result<Permits, GuardError>| {
            permits.map(|mut permits| match permits.unknown.take() {
                Some(error) => Placement::Unknown(error),
                None => Placement::Fork(permits),
            })
        };
        if let Some(newest) = self.ledger.newest_witness()
            && let Some(evidence) = self.contradicts(newest).await?
        {
            return Ok(forked(self.fork(evidence).await));
        }
        let highest = position.delivered.max(position.ack_floor);
        if highest > self.view.last {
            // Said twice by the observer, so that a new leader's early answer does not count.
            if self.observer.read(highest).await? == crate::observer::Reading::Above {
                return Ok(Ok(Placement::Beyond { to: self.floor().saturating_add(1) }));
            }
            self.view = self.observer.stream().await?;
        }
        if position.ack_floor > self.floor() {
            self.close_gaps().await?;
        }
        let mut at = self.floor().saturating_add(1).max(self.walked);
        for _ in 0..STEPS {
            let next = self.observer.next(at).await?.filter(|next| next.sequence() <= position.ack_floor);
            let Some(next) = next else {
                at = 0;
                break;
            };
            at = next.sequence().saturating_add(1);
            match self.ledger.classify(next.id) {
                Class::Fresh => return Ok(Ok(Placement::PassedOver(next.sequence()))),
                Class::Pending => {}
                Class::Archived => {
                    if let Some(span) = self.ledger.coverage.find(next.sequence()).copied() {
                        if let Some(evidence) = self.contradicts(span.witness).await? {
                            return Ok(forked(self.fork(evidence).await));
                        }
                        at = span.last.saturating_add(1);
                    }
                }
            }
        }
        // What is above is looked at next time.
        self.walked = at;
        Ok(Ok(Placement::Stands))
    }

    /// Reads a witness back. What says that it does not stand, if so.
    async fn contradicts(&mut self, witness: Witness) -> Result<Option<Evidence>, ObserveError> {
        self.counters.reads += 1;
        match Answer::of(self.observer.read(witness.sequence()).await?, witness) {
            Answer::Equal => {
                self.ledger.coverage.saw(witness.sequence(), self.ledger.session());
                Ok(None)
            }
            Answer::Gone => {
                let (mut stands, mut evidence) = (Stands::default(), Evidence::default());
                let holds = span_holds(&*self.observer, &self.ledger, witness, &mut stands, &mut evidence).await?;
                self.counters.reads += stands.requests;
                Ok((!holds).then_some(evidence))
            }
            answer => {
                let foreign = if answer == Answer::Other { vec![witness.sequence()] } else { Vec::new() };
                Ok(Some(Evidence { foreign, above: answer == Answer::Above }))
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
