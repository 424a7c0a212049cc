//! Gaps in the coverage, and whether the consumer passed over something.

use super::core::Core;
use super::verify::{Evidence, Stands, span_holds};
use super::{ConsumerPosition, Permits, Placement};
use crate::coverage::Span;
use crate::error::GuardError;
use crate::events;
use crate::fault::{self, Fault};
use crate::ledger::Class;
use crate::observer::{ObserveError, Reading};
use crate::sink::Sink;
use crate::trust::Answer;
use crate::witness::Witness;

/// How many gaps are asked about at one flush.
const GAPS: usize = 8;
/// How many spans, or records with the sink, one look at the consumer's position passes over.
const STEPS: usize = 32;

/// A gap that is known to be empty, and the place of the span above it.
#[derive(Clone, Copy, Debug)]
struct Gap {
    index: usize,
    low: u64,
    /// Where the span above it begins.
    first: u64,
    /// Whether a span lies below it, too.
    between: bool,
}

fn forked(permits: Result<Permits, GuardError>) -> Result<Placement, GuardError> {
    permits.map(|mut permits| match permits.unknown.take() {
        Some(error) => Placement::Unknown(error),
        None => Placement::Fork(permits),
    })
}

impl Core {
    /// Closes gaps between spans on the stream's answer. Both sides must have been seen in this session, or be gone without
    /// anything that contradicts them: numbers at or below the stream's last are given to nobody else in this life, and a
    /// later one is found by the span that the gap became part of.
    pub(super) async fn close_gaps(&mut self) -> Result<(), ObserveError> {
        let mut empty = Vec::new();
        let asked = self.find_empty_gaps(&mut empty).await;
        // What the stream has passed is told while the gap is there. Only a look after the last question sees all of it.
        if let Some(highest) = empty.iter().find(|gap| gap.low < gap.first) {
            self.tell_of_gaps(highest.first).await?;
        }
        for Gap { index, low, first, between } in empty {
            if between {
                self.ledger.coverage.close_gap(index - 1);
            } else {
                self.ledger.coverage.extend_down(index, low);
            }
            self.gaps_unsaved = true;
            if low < first {
                self.ledger.emptied(low, first - 1);
                self.counters.gaps_closed += 1;
                events::gap_closed(&self.source, low, first - 1);
            }
        }
        asked
    }

    /// The gaps that may be closed, the highest first: closing one leaves the places of those that follow.
    async fn find_empty_gaps(&mut self, empty: &mut Vec<Gap>) -> Result<(), ObserveError> {
        let start = self.start();
        let (mut questions, mut holds) = (0, false);
        let mut index = self.ledger.coverage.len();
        while index > 0 && questions < GAPS {
            index -= 1;
            let Some(above) = self.ledger.coverage.get(index).copied().filter(|span| span.last >= start) else { break };
            // What ends below the start is not counted; the lowest gap reaches down to the start.
            let below = index.checked_sub(1).and_then(|below| self.ledger.coverage.get(below)).copied();
            let below = below.filter(|span| span.last >= start);
            let (low, first) = (below.map_or(start, |span| span.last.saturating_add(1)), above.first);
            // As the lower side of the gap before this one, it was asked about already.
            let above_holds = std::mem::take(&mut holds);
            if (below.is_none() && first <= low) || self.blocked.contains(&(low, first)) {
                continue;
            }
            questions += 1;
            let unasked = low == first || fault::is(Fault::GapClosedUnasked);
            let sides = [Some(above).filter(|_| !above_holds), below];
            holds = self.hold(sides.into_iter().flatten()).await? && (unasked || self.is_empty(low, first).await?);
            if holds {
                empty.push(Gap { index, low, first, between: below.is_some() });
            } else {
                self.blocked.insert((low, first));
            }
        }
        Ok(())
    }

    /// Whether nothing of the source lies from `low` to below `first`, where a record was.
    async fn is_empty(&mut self, low: u64, first: u64) -> Result<bool, ObserveError> {
        self.counters.reads += 1;
        if let Some(next) = self.observer.next(low).await? {
            return Ok(next.sequence() >= first);
        }
        // An empty tail belongs to the next life, but for sequences that this one has used: the record at `first` left since.
        self.counters.reads += 2;
        if self.observer.stream().await?.last < first {
            return Ok(false);
        }
        Ok(self.observer.next(low).await?.is_none_or(|next| next.sequence() >= first))
    }

    /// Whether the stream holds the last record of each of these spans unchanged, or nothing contradicts it.
    async fn hold(&mut self, spans: impl Iterator<Item = Span>) -> Result<bool, ObserveError> {
        for span in spans {
            if !self.seen(span).await? && !self.uncontradicted(span).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether the stream holds the last record of this span unchanged, seen in this session.
    async fn seen(&mut self, span: Span) -> Result<bool, ObserveError> {
        let session = self.ledger.session();
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

    /// Whether the last record of this span is gone and nothing that stands in the span contradicts it.
    async fn uncontradicted(&mut self, span: Span) -> Result<bool, ObserveError> {
        let (mut stands, mut evidence) = (Stands::default(), Evidence::default());
        self.counters.reads += 1;
        let gone = Answer::of(self.observer.read(span.last).await?, span.witness) == Answer::Gone;
        // Else the floor would stay below the gap for ever, and with ack-all nothing would ever be acked again.
        Ok(gone && span_holds(&*self.observer, &self.ledger, span.witness, &mut stands, &mut evidence).await?)
    }

    pub(super) async fn check<S: Sink>(
        &mut self,
        position: ConsumerPosition,
        sink: &mut S,
    ) -> Result<Placement, GuardError> {
        let outcome = self.try_check(position, sink).await;
        self.placed(outcome)
    }

    pub(super) async fn reread<S: Sink>(
        &mut self,
        position: ConsumerPosition,
        sink: &mut S,
    ) -> Result<Placement, GuardError> {
        let outcome = self.try_reread(position, sink).await;
        self.placed(outcome)
    }

    /// What was found, or that the stream could not be asked.
    fn placed(
        &mut self,
        outcome: Result<Result<Placement, GuardError>, ObserveError>,
    ) -> Result<Placement, GuardError> {
        let error = match outcome {
            Ok(placement) => return placement,
            Err(error) => error,
        };
        let mut permits = self.unknown(error)?;
        let reason = || ObserveError::Unavailable { reason: "no answer".to_owned() };
        Ok(Placement::Unknown(permits.unknown.take().unwrap_or_else(reason)))
    }

    async fn try_reread<S: Sink>(
        &mut self,
        position: ConsumerPosition,
        sink: &mut S,
    ) -> Result<Result<Placement, GuardError>, ObserveError> {
        let highest = position.delivered.max(position.ack_floor);
        let newest = self.ledger.newest_witness().filter(|newest| newest.sequence() >= highest);
        let Some(newest) = newest else { return Ok(Ok(Placement::StandsSoFar)) };
        let Some(evidence) = self.contradicts(newest).await? else { return Ok(Ok(Placement::Stands)) };
        self.view = self.observer.stream().await?;
        self.blocked.clear();
        Ok(forked(self.fork(evidence, sink).await))
    }

    async fn try_check<S: Sink>(
        &mut self,
        position: ConsumerPosition,
        sink: &mut S,
    ) -> Result<Result<Placement, GuardError>, ObserveError> {
        self.view = self.observer.stream().await?;
        self.blocked.clear();
        if let Some(newest) = self.ledger.newest_witness()
            && let Some(evidence) = self.contradicts(newest).await?
        {
            return Ok(forked(self.fork(evidence, sink).await));
        }
        let highest = position.delivered.max(position.ack_floor);
        if highest > self.view.last {
            // Said twice by the observer, so that a new leader's early answer does not count.
            if self.observer.read(highest).await? == Reading::Above {
                if self.view.last.saturating_add(1) < self.origin {
                    // So did archiving begin beyond it, and what comes there now is new.
                    self.origin = self.lowest_origin().min(self.origin);
                }
                return Ok(Ok(Placement::Beyond { to: self.floor().saturating_add(1) }));
            }
            self.view = self.observer.stream().await?;
        }
        if position.ack_floor > self.floor() {
            self.close_gaps().await?;
        }
        let mut at = self.floor().saturating_add(1).max(self.walked);
        let mut placement = Placement::StandsSoFar;
        for _ in 0..STEPS {
            let next = self.observer.next(at).await?.filter(|next| next.sequence() <= position.ack_floor);
            let Some(next) = next else {
                (at, placement) = (0, Placement::Stands);
                break;
            };
            at = next.sequence().saturating_add(1);
            match self.ledger.classify(next.id) {
                Class::Fresh if fault::is(Fault::TrustAckFloor) => {}
                Class::Fresh => return Ok(Ok(Placement::PassedOver(self.lowest_unarchived(next.sequence())))),
                Class::Pending => {}
                Class::Archived => {
                    if let Some(span) = self.ledger.coverage.find(next.sequence()).copied() {
                        if let Some(evidence) = self.contradicts(span.witness).await? {
                            return Ok(forked(self.fork(evidence, sink).await));
                        }
                        at = span.last.saturating_add(1);
                    }
                }
            }
        }
        // What is above is looked at next time.
        self.walked = at;
        Ok(Ok(placement))
    }

    /// What is with the sink below `passed` was passed over as well: should the process die, nothing else brings it back.
    fn lowest_unarchived(&self, passed: u64) -> u64 {
        let floor = self.floor();
        let mut pending = self.ledger.pending().iter().map(|entry| entry.witness.sequence());
        pending.find(|sequence| *sequence > floor).map_or(passed, |lowest| lowest.min(passed))
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
}
