//! What is counted, not timed: allocations of a verdict, memory of a pending record, bytes of a checkpoint. Fails where one
//! is more than it may be.

#![allow(clippy::expect_used, reason = "a bench fails by panicking")]

mod common;

use std::alloc::System;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use archiver_support::nats::{Server, Want};
use async_nats::jetstream::{self, stream};
use futures_util::future::try_join_all;
use replay_guard::{
    CheckpointStore as _, Driver, Durable, Flush, MemoryStore, Offer, Reason, Record, Sink, Written, async_nats,
};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use tokio::sync::Notify;

use common::{Endless, archive, guard, now, spans};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// How often memory was asked for.
fn allocations() -> usize {
    let stats = ALLOCATOR.stats();
    stats.allocations + stats.reallocations
}

/// Bytes that were asked for and not given back.
fn held() -> usize {
    let stats = ALLOCATOR.stats();
    stats.bytes_allocated - stats.bytes_deallocated
}

/// Offers these, and says how often that allocated.
fn verdicts(
    guard: &mut replay_guard::Guard<common::Null>,
    sequences: impl Iterator<Item = u64>,
    expected: &Offer,
) -> usize {
    let records: Vec<Record> = sequences.map(Endless::record).collect();
    let before = allocations();
    for record in records {
        let offer = now(guard.offer(record, None)).expect("a guard that is open");
        assert_eq!(offer, *expected);
    }
    allocations() - before
}

fn count_verdicts() -> Result<()> {
    let mut steady = guard(MemoryStore::new())?;
    // The first flush makes room for as many.
    archive(&mut steady, 1..=1_000);
    let written = verdicts(&mut steady, 1_001..=2_000, &Offer::Written);
    _ = now(steady.flush(Reason::Due))?;
    _ = verdicts(&mut steady, 1..=1_000, &Offer::Skipped);
    _ = now(steady.flush(Reason::Due))?;
    let skipped = verdicts(&mut steady, 1..=1_000, &Offer::Skipped);
    let mut many = guard(spans(10_000))?;
    _ = verdicts(&mut many, (1..=1_000).map(|span| span * 14), &Offer::Skipped);
    _ = now(many.flush(Reason::Due))?;
    let among_many = verdicts(&mut many, (1..=1_000).map(|span| span * 14), &Offer::Skipped);
    println!(
        "allocations of 1,000 verdicts: {written} steady, {skipped} in a skip run, {among_many} with 10,000 spans"
    );
    assert_eq!((written, skipped, among_many), (0, 0, 0), "a verdict allocates");
    Ok(())
}

async fn count_spans() -> Result<()> {
    let mut store = spans(100_000);
    let bytes = store.open().await?.states.first().ok_or("nothing was saved")?.body.len();
    println!("a checkpoint of 100,000 spans: {bytes} bytes");
    assert!(bytes <= 3_000_000, "{bytes} bytes");
    Ok(())
}

fn count_pending() -> Result<()> {
    const RECORDS: u64 = 100_000;
    let mut guard = guard(MemoryStore::new())?;
    let before = held();
    for sequence in 1..=RECORDS {
        now(guard.offer(Endless::record(sequence), sequence.checked_sub(1)))?;
    }
    let each = (held() - before) / usize::try_from(RECORDS)?;
    println!("a pending record in a guard: {each} bytes");
    assert!(each <= 200, "{each} bytes");
    Ok(())
}

/// Keeps nothing but their number.
struct Counting {
    count: Arc<AtomicU64>,
    more: Arc<Notify>,
}

impl Sink for Counting {
    type Error = std::convert::Infallible;

    async fn write(&mut self, _: Record) -> std::result::Result<Written, Self::Error> {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.more.notify_one();
        Ok(Written::Accepted)
    }

    async fn flush(&mut self, _: Flush<'_>) -> std::result::Result<Durable, Self::Error> {
        Ok(Durable::All)
    }
}

async fn publish(context: &jetstream::Context, count: usize) -> Result<()> {
    for _ in 0..count / 500 {
        let sent = (0..500).map(|_| context.publish("orders.new", vec![b'x'; 512].into()));
        for stored in try_join_all(sent).await? {
            stored.await?;
        }
    }
    Ok(())
}

/// The driver keeps the way to ack a record beside what the guard keeps.
async fn count_pending_in_a_driver() -> Result<()> {
    const FIRST: usize = 10_000;
    const MORE: usize = 40_000;
    let server = Server::start(Want::Installed).await?;
    let context = jetstream::new(server.client().await?);
    let config =
        stream::Config { name: "ORDERS".into(), subjects: vec!["orders.>".into()], ..stream::Config::default() };
    context.create_stream(config).await?;
    let (count, more) = (Arc::new(AtomicU64::new(0)), Arc::new(Notify::new()));
    let sink = Counting { count: Arc::clone(&count), more: Arc::clone(&more) };
    let builder = Driver::builder(jetstream::new(server.client().await?), "ORDERS").consumer("archiver");
    let store = MemoryStore::new();
    let driver = builder.flush_every(100_000, Duration::from_secs(3_600)).store(move |_| Box::new(store.clone()));
    let driver = driver.open(sink).await?;
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(driver.run_until(async move { _ = stopped.await }));
    let came = async |wanted: usize| {
        while count.load(Ordering::Relaxed) < wanted as u64 {
            more.notified().await;
        }
    };
    publish(&context, FIRST).await?;
    came(FIRST).await;
    let before = held();
    publish(&context, MORE).await?;
    came(FIRST + MORE).await;
    let each = (held() - before) / MORE;
    println!("a pending record in a driver: {each} bytes");
    _ = stop.send(());
    running.await??;
    assert!(each <= 200, "{each} bytes");
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    count_verdicts()?;
    count_pending()?;
    count_spans().await?;
    count_pending_in_a_driver().await
}
