//! The stream lost its tail: how far, and what is left.

use std::collections::BTreeSet;

use super::core::Core;
use super::refine::Sources;
use super::verify::{Evidence, Stands, newest_alive, read_all};
use super::{Fork, Permits};
use crate::checkpoint::count;
use crate::error::GuardError;
use crate::events;
use crate::fault::{self, Fault};
use crate::observer::{ObserveError, Reading};
use crate::record::RecordId;
use crate::sink::Sink;
use crate::trust::{Answer, Cut};
use crate::witness::Witness;

impl Core {
    /// Nothing is archived yet that would tell one stream from another. When archiving began, no message of the source lay
    /// between the newest one below the origin, which is the only witness, and the origin: one that does is new, and ours.
    /// Where that witness is gone, one at or below it that is younger is new too, and all of the stream is.
    pub(super) async fn look_below_origin(&mut self, stands: &Stands) -> Result<(), ObserveError> {
        let mut low = self.lowest_origin();
        let only = self.ledger.newest_witness().filter(|_| self.origin > 1 && self.ledger.coverage.is_empty());
        let mut found = None;
        if let Some(only) = only.filter(|only| !stands.equal.contains(&only.sequence())) {
            self.counters.reads += 1;
            let alive = newest_alive(&*self.observer, 1, only.sequence()).await?;
            found = alive.filter(|alive| alive.id.published > only.id.published);
        }
        if found.is_some() {
            low = 1;
        } else if low < self.origin {
            self.counters.reads += 1;
            found = self.observer.next(low).await?.filter(|found| found.sequence() < self.origin);
        }
        let Some(found) = found else { return Ok(()) };
        self.ledger.witnesses.retain(|witness| witness.sequence() < low);
        self.origin = low;
        self.counters.forks += 1;
        count(&mut self.totals.forks, 1);
        let created = (self.created != self.view.created).then_some((self.created, self.view.created));
        let (at, last) = (low - 1, self.view.last);
        let fork = Fork { at, archived: None, found: Some(found.id), last, orphaned: Vec::new(), created };
        events::fork(&self.source, &fork);
        Ok(())
    }

    /// Whether the place where archiving began means anything in the stream that is there now.
    fn keep_origin(&mut self, cut: &Cut, any_equal: bool) {
        let empty = cut.coverage.is_empty();
        match cut.equal {
            // What stands above it may be of this life only.
            Some(equal) if cut.changed || empty => {
                self.origin = self.origin.min(equal.sequence().saturating_add(1));
            }
            // Nothing of the stream in which archiving began stands. A record that is pending may have come from this one.
            None if (cut.changed || (empty && !any_equal)) && !fault::is(Fault::OriginKept) => self.origin = 1,
            _ => {}
        }
    }

    /// While nothing is archived: just above the newest message of the source that lay below the origin.
    pub(super) fn lowest_origin(&self) -> u64 {
        if self.ledger.coverage.is_empty() {
            self.ledger.newest_witness().map_or(1, |witness| witness.sequence().saturating_add(1))
        } else {
            self.origin
        }
    }

    /// A witness that belongs to no span, and that another message has replaced, says nothing of what is archived: only that
    /// what lies above the newest record that stands is of another life.
    fn drop_stray(&self, cut: &mut Cut, foreign: &[u64]) {
        let stray = |at: u64| self.ledger.coverage.find(at).is_none() && foreign.contains(&at);
        if cut.witnesses.iter().any(|witness| stray(witness.sequence())) {
            cut.witnesses.retain(|witness| !stray(witness.sequence()));
            cut.changed = true;
        }
    }

    /// Something that was archived or delivered is not in the stream. Finds out how far down, cuts, and saves before
    /// anything else happens.
    pub(super) async fn fork<S: Sink>(&mut self, mut evidence: Evidence, sink: &mut S) -> Result<Permits, GuardError> {
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
                    let found = if let Reading::Message(found) = reading { Some(found) } else { None };
                    against = Some((witness, found));
                }
            }
        }
        let (coverage, witnesses) = (self.ledger.coverage.clone(), self.ledger.witnesses.clone());
        let mut sources = Sources { observer: &*self.observer, sink, source: &self.source };
        let end = evidence.above.then_some(view.last);
        let foreign = evidence.foreign.clone();
        let mut cut = match sources.descend(coverage, witnesses, evidence.foreign, end).await {
            Ok(cut) => cut,
            Err(unsettled) => return self.unknown(unsettled.of_stream()?),
        };
        self.drop_stray(&mut cut, &foreign);
        if !cut.changed && lost.is_empty() {
            let reason = "the stream answered differently a moment later".to_owned();
            return self.unknown(ObserveError::Unavailable { reason });
        }

        self.keep_origin(&cut, any_equal);
        let against = cut.against.or(against);
        self.ledger.coverage = cut.coverage;
        self.ledger.witnesses = cut.witnesses;
        self.ledger.after_cut();
        let orphaned = self.ledger.orphan(|entry| lost.contains(&entry.id()) || fault::is(Fault::CutForgetsNewSpans));
        let settled = self.ledger.settle(|entry| stands.contains(&entry.id()), |_| false);
        let created = (self.created != view.created).then_some((self.created, view.created));
        self.created = view.created;
        self.view = view;
        self.look_above_newest(self.origin);
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
        count(&mut self.totals.forks, 1);
        self.counters.orphaned += report.orphaned.len() as u64;
        count(&mut self.totals.orphaned, report.orphaned.len() as u64);
        let newest = self.ledger.coverage.last().map_or(0, |span| span.last);
        let above = if fault::is(Fault::MoveAboveNewest) { newest.max(floor) } else { floor };
        self.move_pending = Some(above.saturating_add(1));
        self.account(&settled, &mut Permits::default());
        events::fork(&self.source, &report);
        events::move_required(&self.source, floor.saturating_add(1));
        self.save().await?;
        Ok(Permits { fork: Some(Box::new(report)), move_to: self.move_pending, floor, ..Permits::default() })
    }
}
