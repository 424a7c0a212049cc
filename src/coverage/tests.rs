//! Spans by example, and against a model that looks at every span each time.

use super::*;
use crate::sim::Rng;

fn witness(sequence: u64) -> Witness {
    Witness { id: RecordId::new(sequence, i64::try_from(sequence).unwrap_or(0) * 10), digest: 0 }
}

fn bounds(coverage: &Coverage) -> Vec<(u64, u64)> {
    coverage.spans().map(|span| (span.first, span.last)).collect()
}

#[test]
fn adjacent_records_of_one_session_become_one_span_in_any_order() {
    for order in [[1, 2, 3], [3, 2, 1], [1, 3, 2], [2, 3, 1]] {
        let mut coverage = Coverage::default();
        for sequence in order {
            coverage.insert(Span::of(sequence, witness(sequence)), 1);
        }
        assert_eq!(bounds(&coverage), [(1, 3)], "{order:?}");
        assert_eq!(coverage.last().map(|span| span.witness), Some(witness(3)));
        assert_eq!(coverage.last().map(|span| (span.earliest, span.latest)), Some((10, 30)));
    }
}

#[test]
fn adjacent_records_of_two_sessions_stay_apart_until_the_lower_one_is_seen_again() {
    let mut coverage = Coverage::default();
    coverage.insert(Span::of(1, witness(1)), 1);
    coverage.insert(Span::of(2, witness(2)), 2);
    assert_eq!(bounds(&coverage), [(1, 1), (2, 2)]);
    coverage.saw(2, 3);
    coverage.insert(Span::of(3, witness(3)), 3);
    assert_eq!(bounds(&coverage), [(1, 1), (2, 3)]);
}

#[test]
fn a_chain_reaches_down_to_its_predecessor() {
    let mut coverage = Coverage::default();
    coverage.insert(Span::of(2, witness(2)), 1);
    coverage.insert(Span::of(3, witness(9)), 1);
    assert_eq!(bounds(&coverage), [(2, 9)]);
    assert_eq!(coverage.floor(2), 9);
    assert_eq!(coverage.floor(1), 0);
    assert_eq!(coverage.floor(20), 19);
}

#[test]
fn the_limit_forgets_small_spans_but_neither_the_first_nor_the_last() {
    let mut coverage = Coverage::default();
    for sequence in (2..=60).step_by(2) {
        coverage.insert(Span::of(sequence, witness(sequence)), 1);
    }
    coverage.insert(Span::of(101, witness(200)), 1);
    coverage.insert(Span::of(300, witness(300)), 1);
    let (count, low, high) = coverage.bound(16, 1).expect("over the limit");
    assert_eq!((count, low), (17, 4));
    assert_eq!(high, 36);
    assert_eq!(coverage.len(), 15);
    assert!(coverage.find(2).is_some() && coverage.find(150).is_some() && coverage.find(300).is_some());
    assert_eq!(coverage.bound(16, 1), None);
}

#[test]
fn the_limit_forgets_first_what_lies_below_the_stream_and_never_what_the_floor_stands_on() {
    let mut coverage = Coverage::default();
    for (first, last) in [(1, 9), (11, 12), (20, 20), (30, 35)] {
        coverage.insert(Span::of(first, witness(last)), 1);
    }
    assert_eq!(coverage.bound(3, 20), Some((1, 11, 12)));
    assert_eq!(coverage.bound(2, 20), Some((1, 1, 9)));
    assert_eq!(bounds(&coverage), [(20, 20), (30, 35)]);
}

#[test]
fn spans_that_overlap_or_contradict_themselves_are_no_coverage() {
    let a = Span::of(1, witness(5));
    let b = Span::of(5, witness(9));
    assert_eq!(Coverage::from_spans(vec![a, b]), None);
    assert_eq!(Coverage::from_spans(vec![Span { last: 6, ..a }]), None);
    assert_eq!(Coverage::from_spans(vec![Span { latest: 0, ..a }]), None);
    assert!(Coverage::from_spans(vec![a, Span::of(6, witness(9))]).is_some());
}

#[test]
fn what_was_verified_last_speaks_for_a_sequence() {
    let mut coverage = Coverage::default();
    coverage.insert(Span::of(1, witness(5)), 1);
    let newer = Witness { digest: 9, ..witness(5) };
    coverage.insert(Span::of(5, newer), 2);
    assert_eq!(bounds(&coverage), [(1, 5)]);
    assert_eq!(coverage.last().map(|span| span.witness), Some(newer));
}

/// The same set, kept without any order to rely on.
#[derive(Clone, Debug, Default)]
struct Model(Vec<Entry>);

impl Model {
    fn insert(&mut self, span: Span, session: u32) {
        let (mut merged, mut apart) = (span, Vec::new());
        for entry in &self.0 {
            let overlaps = entry.span.first <= span.last && span.first <= entry.span.last;
            let touches = entry.span.last + 1 == span.first || span.last + 1 == entry.span.first;
            if overlaps || (touches && entry.seen == session) {
                merged = join(&merged, &entry.span);
            } else {
                apart.push(*entry);
            }
        }
        apart.push(Entry { span: merged, seen: session });
        self.0 = apart;
        self.0.sort_unstable_by_key(|entry| entry.span.first);
    }

    fn find(&self, sequence: u64) -> Option<Span> {
        self.0.iter().map(|entry| entry.span).find(|span| (span.first..=span.last).contains(&sequence))
    }

    fn below(&self, sequence: u64) -> Option<Span> {
        self.0.iter().map(|entry| entry.span).filter(|span| span.last < sequence).max_by_key(|span| span.last)
    }
}

/// Of two ends at one sequence the first span's stays.
fn join(a: &Span, b: &Span) -> Span {
    let top = if b.last > a.last { b } else { a };
    Span {
        first: a.first.min(b.first),
        last: top.last,
        earliest: a.earliest.min(b.earliest),
        latest: a.latest.max(b.latest),
        witness: top.witness,
    }
}

fn some_witness(rng: &mut Rng, sequence: u64) -> Witness {
    let published = i64::try_from(rng.below(40)).unwrap_or(0);
    Witness { id: RecordId::new(sequence, published), digest: u32::try_from(rng.below(3)).unwrap_or(0) }
}

/// Does the same to both, and gives its name.
fn step(rng: &mut Rng, coverage: &mut Coverage, model: &mut Model) -> String {
    let sequence = 1 + rng.below(40);
    let session = 1 + u32::try_from(rng.below(3)).unwrap_or(0);
    // One beyond the last index, to see that nothing happens there.
    let index = usize::try_from(rng.below(model.0.len() as u64 + 1)).unwrap_or(0);
    let here = model.0.get(index).map(|entry| entry.span);
    match rng.below(10) {
        0..=4 => {
            let span = Span::of(sequence.saturating_sub(rng.below(4)).max(1), some_witness(rng, sequence));
            coverage.insert(span, session);
            model.insert(span, session);
            format!("insert {span:?} in session {session}")
        }
        5 => {
            let last = here.map_or(sequence, |span| span.last - rng.below(2));
            coverage.saw(last, session);
            model.0.iter_mut().filter(|entry| entry.span.last == last).for_each(|entry| entry.seen = session);
            format!("saw {last} in session {session}")
        }
        6 => {
            coverage.close_gap(index);
            if index + 1 < model.0.len() {
                let above = model.0.remove(index + 1);
                model.0[index] = Entry { span: join(&model.0[index].span, &above.span), seen: above.seen };
            }
            format!("close the gap above span {index}")
        }
        7 => {
            let bound = model.0.get(index.wrapping_sub(1)).map_or(0, |below| below.span.last + 1);
            coverage.extend_down(index, sequence);
            if let Some(entry) = model.0.get_mut(index) {
                entry.span.first = entry.span.first.min(sequence).max(bound);
            }
            format!("extend span {index} down to {sequence}")
        }
        8 => {
            let Some(span) = here else { return "nothing to cut".to_owned() };
            let at = span.first + rng.below(span.last - span.first + 1);
            let witness = some_witness(rng, at);
            let latest = i64::try_from(rng.below(40)).unwrap_or(0);
            coverage.truncate(index, witness, latest);
            let entry = &mut model.0[index].span;
            entry.last = witness.sequence();
            entry.latest = latest.min(entry.latest).max(witness.id.published);
            entry.earliest = entry.earliest.min(witness.id.published);
            entry.witness = witness;
            format!("cut span {index} at {witness:?}")
        }
        _ => {
            let expected = here.inspect(|_| _ = model.0.remove(index));
            assert_eq!(coverage.remove(index), expected);
            format!("remove span {index}")
        }
    }
}

#[test]
fn any_steps_do_what_they_do_to_a_list_of_spans() {
    let mut joined = 0;
    for seed in 0..150 {
        let mut rng = Rng::new(seed);
        let (mut coverage, mut model, mut story) = (Coverage::default(), Model::default(), Vec::new());
        for _ in 0..60 {
            let before = model.0.len();
            story.push(step(&mut rng, &mut coverage, &mut model));
            joined += u32::from(model.0.len() < before);
            assert_eq!(coverage.entries, model.0, "seed {seed}: {story:#?}");
            let spans: Vec<Span> = coverage.spans().copied().collect();
            assert!(Coverage::from_spans(spans.clone()).is_some(), "seed {seed}: {story:#?}");
            assert_eq!((coverage.len(), coverage.is_empty()), (spans.len(), spans.is_empty()));
            assert_eq!((coverage.get(0), coverage.last()), (spans.first(), spans.last()));
            for sequence in 0..45 {
                let found = model.find(sequence);
                assert_eq!(coverage.find(sequence).copied(), found, "seed {seed}, {sequence}: {story:#?}");
                assert_eq!(coverage.below(sequence).copied(), model.below(sequence), "seed {seed}, {sequence}");
                let floor = found.map_or(sequence.saturating_sub(1), |span| span.last);
                assert_eq!(coverage.floor(sequence), floor, "seed {seed}, {sequence}");
                for session in 1..=3 {
                    let seen = model.0.iter().any(|entry| entry.span.last == sequence && entry.seen == session);
                    assert_eq!(coverage.was_seen(sequence, session), seen, "seed {seed}, {sequence}");
                }
            }
        }
    }
    assert!(joined > 500, "{joined}");
}

#[test]
fn what_the_limit_forgets_is_the_smallest_and_never_what_is_needed() {
    let mut forgotten = 0;
    for seed in 0..1_000 {
        let mut rng = Rng::new(seed);
        let mut coverage = Coverage::default();
        let mut at = 1 + rng.below(3);
        for _ in 0..rng.below(40) {
            let last = at + rng.below(5);
            coverage.insert(Span::of(at, witness(last)), 1);
            at = last + 2 + rng.below(3);
        }
        let (limit, start) = (usize::try_from(rng.below(36)).unwrap_or(0), rng.below(at + 2));
        let before: Vec<Span> = coverage.spans().copied().collect();
        let told = coverage.bound(limit, start);
        let after: Vec<Span> = coverage.spans().copied().collect();
        let (kept, gone): (Vec<Span>, Vec<Span>) = before.iter().copied().partition(|span| after.contains(span));
        assert_eq!(kept, after, "seed {seed}: what is left is unchanged");
        let Some((low, high)) = gone.first().zip(gone.last()).map(|(low, high)| (low.first, high.last)) else {
            assert_eq!(told, None, "seed {seed}");
            assert!(before.len() <= limit.max(2), "seed {seed}");
            continue;
        };
        assert_eq!(told, Some((gone.len(), low, high)), "seed {seed}");
        let (top, floor) = (before.last().copied(), before.iter().find(|span| span.last >= start).copied());
        assert!(!gone.iter().any(|span| Some(*span) == top || Some(*span) == floor), "seed {seed}");
        // One more than needed for every sixteen, where there are so many that may go.
        let spared = 1 + usize::from(floor.is_some() && floor != top);
        let surplus = before.len() - limit.max(2) + limit.max(2) / 16;
        assert_eq!(gone.len(), surplus.min(before.len() - spared), "seed {seed}");
        let order = |span: &Span| (span.last >= start, span.last - span.first);
        let spare = kept.iter().filter(|span| Some(**span) != top && Some(**span) != floor);
        let (largest, least) = (gone.iter().map(order).max(), spare.map(order).min());
        assert!(least.is_none() || largest <= least, "seed {seed}: {gone:?} of {before:?}");
        forgotten += gone.len();
    }
    assert!(forgotten > 1_000, "{forgotten}");
}

#[test]
fn a_span_holds_records_by_sequence_and_time() {
    let mut coverage = Coverage::default();
    for sequence in [3, 4, 5, 8, 9] {
        coverage.insert(Span::of(sequence, witness(sequence)), 1);
    }
    let holds = |first: u64, last: u64| coverage.holds(witness(first).id, witness(last).id);
    assert!(holds(3, 5) && holds(4, 4) && holds(8, 9));
    assert!(!holds(2, 5) && !holds(3, 8) && !holds(9, 10) && !holds(6, 6));
    assert!(!coverage.holds(RecordId::new(3, 29), witness(5).id), "of another life");
    assert!(!coverage.holds(witness(3).id, RecordId::new(5, 51)), "of another life");
}

#[test]
fn a_span_knows_the_times_between_its_earliest_and_latest() {
    let span = Span { earliest: 20, latest: 40, ..Span::of(2, witness(3)) };
    assert_eq!([19, 20, 30, 40, 41].map(|published| span.knows(published)), [false, true, true, true, false]);
    assert_eq!([1, 2, 3, 4].map(|sequence| span.contains(sequence)), [false, true, true, false]);
}
