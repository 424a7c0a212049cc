//! Which part of the coverage still stands: the decision after a fork and at every opening. Pure: it says what to ask,
//! is told the answers, and ends with what is left.
//!
//! A stream is a log. If it still holds message n unchanged, it holds everything below n unchanged, for a fork below n
//! would have taken n. So the way goes down from the top to the first record that stands unchanged.

use crate::coverage::{Coverage, Span};
use crate::fault::{self, Fault};
use crate::observer::Reading;
use crate::witness::{Witness, Witnesses};

/// A question about the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    /// What stands at this sequence?
    Read(u64),
    /// Which is the newest message of the source in `low..=high`?
    NewestAlive { low: u64, high: u64 },
}

/// The answer to an [`Ask`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    Reading(Reading),
    Alive(Option<Witness>),
}

/// How a reading compares with what was archived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Equal,
    Other,
    Above,
    Gone,
}

impl Answer {
    pub(crate) fn of(reading: Reading, witness: Witness) -> Self {
        match reading {
            Reading::Message(found) if found == witness => Self::Equal,
            Reading::Message(_) => Self::Other,
            Reading::Above => Self::Above,
            Reading::Gone if fault::is(Fault::GoneIsEqual) => Self::Equal,
            Reading::Gone => Self::Gone,
        }
    }

    pub(crate) const fn is_fork(self) -> bool {
        matches!(self, Self::Other | Self::Above)
    }
}

/// What is left after a descent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    pub(crate) coverage: Coverage,
    pub(crate) witnesses: Witnesses,
    /// The highest archived record that stands unchanged.
    pub(crate) equal: Option<Witness>,
    /// Whether anything was taken away.
    pub(crate) changed: bool,
    /// Spans that hold only because nothing in them contradicts: their witness is gone from the stream.
    pub(crate) by_time: u32,
    /// The newest archived record that does not stand, and what stands in its place, if anything does.
    pub(crate) against: Option<(Witness, Option<Witness>)>,
    /// The lowest sequence above [`equal`](Self::equal) at which something is known not to stand.
    pub(crate) ceiling: u64,
}

enum State {
    /// Read the candidate witness, with what follows if it is gone.
    Read(Witness),
    /// The candidate is gone: is anything alive at or below it, in its span?
    Alive(Witness),
    Done,
}

/// The way down through the witnesses.
pub(crate) struct Descent {
    cut: Cut,
    /// Sequences at which a message stands that is not the one archived there.
    foreign: Vec<u64>,
    /// The stream's last sequence, where it was asked twice.
    last: Option<u64>,
    /// The span at hand is the one below this position.
    above: usize,
    /// What is left of the span at hand must end below this.
    limit: u64,
    state: State,
}

impl Descent {
    /// Begins at the top. `foreign` are sequences inside spans at which another message stands; `last` is the stream's
    /// last sequence if that is certain, which spares asking for what lies above it.
    pub(crate) fn new(coverage: Coverage, witnesses: Witnesses, mut foreign: Vec<u64>, last: Option<u64>) -> Self {
        foreign.sort_unstable();
        let above = coverage.len();
        let cut =
            Cut { coverage, witnesses, equal: None, changed: false, by_time: 0, against: None, ceiling: u64::MAX };
        let mut descent = Self { cut, foreign, last, above, limit: u64::MAX, state: State::Done };
        descent.enter();
        descent
    }

    /// The next question; `None` when the descent is over.
    pub(crate) fn ask(&self) -> Option<Ask> {
        match self.state {
            State::Read(witness) => Some(Ask::Read(witness.sequence())),
            State::Alive(witness) => {
                let low = self.span().map_or(1, |span| span.first);
                Some(Ask::NewestAlive { low, high: self.high(witness) })
            }
            State::Done => None,
        }
    }

    /// Takes the answer to the question at hand. An answer of the wrong kind is taken for doubt: the candidate is given up.
    pub(crate) fn tell(&mut self, told: Told) {
        match (&self.state, told) {
            (&State::Read(witness), Told::Reading(reading)) => match Answer::of(reading, witness) {
                Answer::Equal => {
                    self.end_at(witness, witness.id.published, witness.sequence());
                    self.stands(witness);
                }
                Answer::Gone => self.state = State::Alive(witness),
                Answer::Other | Answer::Above => {
                    let found = if let Reading::Message(found) = reading { Some(found) } else { None };
                    self.contradicted(witness, found);
                    self.lower(witness);
                }
            },
            (&State::Alive(witness), Told::Alive(alive)) if self.span().is_none() => {
                // Below the archive the times of what was there are not known, but that it was published before.
                if let Some(later) = alive.filter(|alive| alive.id.published > witness.id.published) {
                    self.contradicted(witness, Some(later));
                }
                self.lower(witness);
            }
            (&State::Alive(witness), Told::Alive(alive)) => {
                let knows = |found: &Witness| self.span().is_some_and(|span| span.knows(found.id.published));
                match alive {
                    None => self.keep(witness, witness.id.published),
                    Some(found) if self.cut.witnesses.holds(&found) => {
                        // All between the two is gone: what ends at the candidate anyway may as well end at the record that
                        // stands.
                        self.end_at(found, found.id.published, witness.sequence());
                        self.stands(found);
                    }
                    Some(found) if knows(&found) => {
                        self.cut.by_time += 1;
                        self.keep(witness, found.id.published);
                    }
                    Some(found) => {
                        self.cut.against.get_or_insert((witness, Some(found)));
                        self.limit(found.sequence());
                        self.candidate();
                    }
                }
            }
            (&(State::Read(witness) | State::Alive(witness)), _) => self.lower(witness),
            (State::Done, _) => {}
        }
    }

    /// What is left, once [`ask`](Self::ask) has no more questions.
    pub(crate) fn finish(mut self) -> Cut {
        let Cut { coverage, witnesses, equal, changed, .. } = &mut self.cut;
        let proven = equal.map_or(0, |witness| witness.sequence());
        // What is gone and not contradicted may tell more another time.
        if *changed {
            witnesses.retain(|witness| witness.sequence() <= proven || coverage.find(witness.sequence()).is_some());
        }
        self.cut
    }

    /// The stream's last sequence has become known.
    pub(crate) fn ends_at(&mut self, last: u64) {
        self.last = Some(last);
        if let State::Read(witness) = self.state
            && witness.sequence() > last
        {
            self.candidate();
        }
    }

    fn span(&self) -> Option<&Span> {
        self.above.checked_sub(1).and_then(|index| self.cut.coverage.get(index))
    }

    /// The highest sequence that may be left of the span at hand.
    fn high(&self, witness: Witness) -> u64 {
        let last = self.span().map_or(witness.sequence(), |span| span.last);
        last.min(self.limit.saturating_sub(1))
    }

    /// Turns to the span below `above`, or past the last one to the witnesses that belong to no span.
    fn enter(&mut self) {
        self.limit = u64::MAX;
        if let Some(span) = self.span() {
            let (first, last) = (span.first, span.last);
            let at = self.foreign.partition_point(|sequence| *sequence < first);
            if let Some(sequence) = self.foreign.get(at).copied().filter(|sequence| *sequence <= last) {
                self.limit(sequence);
            }
        } else if self.cut.equal.is_some() {
            self.state = State::Done;
            return;
        }
        self.candidate();
    }

    /// Chooses the newest witness of the span at hand below the limit.
    fn candidate(&mut self) {
        loop {
            let next = match self.span() {
                Some(span) if self.limit > span.last => Some(span.witness),
                Some(span) => self.cut.witnesses.newest_in(span.first, self.limit),
                None => {
                    let floor = self.cut.coverage.get(0).map_or(u64::MAX, |span| span.first);
                    self.cut.witnesses.newest_in(0, self.limit.min(floor))
                }
            };
            match next {
                Some(witness) if self.last.is_some_and(|last| witness.sequence() > last) => {
                    self.contradicted(witness, None);
                    self.limit(witness.sequence());
                }
                Some(witness) => {
                    self.state = State::Read(witness);
                    return;
                }
                None if self.above == 0 => {
                    self.state = State::Done;
                    return;
                }
                None => {
                    self.cut.coverage.remove(self.above - 1);
                    self.cut.changed = true;
                    self.above -= 1;
                    return self.enter();
                }
            }
        }
    }

    /// A candidate does not stand. Even where it belongs to no span: it told which stream archiving began in.
    fn contradicted(&mut self, witness: Witness, found: Option<Witness>) {
        self.cut.against.get_or_insert((witness, found));
        self.cut.changed = true;
    }

    fn lower(&mut self, witness: Witness) {
        self.limit(witness.sequence());
        self.candidate();
    }

    /// What is left of the span at hand must end below this sequence.
    fn limit(&mut self, sequence: u64) {
        self.limit = self.limit.min(sequence);
        if self.cut.equal.is_none() {
            self.cut.ceiling = self.cut.ceiling.min(sequence);
        }
    }

    /// Ends the span at hand at this witness, if it reaches above `above`. `latest`: the time of the newest record in it that
    /// is known to stand.
    fn end_at(&mut self, witness: Witness, latest: i64, above: u64) {
        if let (Some(index), Some(span)) = (self.above.checked_sub(1), self.span())
            && span.last > above
        {
            self.cut.coverage.truncate(index, witness, latest);
            self.cut.changed = true;
        }
    }

    /// The witness stands unchanged, and so does all below.
    fn stands(&mut self, witness: Witness) {
        self.cut.equal.get_or_insert(witness);
        // Nothing below can be of another life, unless a foreign message was seen there.
        loop {
            self.above = self.above.saturating_sub(1);
            let below = self.span().map(|span| (span.first, span.last));
            match below {
                None => {
                    self.state = State::Done;
                    return;
                }
                Some((first, last)) if self.foreign.iter().any(|at| (first..=last).contains(at)) => {
                    return self.enter();
                }
                Some(_) => {}
            }
        }
    }

    /// The candidate is gone and nothing contradicts the span up to it.
    fn keep(&mut self, witness: Witness, latest: i64) {
        self.end_at(witness, latest, witness.sequence());
        self.above = self.above.saturating_sub(1);
        self.enter();
    }
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::RecordId;

    fn witness(sequence: u64, published: i64) -> Witness {
        Witness { id: RecordId::new(sequence, published), digest: 0 }
    }

    /// A span of two lives: 4 is left of an old stream, 1 and 10 are of the one that took its name. All but 1 is gone.
    fn after_the_loss(kept: &[Witness]) -> Cut {
        let (one, four, ten) = (witness(1, 100), witness(4, 40), witness(10, 110));
        let mut coverage = Coverage::default();
        for record in [one, four, ten] {
            let first = if record == four { 2 } else { record.sequence() };
            coverage.insert(Span::of(first, record), 1);
        }
        coverage.close_gap(0);
        let mut witnesses = Witnesses::default();
        witnesses.extend(kept.iter().copied());
        let mut descent = Descent::new(coverage, witnesses, Vec::new(), Some(4));
        while let Some(ask) = descent.ask() {
            descent.tell(match ask {
                Ask::Read(1) => Told::Reading(Reading::Message(one)),
                Ask::Read(_) => Told::Reading(Reading::Gone),
                Ask::NewestAlive { low: 1, .. } => Told::Alive(Some(one)),
                Ask::NewestAlive { .. } => Told::Alive(None),
            });
        }
        descent.finish()
    }

    #[test]
    fn a_record_that_stands_below_one_that_is_gone_ends_the_span() {
        let (one, four, ten) = (witness(1, 100), witness(4, 40), witness(10, 110));
        let cut = after_the_loss(&[one, four, ten]);
        assert_eq!((cut.equal, cut.by_time, cut.changed), (Some(one), 0, true));
        let spans: Vec<(u64, u64, bool)> =
            cut.coverage.spans().map(|span| (span.first, span.last, span.knows(100))).collect();
        assert_eq!(spans, [(1, 1, true)]);
    }

    #[test]
    fn a_cut_does_not_leave_out_the_time_of_a_record_by_which_it_holds() {
        let (four, ten) = (witness(4, 40), witness(10, 110));
        let cut = after_the_loss(&[four, ten]);
        assert_eq!((cut.equal, cut.by_time, cut.changed), (None, 1, true));
        let spans: Vec<_> =
            cut.coverage.spans().map(|span| (span.first, span.last, span.knows(100), span.knows(101))).collect();
        assert_eq!(spans, [(1, 4, true, false)]);
    }
    #[test]
    fn another_message_or_a_lower_end_is_a_fork() {
        let forks = [Answer::Equal, Answer::Other, Answer::Above, Answer::Gone].map(Answer::is_fork);
        assert_eq!(forks, [false, true, true, false]);
    }
    #[test]
    fn what_lies_below_a_record_that_stands_is_not_asked_about() {
        for (foreign, left) in [(Vec::new(), vec![1, 5]), (vec![1], vec![5])] {
            let mut coverage = Coverage::default();
            for record in [witness(1, 10), witness(5, 50)] {
                coverage.insert(Span::of(record.sequence(), record), 1);
            }
            let mut descent = Descent::new(coverage, Witnesses::default(), foreign, Some(9));
            assert_eq!(descent.ask(), Some(Ask::Read(5)));
            descent.tell(Told::Reading(Reading::Message(witness(5, 50))));
            assert_eq!(descent.ask(), None);
            let cut = descent.finish();
            assert_eq!((cut.equal, cut.changed), (Some(witness(5, 50)), left.len() < 2));
            assert_eq!(cut.coverage.spans().map(|span| span.last).collect::<Vec<_>>(), left);
        }
    }
}
