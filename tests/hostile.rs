//! Hostile bytes: the corpus of the fuzzer, and real files with mistakes in them. They do no harm, and make nobody ask for
//! more memory than their own size explains.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

#[path = "../fuzz/src/hostile.rs"]
#[allow(
    clippy::expect_used,
    unreachable_pub,
    reason = "it is the library of the fuzzer, and a property fails by panicking"
)]
mod properties;

use std::alloc::System;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use replay_guard::{
    Claim, Durable, Flush, Guard, MemoryStore, MemoryStream, Reason, Record, Sink, Source, StoreError, Written,
};

use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// One test at a time, or each would count what the other asks for.
static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

struct Target {
    name: &'static str,
    property: fn(&[u8]),
    /// How many mutations of each seed are tried; those of files are slow.
    mutations: u64,
}

impl Target {
    /// The property; and what it asked for on the way, given back or not, is bounded by the size of the bytes.
    fn try_with(&self, bytes: &[u8]) {
        let before = ALLOCATOR.stats().bytes_allocated;
        (self.property)(bytes);
        let asked = ALLOCATOR.stats().bytes_allocated - before;
        let allowed = ALWAYS + EACH * bytes.len();
        assert!(asked <= allowed, "{asked} bytes of memory for {} bytes, {allowed} allowed", bytes.len());
    }
}

/// Says which input it was, if it did harm. To say it each time would be memory too: the harness keeps what a test prints.
struct Tell(String);

impl Drop for Tell {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.0);
        }
    }
}

/// Twice of what was seen.
const ALWAYS: usize = 128 * 1024;
/// The densest list has an element for each byte, of 16 bytes in memory; as it grows, all before it was asked for again.
const EACH: usize = 64;

const TARGETS: [Target; 4] = [
    Target { name: "checkpoint", property: properties::checkpoint, mutations: 3_000 },
    Target { name: "claim", property: properties::claim, mutations: 3_000 },
    Target { name: "names", property: properties::names, mutations: 3_000 },
    Target { name: "slots", property: properties::slots, mutations: 300 },
];

fn corpus(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let entries = fs::read_dir(&directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort_unstable();
    assert!(!paths.is_empty(), "{} is empty", directory.display());
    paths.into_iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

#[test]
fn the_corpus_does_no_harm() {
    let _turn = TURN.blocking_lock();
    for target in TARGETS {
        for (path, bytes) in corpus(target.name) {
            let _told = Tell(format!("{}", path.display()));
            target.try_with(&bytes);
        }
    }
}

#[test]
fn mistakes_in_it_do_no_harm() {
    let _turn = TURN.blocking_lock();
    for target in TARGETS {
        for (path, bytes) in
            corpus(target.name).into_iter().filter(|(path, _)| path.to_string_lossy().contains("seed-"))
        {
            for seed in 1..=target.mutations {
                let mut chance = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
                let mut bytes = bytes.clone();
                mutate(&mut bytes, &mut chance);
                let _told = Tell(format!("{} {seed}", path.display()));
                target.try_with(&bytes);
            }
        }
    }
}

/// One to five mistakes: a bit, a byte, a number, a piece that is gone, twice, or zero.
fn mutate(bytes: &mut Vec<u8>, chance: &mut u64) {
    let mut below = |n: usize| {
        *chance ^= *chance >> 12;
        *chance ^= *chance << 25;
        *chance ^= *chance >> 27;
        usize::try_from(chance.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33).unwrap() % n.max(1)
    };
    for _ in 0..=below(5) {
        // What means something stands at the front.
        let at = if below(2) == 0 { below(bytes.len().min(64)) } else { below(bytes.len()) };
        let length = 1 + below(40);
        let end = (at + length).min(bytes.len());
        match below(7) {
            0 => bytes[at..end].iter_mut().take(1).for_each(|byte| *byte ^= 1 << (length % 8)),
            1 => bytes[at..end].fill(0),
            2 => bytes[at..end].fill(0xff),
            3 => drop(bytes.drain(at..end)),
            4 => bytes.truncate(at),
            5 => {
                let piece = bytes[at..end].to_vec();
                bytes.splice(at..at, piece);
            }
            // In the variable integers of the format, a number of eight bytes follows.
            _ => bytes[at..end].iter_mut().take(1).for_each(|byte| *byte = 253),
        }
    }
}

/// Gives away the claims of its flushes.
struct Claims(Arc<Mutex<Vec<Claim>>>);

impl Sink for Claims {
    type Error = StoreError;

    async fn write(&mut self, _: Record) -> Result<Written, StoreError> {
        Ok(Written::Accepted)
    }

    async fn flush(&mut self, flush: Flush<'_>) -> Result<Durable, StoreError> {
        self.0.lock().unwrap().push(flush.claim());
        Ok(Durable::All)
    }
}

#[tokio::test]
async fn a_claim_of_today_is_one_of_the_seeds() {
    let _turn = TURN.lock().await;
    let claims = Arc::new(Mutex::new(Vec::new()));
    let stream = MemoryStream::new();
    let records: Vec<Record> = (0..6_u8).map(|n| stream.publish("s", vec![n])).collect();
    let sink = Claims(Arc::clone(&claims));
    let mut guard = Guard::open(Source::new("S"), sink, MemoryStore::new(), stream).await.unwrap();
    let _ = guard.begin_session().await.unwrap();
    for index in [0, 1, 2, 4, 5] {
        guard.offer(records[index].clone(), (index == 1).then_some(1)).await.unwrap();
    }
    let _ = guard.flush(Reason::Due).await.unwrap();
    let claim = claims.lock().unwrap()[0].clone();
    // Version, spans and the rest are as in the seed; state id and times are of the day.
    let (body, _) = claim.as_bytes().split_last_chunk::<4>().unwrap();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/claim/seed-holes");
    let seed = fs::read(&path).unwrap();
    assert_eq!(seed.first(), body.first(), "the version of a claim changed: add a seed of it");
}
