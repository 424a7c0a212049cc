//! One insert of one block, and nothing of an earlier sink after it.
//!
//! ClickHouse has no transactions. What stands in for one are HTTP sessions, one for each source and table, in which all
//! that writes is asked for. The server lets one request at a time into a session, from the moment it has read the head of
//! the request until it is done with it, whether or not the client is still there.
//!
//! A batch goes into a temporary table of the session first, under a name no other sink has. An old server takes a body
//! that breaks off for a whole one, and inserts the rows it got: there they do no harm. Only when all of it was
//! acknowledged, one short request without a body of data copies the temporary table: one block, one part of the table,
//! which is there as a whole or not at all.
//!
//! A new sink comes into the session when no request of an earlier one is in it, and drops what temporary tables it finds.
//! A copy that comes later (from a socket's buffer, from a slow network) finds nothing to copy and fails. So what the table
//! says then of its claims is the last word. A server that is restarted has neither sessions nor requests of before.

use std::time::{Duration, Instant};

use clickhouse::sql::Identifier;
use clickhouse::{Client, Row};
use replay_guard::Source;
use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::abilities::Abilities;
use crate::batch::Message;
use crate::error::{SESSION_IS_LOCKED, SinkError, code};
use crate::table;

/// What the name of a temporary table begins with.
const TEMPORARY: &str = "replay_guard_";
/// How often a session that is locked is tried.
const POLL: Duration = Duration::from_millis(20);
/// How long the server keeps a session between two requests of one flush, in seconds.
const IDLE: &str = "60";
/// A block is not divided below so many rows.
const UNDIVIDED: &str = "1000000000000";

/// The session of a source, as one sink uses it.
#[derive(Clone)]
pub(crate) struct Session {
    client: Client,
    database: String,
    table: String,
    temporary: String,
    tokens: bool,
    timeout: Duration,
}

#[derive(Row, Deserialize)]
struct Named {
    name: String,
}

impl Session {
    /// `client`: without a session.
    pub(crate) fn new(
        client: &Client,
        abilities: &Abilities,
        (database, table): (&str, &str),
        source: &Source,
        timeout: Duration,
    ) -> Self {
        let id = name(database, table, source);
        let client = inserting(client.clone(), abilities).with_setting("session_id", id);
        Self {
            client: client.with_setting("session_timeout", IDLE),
            database: database.to_owned(),
            table: table.to_owned(),
            temporary: format!("{TEMPORARY}{}", nuid::next()),
            tokens: abilities.takes_tokens(),
            timeout,
        }
    }

    /// The same with a session that nobody else comes into.
    pub(crate) fn apart(&self) -> Self {
        let client = self.client.clone().with_setting("session_id", format!("{TEMPORARY}{}", nuid::next()));
        Self { client, ..self.clone() }
    }

    /// Waits until nothing of an earlier sink is under way, and sees to it that nothing of it comes later.
    pub(crate) async fn fence(&self) -> Result<(), SinkError> {
        let list = || {
            let sql = "SELECT ?fields FROM system.tables WHERE is_temporary AND startsWith(name, ?)";
            self.client.query(sql).bind(TEMPORARY).fetch_all::<Named>()
        };
        for found in self.enter("look for temporary tables of an earlier archiver", list).await? {
            self.drop_temporary(&found.name).await?;
            tracing::info!(table = found.name, "dropped a batch that an earlier archiver did not finish");
        }
        Ok(())
    }

    /// Inserts these rows at once. An error leaves it unknown whether they are in the table.
    pub(crate) async fn insert(&self, rows: &[Message]) -> Result<(), SinkError> {
        let create = || {
            let sql = format!("CREATE TEMPORARY TABLE ? ({})", table::columns());
            self.client.query(&sql).bind(Identifier(&self.temporary)).execute()
        };
        self.enter("make a temporary table for a batch", create).await?;
        self.enter("send a batch to ClickHouse", || self.send(rows)).await?;
        let token = nuid::next().to_string();
        let copy = || {
            let names = table::names();
            let sql = format!("INSERT INTO ?.? ({names}) SELECT {names} FROM ?");
            let query = self.client.query(&sql);
            let query = query.bind(Identifier(&self.database)).bind(Identifier(&self.table));
            let query = query.bind(Identifier(&self.temporary));
            let query = if self.tokens {
                // Of one request, so that one that a proxy repeats is done once; of what is in it would be wrong: rows that
                // somebody deleted could not be written again.
                query.with_setting("insert_deduplication_token", &token)
            } else {
                query.with_setting("insert_deduplicate", "0")
            };
            query.execute()
        };
        self.enter("insert a batch", copy).await?;
        self.drop_temporary(&self.temporary).await
    }

    async fn send(&self, rows: &[Message]) -> clickhouse::error::Result<()> {
        let mut insert = self.client.insert::<Message>(&self.temporary).await?;
        for row in rows {
            insert.write(row).await?;
        }
        insert.end().await
    }

    async fn drop_temporary(&self, name: &str) -> Result<(), SinkError> {
        let drop = || self.client.query("DROP TEMPORARY TABLE IF EXISTS ?").bind(Identifier(name)).execute();
        self.enter("drop a temporary table", drop).await
    }

    /// Does what is asked for in the session, once it is let in.
    async fn enter<T, F>(&self, what: &'static str, mut request: impl FnMut() -> F) -> Result<T, SinkError>
    where
        F: Future<Output = clickhouse::error::Result<T>> + Send,
        T: Send,
    {
        let begun = Instant::now();
        loop {
            match within(self.timeout, what, request()).await {
                // It was not looked at: asking again is no repetition.
                Err(SinkError::Server { source, .. }) if code(&source) == Some(SESSION_IS_LOCKED) => {}
                answer => return answer,
            }
            let waited = begun.elapsed();
            if waited > self.timeout {
                return Err(SinkError::Busy { waited });
            }
            tokio::time::sleep(POLL).await;
        }
    }
}

/// One text for each source and table.
fn name(database: &str, table: &str, source: &Source) -> String {
    let mut digest = Sha256::new();
    for part in [database, table, &source.to_string()] {
        digest.update((part.len() as u64).to_le_bytes());
        digest.update(part);
    }
    digest.finalize().iter().take(16).fold(String::from("replay-guard-"), |name, byte| name + &format!("{byte:02x}"))
}

/// Settings that make one insert one block, and one that is done when it is acknowledged.
fn inserting(client: Client, abilities: &Abilities) -> Client {
    let mut client = client
        .with_setting("min_insert_block_size_rows", UNDIVIDED)
        .with_setting("min_insert_block_size_bytes", "0")
        .with_setting("max_insert_block_size", UNDIVIDED);
    for (name, value) in [("async_insert", "0"), ("max_insert_threads", "1"), ("use_strict_insert_block_limits", "0")] {
        if abilities.knows(name) {
            client = client.with_setting(name, value);
        }
    }
    client
}

/// The answer to a request, or an error if none comes in time.
pub(crate) async fn within<T>(
    timeout: Duration,
    what: &'static str,
    request: impl Future<Output = clickhouse::error::Result<T>> + Send,
) -> Result<T, SinkError> {
    match tokio::time::timeout(timeout, request).await {
        Ok(answer) => answer.map_err(|source| SinkError::Server { what, source }),
        Err(_) => Err(SinkError::Timeout { what, timeout }),
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The client holds a password.
        f.debug_struct("Session").field("table", &self.table).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_source_and_table_has_a_session_of_its_own() {
        let s = Source::new("S");
        let mut names = vec![
            name("d", "t", &s),
            name("d", "u", &s),
            name("e", "t", &s),
            name("dt", "", &s),
            name("", "dt", &s),
            name("d", "t", &Source::new("T")),
            name("d", "t", &s.clone().with_filters(["a", "b"])),
            name("d", "t", &s.clone().with_filters(["a,b"])),
            name("d", "t", &s.clone().with_domain("D")),
        ];
        assert_eq!(name("d", "t", &s), name("d", "t", &Source::new("S")));
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
