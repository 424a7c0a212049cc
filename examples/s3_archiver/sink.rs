//! The sink: buffers records and writes one object per flush.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use archiver_parquet::{MAX_CLAIMS, Row, encode, names};
use archiver_support::{Job, Progress, Target};
use bytes::Bytes;
use object_store::path::Path;
use replay_guard::{Claim, Coverage, Durable, Flush, Record, RecordId, Recovered, Sink, Source, Written};

use crate::bucket::Bucket;
use crate::error::SinkError;
use crate::place::Place;
use crate::recover;

/// A bucket of Parquet objects, in directories by source.
#[derive(Clone, Debug)]
pub(crate) struct Archive {
    bucket: Bucket,
    rewrite_missing_from: Option<u64>,
    probed: Arc<AtomicBool>,
}

impl Archive {
    pub(crate) fn new(bucket: Bucket) -> Self {
        Self { bucket, rewrite_missing_from: None, probed: Arc::default() }
    }

    /// From this sequence on, what no object holds shall be written again, also what the checkpoint has.
    ///
    /// Not by default: objects may be expired or merged.
    pub(crate) fn rewrite_missing_from(mut self, sequence: Option<u64>) -> Self {
        self.rewrite_missing_from = sequence;
        self
    }
}

impl Target for Archive {
    type Sink = S3Sink;

    async fn open(&self, job: &Job, progress: &Arc<Progress>) -> Result<S3Sink, SinkError> {
        let place = Place::new(self.bucket.clone(), job.source());
        // A store does not change its ways while we run.
        if !self.probed.load(Ordering::Relaxed) {
            self.bucket.probe(&place.directory).await?;
            self.probed.store(true, Ordering::Relaxed);
        }
        let mut sink = S3Sink::new(place, job.flush.bytes, Arc::clone(progress));
        sink.rewrite_from = self.rewrite_missing_from;
        Ok(sink)
    }

    fn is_setting(error: &SinkError) -> bool {
        error.is_setting()
    }
}

/// Writes one object per flush.
#[derive(Debug)]
pub(crate) struct S3Sink {
    place: Place,
    rows: BTreeMap<RecordId, Row>,
    bytes: usize,
    max_bytes: usize,
    rewrite_from: Option<u64>,
    progress: Arc<Progress>,
}

impl S3Sink {
    /// Asks for a flush by itself once it holds `max_bytes`.
    pub(crate) fn new(place: Place, max_bytes: usize, progress: Arc<Progress>) -> Self {
        Self { place, rows: BTreeMap::new(), bytes: 0, max_bytes, rewrite_from: None, progress }
    }
}

impl Sink for S3Sink {
    type Error = SinkError;

    async fn write(&mut self, record: Record) -> Result<Written, SinkError> {
        let row = Row::from(record);
        self.bytes += row.memory();
        self.rows.insert(row.id, row);
        Ok(if self.bytes >= self.max_bytes { Written::Full } else { Written::Accepted })
    }

    async fn flush(&mut self, flush: Flush<'_>) -> Result<Durable, SinkError> {
        let claim = flush.claim();
        let rows = std::mem::take(&mut self.rows);
        self.bytes = 0;
        let (Some((&first, _)), Some((&last, _))) = (rows.first_key_value(), rows.last_key_value()) else {
            return Ok(Durable::All);
        };
        let (count, name) = (rows.len(), names::file(first, last));
        let object = self.place.object(&name);
        let content = file(object.clone(), self.place.source.clone(), rows.into_values().collect(), claim.clone());
        let ((), content) = tokio::try_join!(self.place.announce(&name), content)?;
        let size = content.len() as u64;
        self.place.create(&name, content, &claim).await?;
        tracing::debug!(records = count, bytes = size, %object, "archived");
        self.progress.archived(count, size);
        Ok(Durable::All)
    }

    async fn recover(&mut self, source: &Source) -> Result<Recovered, SinkError> {
        self.recover_beyond(source, &Coverage::default()).await
    }

    /// What the checkpoint has needs no footer: the names say which records an object holds.
    async fn recover_beyond(&mut self, _source: &Source, checkpoint: &Coverage) -> Result<Recovered, SinkError> {
        let from = self.rewrite_from;
        let wanted = |first, last: RecordId| match from {
            Some(from) => last.sequence >= from || !checkpoint.holds(first, last),
            None => !checkpoint.holds(first, last),
        };
        let found = recover::recover(&self.place, wanted, MAX_CLAIMS).await?;
        tracing::info!(
            objects = found.objects,
            read = found.read,
            claims = found.claims.kept.len(),
            damaged = found.damaged,
            "looked at the archive"
        );
        Ok(found.claims.recovered(from))
    }

    async fn records_in(
        &mut self,
        _source: &Source,
        sequences: RangeInclusive<u64>,
    ) -> Result<Vec<RecordId>, SinkError> {
        recover::records_in(&self.place, &sequences).await
    }
}

/// Encodes off the runtime's own threads, which must not be kept busy for long.
async fn file(object: Path, source: Source, rows: Vec<Row>, claim: Claim) -> Result<Bytes, SinkError> {
    let encoded = tokio::task::spawn_blocking(move || encode(Vec::new(), &source, &rows, &claim)).await;
    match encoded {
        Ok(Ok(content)) => Ok(content.into()),
        Ok(Err(source)) => Err(SinkError::Encode { object, source }),
        Err(source) => Err(SinkError::Task { object, source }),
    }
}

#[cfg(test)]
pub(crate) mod tests;
