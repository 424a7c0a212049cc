//! How much of a flush a fork left standing: between two witnesses only the sink knows the records one by one.

use std::ops::RangeInclusive;

use super::verify::descend;
use crate::coverage::{Coverage, Span};
use crate::error::{GuardError, OpenError, SinkFailure};
use crate::fault::{self, Fault};
use crate::observer::{ObserveError, Observer, Reading};
use crate::record::RecordId;
use crate::sink::Sink;
use crate::source::Source;
use crate::trust::{Cut, Descent};
use crate::witness::{Witness, Witnesses};

/// How often the stream is asked about one span at most. Where messages are gone, more may be needed than a bisection takes.
const READS: usize = 128;
/// In how many spans a cut is looked for.
const SPANS: usize = 4;

/// Why the question could not be settled.
#[derive(Debug)]
pub(super) enum Unsettled {
    /// The stream could not be asked.
    Observe(ObserveError),
    /// The sink failed.
    Sink(SinkFailure),
}

impl From<ObserveError> for Unsettled {
    fn from(error: ObserveError) -> Self {
        Self::Observe(error)
    }
}

impl Unsettled {
    /// A sink's failure ends the guard; a stream that cannot be asked is for the caller.
    pub(super) fn of_stream(self) -> Result<ObserveError, GuardError> {
        match self {
            Self::Observe(error) => Ok(error),
            Self::Sink(source) => Err(GuardError::Sink { action: "say which records it holds", source }),
        }
    }
}

impl From<Unsettled> for OpenError {
    fn from(unsettled: Unsettled) -> Self {
        match unsettled {
            Unsettled::Observe(error) => Self::Observe(error),
            Unsettled::Sink(error) => Self::Sink(error),
        }
    }
}

/// Whom to ask.
pub(super) struct Sources<'a, S> {
    pub(super) observer: &'a dyn Observer,
    pub(super) sink: &'a mut S,
    pub(super) source: &'a Source,
}

impl<S: Sink> Sources<'_, S> {
    /// The way down through the witnesses; where that cuts, up again as far as the records between two of them stand.
    pub(super) async fn descend(
        &mut self,
        coverage: Coverage,
        mut witnesses: Witnesses,
        foreign: Vec<u64>,
        last: Option<u64>,
    ) -> Result<Cut, Unsettled> {
        let descent = |witnesses| Descent::new(coverage.clone(), witnesses, foreign.clone(), last);
        let cut = descend(self.observer, descent(witnesses.clone())).await?;
        let low = cut.equal.map_or(0, |witness| witness.sequence()).saturating_add(1);
        if !cut.changed || low >= cut.ceiling {
            return Ok(cut);
        }
        // An answer that says above the end is slow.
        let high = (cut.ceiling - 1).min(self.observer.stream().await?.last);
        let spans = coverage.spans().rev().filter(|span| span.first <= high && span.last >= low);
        // The last record of each span has been asked about: it is the highest of these that was cut. Where messages are
        // gone it may be one below.
        for span in spans.take(SPANS) {
            let range = span.first.max(low)..=span.last.min(high);
            if let Some(standing) = self.newest_standing(span, &witnesses, range).await? {
                witnesses.insert(standing);
                return Ok(descend(self.observer, descent(witnesses)).await?);
            }
        }
        Ok(cut)
    }

    /// The newest record in this part of a span that the sink holds, and that stands unchanged. By bisection: what stands
    /// below one that stands, stands too.
    pub(super) async fn newest_standing(
        &mut self,
        span: &Span,
        witnesses: &Witnesses,
        range: RangeInclusive<u64>,
    ) -> Result<Option<Witness>, Unsettled> {
        let mut newest = None;
        let mut reads = 0;
        let (mut low, mut high) = range.into_inner();
        while low <= high {
            let before = (low, high);
            let named = self.sink.records_in(self.source, low..=high).await;
            let mut named = named.map_err(|error| Unsettled::Sink(Box::new(error)))?;
            let ours = |id: &RecordId| span.knows(id.published) && witnesses.agree(*id);
            named.retain(|id| (low..=high).contains(&id.sequence) && ours(id));
            let mut named = of_one_life(named);
            let (mut from, mut to) = (0, named.len());
            while from < to && reads < READS {
                reads += 1;
                let middle = from + (to - from) / 2;
                let Some(id) = named.get(middle).copied() else { break };
                match self.observer.read(id.sequence).await? {
                    Reading::Message(found) if found.id == id || fault::is(Fault::SinkBelievedUnread) => {
                        newest = Some(found);
                        (from, low) = (middle + 1, id.sequence.saturating_add(1));
                    }
                    Reading::Message(_) | Reading::Above => (to, high) = (middle, id.sequence.saturating_sub(1)),
                    // It says nothing.
                    Reading::Gone => {
                        named.remove(middle);
                        to -= 1;
                    }
                }
            }
            if (low, high) == before || reads >= READS {
                break;
            }
        }
        Ok(newest)
    }
}

/// In order, without those that may be of another life than the coverage means. Where the sink holds two records of one
/// sequence, it is not known which. And what is older than a record below it was left behind by an earlier fork: a bisection
/// must not take it for the end of what stands.
fn of_one_life(mut ids: Vec<RecordId>) -> Vec<RecordId> {
    ids.sort_unstable();
    ids.dedup();
    let mut newest = i64::MIN;
    let mut left = Vec::with_capacity(ids.len());
    for same in ids.chunk_by(|a, b| a.sequence == b.sequence) {
        if let [one] = same
            && one.published >= newest
        {
            left.push(*one);
        }
        newest = same.iter().fold(newest, |newest, id| newest.max(id.published));
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory_stream::MemoryStream;
    use crate::sim::now;
    use crate::{Durable, Flush, Record, StoreError, Written};

    /// Names these, whatever it is asked.
    struct Names(Vec<RecordId>);

    impl Sink for Names {
        type Error = StoreError;
        async fn write(&mut self, _: Record) -> Result<Written, StoreError> {
            Ok(Written::Accepted)
        }
        async fn flush(&mut self, _: Flush<'_>) -> Result<Durable, StoreError> {
            Ok(Durable::All)
        }
        async fn records_in(&mut self, _: &Source, _: RangeInclusive<u64>) -> Result<Vec<RecordId>, StoreError> {
            Ok(self.0.clone())
        }
    }

    /// What is found of ten messages, if the sink names these and the span knows the times of the first six.
    fn found(named: impl Fn(RecordId) -> Option<RecordId>) -> Option<u64> {
        let stream = MemoryStream::new();
        let ids: Vec<RecordId> = (0..10).map(|_| stream.publish("s", "x").id()).collect();
        let mut span = Span::of(1, Witness { id: ids[5], digest: 0 });
        (span.earliest, span.last) = (ids[0].published, 20);
        let mut sink = Names(ids.into_iter().filter_map(named).collect());
        let mut sources = Sources { observer: &stream, sink: &mut sink, source: &Source::new("S") };
        now(sources.newest_standing(&span, &Witnesses::default(), 2..=9)).unwrap().map(|witness| witness.sequence())
    }

    #[test]
    fn what_the_span_does_not_know_and_what_was_not_asked_for_does_not_count() {
        assert_eq!(found(Some), Some(6));
        assert_eq!(found(|id| (id.sequence > 6).then_some(id)), None);
        assert_eq!(found(|id| (id.sequence == 1).then_some(id)), None);
    }

    #[test]
    fn what_the_stream_does_not_hold_does_not_count() {
        assert_eq!(found(|id| Some(RecordId::new(id.sequence, id.published - 1))), None);
        let from_four = |id: RecordId| if id.sequence < 4 { id } else { RecordId::new(id.sequence, id.published - 1) };
        assert_eq!(found(|id| Some(from_four(id))), Some(3));
    }

    #[test]
    fn what_an_earlier_fork_left_behind_is_left_out() {
        let ids = [(1, 10), (2, 20), (3, 90), (3, 30), (4, 40), (5, 95), (6, 50), (7, 95)];
        let ids = ids.map(|(sequence, published)| RecordId::new(sequence, published));
        let left: Vec<u64> = of_one_life(ids.to_vec()).into_iter().map(|id| id.sequence).collect();
        assert_eq!(left, [1, 2, 5, 7], "two lives at 3; 4 and 6 are older than what lies below them");
    }
}
