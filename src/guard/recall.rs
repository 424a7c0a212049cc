//! What of the checkpoint and of the sink's claims still stands, and what an operator wants forgotten.

use super::Permits;
use super::core::Core;
use super::refine::{Sources, Unsettled};
use super::report::Trust;
use super::verify::{Scope, Verdict, newest_alive, verify};
use crate::checkpoint::{ClaimBody, count};
use crate::coverage::{Coverage, Span};
use crate::error::{GuardError, OpenError};
use crate::events;
use crate::fault::{self, Fault};
use crate::observer::ObserveError;
use crate::sink::Sink;
use crate::trust::Answer;
use crate::witness::{Witness, Witnesses};

/// Reads back what the checkpoint says is archived, from the top down. Says whether the stream forked.
pub(super) async fn verify_checkpoint<S: Sink>(core: &mut Core, sink: &mut S) -> Result<(Trust, bool), OpenError> {
    if fault::is(Fault::TrustCreated) && core.created == core.view.created {
        return Ok((Trust::Whole, false));
    }
    let coverage = std::mem::take(&mut core.ledger.coverage);
    let witnesses = std::mem::take(&mut core.ledger.witnesses);
    let empty = coverage.is_empty();
    let marked = witnesses.iter().len() > 0;
    let before = coverage.last().map_or(0, |span| span.last);
    let mut sources = Sources { observer: &*core.observer, sink, source: &core.source };
    let cut = sources.descend(coverage, witnesses, Vec::new(), None).await?;
    core.counters.by_time += u64::from(cut.by_time);
    let through = cut.coverage.last().map_or(0, |span| span.last);
    let stands = cut.equal.is_some();
    if cut.by_time > 0 {
        events::by_time(&core.source, through);
    }
    if let Some(witness) = cut.equal {
        let session = core.ledger.session();
        core.ledger.coverage = cut.coverage;
        core.ledger.coverage.saw(witness.sequence(), session);
    } else {
        core.ledger.coverage = cut.coverage;
    }
    core.ledger.witnesses = cut.witnesses;
    let drifted = core.created != core.view.created;
    let nothing_left = !stands && core.ledger.coverage.is_empty();
    // Where archiving began means something only in the stream it began in.
    let unsure = empty && !marked && drifted && core.origin > 1;
    // Spans may be left in which nothing stands any more, and which no message speaks for.
    let origin_lost = !stands && !fault::is(Fault::OriginKept) && ((cut.changed && (!empty || marked)) || unsure);
    if origin_lost {
        core.origin = 1;
    } else if let Some(equal) = cut.equal.filter(|_| cut.changed || core.ledger.coverage.is_empty()) {
        // What stands above it may be of this life only, or is the first that is ours.
        core.origin = core.origin.min(equal.sequence().saturating_add(1));
    }
    if drifted && stands && !cut.changed {
        events::created_drifted(&core.source, core.created, core.view.created);
    }
    core.created = core.view.created;
    let trust = match (empty, stands, cut.changed) {
        (true, _, _) if !origin_lost => Trust::Empty,
        (_, true, false) => Trust::Whole,
        (_, false, false) if !origin_lost => Trust::ByTime,
        _ if nothing_left => Trust::Nothing,
        _ => Trust::Through(through),
    };
    let forked = cut.changed || origin_lost;
    if forked {
        count(&mut core.totals.forks, 1);
        core.counters.forks += 1;
        events::checkpoint_distrusted(&core.source, through);
        let fork = super::Fork {
            at: cut.equal.map_or(through, |witness| witness.sequence()),
            archived: cut.against.map(|(old, _)| old.id),
            found: cut.against.and_then(|(_, new)| new).map(|new| new.id),
            last: core.view.last,
            orphaned: Vec::new(),
            created: core.report.created,
        };
        debug_assert!(before >= through);
        events::fork(&core.source, &fork);
    }
    Ok((trust, forked))
}

/// What became of the spans of the sink's claims.
#[derive(Debug, Default)]
pub(super) struct Claimed {
    /// How many joined the coverage.
    pub(super) joined: usize,
    /// How many do not stand.
    pub(super) history: usize,
    /// Whether the last record of one stands unchanged.
    pub(super) equal: bool,
}

/// Reads back the claims' spans, newest first.
pub(super) async fn verify_claims<S: Sink>(
    core: &mut Core,
    sink: &mut S,
    claims: Vec<ClaimBody>,
    exactly_from: Option<u64>,
) -> Result<Claimed, OpenError> {
    if let Some(from) = exactly_from {
        core.forget_from(from).await?;
    }
    let mut spans: Vec<Span> = claims.iter().flat_map(|claim| claim.coverage.spans().copied()).collect();
    spans.sort_by_key(|span| std::cmp::Reverse((span.last, span.latest)));
    let mut claimed = Claimed::default();
    // Where the stream ends, once an answer said that it does: that is said twice, a second apart, and needs no other.
    let mut end = u64::MAX;
    for mut span in spans {
        if span.first > end {
            claimed.history += 1;
            continue;
        }
        let known = core.ledger.coverage.find(span.last);
        if let Some(known) = known.filter(|known| known.contains(span.first) && known.knows(span.witness.id.published))
            && (known.last != span.last || known.witness == span.witness)
        {
            continue; // the checkpoint has it already
        }
        let shared = core.ledger.coverage.at_or_above(span.first).is_some_and(|other| other.first <= span.last);
        // What stands by its record is seen in the session at hand, and joins what it touches if that was seen too.
        let answer = if span.last > end {
            Answer::Above
        } else {
            Answer::of(core.observer.read(span.last).await?, span.witness)
        };
        if answer == Answer::Above && end == u64::MAX {
            end = core.observer.stream().await?.last;
        }
        let stands = match answer {
            Answer::Equal => {
                claimed.equal = true;
                Some(core.ledger.session())
            }
            Answer::Other | Answer::Above if fault::is(Fault::ClaimUnverified) => Some(0),
            Answer::Other | Answer::Above => {
                let sources = Sources { observer: &*core.observer, sink: &mut *sink, source: &core.source };
                let standing = lower_part(sources, &span, end).await?;
                standing.map(|witness| {
                    claimed.equal = true;
                    span = Span {
                        last: witness.sequence(),
                        latest: span.earliest.max(witness.id.published),
                        witness,
                        ..span
                    };
                    core.ledger.session()
                })
            }
            Answer::Gone if shared => {
                // What it shares with a newer one is the newer one's.
                for (first, last) in unshared(&core.ledger.coverage, &span) {
                    let Some(alive) = newest_alive(&*core.observer, first, last).await? else { continue };
                    if span.knows(alive.id.published) {
                        core.ledger.coverage.insert(Span { first, last: alive.sequence(), witness: alive, ..span }, 0);
                        claimed.joined += 1;
                    } else {
                        claimed.history += 1;
                    }
                }
                continue;
            }
            Answer::Gone => {
                let alive = newest_alive(&*core.observer, span.first, span.last).await?;
                alive.is_none_or(|alive| span.knows(alive.id.published)).then_some(0)
            }
        };
        if let Some(session) = stands {
            core.ledger.coverage.insert(span, session);
            if session > 0 {
                // One that is gone may be of a life that ended since.
                core.ledger.witnesses.extend([span.witness]);
            }
            claimed.joined += 1;
        } else {
            claimed.history += 1;
        }
    }
    Ok(claimed)
}

/// The parts of a span that no other span holds, lowest first.
fn unshared(coverage: &Coverage, span: &Span) -> Vec<(u64, u64)> {
    let mut parts = Vec::new();
    let mut at = span.first;
    while at <= span.last {
        let Some(other) = coverage.at_or_above(at).filter(|other| other.first <= span.last) else {
            parts.push((at, span.last));
            break;
        };
        if at < other.first {
            parts.push((at, other.first - 1));
        }
        let Some(above) = other.last.checked_add(1) else { break };
        at = above;
    }
    parts
}

/// Where a span of a claim does not stand as a whole: its newest record that does. `end`: of the stream, where it is known.
async fn lower_part<S: Sink>(mut sources: Sources<'_, S>, span: &Span, end: u64) -> Result<Option<Witness>, Unsettled> {
    // What stands lowest tells whether it can be of the same life at all.
    let lowest = sources.observer.next(span.first).await?;
    if !lowest.is_some_and(|lowest| lowest.sequence() < span.last && span.knows(lowest.id.published)) {
        return Ok(None);
    }
    let high = span.last.saturating_sub(1).min(end);
    sources.newest_standing(span, &Witnesses::default(), span.first..=high).await
}

impl Core {
    /// What lies at or above this sequence is not archived, whatever the checkpoint says.
    async fn forget_from(&mut self, from: u64) -> Result<(), ObserveError> {
        while let Some(index) = self.ledger.coverage.len().checked_sub(1) {
            let Some(span) = self.ledger.coverage.get(index).copied().filter(|span| span.last >= from) else { break };
            // What stays must end at a record that stands; the stream is asked for the newest one below.
            let below = if span.first < from {
                let alive = newest_alive(&*self.observer, span.first, from - 1).await?;
                // The stream may have lost its tail since it was verified: what is not ours becomes no witness.
                alive
                    .filter(|alive| span.knows(alive.id.published))
                    .or_else(|| self.ledger.witnesses.newest_in(span.first, from))
            } else {
                None
            };
            if let Some(witness) = below {
                self.ledger.coverage.truncate(index, witness, witness.id.published);
                break;
            }
            self.ledger.coverage.remove(index);
        }
        // What lies below the origin was never archived: its witness tells which stream archiving began in.
        let origin = self.origin;
        self.ledger.witnesses.retain(|witness| witness.sequence() < from.max(origin));
        Ok(())
    }

    pub(super) async fn replay_from<S: Sink>(&mut self, sequence: u64, sink: &mut S) -> Result<Permits, GuardError> {
        let mut fork = None;
        match verify(&*self.observer, &self.ledger, Scope::All, self.view.acked_are_removed).await {
            Err(error) => return self.unknown(error),
            Ok(Verdict::Fork(evidence)) => {
                // The wish is for what the fork leaves of the archive.
                let forked = self.fork(evidence, sink).await?;
                if forked.unknown.is_some() {
                    return Ok(forked);
                }
                fork = forked.fork;
            }
            Ok(Verdict::Stands(stands)) => self.saw(&stands),
        }
        let last = self.ledger.coverage.last().map_or(0, |span| span.last);
        if let Err(error) = self.forget_from(sequence).await {
            return self.unknown(error);
        }
        self.wanted(sequence, last);
        let to = self.floor().saturating_add(1);
        self.move_pending = Some(to);
        events::replay_wanted(&self.source, sequence, last);
        events::move_required(&self.source, to);
        self.save().await?;
        Ok(Permits { fork, move_to: Some(to), floor: self.floor(), ..Permits::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::RecordId;

    #[test]
    fn what_no_other_span_holds_lies_below_between_and_above_them() {
        let span = |first, last| Span::of(first, Witness { id: RecordId::new(last, 1), digest: 0 });
        let mut coverage = Coverage::default();
        coverage.insert(span(4, 5), 1);
        coverage.insert(span(8, 8), 1);
        let of = |coverage: &Coverage, first, last| unshared(coverage, &span(first, last));
        assert_eq!(of(&coverage, 1, 10), [(1, 3), (6, 7), (9, 10)]);
        assert_eq!(of(&coverage, 5, 8), [(6, 7)]);
        assert_eq!(of(&coverage, 4, 5), []);
        assert_eq!(of(&coverage, 9, 10), [(9, 10)]);
        coverage.insert(span(12, u64::MAX), 1);
        assert_eq!(of(&coverage, 9, u64::MAX), [(9, 11)], "it ends");
    }
}
