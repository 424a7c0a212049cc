//! The sink: buffers records and inserts one block per flush.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use archiver_support::{Job, Progress, Target};
use clickhouse::sql::Identifier;
use clickhouse::{Client, Compression};
use replay_guard::{Coverage, Durable, Flush, Record, RecordId, Recovered, Sink, Source, Written};

use crate::abilities::Abilities;
use crate::batch::{self, Message};
use crate::cli::{self, TargetSettings};
use crate::error::SinkError;
use crate::recover;
use crate::session::{Session, within};
use crate::table::{self, Column, Described};

/// A table of a ClickHouse server.
#[derive(Clone, Debug)]
pub(crate) struct Archive {
    settings: Arc<TargetSettings>,
    /// Whether it was said what an insert may not survive: once, not for each new sink.
    warned: Arc<AtomicBool>,
}

impl Archive {
    pub(crate) fn new(settings: TargetSettings) -> Self {
        Self { settings: Arc::new(settings), warned: Arc::default() }
    }

    /// A client that no server refuses to talk to.
    fn client(&self) -> Client {
        let settings = &self.settings;
        let mut client = Client::default()
            .with_url(&settings.url)
            .with_database(&settings.database)
            .with_validation(false)
            .with_compression(match settings.compression {
                cli::Compression::Lz4 => Compression::Lz4,
                cli::Compression::None => Compression::None,
            });
        if let Some(user) = &settings.user {
            client = client.with_user(user).with_password(settings.password.clone().unwrap_or_default());
        }
        client
    }

    /// Makes the table where it is missing, and makes sure that it will do.
    async fn table(&self, client: &Client, abilities: &Abilities) -> Result<(), SinkError> {
        let TargetSettings { database, table, timeout, .. } = &*self.settings;
        let create = client.query(&table::create(abilities));
        let create = create.bind(Identifier(database)).bind(Identifier(table)).execute();
        within(*timeout, "make the table", create).await?;
        let query = client.query("SELECT ?fields FROM system.tables WHERE database = ? AND name = ?");
        let described = query.bind(database).bind(table).fetch_one::<Described>();
        let described = within(*timeout, "look at the table", described).await?;
        let query = client.query("SELECT ?fields FROM system.columns WHERE database = ? AND table = ?");
        let columns = query.bind(database).bind(table).fetch_all::<Column>();
        let columns = within(*timeout, "look at the table's columns", columns).await?;
        if let Some(reason) = table::refuse(&described, &columns) {
            return Err(SinkError::Table { table: format!("{database}.{table}"), reason });
        }
        if !self.warned.swap(true, Ordering::Relaxed) {
            for warning in table::warnings(&described, abilities) {
                tracing::warn!(database, table, "{warning}");
            }
        }
        Ok(())
    }

    async fn sink(
        &self,
        source: Source,
        max_bytes: usize,
        progress: &Arc<Progress>,
    ) -> Result<ClickHouseSink, SinkError> {
        let TargetSettings { database, table, timeout, .. } = &*self.settings;
        let client = self.client();
        let abilities = Abilities::ask(&client, *timeout).await?;
        self.table(&client, &abilities).await?;
        let client = client.with_validation(abilities.validates());
        let session = Session::new(&client, &abilities, (database, table), &source, *timeout);
        // All that a flush does, with nothing to insert: what is not permitted fails here. Apart, since whether another
        // process works on this source is known only when `recover` is called.
        session.apart().insert(&[]).await?;
        tracing::debug!(version = abilities.version, tokens = abilities.takes_tokens(), "ClickHouse answers");
        Ok(ClickHouseSink {
            client,
            settings: Arc::clone(&self.settings),
            session,
            source,
            rows: Vec::new(),
            bytes: 0,
            max_bytes,
            progress: Arc::clone(progress),
        })
    }
}

impl Target for Archive {
    type Sink = ClickHouseSink;

    async fn open(&self, job: &Job, progress: &Arc<Progress>) -> Result<ClickHouseSink, SinkError> {
        self.sink(job.source(), job.flush.bytes, progress).await
    }

    fn is_setting(error: &SinkError) -> bool {
        error.is_setting()
    }
}

/// Inserts one block per flush into the table.
pub(crate) struct ClickHouseSink {
    client: Client,
    settings: Arc<TargetSettings>,
    session: Session,
    source: Source,
    rows: Vec<Message>,
    bytes: usize,
    max_bytes: usize,
    progress: Arc<Progress>,
}

impl Sink for ClickHouseSink {
    type Error = SinkError;

    async fn write(&mut self, record: Record) -> Result<Written, SinkError> {
        let row = Message::new(&self.source, record);
        self.bytes += row.size();
        self.rows.push(row);
        Ok(if self.bytes >= self.max_bytes { Written::Full } else { Written::Accepted })
    }

    async fn flush(&mut self, flush: Flush<'_>) -> Result<Durable, SinkError> {
        let rows = batch::batch(std::mem::take(&mut self.rows), &flush.claim());
        let bytes = std::mem::take(&mut self.bytes);
        if !rows.is_empty() {
            self.session.insert(&rows).await?;
            self.progress.archived(rows.len(), bytes as u64);
        }
        Ok(Durable::All)
    }

    async fn recover(&mut self, source: &Source) -> Result<Recovered, SinkError> {
        self.recover_beyond(source, &Coverage::default()).await
    }

    async fn recover_beyond(&mut self, _source: &Source, checkpoint: &Coverage) -> Result<Recovered, SinkError> {
        // First the fence, then the question: what comes later cannot add to the answer.
        self.session.fence().await?;
        let TargetSettings { database, table, timeout, .. } = &*self.settings;
        let found = recover::recover(&self.client, (database, table), &self.source, checkpoint, *timeout).await?;
        tracing::info!(read = found.read, claims = found.claims.len(), "asked the table what it holds");
        Ok(Recovered::AtLeast(found.claims))
    }

    async fn records_in(
        &mut self,
        _source: &Source,
        sequences: RangeInclusive<u64>,
    ) -> Result<Vec<RecordId>, SinkError> {
        let TargetSettings { database, table, timeout, .. } = &*self.settings;
        recover::records_in(&self.client, (database, table), &self.source, &sequences, *timeout).await
    }
}

#[cfg(test)]
mod tests;
