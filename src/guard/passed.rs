//! What the stream dropped before it was archived.

use super::core::Core;
use crate::events;
use crate::fault::{self, Fault};
use crate::ledger::Ledger;
use crate::observer::ObserveError;

/// Sequences that the stream dropped before they were archived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Dropped {
    first: u64,
    last: u64,
    /// How many of them are neither archived nor with the sink.
    count: u64,
}

/// What of `from..end` is neither archived nor with the sink. Between two deliveries of a source with filters lies what is
/// other people's, or was dropped: nothing tells, and it does not count.
fn missing(ledger: &Ledger, from: u64, end: u64, filtered: bool) -> Option<Dropped> {
    let mut dropped: Option<Dropped> = None;
    let mut at = from;
    while at < end {
        let (first, through) = ledger.held_from(at, filtered).unwrap_or((end, end));
        if at < first {
            let last = first.min(end) - 1;
            let before = dropped.map_or((at, 0), |dropped| (dropped.first, dropped.count));
            dropped = Some(Dropped { first: before.0, last, count: before.1 + (last - at + 1) });
        }
        at = through.saturating_add(1);
    }
    dropped
}

impl Core {
    /// Above the newest record that is archived nothing was looked at yet; of gaps below it that the stream has passed,
    /// earlier runs spoke, if they lived to do so. A report leaves those that it has not reached to be looked at.
    pub(super) fn look_above_newest(&mut self, unknown: u64) {
        let newest = self.ledger.coverage.last().map(|span| span.last.saturating_add(1));
        self.looked_below = newest.unwrap_or(unknown);
    }

    /// Reports, once, what the stream dropped below its first message and below `end`. A stream that removes what is acked
    /// begins high by nature.
    pub(super) fn report_passed_by(&mut self, end: u64) -> Option<(u64, u64)> {
        let first = self.view.first;
        let end = end.min(first);
        let from = self.looked_below.max(self.origin).max(1);
        self.looked_below = self.looked_below.min(first).max(end);
        if self.view.acked_are_removed {
            return None;
        }
        let dropped = missing(&self.ledger, from, end, self.is_filtered())?;
        self.counters.passed_by += dropped.count;
        events::passed_by(&self.source, dropped.first, dropped.last, dropped.count);
        Some((dropped.first, dropped.last))
    }

    /// A hole right below a record of this flush may be what the stream dropped while the session ran. All that came before
    /// the newest record was offered.
    pub(super) async fn look_for_passed_by(&mut self) -> Result<(), ObserveError> {
        if self.view.acked_are_removed || self.is_filtered() {
            return Ok(());
        }
        let pending = self.ledger.pending();
        let Some(newest) = pending.last().map(|entry| entry.witness.sequence()) else { return Ok(()) };
        let from = self.looked_below.max(self.origin).max(1);
        let mut before = None;
        let hole = pending.iter().map(|entry| entry.witness.sequence()).any(|sequence| {
            let below = sequence.saturating_sub(1);
            before.replace(sequence) != Some(below)
                && below >= from
                && self.ledger.held_from(below, false).is_none_or(|held| held.0 > below)
        });
        if !hole {
            return Ok(());
        }
        self.counters.reads += 1;
        self.view = self.observer.stream().await?;
        self.report_passed_by(newest);
        Ok(())
    }

    /// Gaps that end below `first` are empty and about to be closed. If it is the stream's first message that has passed them,
    /// that is told now: later nothing shows it.
    pub(super) async fn tell_of_gaps(&mut self, first: u64) -> Result<(), ObserveError> {
        let told = self.view.acked_are_removed || self.is_filtered() || first <= self.looked_below;
        if told || fault::is(Fault::DroppedUntold) {
            return Ok(());
        }
        self.counters.reads += 1;
        self.view = self.observer.stream().await?;
        self.report_passed_by(first);
        Ok(())
    }

    fn is_filtered(&self) -> bool {
        !self.source.filters().is_empty()
    }
}
