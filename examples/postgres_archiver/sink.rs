//! The sink: buffers records, and stores those of a flush with its claim in one transaction.

use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use archiver_support::{Job, Progress, Target};
use replay_guard::{
    CheckpointStore, Claim, Coverage, Durable, Flush, Record, RecordId, Recovered, Sink, Source, Written,
};

use crate::error::SinkError;
use crate::row::Row;
use crate::session::{self, Access, Session};
use crate::store::Checkpoints;

/// How many bytes of claims are kept in memory.
const MAX_CLAIMS: usize = 16 << 20;

/// The connection that a sink and its checkpoint share.
pub(crate) type Shared = Arc<tokio::sync::Mutex<Session>>;

/// The connection of the sink that was made last, as long as somebody has it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Held(Arc<Mutex<Weak<tokio::sync::Mutex<Session>>>>);

impl Held {
    pub(crate) fn get(&self) -> Option<Shared> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).upgrade()
    }

    fn set(&self, session: &Shared) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(session);
    }
}

/// A schema of a database.
#[derive(Clone, Debug)]
pub(crate) struct Database {
    access: Access,
    location: String,
    held: Held,
}

impl Database {
    pub(crate) fn new(access: Access) -> Self {
        let location = session::place(&access);
        Self { access, location, held: Held::default() }
    }

    async fn sink(
        &self,
        source: &Source,
        max_bytes: usize,
        progress: &Arc<Progress>,
    ) -> Result<PostgresSink, SinkError> {
        let session = Session::open(self.access.clone(), source).await?;
        let session = Arc::new(tokio::sync::Mutex::new(session));
        self.held.set(&session);
        Ok(PostgresSink { session, rows: Vec::new(), bytes: 0, max_bytes, progress: Arc::clone(progress) })
    }
}

impl Target for Database {
    type Sink = PostgresSink;

    async fn open(&self, job: &Job, progress: &Arc<Progress>) -> Result<PostgresSink, SinkError> {
        self.sink(&job.source(), job.flush.bytes, progress).await
    }

    fn is_setting(error: &SinkError) -> bool {
        error.is_setting()
    }

    fn store(&self, _job: &Job, _source: &Source) -> Box<dyn CheckpointStore> {
        Box::new(Checkpoints::new(self.location.clone(), self.held.clone()))
    }
}

/// Stores one transaction per flush.
#[derive(Debug)]
pub(crate) struct PostgresSink {
    session: Shared,
    rows: Vec<Row>,
    bytes: usize,
    max_bytes: usize,
    progress: Arc<Progress>,
}

impl Sink for PostgresSink {
    type Error = SinkError;

    async fn write(&mut self, record: Record) -> Result<Written, SinkError> {
        let row = Row::new(record)?;
        self.bytes += row.size();
        self.rows.push(row);
        Ok(if self.bytes >= self.max_bytes { Written::Full } else { Written::Accepted })
    }

    async fn flush(&mut self, flush: Flush<'_>) -> Result<Durable, SinkError> {
        let rows = std::mem::take(&mut self.rows);
        let bytes = std::mem::take(&mut self.bytes);
        if rows.is_empty() {
            return Ok(Durable::All);
        }
        let claim = flush.claim().as_bytes().to_vec();
        let inserted = self.session.lock().await.insert(rows, claim.into()).await?;
        if inserted.held > 0 {
            tracing::warn!(
                records = inserted.held,
                "written again, and in the table already: left as they are, the same messages"
            );
        }
        self.progress.archived(inserted.new, bytes as u64);
        Ok(Durable::All)
    }

    async fn recover(&mut self, source: &Source) -> Result<Recovered, SinkError> {
        self.recover_beyond(source, &Coverage::default()).await
    }

    /// At least: what housekeeping deletes from the table shall not be written again.
    async fn recover_beyond(&mut self, _source: &Source, checkpoint: &Coverage) -> Result<Recovered, SinkError> {
        let (kept, more) = self.session.lock().await.claims(MAX_CLAIMS).await?;
        if more {
            tracing::warn!(max_bytes = MAX_CLAIMS, "there are too many claims, the older ones are left out");
        }
        let found = kept.len();
        let mut claims = Vec::new();
        for (first, last, bytes) in kept {
            if let (Some(first), Some(last)) = (id(first), id(last))
                && checkpoint.holds(first, last)
            {
                continue;
            }
            match Claim::from_bytes(bytes) {
                Ok(claim) => claims.push(claim),
                Err(error) => tracing::warn!(last = last.0, %error, "a claim cannot be read and is left out"),
            }
        }
        tracing::info!(claims = found, beyond_checkpoint = claims.len(), "looked at the database");
        Ok(Recovered::AtLeast(claims))
    }

    async fn records_in(
        &mut self,
        _source: &Source,
        sequences: RangeInclusive<u64>,
    ) -> Result<Vec<RecordId>, SinkError> {
        let bound = |sequence: u64| i64::try_from(sequence).unwrap_or(i64::MAX);
        let range = (bound(*sequences.start()), bound(*sequences.end()));
        let found = self.session.lock().await.some(range).await?;
        Ok(found.into_iter().filter_map(id).collect())
    }
}

fn id((sequence, published): (i64, i64)) -> Option<RecordId> {
    u64::try_from(sequence).ok().map(|sequence| RecordId::new(sequence, published))
}

#[cfg(test)]
mod tests;
