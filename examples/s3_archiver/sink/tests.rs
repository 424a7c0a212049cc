use anyhow::{Context as _, Result};
use futures_util::TryStreamExt as _;
use object_store::ObjectStoreExt as _;
use replay_guard::async_nats::HeaderMap;
use replay_guard::testing::{Conformance, Held, Storage};
use replay_guard::{Guard, MemoryStore, MemoryStream, Offer, Reason, SinkFailure};

use super::*;
use crate::bucket::tests::memory;

pub(crate) fn source() -> Source {
    Source::new("S").with_filters(["s.>"])
}

/// An archive in memory, the stream it is fed from, and where its checkpoint is.
pub(crate) struct World {
    pub(crate) place: Place,
    pub(crate) stream: MemoryStream,
    pub(crate) checkpoint: MemoryStore,
}

impl World {
    pub(crate) fn new() -> Self {
        let place = Place::new(memory(), source());
        Self { place, stream: MemoryStream::new(), checkpoint: MemoryStore::new() }
    }

    pub(crate) fn publish(&self, count: usize) -> Vec<Record> {
        (0..count).map(|n| self.stream.publish("s", format!("{n}"))).collect()
    }

    pub(crate) async fn open(&self, rewrite_missing_from: Option<u64>) -> Result<Guard<S3Sink>> {
        let mut sink = S3Sink::new(self.place.clone(), usize::MAX, Arc::default());
        sink.rewrite_from = rewrite_missing_from;
        let mut guard = Guard::open(source(), sink, self.checkpoint.clone(), self.stream.clone()).await?;
        if guard.move_pending().is_some() {
            guard.moved();
        }
        let _ = guard.begin_session().await?;
        Ok(guard)
    }

    /// One object for each of these runs of records, of which none is archived.
    pub(crate) async fn archive(&self, runs: &[&[Record]]) -> Result<()> {
        let mut guard = self.open(None).await?;
        for run in runs {
            assert_eq!(deliver(&mut guard, run).await?.len(), run.len());
        }
        Ok(())
    }

    /// Delivers these to a new guard: the sequences of those that were written.
    pub(crate) async fn deliver(&self, records: &[Record]) -> Result<Vec<u64>> {
        deliver(&mut self.open(None).await?, records).await
    }

    /// Names of the archived objects, in order.
    pub(crate) async fn names(&self) -> Result<Vec<String>> {
        let listed: Vec<_> = self.place.bucket.store.list(Some(&self.place.directory)).try_collect().await?;
        let mut names: Vec<_> = listed.iter().filter_map(|meta| Some(meta.location.filename()?.to_owned())).collect();
        names.retain(|name| names::ids(name).is_some());
        names.sort_unstable();
        Ok(names)
    }

    pub(crate) async fn content(&self, name: &str) -> Result<Bytes> {
        Ok(self.place.bucket.store.get(&self.place.object(name)).await?.bytes().await?)
    }

    /// All that the archive holds, in order.
    pub(crate) async fn held(&self) -> Result<Vec<RecordId>> {
        let mut held = Vec::new();
        for name in self.names().await? {
            held.extend(archiver_parquet::rows_of(self.content(&name).await?)?.into_iter().map(|row| row.id));
        }
        held.sort_unstable();
        Ok(held)
    }
}

/// Delivers these, in one flush, and gives the sequences of those that were written. The others were skipped.
pub(crate) async fn deliver(guard: &mut Guard<S3Sink>, records: &[Record]) -> Result<Vec<u64>> {
    let mut written = Vec::new();
    for record in records {
        let before = record.sequence.checked_sub(1).filter(|before| *before > 0);
        match guard.offer(record.clone(), before).await? {
            Offer::Written => written.push(record.sequence),
            other => assert_eq!(other, Offer::Skipped),
        }
    }
    let permits = guard.flush(Reason::Due).await?;
    assert_eq!(permits.acks().len(), records.len());
    Ok(written)
}

pub(crate) fn ids(records: &[Record]) -> Vec<RecordId> {
    records.iter().map(Record::id).collect()
}

#[tokio::test]
async fn each_flush_makes_one_object_and_an_empty_one_makes_none() -> Result<()> {
    let world = World::new();
    let records = world.publish(4);
    world.archive(&[&records[..2], &[], &records[2..]]).await?;
    assert_eq!((world.names().await?.len(), world.held().await?), (2, ids(&records)));
    Ok(())
}

#[tokio::test]
async fn the_same_records_at_another_time_go_to_the_same_object() -> Result<()> {
    let mut world = World::new();
    let records = world.publish(3);
    world.archive(&[&records]).await?;
    let names = world.names().await?;
    let name = names.first().context("an object")?;
    let before = world.content(name).await?;
    world.place.bucket.store = memory().store;
    world.checkpoint = MemoryStore::new();
    let mut guard = world.open(None).await?;
    // In another order, and one of them twice, as deliveries come after a restart.
    for n in [2, 0, 1, 0] {
        let _ = guard.offer(records[n].clone(), None).await?;
    }
    let _ = guard.flush(Reason::Due).await?;
    assert_eq!(world.names().await?, names);
    let rows = |content| archiver_parquet::rows_of(content);
    assert_eq!(rows(world.content(name).await?)?, rows(before)?);
    Ok(())
}

#[tokio::test]
async fn asks_for_a_flush_at_its_own_bound() -> Result<()> {
    let mut sink = S3Sink::new(World::new().place, 2_000, Arc::default());
    let record = |sequence| Record::new(sequence, 1, "s.a", vec![0; 1_000]);
    assert_eq!(sink.write(record(1)).await?, Written::Accepted);
    assert_eq!(sink.write(record(2)).await?, Written::Full);
    assert_eq!(sink.flush(Flush::without_guard(Reason::Due)).await?, Durable::All);
    assert_eq!(sink.write(record(3)).await?, Written::Accepted);
    Ok(())
}

impl Storage for Bucket {
    type Sink = S3Sink;

    async fn open(&self, source: &Source) -> Result<S3Sink, SinkFailure> {
        // So much that some flushes are asked for by the sink.
        Ok(S3Sink::new(Place::new(self.clone(), source.clone()), 3_000, Arc::default()))
    }

    async fn held(&self, source: &Source) -> Result<Vec<Held>, SinkFailure> {
        let world = World { place: Place::new(self.clone(), source.clone()), ..World::new() };
        let mut held = Vec::new();
        for name in world.names().await? {
            for row in archiver_parquet::rows_of(world.content(&name).await?)? {
                let mut headers = HeaderMap::new();
                for (name, value) in &row.headers {
                    headers.append(name.as_str(), value.as_str());
                }
                let row = Held::new(row.id.sequence, row.id.published, row.subject, row.payload);
                held.push(row.with_headers(headers));
            }
        }
        Ok(held)
    }
}

#[tokio::test]
async fn keeps_what_a_sink_promises() -> Result<()> {
    let report = Conformance::new().cases(40).must_recover().check(async || Ok(memory())).await?;
    assert!(report.recovers && report.headers && report.full > 0, "{report}");
    Ok(())
}
