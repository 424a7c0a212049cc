//! Reads back from the stream what a flush, a session start or an opening relies on.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};

use crate::fault::{self, Fault};
use crate::ledger::{Entry, Ledger};
use crate::observer::{ObserveError, Observer, Reading};
use crate::record::RecordId;
use crate::trust::{Answer, Ask, Cut, Descent, Told};
use crate::witness::Witness;

/// How many requests are on their way at a time.
const PIPELINE: usize = 32;

/// What the stream said.
#[derive(Debug)]
pub(super) enum Verdict {
    /// All that was asked about stands.
    Stands(Stands),
    /// Something that was archived or delivered is not in the stream.
    Fork(Evidence),
}

/// What was seen unchanged.
#[derive(Debug, Default)]
pub(super) struct Stands {
    /// Sequences of witnesses.
    pub(super) equal: BTreeSet<u64>,
    /// Segments, each with the highest sequence of it that was.
    pub(super) segments: BTreeMap<u32, u64>,
    /// Spans that hold only by their times: last sequences.
    pub(super) by_time: Vec<u64>,
    /// Records that stand in a span by their sequence, are new, and of the same life.
    pub(super) returned: BTreeSet<RecordId>,
    pub(super) requests: u64,
}

/// Why it is a fork.
#[derive(Debug, Default)]
pub(super) struct Evidence {
    /// Sequences inside spans at which another message stands.
    pub(super) foreign: Vec<u64>,
    /// Whether a sequence was found to lie above the stream's last.
    pub(super) above: bool,
}

/// Which pending records are asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// What a flush made durable.
    Flushed,
    /// All, also what is not durable yet.
    All,
}

impl Scope {
    pub(super) fn takes(self, entry: &Entry) -> bool {
        self == Self::All || entry.stage.is_done()
    }
}

/// Reads several sequences, pipelined, in order.
pub(super) async fn read_all(
    observer: &dyn Observer,
    witnesses: &[Witness],
) -> Result<Vec<(Witness, Reading)>, ObserveError> {
    let reads: Vec<_> = witnesses
        .iter()
        .map(|&witness| {
            let reading = observer.read(witness.sequence());
            async move { reading.await.map(|reading| (witness, reading)) }
        })
        .collect();
    stream::iter(reads).buffered(PIPELINE).try_collect().await
}

/// The newest message of the source in `low..=high`, by bisection.
pub(super) async fn newest_alive(
    observer: &dyn Observer,
    mut low: u64,
    mut high: u64,
) -> Result<Option<Witness>, ObserveError> {
    let mut found = None;
    while low <= high {
        // The first question is about the lowest, so that an empty range costs one request.
        let at = if found.is_none() { low } else { low + (high - low) / 2 };
        match observer.next(at).await?.filter(|alive| alive.sequence() <= high) {
            Some(alive) if alive.sequence() >= at => {
                low = alive.sequence().saturating_add(1);
                found = Some(alive);
            }
            _ if found.is_none() || at == 0 => return Ok(found),
            _ => high = at - 1,
        }
    }
    Ok(found)
}

/// The way down, executed.
pub(super) async fn descend(observer: &dyn Observer, mut descent: Descent) -> Result<Cut, ObserveError> {
    while let Some(ask) = descent.ask() {
        let told = match ask {
            Ask::Read(sequence) => Told::Reading(observer.read(sequence).await?),
            Ask::NewestAlive { low, high } => Told::Alive(newest_alive(observer, low, high).await?),
        };
        descent.tell(told);
        if told == Told::Reading(Reading::Above) {
            // Said twice, and slow to say: what else lies above the end needs no question.
            descent.ends_at(observer.stream().await?.last);
        }
    }
    Ok(descent.finish())
}

/// Everything a flush or a session start asks. `removed`: acked messages leave the stream.
pub(super) async fn verify(
    observer: &dyn Observer,
    ledger: &Ledger,
    scope: Scope,
    removed: bool,
) -> Result<Verdict, ObserveError> {
    let mut stands = Stands::default();
    let mut evidence = Evidence::default();
    let mut forked = false;

    // One pipelined round of what is always read: the newest witness, the spans that skips rely on, the newest record of
    // each segment.
    let unread = scope == Scope::Flushed && fault::is(Fault::PreviousWitnessNotRead);
    let previous = ledger.newest_witness().filter(|_| !unread);
    let seam = ledger.crosses_seam(|entry| scope.takes(entry));
    let spans = if fault::is(Fault::WitnessBelowForSkip) { Vec::new() } else { ledger.spans_skipped() };
    let newest = newest_of_segments(ledger, scope);
    let mut asked: Vec<Witness> = previous.into_iter().collect();
    asked.extend(spans.iter().map(|span| span.witness));
    asked.extend(newest.iter().map(|entry| entry.witness));
    let answers = read_all(observer, &asked).await?;
    stands.requests += asked.len() as u64;
    if fault::is(Fault::GoneIsUnknown) && answers.iter().any(|(_, reading)| *reading == Reading::Gone) {
        return Err(ObserveError::Unavailable { reason: String::new() });
    }
    let mut answers = answers.into_iter();

    for (witness, reading) in answers.by_ref().take(usize::from(previous.is_some())) {
        match Answer::of(reading, witness) {
            Answer::Equal => _ = stands.equal.insert(witness.sequence()),
            // We acked it. Over a seam the stream may have lost its tail all the same.
            Answer::Gone if removed && scope == Scope::Flushed && !seam => {}
            Answer::Gone => forked |= !span_holds(observer, ledger, witness, &mut stands, &mut evidence).await?,
            answer => forked |= note(answer, witness, &mut evidence),
        }
    }
    for (witness, reading) in answers.by_ref().take(spans.len()) {
        match Answer::of(reading, witness) {
            Answer::Equal => _ = stands.equal.insert(witness.sequence()),
            Answer::Gone => forked |= !span_holds(observer, ledger, witness, &mut stands, &mut evidence).await?,
            answer => forked |= note(answer, witness, &mut evidence),
        }
    }
    for (entry, (witness, reading)) in newest.iter().zip(answers) {
        match Answer::of(reading, witness) {
            Answer::Equal => _ = stands.segments.insert(entry.segment, witness.sequence()),
            Answer::Gone => {
                forked |= !segment_holds(observer, ledger, scope, entry, &mut stands, &mut evidence).await?;
            }
            answer => forked |= note(answer, witness, &mut evidence),
        }
    }
    // The lowest record that stands and is new although a span contains its sequence: that span belongs to another life.
    let ignored = fault::is(Fault::ForeignTimesIgnored);
    let inside = ledger.pending().iter().filter(|entry| entry.inside && scope.takes(entry) && !ignored);
    let inside: Vec<Witness> = inside.map(|entry| entry.witness).collect();
    stands.requests += inside.len() as u64;
    for (witness, reading) in read_all(observer, &inside).await? {
        match Answer::of(reading, witness) {
            Answer::Gone => continue,
            Answer::Equal if came_back(observer, ledger, witness, &mut stands).await? => continue,
            Answer::Equal => evidence.foreign.push(witness.sequence()),
            answer => _ = note(answer, witness, &mut evidence),
        }
        forked = true;
        break;
    }
    Ok(if forked && !fault::is(Fault::TrustCreated) { Verdict::Fork(evidence) } else { Verdict::Stands(stands) })
}

/// Whether a record that is new although a span contains its sequence was only away: where a record above it stands that was
/// archived, everything below is of this life. On a work queue a power cut brings back what was acked.
async fn came_back(
    observer: &dyn Observer,
    ledger: &Ledger,
    record: Witness,
    stands: &mut Stands,
) -> Result<bool, ObserveError> {
    let Some(span) = ledger.coverage.find(record.sequence()) else { return Ok(false) };
    let above = record.sequence().saturating_add(1);
    // One that stands speaks for all below it.
    if stands.equal.range(above..).next().is_none_or(|equal| *equal > span.last) {
        stands.requests += 1;
        let standing = match Answer::of(observer.read(span.last).await?, span.witness) {
            Answer::Equal => span.last,
            Answer::Gone => {
                stands.requests += 1;
                let alive = newest_alive(observer, above, span.last).await?;
                let Some(alive) = alive.filter(|alive| ledger.witnesses.holds(alive)) else { return Ok(false) };
                alive.sequence()
            }
            Answer::Other | Answer::Above => return Ok(false),
        };
        stands.equal.insert(standing);
    }
    stands.returned.insert(record.id);
    Ok(true)
}

/// Notes an answer that says fork.
fn note(answer: Answer, witness: Witness, evidence: &mut Evidence) -> bool {
    evidence.above |= answer == Answer::Above;
    if answer == Answer::Other {
        evidence.foreign.push(witness.sequence());
    }
    answer.is_fork()
}

/// The highest record of each segment, lowest first.
fn newest_of_segments(ledger: &Ledger, scope: Scope) -> Vec<Entry> {
    let mut newest: Vec<Entry> = Vec::new();
    if fault::is(Fault::OnlySavedWitness) {
        return newest;
    }
    let one = fault::is(Fault::OldSessionCovered);
    for entry in ledger.pending().iter().filter(|entry| scope.takes(entry)) {
        match newest.iter_mut().rev().find(|other| other.segment == entry.segment || one) {
            Some(other) => *other = *entry,
            None => newest.push(*entry),
        }
    }
    newest
}

/// The witness of a span is gone: does what is archived up to there hold by its times? False if a foreign message stands
/// in it. Looks below the span as well: where all of it is gone, a fork may have begun further down.
pub(super) async fn span_holds(
    observer: &dyn Observer,
    ledger: &Ledger,
    witness: Witness,
    stands: &mut Stands,
    evidence: &mut Evidence,
) -> Result<bool, ObserveError> {
    let coverage = &ledger.coverage;
    let (Some(lowest), Some(span)) = (coverage.get(0), coverage.find(witness.sequence())) else {
        // A witness of a span that was forgotten: nobody relies on it. While nothing is archived, it tells which stream
        // archiving began in.
        return Ok(!coverage.is_empty() || none_later(observer, witness, stands).await?);
    };
    let mut high = span.last;
    loop {
        stands.requests += 1;
        let Some(alive) = newest_alive(observer, lowest.first, high).await? else { break };
        match coverage.find(alive.sequence()) {
            Some(_) if ledger.witnesses.holds(&alive) => return Ok(true),
            Some(span) if span.knows(alive.id.published) => {
                stands.by_time.push(span.last);
                return Ok(true);
            }
            Some(_) => {
                evidence.foreign.push(alive.sequence());
                return Ok(false);
            }
            // Not archived, which says nothing: on to what is archived below.
            None => match coverage.below(alive.sequence()) {
                Some(below) => high = below.last,
                None => break,
            },
        }
    }
    // Nothing of the archive is left in the stream. The message below its origin tells which stream it began in.
    let Some(witness) = ledger.witnesses.newest_in(0, lowest.first) else { return Ok(true) };
    stands.requests += 1;
    match Answer::of(observer.read(witness.sequence()).await?, witness) {
        Answer::Gone => none_later(observer, witness, stands).await,
        answer => Ok(!note(answer, witness, evidence)),
    }
}

/// Whether no message below a witness that is gone was published after it.
async fn none_later(observer: &dyn Observer, witness: Witness, stands: &mut Stands) -> Result<bool, ObserveError> {
    stands.requests += 1;
    let alive = newest_alive(observer, 1, witness.sequence()).await?;
    Ok(alive.is_none_or(|alive| alive.id.published <= witness.id.published))
}

/// The newest record of a segment is gone, which is safe for itself and says nothing of those below: goes down to the first
/// of them that stands, over what is gone by bisection. False if one was replaced.
async fn segment_holds(
    observer: &dyn Observer,
    ledger: &Ledger,
    scope: Scope,
    newest: &Entry,
    stands: &mut Stands,
    evidence: &mut Evidence,
) -> Result<bool, ObserveError> {
    let members: Vec<Witness> = ledger
        .pending()
        .iter()
        .filter(|entry| entry.segment == newest.segment && scope.takes(entry))
        .map(|entry| entry.witness)
        .collect();
    let Some(lowest) = members.first().map(Witness::sequence) else { return Ok(true) };
    let mut below = newest.witness.sequence();
    loop {
        let Some(high) = below.checked_sub(1).filter(|high| *high >= lowest) else { return Ok(true) };
        stands.requests += 1;
        let Some(alive) = newest_alive(observer, lowest, high).await? else { return Ok(true) };
        let end = members.partition_point(|member| member.sequence() <= alive.sequence());
        let Some(member) = end.checked_sub(1).and_then(|index| members.get(index)) else { return Ok(true) };
        if *member == alive {
            stands.segments.insert(newest.segment, alive.sequence());
            return Ok(true);
        }
        if member.sequence() == alive.sequence() {
            return Ok(false); // another message stands where one of ours was
        }
        // What stands there was not delivered to us: what lies above it is gone, the next one of ours is asked about.
        stands.requests += 1;
        match Answer::of(observer.read(member.sequence()).await?, *member) {
            Answer::Equal => {
                stands.segments.insert(newest.segment, member.sequence());
                return Ok(true);
            }
            Answer::Gone => below = member.sequence(),
            answer => {
                note(answer, *member, evidence);
                return Ok(false);
            }
        }
    }
}
