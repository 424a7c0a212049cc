//! Many lives, several at a time, each on one thread. `REPLAY_GUARD_LIVES` says how many, `REPLAY_GUARD_SEED` which one
//! alone. A life that fails is made as short as it can be and printed.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use super::law::{Broken, Law};
use super::life::Life;

/// Seeds that failed once, before the model had what came later.
const SEEDS: &[u64] = &[
    445, 788, 983, 1_007, 1_130, 1_318, 3_685, 4_198, 4_318, 5_571, 6_432, 10_155, 10_647, 12_124, 13_346, 15_353,
    17_796, 17_941, 18_431, 18_461, 18_636, 20_099, 21_439, 26_060, 28_768, 29_843, 29_875, 36_169, 47_110, 47_314,
    77_344, 101_543, 104_179, 124_851, 136_504, 155_861, 156_627, 157_924, 166_017, 242_633, 312_121, 361_917, 388_315,
    516_385, 528_433, 551_604, 579_354, 594_010, 652_899, 671_850, 682_849, 718_778, 764_445, 770_823, 788_651,
    815_721, 819_638, 860_739, 922_446,
];

/// Seeds that failed once since.
const LATER: &[u64] = &[
    28_609, 30_424, 40_407, 49_002, 123_487, 147_510, 153_434, 170_367, 255_748, 264_723, 283_784, 348_821, 443_316,
    625_996, 681_954, 785_773, 801_015, 915_835, 1_063_563, 1_236_142, 1_304_341, 1_346_210, 1_370_627, 1_540_760,
    1_690_186, 2_224_449, 2_236_568, 2_759_845, 2_999_324,
];

/// How many lines of a history are printed from its begin and from its end.
const HEAD: usize = 70;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

/// Lives a life; a panic breaks a law too.
pub(super) fn live(life: &Life, tell: bool) -> (Result<(), Broken>, Vec<String>) {
    catch_unwind(AssertUnwindSafe(|| life.live(tell))).unwrap_or_else(|panic| {
        let why = panic.downcast_ref::<String>().cloned();
        let why = why.or_else(|| panic.downcast_ref::<&str>().map(|why| (*why).to_owned()));
        (Err(Broken { law: Law::Panic, why: why.unwrap_or_default() }), Vec::new())
    })
}

/// The same failure with fewer steps.
fn shrink(life: &Life, law: Law) -> Life {
    let fails = |life: &Life| matches!(live(life, false).0, Err(broken) if broken.law == law);
    let mut small = life.clone();
    let mut size = small.steps.len() / 2;
    while size > 0 {
        let mut at = 0;
        while at < small.steps.len() {
            let mut less = small.clone();
            less.steps.drain(at..(at + size).min(less.steps.len()));
            if fails(&less) {
                small = less;
            } else {
                at += size;
            }
        }
        size = if size == 1 { 0 } else { size.div_ceil(2) };
    }
    small
}

/// What a person needs to see of a failure.
pub(super) fn report(life: &Life, broken: &Broken) -> String {
    let small = shrink(life, broken.law);
    let (outcome, history) = live(&small, true);
    let broken = outcome.err().unwrap_or_else(|| broken.clone());
    let (head, tail) = history.split_at(history.len().min(HEAD));
    let (dots, tail) = tail.split_at(tail.len().saturating_sub(HEAD));
    format!(
        "seed {}: {:?}: {}\n{:?}\n{:?}\n{} of {} steps: {:?}\n{}\n... {} lines\n{}\n",
        life.seed,
        broken.law,
        broken.why,
        life.nature,
        life.later,
        small.steps.len(),
        life.steps.len(),
        small.steps,
        head.join("\n"),
        dots.len(),
        tail.join("\n")
    )
}

/// Lives so many lives from this seed on; the seeds that fail, and why.
pub(super) fn many(first: u64, count: u64) -> Vec<(u64, Broken)> {
    let threads = std::thread::available_parallelism().map_or(1, |threads| threads.get() as u64);
    let next = AtomicU64::new(first);
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + count {
                        break;
                    }
                    if let (Err(broken), _) = live(&Life::new(seed), false) {
                        failed.lock().unwrap().push((seed, broken));
                    }
                }
            });
        }
    });
    let mut failed = failed.into_inner().unwrap();
    failed.sort_by_key(|(seed, _)| *seed);
    failed
}

#[test]
fn lives_lose_nothing_and_write_nothing_twice() {
    let (first, count) = match number("REPLAY_GUARD_SEED") {
        Some(seed) => (seed, number("REPLAY_GUARD_LIVES").unwrap_or(1)),
        None => (1, number("REPLAY_GUARD_LIVES").unwrap_or(10_000)),
    };
    println!("seeds {first} to {}", first + count - 1);
    let failed = many(first, count);
    let Some((seed, broken)) = failed.first() else { return };
    let all: Vec<String> =
        failed.iter().take(40).map(|(seed, broken)| format!("{seed} {:?}: {}", broken.law, broken.why)).collect();
    panic!("{} of {count} lives failed:\n{}\n{}", failed.len(), all.join("\n"), report(&Life::new(*seed), broken));
}

#[test]
fn lives_that_failed_once_do_not_fail_again() {
    let plain = SEEDS.iter().map(|seed| Life::plain(*seed));
    for life in plain.chain(LATER.iter().map(|seed| Life::new(*seed))) {
        if let (Err(broken), _) = live(&life, false) {
            panic!("{}", report(&life, &broken));
        }
    }
}

#[test]
fn one_seed_is_one_life() {
    for seed in 1..30 {
        let life = Life::new(seed);
        let (first, second) = (live(&life, true), live(&Life::new(seed), true));
        assert_eq!(first, second, "seed {seed}");
        assert!(!first.1.is_empty());
    }
}
