//! Rows and their claim, in one transaction.

use bytes::{Bytes, BytesMut};
use futures_util::TryStreamExt as _;
use sqlx::{Executor as _, PgConnection};

use crate::error::{SinkError, sql};
use crate::row::{self, COLUMNS, Row};
use crate::schema::Schema;
use crate::session::{KeptClaim, Transaction, commit};

/// How many claims of a source are kept. Two would do for exactly once, since a flush begins only after the checkpoint of the
/// one before; after a fork, older ones tell more exactly where the stream parted.
const KEEP: i64 = 1_024;
/// Rows go to the server in pieces of about this many bytes, so that a flush is not in memory twice.
const PIECE: usize = 256 << 10;

/// About how many records are named where one asks which are there.
const SOME: i64 = 256;

/// What became of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Inserted {
    /// How many are new.
    pub(crate) new: usize,
    /// How many were there already, the same.
    pub(crate) held: usize,
}

/// Stores all rows and the claim, or nothing.
///
/// The guard offers a record again that the table holds where the checkpoint is lost, and after a fork whatever it cannot tell
/// apart. Such a row is left as it is if it is the same message; if it is another, nothing is stored.
pub(crate) async fn insert(
    connection: &mut PgConnection,
    transaction: &Transaction<'_>,
    rows: &[Row],
    claim: &Bytes,
) -> Result<Inserted, SinkError> {
    let Transaction { schema, lease, .. } = transaction;
    let (Some(first), Some(last)) = (rows.iter().map(Row::id).min(), rows.iter().map(Row::id).max()) else {
        return Ok(Inserted { new: 0, held: 0 });
    };
    let records = schema.statement("$schema.records");
    transaction.begin(connection).await?;
    let inserted = match copy(connection, &records, lease.source, rows).await {
        Ok(new) => Inserted { new, held: 0 },
        Err(error) if error.is_duplicate() => {
            connection.execute("ROLLBACK").await.map_err(sql("roll back"))?;
            transaction.begin(connection).await?;
            beside(connection, &records, lease.source, rows).await?
        }
        Err(error) => return Err(error),
    };
    sqlx::query(&schema.statement(
        "INSERT INTO $schema.claims
            (source, number, first_sequence, first_published_ns, last_sequence, last_published_ns, claim)
         VALUES ($1, $2, $3, $4, $5, $6, $7)",
    ))
    .bind(lease.source)
    .bind(lease.claim)
    .bind(first.0)
    .bind(first.1)
    .bind(last.0)
    .bind(last.1)
    .bind(claim.as_ref())
    .execute(&mut *connection)
    .await
    .map_err(sql("store the claim"))?;
    sqlx::query(&schema.statement("DELETE FROM $schema.claims WHERE source = $1 AND number <= $2"))
        .bind(lease.source)
        .bind(lease.claim - KEEP)
        .execute(&mut *connection)
        .await
        .map_err(sql("remove old claims"))?;
    commit(connection, "commit records").await?;
    Ok(inserted)
}

/// Copies the rows into a table: how many there are, which is all of them.
async fn copy(connection: &mut PgConnection, table: &str, source: i32, rows: &[Row]) -> Result<usize, SinkError> {
    let error = || sql("copy records");
    let statement = format!("COPY {table} ({COLUMNS}) FROM STDIN (FORMAT binary)");
    let mut copy = connection.copy_in_raw(&statement).await.map_err(error())?;
    let mut piece = BytesMut::with_capacity(PIECE);
    row::begin(&mut piece);
    for row in rows {
        row.encode(source, &mut piece)?;
        if piece.len() >= PIECE {
            copy.send(&piece[..]).await.map_err(error())?;
            piece.clear();
        }
    }
    row::end(&mut piece);
    copy.send(&piece[..]).await.map_err(error())?;
    let kept = copy.finish().await.map_err(error())?;
    all(kept, rows.len())
}

/// Copies the rows into a table of their own, and takes over what is new.
async fn beside(
    connection: &mut PgConnection,
    records: &str,
    source: i32,
    rows: &[Row],
) -> Result<Inserted, SinkError> {
    let error = || sql("compare records");
    let create =
        format!("CREATE TEMPORARY TABLE offered ON COMMIT DROP AS SELECT {COLUMNS} FROM {records} WITH NO DATA");
    connection.execute(&*create).await.map_err(error())?;
    copy(connection, "pg_temp.offered", source, rows).await?;
    let insert = format!(
        "INSERT INTO {records} ({COLUMNS}) SELECT {COLUMNS} FROM pg_temp.offered
         ON CONFLICT (source, sequence, published_ns) DO NOTHING"
    );
    let new = connection.execute(&*insert).await.map_err(error())?.rows_affected();
    // As the guard compares: headers may be delivered otherwise than they are kept.
    let compare = format!(
        "SELECT sequence, published_ns FROM pg_temp.offered LEFT JOIN {records} AS held
            USING (source, sequence, published_ns)
         WHERE (held.subject = offered.subject AND held.payload = offered.payload) IS NOT TRUE LIMIT 1"
    );
    let other: Option<(i64, i64)> = sqlx::query_as(&compare).fetch_optional(connection).await.map_err(error())?;
    if let Some((sequence, published_ns)) = other {
        return Err(SinkError::Differs { sequence, published_ns });
    }
    let new = usize::try_from(new).unwrap_or(usize::MAX).min(rows.len());
    Ok(Inserted { new, held: rows.len() - new })
}

fn all(kept: u64, given: usize) -> Result<usize, SinkError> {
    let expected = given as u64;
    if kept == expected { Ok(given) } else { Err(SinkError::Dropped { given: expected, kept }) }
}

/// The claims of a source, newest first, until they take so many bytes; and whether there are more.
pub(crate) async fn claims(
    connection: &mut PgConnection,
    schema: &Schema,
    source: i32,
    max_bytes: usize,
) -> Result<(Vec<KeptClaim>, bool), SinkError> {
    let statement = schema.statement(
        "SELECT first_sequence, first_published_ns, last_sequence, last_published_ns, claim
         FROM $schema.claims WHERE source = $1 ORDER BY number DESC",
    );
    let query = sqlx::query_as::<_, (i64, i64, i64, i64, Vec<u8>)>(&statement).bind(source);
    let mut found = query.fetch(connection);
    let (mut claims, mut bytes) = (Vec::new(), 0);
    while let Some(claim) = found.try_next().await.map_err(sql("read the claims"))? {
        let (first, first_ns, last, last_ns, claim) = claim;
        bytes += claim.len();
        if bytes > max_bytes {
            return Ok((claims, true));
        }
        claims.push(((first, first_ns), (last, last_ns), claim));
    }
    Ok((claims, false))
}

/// Some of the records in a range of sequences, evenly spread where there are many: all of each sequence that is named.
pub(crate) async fn some(
    connection: &mut PgConnection,
    schema: &Schema,
    source: i32,
    (first, last): (i64, i64),
) -> Result<Vec<(i64, i64)>, SinkError> {
    let step = ((last - first) / SOME).saturating_add(1);
    sqlx::query_as(&schema.statement(
        "SELECT DISTINCT held.sequence, held.published_ns FROM generate_series(0, ($3 - $2) / $4) AS number
         CROSS JOIN LATERAL (SELECT sequence FROM $schema.records
            WHERE source = $1 AND sequence BETWEEN $2 + number * $4 AND $3 ORDER BY sequence LIMIT 1) AS picked
         JOIN $schema.records AS held ON held.source = $1 AND held.sequence = picked.sequence",
    ))
    .bind(source)
    .bind(first)
    .bind(last)
    .bind(step)
    .fetch_all(connection)
    .await
    .map_err(sql("look which records are there"))
}
