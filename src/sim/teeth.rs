//! The simulation bites: each deliberate mistake is caught within a bounded number of lives. `REPLAY_GUARD_TEETH=all` lives
//! them from the first on and prints the table; otherwise the lives begin where it is known that one bites.

use std::fmt::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::law::Broken;
use super::life::Life;
use super::lives::live;
use crate::fault::{self, Fault};

/// So many lives each mistake is given.
const LIVES: u64 = 10_000;

/// Lives that caught a mistake which few do.
const KNOWN: &[(Fault, u64)] = &[
    (Fault::AdjacentAcrossSessions, 1_721),
    (Fault::HeldWrittenAgain, 1_847),
    (Fault::LinkWithoutRecord, 5_058),
    (Fault::MoveAboveNewest, 3_396),
    (Fault::OldAckersKept, 791),
    (Fault::OldSessionCovered, 744),
    (Fault::OneWitnessForClaim, 1_721),
    (Fault::SeamsIgnored, 744),
    (Fault::SlotOverwritten, 801),
    (Fault::TermOnAckAll, 219),
    (Fault::TrustAckFloor, 928),
];

/// The first life that catches a mistake, counted from 1, and how.
fn caught(mistake: Fault) -> Option<(u64, Broken)> {
    fault::make(Some(mistake));
    let all = std::env::var("REPLAY_GUARD_TEETH").is_ok_and(|which| which == "all");
    let known =
        KNOWN.iter().filter(|(known, _)| *known == mistake && !all).map(|(_, seed)| (*seed, Life::plain(*seed)));
    let lives = known.chain((1..=LIVES).map(|seed| (seed, Life::new(seed))));
    let mut lives = lives.map(|(seed, life)| (seed, live(&life, false).0));
    let found = lives.find_map(|(seed, outcome)| Some((seed, outcome.err()?)));
    fault::make(None);
    found
}

#[test]
fn every_deliberate_mistake_is_caught() {
    let next = AtomicUsize::new(0);
    let found = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(mistake) = Fault::ALL.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let outcome = caught(*mistake);
                    found.lock().unwrap().push((*mistake, outcome));
                }
            });
        }
    });
    let mut found = found.into_inner().unwrap();
    found.sort_by_key(|(mistake, _)| Fault::ALL.iter().position(|other| other == mistake));
    let mut table = String::new();
    for (mistake, outcome) in &found {
        match outcome {
            Some((lives, broken)) => writeln!(table, "| {mistake:?} | {lives} | {:?} |", broken.law).unwrap(),
            None => writeln!(table, "| {mistake:?} | not in {LIVES} | |").unwrap(),
        }
    }
    println!("{table}");
    assert!(found.iter().all(|(_, outcome)| outcome.is_some()), "\n{table}");
}

/// Mistakes that no life of the model shows, since something else catches them first or the known limits cover them: each
/// has a test of its own.
mod directed {
    use crate::fault::{self, Fault};

    fn with(mistake: Fault, test: fn()) {
        fault::make(Some(mistake));
        test();
    }

    #[test]
    #[should_panic(expected = "assert")]
    fn a_skip_that_is_not_verified_at_its_own_span() {
        with(Fault::WitnessBelowForSkip, super::super::guard::forks::a_skip_is_verified_at_its_own_span);
    }

    #[test]
    #[should_panic(expected = "assert")]
    fn a_span_that_a_foreign_record_does_not_end() {
        let test = super::super::guard::a_record_that_stands_inside_a_span_and_is_none_of_it_cuts_the_span;
        with(Fault::ForeignTimesIgnored, test);
    }

    #[test]
    #[should_panic(expected = "assert")]
    fn a_gap_that_closes_and_is_not_told() {
        let test = super::super::guard::passed::c8_a_gap_that_closes_since_the_stream_has_passed_it_is_told_before;
        with(Fault::DroppedUntold, test);
    }

    #[test]
    #[should_panic(expected = "found")]
    fn a_rename_that_is_not_synced() {
        with(Fault::RenameNotSynced, crate::store::sim::every_operation_may_be_the_last);
    }
}
