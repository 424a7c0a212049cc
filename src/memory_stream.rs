//! A stream in memory, to try a guard or a sink without a server.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::HeaderMap;
use bytes::Bytes;
use futures_util::future::{self, BoxFuture};

use crate::observer::{ObserveError, Observer, Reading, StreamView};
use crate::record::Record;
use crate::witness::Witness;

/// A stream in memory, for tests and examples of sinks and loops: every message in it belongs to the source.
///
/// Clones share the stream. Messages are published one second apart, from second 1 on.
#[derive(Clone, Debug, Default)]
pub struct MemoryStream(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    records: Vec<Record>,
    last: u64,
    clock: i64,
    created: i64,
}

const SECOND: i64 = 1_000_000_000;

impl MemoryStream {
    /// An empty stream.
    pub fn new() -> Self {
        Self::default()
    }

    /// Publishes a message; returns it as it would be delivered.
    pub fn publish(&self, subject: &str, payload: impl Into<Bytes>) -> Record {
        self.publish_with_headers(subject, HeaderMap::new(), payload)
    }

    /// The same with headers.
    pub fn publish_with_headers(&self, subject: &str, headers: HeaderMap, payload: impl Into<Bytes>) -> Record {
        let mut inner = self.lock();
        inner.last += 1;
        inner.clock += SECOND;
        let record = Record::new(inner.last, inner.clock, subject, payload).with_headers(headers);
        inner.records.push(record.clone());
        record
    }

    /// Lets so much time pass before the next message, beside the second that passes anyway; at most some 292 years.
    pub fn pass(&self, time: Duration) {
        let mut inner = self.lock();
        inner.clock = inner.clock.saturating_add(i64::try_from(time.as_nanos()).unwrap_or(i64::MAX));
    }

    /// Deletes the stream and makes it anew under its name: empty, numbers from 1 on, another creation time.
    pub fn recreate(&self) {
        let mut inner = self.lock();
        inner.records.clear();
        inner.last = 0;
        inner.clock += SECOND;
        inner.created = inner.clock;
    }

    /// Loses the messages above this sequence, as a server does in a power cut: the next message gets the number of a lost
    /// one.
    pub fn lose_above(&self, sequence: u64) {
        let mut inner = self.lock();
        inner.records.retain(|record| record.sequence <= sequence);
        inner.last = inner.last.min(sequence);
    }

    /// Deletes one message; its number is not used again.
    pub fn delete(&self, sequence: u64) {
        self.lock().records.retain(|record| record.sequence != sequence);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic elsewhere leaves nothing half done in here.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn witness(record: &Record) -> Witness {
    Witness::new(record.id(), &record.subject, &record.payload)
}

impl Observer for MemoryStream {
    fn stream(&self) -> BoxFuture<'_, Result<StreamView, ObserveError>> {
        let inner = self.lock();
        let first = inner.records.first().map_or(inner.last + 1, |record| record.sequence);
        let last_published = inner.records.last().map_or(0, |record| record.published);
        Box::pin(future::ready(Ok(StreamView::new(inner.created, first, inner.last, last_published))))
    }

    fn read(&self, sequence: u64) -> BoxFuture<'_, Result<Reading, ObserveError>> {
        let inner = self.lock();
        let found = inner.records.iter().find(|record| record.sequence == sequence);
        let reading = match found {
            Some(record) => Reading::Message(witness(record)),
            None if sequence > inner.last => Reading::Above,
            None => Reading::Gone,
        };
        Box::pin(future::ready(Ok(reading)))
    }

    fn next(&self, sequence: u64) -> BoxFuture<'_, Result<Option<Witness>, ObserveError>> {
        let found = self.lock().records.iter().find(|record| record.sequence >= sequence).map(witness);
        Box::pin(future::ready(Ok(found)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now<T>(future: BoxFuture<'_, T>) -> T {
        futures_util::FutureExt::now_or_never(future).expect("answers at once")
    }

    #[test]
    fn a_stream_made_anew_is_empty_and_another_one() {
        let stream = MemoryStream::new();
        let old = stream.publish("a", "1");
        let before = now(stream.stream()).unwrap();
        stream.recreate();
        let after = now(stream.stream()).unwrap();
        assert_eq!((after.first, after.last), (1, 0));
        assert!(after.created > before.created);
        assert_eq!(now(stream.read(1)).unwrap(), Reading::Above);
        let new = stream.publish("a", "1");
        assert_eq!(new.sequence, old.sequence);
        assert!(new.published > after.created && after.created > old.published);
    }

    #[test]
    fn time_passes_and_headers_are_delivered() {
        let stream = MemoryStream::new();
        stream.pass(Duration::from_millis(250));
        let mut headers = HeaderMap::new();
        headers.append("Name", "value");
        let record = stream.publish_with_headers("a", headers.clone(), "1");
        assert_eq!((record.published, record.headers), (SECOND + SECOND / 4, headers));
        assert_eq!(stream.publish("a", "2").published, 2 * SECOND + SECOND / 4);
    }
}
