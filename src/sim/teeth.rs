//! The simulation bites: each deliberate mistake is caught within a bounded number of lives.

use std::fmt::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::books::Broken;
use super::life::Life;
use super::lives::live;
use crate::fault::{self, Fault};

/// So many lives each mistake is given.
const LIVES: u64 = 6_000;

/// The first life that catches a mistake, counted from 1, and how.
fn caught(mistake: Fault) -> Option<(u64, Broken)> {
    fault::make(Some(mistake));
    let found = (1..=LIVES).find_map(|seed| live(&Life::new(seed), false).0.err().map(|broken| (seed, broken)));
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
