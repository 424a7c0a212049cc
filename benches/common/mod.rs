//! What the benches share: a stream in which every message stands, a sink that keeps nothing, and guards between them.

#![allow(dead_code, clippy::expect_used, reason = "each bench uses a part of it, and fails by panicking")]

use std::convert::Infallible;
use std::future::Future;

use async_nats::Subject;
use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, ready};
use replay_guard::{
    Durable, Flush, Guard, MemoryStore, ObserveError, Observer, OnDamage, OpenError, Opening, Origin, Reading, Reason,
    Record, Sink, Source, StreamView, Witness, Written, async_nats,
};

const SUBJECT: &str = "bench.data";
const PAYLOAD: [u8; 128] = [b'x'; 128];
/// More spans than any bench makes.
const SPANS: usize = 1_000_000;

/// A stream that holds a message at every sequence, published a nanosecond after the one before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Endless;

impl Endless {
    const LAST: u64 = 1 << 40;

    pub(crate) fn record(sequence: u64) -> Record {
        Record::new(sequence, published(sequence), Subject::from_static(SUBJECT), Bytes::from_static(&PAYLOAD))
    }

    fn witness(sequence: u64) -> Witness {
        Witness::new(Self::record(sequence).id(), SUBJECT, &PAYLOAD)
    }
}

fn published(sequence: u64) -> i64 {
    i64::try_from(sequence).unwrap_or(i64::MAX)
}

impl Observer for Endless {
    fn stream(&self) -> BoxFuture<'_, Result<StreamView, ObserveError>> {
        Box::pin(ready(Ok(StreamView::new(1, 1, Self::LAST, published(Self::LAST)))))
    }

    fn read(&self, sequence: u64) -> BoxFuture<'_, Result<Reading, ObserveError>> {
        Box::pin(ready(Ok(Reading::Message(Self::witness(sequence)))))
    }

    fn next(&self, sequence: u64) -> BoxFuture<'_, Result<Option<Witness>, ObserveError>> {
        Box::pin(ready(Ok(Some(Self::witness(sequence.max(1))))))
    }
}

/// Keeps nothing.
#[derive(Debug)]
pub(crate) struct Null;

impl Sink for Null {
    type Error = Infallible;

    async fn write(&mut self, record: Record) -> Result<Written, Infallible> {
        std::hint::black_box(&record.payload);
        Ok(Written::Accepted)
    }

    async fn flush(&mut self, _: Flush<'_>) -> Result<Durable, Infallible> {
        Ok(Durable::All)
    }
}

/// What never has to wait.
pub(crate) fn now<T>(future: impl Future<Output = T>) -> T {
    future.now_or_never().expect("nothing here waits")
}

/// A guard over this store, in a session.
pub(crate) fn guard(store: MemoryStore) -> Result<Guard<Null>, OpenError> {
    let opening = now(Opening::load(Source::new("BENCH"), store, OnDamage::default()))?.max_spans(SPANS);
    let mut guard = now(opening.open(Null, Endless, Origin::Beginning))?;
    let began = now(guard.begin_session()).expect("the stream can be asked");
    assert_eq!(began.fork(), None);
    Ok(guard)
}

/// Archives records that are not known to follow one another: adjacent ones are one span all the same.
pub(crate) fn archive(guard: &mut Guard<Null>, sequences: impl IntoIterator<Item = u64>) {
    for sequence in sequences {
        now(guard.offer(Endless::record(sequence), None)).expect("a guard that is open");
    }
    let permits = now(guard.flush(Reason::Due)).expect("nothing fails");
    assert_eq!((permits.unknown().is_none(), permits.fork()), (true, None));
}

/// A store with a checkpoint of so many spans of one record each.
pub(crate) fn spans(count: u64) -> MemoryStore {
    let store = MemoryStore::new();
    let mut guard = guard(store.clone()).expect("an empty store");
    archive(&mut guard, (1..=count).map(|span| span * 2));
    assert_eq!(guard.spans() as u64, count);
    store
}
