//! What the table itself says it holds: the claims in the last rows of its batches.

use std::ops::RangeInclusive;
use std::time::Duration;

use clickhouse::sql::Identifier;
use clickhouse::{Client, Row};
use replay_guard::{Claim, Coverage, RecordId, Source};
use serde::Deserialize;

use crate::error::SinkError;
use crate::session::within;

/// How many bytes of claims are kept in memory, the newest first: some hundred thousand batches that were written in order.
const MAX_CLAIMS: usize = 16 << 20;
/// No more claims than this are asked for.
const MAX_ROWS: usize = 300_000;
/// So many spans of the checkpoint, the longest, are told to the server; what the others hold is sorted out here.
const SPANS: usize = 16;

/// About so many sequences of a range are named.
const SEQUENCES: u64 = 1_000;

#[derive(Row, Deserialize)]
struct Held {
    sequence: u64,
    published: i64,
}

/// A row with a claim.
#[derive(Row, Deserialize)]
struct Claimed {
    sequence: u64,
    published: i64,
    claim_first_sequence: u64,
    claim_first_published: i64,
    claim: bytes::Bytes,
}

/// What the table says.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Newest first.
    pub(crate) claims: Vec<Claim>,
    /// Rows that were looked at.
    pub(crate) read: usize,
    bytes: usize,
}

impl Found {
    /// Keeps one more claim, whose batch ends with this record; not if they are too large together.
    fn take(&mut self, last: RecordId, claim: bytes::Bytes, max_bytes: usize) -> bool {
        self.bytes += claim.len();
        if self.bytes > max_bytes {
            tracing::warn!(through = %last, max_bytes, "the table has too many claims, the older ones are left out");
            return false;
        }
        match Claim::from_bytes(claim) {
            Ok(claim) => self.claims.push(claim),
            Err(error) => tracing::warn!(record = %last, %error, "a row's claim does not say what its batch holds"),
        }
        true
    }
}

/// Asks for the claims that name more than the checkpoint has, newest first, as many as fit.
pub(crate) async fn recover(
    client: &Client,
    (database, table): (&str, &str),
    source: &Source,
    checkpoint: &Coverage,
    timeout: Duration,
) -> Result<Found, SinkError> {
    const WHAT: &str = "ask the table which batches it holds";
    let sql = format!(
        "SELECT ?fields FROM ?.? WHERE source = ? AND claim != ''{} ORDER BY published DESC, sequence DESC \
         LIMIT {MAX_ROWS}",
        not_held(checkpoint)
    );
    let query = client.query(&sql).bind(Identifier(database)).bind(Identifier(table)).bind(source.to_string());
    let mut rows = query.fetch::<Claimed>().map_err(|source| SinkError::Server { what: WHAT, source })?;
    let mut found = Found::default();
    while let Some(row) = within(timeout, WHAT, rows.next()).await? {
        found.read += 1;
        let first = RecordId::new(row.claim_first_sequence, row.claim_first_published);
        let last = RecordId::new(row.sequence, row.published);
        if !checkpoint.holds(first, last) && !found.take(last, row.claim, MAX_CLAIMS) {
            break;
        }
    }
    if found.read == MAX_ROWS {
        tracing::warn!("the table has too many claims, the older ones were not asked for");
    }
    Ok(found)
}

/// Records with a sequence in this range: all of them, or all of some sequences, about evenly far apart.
pub(crate) async fn records_in(
    client: &Client,
    (database, table): (&str, &str),
    source: &Source,
    range: &RangeInclusive<u64>,
    timeout: Duration,
) -> Result<Vec<RecordId>, SinkError> {
    let (first, last) = (*range.start(), *range.end());
    let step = last.saturating_sub(first) / SEQUENCES + 1;
    let some = "FROM ?.? WHERE source = ? AND sequence BETWEEN ? AND ?";
    let sql = format!(
        "SELECT DISTINCT sequence, published {some} \
         AND sequence IN (SELECT min(sequence) {some} GROUP BY intDiv(sequence - {first}, {step}))"
    );
    let mut query = client.query(&sql);
    for _ in 0..2 {
        query =
            query.bind(Identifier(database)).bind(Identifier(table)).bind(source.to_string()).bind(first).bind(last);
    }
    let rows = within(timeout, "ask the table which messages it holds", query.fetch_all::<Held>()).await?;
    Ok(rows.into_iter().map(|row| RecordId::new(row.sequence, row.published)).collect())
}

/// A condition that leaves out what the checkpoint's longest spans hold, as [`Coverage::holds`] does.
fn not_held(checkpoint: &Coverage) -> String {
    let mut spans: Vec<_> = checkpoint.spans().collect();
    spans.sort_by_key(|span| std::cmp::Reverse(span.last - span.first));
    spans.iter().take(SPANS).fold(String::new(), |sql, span| {
        let (first, last, earliest, latest) = (span.first, span.last, span.earliest, span.latest);
        sql + &format!(
            " AND NOT (claim_first_sequence >= {first} AND sequence <= {last} \
             AND claim_first_published BETWEEN {earliest} AND {latest} AND published BETWEEN {earliest} AND {latest})"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_claims_are_kept_than_fit_and_what_is_none_is_left_out() {
        let mut found = Found::default();
        let taken = [4, 4, 3].map(|length| found.take(RecordId::new(1, 1), vec![0; length].into(), 10));
        assert_eq!(taken, [true, true, false]);
        assert!(found.claims.is_empty());
    }

    #[test]
    fn without_a_checkpoint_all_claims_are_asked_for() {
        assert_eq!(not_held(&Coverage::default()), "");
    }
}
