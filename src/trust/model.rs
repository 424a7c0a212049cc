//! The way down in many small streams: what it leaves is true, and it leaves no less than it must.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::record::RecordId;
use crate::sim::Rng;

fn witness(sequence: u64, published: u64) -> Witness {
    Witness { id: RecordId::new(sequence, i64::try_from(published).unwrap_or(0)), digest: 0 }
}

/// What was archived of sequence `n` in the first life.
fn archived(n: u64) -> Witness {
    witness(n, 10 * n)
}

/// A stream that may have lost its tail.
#[derive(Debug)]
struct World {
    alive: BTreeMap<u64, Witness>,
    last: u64,
    /// From here on messages are of the second life.
    fork: u64,
    coverage: Coverage,
    witnesses: Witnesses,
    foreign: Vec<u64>,
    told_last: bool,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let top = 1 + rng.below(30);
        let fork = if rng.one_in(4) { u64::MAX } else { 1 + rng.below(top + 2) };
        let last = if fork == u64::MAX { top + rng.below(3) } else { fork - 1 + rng.below(top) };
        let message = |n: u64| if n < fork { archived(n) } else { witness(n, 1_000 + 10 * n) };
        let mut alive: BTreeMap<u64, Witness> = (1..=last).map(|n| (n, message(n))).collect();
        let removed = rng.below(6);
        alive.retain(|_, _| rng.below(6) >= removed);

        let mut coverage = Coverage::default();
        let mut seqs = BTreeSet::new();
        let mut at = 1 + rng.below(4);
        while at <= top {
            let end = (at + rng.below(8)).min(top);
            let span = Span { earliest: archived(at).id.published, ..Span::of(at, archived(end)) };
            coverage.insert(span, 1);
            seqs.extend(at..=end);
            at = end + 1 + rng.below(3);
        }
        // Some are left of what is covered no more, at the bottom.
        let keep = 1 + rng.below(4);
        let mut witnesses = Witnesses::default();
        witnesses.extend((1..=top).filter(|_| rng.below(4) < keep).map(archived));
        if rng.one_in(8) {
            for _ in 0..=rng.below(2) {
                _ = coverage.remove(0);
            }
        }
        // Seen when they stood there; some went since. Hardly ever below the fork: a stream that is none does that.
        let everywhere = rng.one_in(10);
        let mut foreign: Vec<u64> = (1..=last).filter(|n| coverage.find(*n).is_some()).collect();
        foreign.retain(|n| (everywhere || *n >= fork) && rng.one_in(3));
        foreign.reverse();
        Self { alive, last, fork, coverage, witnesses, foreign, told_last: rng.one_in(2) }
    }

    fn answer(&self, ask: Ask) -> Told {
        match ask {
            Ask::Read(n) if n > self.last => Told::Reading(Reading::Above),
            Ask::Read(n) => Told::Reading(self.alive.get(&n).map_or(Reading::Gone, |found| Reading::Message(*found))),
            Ask::NewestAlive { low, high } => {
                assert!(low > 0, "no message has that sequence");
                let found = if low <= high { self.alive.range(low..=high).next_back() } else { None };
                Told::Alive(found.map(|(_, found)| *found))
            }
        }
    }

    /// The way down, as it is executed; also what was asked.
    fn descend(&self, coverage: &Coverage, witnesses: &Witnesses, foreign: &[u64]) -> (Cut, Vec<Ask>) {
        let last = self.told_last.then_some(self.last);
        let mut descent = Descent::new(coverage.clone(), witnesses.clone(), foreign.to_vec(), last);
        let mut asked = Vec::new();
        while let Some(ask) = descent.ask() {
            let told = self.answer(ask);
            asked.push(ask);
            descent.tell(told);
            if told == Told::Reading(Reading::Above) {
                assert!(!self.told_last, "above what was known to be the last");
                descent.ends_at(self.last);
            }
            assert!(asked.len() < 200, "no end");
        }
        (descent.finish(), asked)
    }

    fn is_alive(&self, witness: Witness) -> bool {
        self.alive.get(&witness.sequence()) == Some(&witness)
    }
}

fn spans(coverage: &Coverage) -> Vec<Span> {
    coverage.spans().copied().collect()
}

#[test]
fn what_is_left_is_true_and_no_less_than_what_must_be() {
    let (mut cuts, mut by_time, mut nothing) = (0, 0, 0);
    for seed in 0..20_000 {
        let world = World::new(seed);
        let (cut, asked) = world.descend(&world.coverage, &world.witnesses, &world.foreign);
        let context = || format!("seed {seed}: {world:#?}\nleft {cut:#?}\nasked {asked:?}");
        assert!(Coverage::from_spans(spans(&cut.coverage)).is_some(), "{}", context());

        // True: of another life no message stands in what is left.
        for (n, found) in &world.alive {
            let known = cut.coverage.find(*n).is_some();
            assert!(!known || *n < world.fork, "{found:?} passes for archived, {}", context());
        }
        for n in &world.foreign {
            assert!(cut.coverage.find(*n).is_none(), "{n} is foreign, {}", context());
        }
        // No less: a span goes as far as its newest witness that stands.
        for span in world.coverage.spans() {
            let foreign = world.foreign.iter().copied().filter(|n| span.contains(*n)).min();
            let below = foreign.map_or(world.fork, |foreign| foreign.min(world.fork));
            let kept = world.witnesses.iter().chain([&span.witness]).copied();
            let stands = kept.filter(|witness| {
                span.contains(witness.sequence()) && witness.sequence() < below && world.is_alive(*witness)
            });
            let to = if span.last < below { Some(span.last) } else { stands.map(|w| w.sequence()).max() };
            if let Some(to) = to {
                let left = cut.coverage.find(to);
                assert!(left.is_some_and(|left| left.first == span.first), "{span:?} to {to}, {}", context());
            }
            let left = cut.coverage.find(span.first).copied();
            assert!(left.is_none_or(|left| left == *span || left.last < span.last), "{span:?}, {}", context());
        }
        assert!(cut.coverage.spans().all(|span| world.coverage.find(span.first).is_some()), "{}", context());

        // It says what it did.
        let changed = cut.coverage != world.coverage;
        assert!(
            cut.changed || (!changed && cut.against.is_none() && cut.witnesses == world.witnesses),
            "{}",
            context()
        );
        if let Some(equal) = cut.equal {
            assert!(world.is_alive(equal), "{}", context());
            let mut above = cut.coverage.spans().filter(|span| span.first > equal.sequence());
            assert!(above.all(|span| !world.is_alive(span.witness)), "a higher one stands, {}", context());
        } else {
            assert!(cut.coverage.spans().all(|span| !world.is_alive(span.witness)), "{}", context());
        }
        if let Some((lost, found)) = cut.against {
            assert!(!world.is_alive(lost) && found.is_none_or(|found| world.is_alive(found)), "{}", context());
            assert!(world.fork != u64::MAX || !world.foreign.is_empty(), "{}", context());
        }
        let top = world.coverage.last().map(|span| span.witness);
        if let Some(top) = top.filter(|top| top.sequence() > world.last || world.alive.contains_key(&top.sequence()))
            && world.foreign.is_empty()
            && !world.is_alive(top)
        {
            let found = world.alive.get(&top.sequence()).copied();
            assert_eq!((cut.changed, cut.against), (true, Some((top, found))), "{}", context());
        }
        let above = asked.iter().filter(|ask| matches!(ask, Ask::Read(n) if *n > world.last));
        assert!(above.count() <= usize::from(!world.told_last), "asked once more, {}", context());
        if world.fork == u64::MAX && world.foreign.is_empty() {
            assert!(!cut.changed, "nothing happened, {}", context());
        }
        if cut.changed {
            let proven = cut.equal.map_or(0, |equal| equal.sequence());
            let expected =
                |witness: &&Witness| witness.sequence() <= proven || cut.coverage.find(witness.sequence()).is_some();
            assert!(cut.witnesses.iter().eq(world.witnesses.iter().filter(expected)), "{}", context());
        }
        // Once is enough.
        let (again, _) = world.descend(&cut.coverage, &cut.witnesses, &[]);
        assert_eq!(again.coverage, cut.coverage, "{}", context());

        cuts += u32::from(changed);
        by_time += cut.by_time;
        nothing += u32::from(!cut.changed);
    }
    assert!(cuts > 1_000 && by_time > 1_000 && nothing > 1_000, "{cuts} {by_time} {nothing}");
}

#[test]
fn below_the_archive_only_a_later_message_contradicts() {
    for (published, contradicts) in [(49, false), (50, false), (51, true)] {
        let mut witnesses = Witnesses::default();
        witnesses.extend([archived(3), archived(5)]);
        let mut descent = Descent::new(Coverage::default(), witnesses, Vec::new(), None);
        descent.tell(Told::Reading(Reading::Gone));
        assert_eq!(descent.ask(), Some(Ask::NewestAlive { low: 1, high: 5 }));
        let found = witness(4, published);
        descent.tell(Told::Alive(Some(found)));
        assert_eq!(descent.ask(), Some(Ask::Read(3)));
        descent.tell(Told::Reading(Reading::Message(archived(3))));
        assert_eq!(descent.ask(), None);
        let cut = descent.finish();
        assert_eq!((cut.changed, cut.equal), (contradicts, Some(archived(3))));
        assert_eq!(cut.against, contradicts.then_some((archived(5), Some(found))));
        assert_eq!(cut.witnesses.iter().len(), if contradicts { 1 } else { 2 });
    }
}
