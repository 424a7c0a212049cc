//! One connection to the database, and what an archiver does over it.
//!
//! Everything that is written goes over the connection that holds the source's lock, in a transaction that proves again that
//! this archiver is the newest one. So a connection that was lost, and at whose other end a transaction still runs, never
//! writes beside the next archiver: that one waits until it has ended.

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use replay_guard::Source;
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions as _, Executor as _, PgConnection};
use tokio::time::timeout;

use crate::address;
use crate::error::{SinkError, sql};
use crate::records::{self, Inserted};
use crate::row::Row;
use crate::schema::Schema;

/// How long connecting may take.
const CONNECT: Duration = Duration::from_secs(10);
/// How long to wait for an archiver that has the source: longer than one takes to die.
const LOCK: Duration = Duration::from_secs(10);

/// Where and how to work.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    pub(crate) options: PgConnectOptions,
    pub(crate) schema: Schema,
    /// How long the database may take for one transaction.
    pub(crate) patience: Duration,
    /// Whether a server that does not sync its log is accepted.
    pub(crate) without_fsync: bool,
}

/// The right to write, and where this archiver is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lease {
    /// The number of the source in the tables.
    pub(crate) source: i32,
    /// The number of this archiver among those of the source.
    pub(crate) epoch: i64,
    /// The number of the newest claim.
    pub(crate) claim: i64,
    /// The number of the newest checkpoint.
    counter: i64,
}

/// A checkpoint as it is stored.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) counter: i64,
    pub(crate) version: i32,
    pub(crate) body: Vec<u8>,
    pub(crate) aside: bool,
}

/// A claim as it is stored, with the ids of the first and last record it was made for.
pub(crate) type KeptClaim = ((i64, i64), (i64, i64), Vec<u8>);

/// One connection. A call that fails, or is dropped half way, closes it: what became of the transaction is not known, and
/// whoever comes next finds out by reading.
#[derive(Debug)]
pub(crate) struct Session {
    connection: Option<PgConnection>,
    access: Access,
    /// The number of the source in the tables.
    source: i32,
    /// The source, and where it is, for messages.
    place: String,
    lease: Option<Lease>,
}

impl Session {
    /// Connects, makes the tables where they are missing, and checks that what is committed here is durable.
    pub(crate) async fn open(access: Access, source: &Source) -> Result<Self, SinkError> {
        let place = format!("{source} in {}", place(&access));
        let connected = timeout(CONNECT, access.options.connect()).await;
        let connection = connected
            .map_err(|_| SinkError::Silent { action: "connect", after: CONNECT })?
            .map_err(sql("connect to the database"))?;
        let mut session = Self { connection: Some(connection), access, source: 0, place, lease: None };
        let (access, place, source) = (session.access.clone(), session.place.clone(), source.clone());
        session.source = session
            .work("prepare the database", move |mut connection| async move {
                settle(&mut connection, &access, &place).await?;
                access.schema.prepare(&mut connection).await?;
                let number = number(&mut connection, &access.schema, &source).await?;
                Ok((connection, number))
            })
            .await?;
        Ok(session)
    }

    /// Takes the source for this session, and gives the checkpoints that are there, newest first.
    pub(crate) async fn lock(&mut self) -> Result<Vec<Kept>, SinkError> {
        let (access, place, source) = (self.access.clone(), self.place.clone(), self.source);
        let (lease, kept) = self
            .work("take the source", move |mut connection| async move {
                let locked = lock(&mut connection, &access, source, &place).await?;
                Ok((connection, locked))
            })
            .await?;
        self.lease = Some(lease);
        Ok(kept)
    }

    /// Stores rows and claim in one transaction: how many of the rows were not there yet.
    pub(crate) async fn insert(&mut self, rows: Vec<Row>, claim: Bytes) -> Result<Inserted, SinkError> {
        let (schema, place) = (self.access.schema.clone(), self.place.clone());
        let mut lease = self.lease.ok_or(SinkError::Closed)?;
        lease.claim += 1;
        let inserted = self
            .work("store records", move |mut connection| async move {
                let transaction = Transaction { schema: &schema, place: &place, lease };
                let inserted = records::insert(&mut connection, &transaction, &rows, &claim).await?;
                Ok((connection, inserted))
            })
            .await?;
        self.lease = Some(lease);
        Ok(inserted)
    }

    /// The claims, newest first, until they take so many bytes; and whether there are more.
    pub(crate) async fn claims(&mut self, max_bytes: usize) -> Result<(Vec<KeptClaim>, bool), SinkError> {
        let schema = self.access.schema.clone();
        let lease = self.lease.ok_or(SinkError::Closed)?;
        self.work("read the claims", move |mut connection| async move {
            let claims = records::claims(&mut connection, &schema, lease.source, max_bytes).await?;
            Ok((connection, claims))
        })
        .await
    }

    /// Some of the records with a sequence in this range.
    pub(crate) async fn some(&mut self, range: (i64, i64)) -> Result<Vec<(i64, i64)>, SinkError> {
        let (schema, source) = (self.access.schema.clone(), self.source);
        self.work("look which records are there", move |mut connection| async move {
            let some = records::some(&mut connection, &schema, source, range).await?;
            Ok((connection, some))
        })
        .await
    }

    /// Makes a checkpoint durable, in place of the one before.
    pub(crate) async fn save(&mut self, version: u16, body: Bytes) -> Result<(), SinkError> {
        let (schema, place) = (self.access.schema.clone(), self.place.clone());
        let mut lease = self.lease.ok_or(SinkError::Closed)?;
        lease.counter += 1;
        self.work("save the checkpoint", move |mut connection| async move {
            let transaction = Transaction { schema: &schema, place: &place, lease };
            transaction.begin(&mut connection).await?;
            let saved = sql("save the checkpoint");
            sqlx::query(
                &schema.statement(
                    "INSERT INTO $schema.checkpoints (source, counter, version, body) VALUES ($1, $2, $3, $4)",
                ),
            )
            .bind(lease.source)
            .bind(lease.counter)
            .bind(i32::from(version))
            .bind(body.as_ref())
            .execute(&mut connection)
            .await
            .map_err(&saved)?;
            sqlx::query(
                &schema.statement("DELETE FROM $schema.checkpoints WHERE source = $1 AND counter < $2 AND NOT aside"),
            )
            .bind(lease.source)
            .bind(lease.counter)
            .execute(&mut connection)
            .await
            .map_err(&saved)?;
            commit(&mut connection, "save the checkpoint").await?;
            Ok((connection, ()))
        })
        .await?;
        self.lease = Some(lease);
        Ok(())
    }

    /// Keeps the checkpoints that are there for a person to look at: how many there were.
    pub(crate) async fn set_aside(&mut self) -> Result<u64, SinkError> {
        let (schema, place) = (self.access.schema.clone(), self.place.clone());
        let lease = self.lease.ok_or(SinkError::Closed)?;
        self.work("set the checkpoint aside", move |mut connection| async move {
            let transaction = Transaction { schema: &schema, place: &place, lease };
            transaction.begin(&mut connection).await?;
            let aside = sqlx::query(
                &schema.statement("UPDATE $schema.checkpoints SET aside = true WHERE source = $1 AND NOT aside"),
            )
            .bind(lease.source)
            .execute(&mut connection)
            .await
            .map_err(sql("set the checkpoint aside"))?;
            commit(&mut connection, "set the checkpoint aside").await?;
            Ok((connection, aside.rows_affected()))
        })
        .await
    }

    /// Gives the connection away and takes it back only when the work has ended well.
    async fn work<T, F>(&mut self, action: &'static str, work: impl FnOnce(PgConnection) -> F) -> Result<T, SinkError>
    where
        F: Future<Output = Result<(PgConnection, T), SinkError>> + Send,
    {
        let connection = self.connection.take().ok_or(SinkError::Closed)?;
        let after = self.access.patience;
        let done = timeout(after, work(connection)).await.map_err(|_| SinkError::Silent { action, after })?;
        let (connection, value) = done?;
        self.connection = Some(connection);
        Ok(value)
    }
}

/// What each transaction that writes begins and ends with.
#[derive(Debug)]
pub(crate) struct Transaction<'a> {
    pub(crate) schema: &'a Schema,
    pub(crate) place: &'a str,
    pub(crate) lease: Lease,
}

impl Transaction<'_> {
    /// Begins, keeps every other archiver of the source out until the end, and sees to it that the commit is not answered
    /// before it is durable, whatever the server, the database or the user are set to.
    pub(crate) async fn begin(&self, connection: &mut PgConnection) -> Result<(), SinkError> {
        let error = sql("begin a transaction");
        connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE").await.map_err(&error)?;
        // `remote_apply` is more than `on`; all else is less.
        let (epoch, level): (i64, String) = sqlx::query_as(&self.schema.statement(
            "SELECT epoch,
                set_config('synchronous_commit',
                    CASE current_setting('synchronous_commit') WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, true)
             FROM $schema.sources WHERE id = $1 FOR UPDATE",
        ))
        .bind(self.lease.source)
        .fetch_optional(connection)
        .await
        .map_err(&error)?
        .ok_or_else(|| SinkError::Fenced { place: self.place.to_owned() })?;
        if epoch != self.lease.epoch {
            return Err(SinkError::Fenced { place: self.place.to_owned() });
        }
        if !["on", "remote_apply"].contains(&level.as_str()) {
            return Err(SinkError::Setting(format!(
                "synchronous_commit is {level} though it was set: what is committed may not be durable"
            )));
        }
        Ok(())
    }
}

/// Ends a transaction of which everything went well.
pub(crate) async fn commit(connection: &mut PgConnection, action: &'static str) -> Result<(), SinkError> {
    connection.execute("COMMIT").await.map_err(sql(action))?;
    Ok(())
}

/// Which schema of which database.
pub(crate) fn place(access: &Access) -> String {
    format!("schema {} of {}", access.schema.name(), address::place(&access.options))
}

/// Settings of the connection that the archive rests on, and a look at those that it cannot change.
async fn settle(connection: &mut PgConnection, access: &Access, place: &str) -> Result<(), SinkError> {
    let error = sql("look at the server's settings");
    let milliseconds = access.patience.as_millis();
    // A peer that is gone without a word must not hold the source for hours.
    let settings = format!(
        "SET search_path = pg_catalog, pg_temp; SET default_transaction_read_only = off; \
         SET default_transaction_isolation = 'read committed'; SET statement_timeout = 0; \
         SET tcp_keepalives_idle = 30; SET tcp_keepalives_interval = 10; SET tcp_keepalives_count = 3; \
         SET idle_in_transaction_session_timeout = {milliseconds}"
    );
    connection.execute(&*settings).await.map_err(&error)?;
    // Nor one that died while its statement waits; and an archiver without messages must not lose the source. Older servers
    // know less, and not every system can look after its clients.
    let more =
        "SELECT set_config(name, CASE name WHEN 'client_connection_check_interval' THEN '2s' ELSE '0' END, false)
         FROM pg_settings WHERE name IN ('idle_session_timeout', 'transaction_timeout')
            OR (name = 'client_connection_check_interval' AND version() ~ 'linux')";
    connection.execute(more).await.map_err(&error)?;
    let (standby, fsync, pages, encoding): (bool, String, String, String) = sqlx::query_as(
        "SELECT pg_is_in_recovery(), current_setting('fsync'), current_setting('full_page_writes'),
                current_setting('server_encoding')",
    )
    .fetch_one(&mut *connection)
    .await
    .map_err(&error)?;
    if standby {
        return Err(SinkError::Standby { place: place.to_owned() });
    }
    if fsync != "on" && !access.without_fsync {
        return Err(SinkError::Setting(format!(
            "fsync is {fsync} on the server of {place}: what it commits does not survive a power cut; set it to on, or say \
             --without-fsync where the service keeps its log safe in another way"
        )));
    }
    if pages != "on" {
        tracing::warn!(
            "full_page_writes is {pages}: a power cut may damage tables, unless the server's disks write pages whole"
        );
    }
    if encoding != "UTF8" {
        return Err(SinkError::Setting(format!(
            "the encoding of {place} is {encoding}, which cannot hold every subject; create a database with encoding UTF8"
        )));
    }
    Ok(())
}

/// The number of a source, which has one from now on.
async fn number(connection: &mut PgConnection, schema: &Schema, source: &Source) -> Result<i32, SinkError> {
    let error = sql("note the source");
    let domain = source.domain().unwrap_or_default();
    sqlx::query(&schema.statement(
        "INSERT INTO $schema.sources (domain, stream, filters) VALUES ($1, $2, $3)
         ON CONFLICT (domain, stream, filters) DO NOTHING",
    ))
    .bind(domain)
    .bind(source.stream())
    .bind(source.filters())
    .execute(&mut *connection)
    .await
    .map_err(&error)?;
    let found = schema.statement("SELECT id FROM $schema.sources WHERE domain = $1 AND stream = $2 AND filters = $3");
    let found = sqlx::query_as(&found).bind(domain).bind(source.stream()).bind(source.filters());
    let (number,): (i32,) = found.fetch_one(connection).await.map_err(&error)?;
    Ok(number)
}

async fn lock(
    connection: &mut PgConnection,
    access: &Access,
    source: i32,
    place: &str,
) -> Result<(Lease, Vec<Kept>), SinkError> {
    let error = || sql("take the source");
    let schema = &access.schema;
    let locked = async {
        // The whole call must not take longer than that.
        let limit = LOCK.min(access.patience / 2).as_millis();
        connection.execute(&*format!("SET lock_timeout = {limit}")).await.map_err(error())?;
        // In pairs with the table's own number: nobody else's locks have it.
        sqlx::query(&schema.statement("SELECT pg_advisory_lock('$schema.sources'::regclass::oid::integer, $1)"))
            .bind(source)
            .execute(&mut *connection)
            .await
            .map_err(error())?;
        // Waits for a transaction of an archiver that lost its session and still runs; from here on none can begin.
        let next = schema.statement("UPDATE $schema.sources SET epoch = epoch + 1 WHERE id = $1 RETURNING epoch");
        let (epoch,): (i64,) = sqlx::query_as(&next).bind(source).fetch_one(&mut *connection).await.map_err(error())?;
        connection.execute("SET lock_timeout = 0").await.map_err(error())?;
        Ok(epoch)
    };
    let epoch = locked.await.map_err(|error: SinkError| {
        if error.is_lock_timeout() { SinkError::Locked { place: place.to_owned() } } else { error }
    })?;
    let (claim,): (i64,) =
        sqlx::query_as(&schema.statement("SELECT coalesce(max(number), 0) FROM $schema.claims WHERE source = $1"))
            .bind(source)
            .fetch_one(&mut *connection)
            .await
            .map_err(error())?;
    let kept: Vec<(i64, i32, Vec<u8>, bool)> = sqlx::query_as(&schema.statement(
        "SELECT counter, version, body, aside FROM $schema.checkpoints WHERE source = $1 ORDER BY counter DESC",
    ))
    .bind(source)
    .fetch_all(connection)
    .await
    .map_err(error())?;
    let kept: Vec<Kept> =
        kept.into_iter().map(|(counter, version, body, aside)| Kept { counter, version, body, aside }).collect();
    let counter = kept.first().map_or(0, |newest| newest.counter);
    Ok((Lease { source, epoch, claim, counter }, kept))
}
