//! What one call costs. What it allocates is counted by `counted`; `compare` measures against other things.

#![allow(clippy::expect_used, reason = "a bench fails by panicking")]

mod common;

use std::cell::RefCell;
use std::hint::black_box;

use divan::Bencher;
use divan::counter::ItemsCount;
use futures_util::FutureExt as _;
use replay_guard::{Guard, MemoryStore, Offer, Reason, Record, Witness};

use common::{Endless, Null, archive, guard, now, spans};

/// How many records are offered between two flushes: few enough to stay in the processor's first cache. The time shown is
/// that of all of them.
const RECORDS: u64 = 100;

fn main() {
    divan::main();
}

/// Offers records that were made beforehand; flushes outside of what is measured.
fn offers(bencher: Bencher<'_, '_>, guard: Guard<Null>, expected: &Offer, mut next: impl FnMut() -> u64) {
    let guard = RefCell::new(guard);
    bencher
        .counter(ItemsCount::new(RECORDS))
        .with_inputs(|| {
            _ = now(guard.borrow_mut().flush(Reason::Due)).expect("nothing fails");
            (0..RECORDS).map(|_| Some(Endless::record(next()))).collect::<Vec<Option<Record>>>()
        })
        .bench_local_refs(|records| {
            let mut guard = guard.borrow_mut();
            for record in records.iter_mut().filter_map(Option::take) {
                let offered = guard.offer(black_box(record), None).now_or_never();
                assert!(matches!(&offered, Some(Ok(offer)) if offer == expected), "{offered:?}");
            }
        });
}

#[divan::bench(sample_size = 1, sample_count = 1_000)]
fn verdict_steady(bencher: Bencher<'_, '_>) {
    let mut sequence = 0;
    offers(bencher, guard(MemoryStore::new()).expect("an empty store"), &Offer::Written, || {
        sequence += 1;
        sequence
    });
}

#[divan::bench(sample_size = 1, sample_count = 1_000)]
fn verdict_in_a_skip_run(bencher: Bencher<'_, '_>) {
    let mut guard = guard(MemoryStore::new()).expect("an empty store");
    archive(&mut guard, 1..=100_000);
    assert_eq!(guard.spans(), 1);
    let mut sequence = 0;
    offers(bencher, guard, &Offer::Skipped, || {
        sequence = sequence % 100_000 + 1;
        sequence
    });
}

#[divan::bench(sample_size = 1, sample_count = 1_000)]
fn verdict_with_10_000_spans(bencher: Bencher<'_, '_>) {
    let guard = guard(spans(10_000)).expect("a whole checkpoint");
    assert_eq!(guard.spans(), 10_000);
    let mut number = 0;
    // Without an order that would help a cache: 7,919 is a prime.
    offers(bencher, guard, &Offer::Skipped, || {
        number = (number + 7_919) % 10_000;
        (number + 1) * 2
    });
}

#[divan::bench(sample_size = 1, sample_count = 50)]
fn open_100_000_spans(bencher: Bencher<'_, '_>) {
    let store = spans(100_000);
    bencher.with_inputs(|| store.clone()).bench_local_values(|store| guard(store).expect("a whole checkpoint"));
}

/// The digest of such a record: what every verdict of a new one includes.
#[divan::bench(sample_size = 10_000)]
fn digest_of_128_bytes(bencher: Bencher<'_, '_>) {
    let record = Endless::record(1);
    bencher.bench_local(|| Witness::new(black_box(&record).id(), &record.subject, &record.payload));
}

/// What every verdict's time includes beside the verdict: a record is taken from where it was made, and dropped.
#[divan::bench(sample_size = 1, sample_count = 1_000)]
fn no_verdict(bencher: Bencher<'_, '_>) {
    bencher
        .counter(ItemsCount::new(RECORDS))
        .with_inputs(|| (0..RECORDS).map(|n| Some(Endless::record(n))).collect::<Vec<Option<Record>>>())
        .bench_local_refs(|records| {
            for record in records.iter_mut().filter_map(Option::take) {
                drop(black_box(record));
            }
        });
}
