//! The ledger by itself; whole lives rely on all of it at once.

use super::*;
use crate::sim::Rng;

const START: i64 = 1_700_000_000_000_000_000;

fn id(sequence: u64, published: i64) -> RecordId {
    RecordId::new(sequence, published)
}

fn witness(sequence: u64, published: i64) -> Witness {
    Witness { id: id(sequence, published), digest: 0 }
}

/// 11 to 20 are archived, published at 110 to 200.
fn archived() -> Ledger {
    let mut coverage = Coverage::default();
    coverage.insert(Span { earliest: 110, ..Span::of(11, witness(20, 200)) }, 1);
    let mut ledger = Ledger::new(coverage, Witnesses::default());
    ledger.begin_session(Backlog::default());
    ledger
}

fn take(ledger: &mut Ledger, record: RecordId, follows: Option<u64>) {
    let link = ledger.arrive(record, follows);
    ledger.accept(Witness { id: record, digest: 0 }, link, Stage::InSink);
}

fn spans(ledger: &Ledger) -> Vec<(u64, u64)> {
    ledger.coverage.spans().map(|span| (span.first, span.last)).collect()
}

fn ids(entries: &[Entry]) -> Vec<RecordId> {
    entries.iter().map(Entry::id).collect()
}

#[test]
fn a_delivery_is_archived_only_by_sequence_and_time() {
    let mut ledger = archived();
    for (record, class) in [
        (id(10, 150), Class::Fresh),
        (id(11, 110), Class::Archived),
        (id(15, 109), Class::Fresh),
        (id(15, 201), Class::Fresh),
        (id(20, 200), Class::Archived),
        (id(21, 200), Class::Fresh),
    ] {
        assert_eq!(ledger.classify(record), class, "{record}");
    }
    take(&mut ledger, id(15, 300), None);
    take(&mut ledger, id(16, 150), None);
    assert_eq!(ledger.classify(id(15, 300)), Class::Pending);
    assert_eq!(ledger.classify(id(16, 150)), Class::Pending, "with the sink, so not durable yet");
    assert_eq!((ledger.classify(id(15, 301)), ledger.classify(id(15, 150))), (Class::Fresh, Class::Archived));
}

#[test]
fn what_came_from_a_gap_that_was_closed_is_not_archived_until_the_session_ends() {
    let mut ledger = archived();
    ledger.emptied(13, 14);
    let classes = |ledger: &Ledger| [12, 13, 14, 15].map(|sequence| ledger.classify(id(sequence, 150)));
    assert_eq!(classes(&ledger), [Class::Archived, Class::Fresh, Class::Fresh, Class::Archived]);
    ledger.begin_session(Backlog::default());
    assert_eq!(classes(&ledger), [Class::Archived; 4]);
}

/// Whether the second of two deliveries begins a segment.
fn seam(backlog: Backlog, before: RecordId, now: RecordId) -> bool {
    let mut ledger = Ledger::new(Coverage::default(), Witnesses::default());
    ledger.begin_session(backlog);
    take(&mut ledger, before, None);
    let first = ledger.pending()[0].segment;
    take(&mut ledger, now, None);
    let second = ledger.pending().iter().find(|entry| entry.id() == now).map(|entry| entry.segment);
    assert!(second >= Some(first));
    second != Some(first)
}

#[test]
fn a_seam_lies_where_times_fall_or_rise_by_a_tenth_of_a_second() {
    let none = Backlog::default();
    assert!(!seam(none, id(1, START), id(2, START)));
    assert!(!seam(none, id(1, START), id(2, START + SEAM - 1)));
    assert!(seam(none, id(1, START), id(2, START + SEAM)));
    assert!(seam(none, id(1, START), id(2, START - 1)));
    assert!(seam(none, id(2, START), id(1, START - 1)));
}

#[test]
fn a_backlog_has_seams_only_where_its_times_fall_on_the_way_up() {
    let backlog = Backlog { last: 10, published: START + 2 * SEAM };
    assert!(!seam(backlog, id(1, START), id(2, START + SEAM)));
    assert!(!seam(backlog, id(9, START), id(10, START + 2 * SEAM)), "the last of it");
    assert!(seam(backlog, id(1, START), id(2, START - 1)));
    assert!(!seam(backlog, id(2, START), id(1, START - 1)), "delivered again");
    assert!(!seam(backlog, id(2, START), id(2, START - 1)), "no step up");
    assert!(!seam(backlog, id(2, START), id(3, START)));
    assert!(seam(backlog, id(10, START), id(11, START + SEAM)), "above it");
    assert!(seam(backlog, id(9, START), id(10, START + 2 * SEAM + 1)), "later than it");
}

#[test]
fn a_link_needs_the_delivery_just_before() {
    let mut ledger = archived();
    assert_eq!(ledger.arrive(id(30, START), Some(20)), None, "nothing was delivered before");
    let segment = ledger.segment;
    let linked = Some(Link { after: 30, segment });
    assert_eq!(ledger.arrive(id(33, START), Some(30)), linked);
    assert_eq!(ledger.arrive(id(34, START), Some(32)), None, "another one came before");
    assert_eq!(ledger.arrive(id(35, START), None), None);
    assert_eq!(ledger.arrive(id(35, START), Some(35)), None, "not above");
    let linked = Some(Link { after: 35, segment });
    assert_eq!(ledger.arrive(id(36, START + SEAM), Some(35)), linked, "in the segment of the one before");
    assert_eq!(ledger.segment, segment + 1);
    ledger.begin_session(Backlog::default());
    assert_eq!(ledger.arrive(id(37, START), Some(36)), None, "no link reaches over a session");
    assert_eq!(ledger.segment, segment + 2, "and no segment");
}

#[test]
fn the_sink_says_what_is_durable() {
    let mut ledger = archived();
    assert!(!ledger.in_sink());
    let records = [id(30, 1), id(31, 1), id(32, 1)];
    for record in records {
        take(&mut ledger, record, None);
    }
    ledger.accept(witness(33, 1), None, Stage::Rejected);
    let stages = |ledger: &Ledger| ledger.pending().iter().map(|entry| entry.stage).collect::<Vec<_>>();
    let named = Durable::Only(vec![id(31, 1), id(31, 2), id(31, 1), id(33, 1), id(99, 1)]);
    assert_eq!(ledger.durable(&named), 4, "of another time, twice, rejected, unknown");
    assert_eq!(stages(&ledger), [Stage::InSink, Stage::Held, Stage::InSink, Stage::Rejected]);
    assert!(ledger.in_sink());
    assert_eq!(ledger.classify(id(31, 1)), Class::Pending, "durable, but not verified");
    assert_eq!(ledger.durable(&Durable::All), 0);
    assert_eq!(stages(&ledger), [Stage::Held, Stage::Held, Stage::Held, Stage::Rejected]);
    assert!(!ledger.in_sink());
}

#[test]
fn the_newest_witness_is_of_a_span_or_above_all_of_them() {
    let mut ledger = Ledger::new(Coverage::default(), Witnesses::default());
    assert_eq!(ledger.newest_witness(), None);
    ledger.witnesses.extend([witness(5, 1)]);
    assert_eq!(ledger.newest_witness(), Some(witness(5, 1)));
    ledger.coverage.insert(Span::of(7, witness(8, 1)), 1);
    assert_eq!(ledger.newest_witness(), Some(witness(8, 1)));
    ledger.witnesses.extend([witness(9, 1)]);
    assert_eq!(ledger.newest_witness(), Some(witness(9, 1)));
}

#[test]
fn skips_name_each_of_their_spans_once_and_in_order() {
    let mut ledger = Ledger::new(Coverage::default(), Witnesses::default());
    for last in [10, 20, 30, 40, 50] {
        ledger.coverage.insert(Span::of(last - 3, witness(last, 1)), 1);
    }
    for sequence in [38, 9, 20, 40, 48, 8, 19, 37, 25] {
        ledger.skip(id(sequence, 1));
    }
    let used: Vec<u64> = ledger.spans_skipped().iter().map(|span| span.last).collect();
    assert_eq!(used, [10, 20, 40, 50], "25 lies in none any more");
    ledger.begin_session(Backlog::default());
    assert_eq!((ledger.skipped.len(), ledger.spans_skipped()), (0, Vec::new()));
}

#[test]
fn a_seam_matters_to_what_is_asked_about_since_the_last_record_that_was_verified() {
    let mut ledger = archived();
    take(&mut ledger, id(30, START), None);
    _ = ledger.durable(&Durable::All);
    assert!(ledger.crosses_seam(|_| true), "nothing was verified in this session");
    assert!(!ledger.crosses_seam(|_| false));
    _ = ledger.settle(|_| true, |_| true);
    take(&mut ledger, id(31, START), None);
    assert!(!ledger.crosses_seam(|_| true));
    take(&mut ledger, id(32, START + SEAM), None);
    assert!(ledger.crosses_seam(|_| true));
    assert!(!ledger.crosses_seam(|entry| entry.id().sequence == 31));
}

#[test]
fn only_what_is_durable_and_verified_is_covered() {
    let mut ledger = archived();
    for (record, follows) in
        [(id(30, START), None), (id(35, START), Some(30)), (id(38, START), Some(35)), (id(41, START), None)]
    {
        take(&mut ledger, record, follows);
    }
    _ = ledger.durable(&Durable::Only(vec![id(30, START), id(35, START), id(38, START)]));
    let settled = ledger.settle(|entry| entry.id().sequence != 30, |entry| entry.id().sequence == 35);
    assert_eq!(ids(&settled), [id(35, START), id(38, START)]);
    assert_eq!(ids(ledger.pending()), [id(30, START), id(41, START)]);
    assert_eq!(spans(&ledger), [(11, 20), (31, 35), (38, 38)], "down to where a link holds, and no further");
    assert!(ledger.coverage.was_seen(38, ledger.session()) && !ledger.coverage.was_seen(20, ledger.session()));
    assert_eq!(ledger.witnesses.iter().copied().collect::<Vec<_>>(), [witness(35, START), witness(38, START)]);
}

#[test]
fn what_stands_inside_a_span_does_not_widen_its_times() {
    let mut ledger = archived();
    take(&mut ledger, id(15, 300), None);
    take(&mut ledger, id(16, 400), None);
    _ = ledger.durable(&Durable::All);
    _ = ledger.settle(|entry| entry.id().sequence == 15, |_| true);
    assert_eq!(ledger.classify(id(17, 250)), Class::Fresh);
    assert_eq!(spans(&ledger), [(11, 20)]);
    ledger.coverage.truncate(0, witness(14, 140), 140);
    ledger.after_cut();
    assert!(!ledger.pending()[0].inside);
    _ = ledger.settle(|_| true, |_| true);
    assert_eq!(spans(&ledger), [(11, 14), (16, 16)], "the span it stood inside ends below it now");
    take(&mut ledger, id(12, 300), None);
    ledger.after_cut();
    assert!(ledger.pending()[0].inside);
    _ = ledger.durable(&Durable::All);
    _ = ledger.coverage.remove(0);
    _ = ledger.settle(|_| true, |_| true);
    assert_eq!(spans(&ledger), [(12, 12), (16, 16)], "the span it stood inside was forgotten");
}

#[test]
fn what_lost_its_place_is_named_nowhere_and_no_link_is_left() {
    let mut ledger = archived();
    for (record, follows) in [(id(30, START), None), (id(33, START), Some(30)), (id(36, START), Some(33))] {
        take(&mut ledger, record, follows);
    }
    ledger.after_cut();
    assert_eq!(ledger.orphan(|entry| entry.id().sequence > 33), [id(36, START)]);
    _ = ledger.durable(&Durable::All);
    assert_eq!(ids(ledger.pending()), [id(30, START), id(33, START)]);
    _ = ledger.settle(|_| true, |_| true);
    assert_eq!(spans(&ledger), [(11, 20), (30, 30), (33, 33)]);
    assert_eq!(ledger.classify(id(36, START)), Class::Fresh);
}

#[test]
fn records_in_any_order_are_pending_once_and_sorted() {
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let mut ledger = archived();
        let mut expected = std::collections::BTreeSet::new();
        for _ in 0..30 {
            let record = id(15 + rng.below(12), i64::try_from(rng.below(3)).unwrap_or(0));
            assert_eq!(ledger.classify(record) == Class::Pending, expected.contains(&record), "seed {seed}");
            take(&mut ledger, record, None);
            expected.insert(record);
        }
        assert_eq!(ids(ledger.pending()), expected.into_iter().collect::<Vec<_>>(), "seed {seed}");
        assert!(ledger.pending().iter().all(|entry| entry.inside == (entry.id().sequence <= 20)), "seed {seed}");
    }
}

#[test]
fn what_is_held_from_a_sequence_on_is_archived_or_with_the_sink() {
    let mut ledger = archived();
    for at in [0, 11] {
        assert_eq!(ledger.held_from(at, true), Some((11, 20)));
    }
    assert_eq!(ledger.held_from(15, true), Some((15, 20)), "no lower than asked");
    assert_eq!((ledger.held_from(20, true), ledger.held_from(21, true)), (Some((20, 20)), None));
    take(&mut ledger, id(5, 50), None);
    take(&mut ledger, id(9, 90), Some(5));
    assert_eq!((ledger.held_from(0, true), ledger.held_from(5, true)), (Some((5, 5)), Some((5, 5))));
    assert_eq!((ledger.held_from(6, true), ledger.held_from(6, false)), (Some((6, 9)), Some((9, 9))));
    assert_eq!(ledger.held_from(7, true), Some((7, 9)));
    assert_eq!((ledger.held_from(9, true), ledger.held_from(10, true)), (Some((9, 9)), Some((11, 20))));
    take(&mut ledger, id(30, 300), None);
    assert_eq!((ledger.held_from(21, true), ledger.held_from(31, true)), (Some((30, 30)), None));
}

#[test]
fn a_rejected_record_waits_until_somebody_was_told() {
    let mut ledger = archived();
    take(&mut ledger, id(30, 300), None);
    assert!(ledger.in_sink());
    ledger.accept(witness(31, 310), None, Stage::Unreported);
    ledger.accept(witness(32, 320), None, Stage::Unreported);
    assert_eq!(ledger.unreported(), 2);
    ledger.reported(id(31, 310));
    // These do not wait for it.
    ledger.reported(id(30, 300));
    ledger.reported(id(33, 330));
    let stages: Vec<Stage> = ledger.pending().iter().map(|entry| entry.stage).collect();
    assert_eq!((ledger.unreported(), stages), (1, vec![Stage::InSink, Stage::Rejected, Stage::Unreported]));
    ledger.durable(&Durable::All);
    assert!(!ledger.in_sink() && ledger.unreported() == 1, "nobody was told by that");
}

#[test]
fn a_record_that_came_back_into_its_span_widens_it() {
    let mut ledger = archived();
    take(&mut ledger, id(15, 300), None);
    take(&mut ledger, id(16, 50), None);
    ledger.durable(&Durable::All);
    assert_eq!(ledger.classify(id(15, 300)), Class::Pending, "durable, and not to be written again");
    ledger.returned(&[id(15, 300)].into());
    ledger.settle(|_| true, |_| true);
    let classes = [300, 301, 110, 109].map(|published| ledger.classify(id(17, published)));
    assert_eq!(classes, [Class::Archived, Class::Fresh, Class::Archived, Class::Fresh]);
}
