//! The tables: made where they are missing, checked where they are there.

use sqlx::{Executor as _, PgConnection};

use crate::error::{SinkError, sql};

/// One column: name, type, whether it may not be null.
type Column = (&'static str, &'static str, bool);

struct Table {
    name: &'static str,
    columns: &'static [Column],
    /// The columns of its primary key, and of another one; each sorted.
    keys: &'static [&'static [&'static str]],
    privileges: &'static [&'static str],
}

const TABLES: [Table; 4] = [
    Table {
        name: "sources",
        columns: &[
            ("id", "integer", true),
            ("domain", "text", true),
            ("stream", "text", true),
            ("filters", "text[]", true),
            ("epoch", "bigint", true),
        ],
        keys: &[&["id"], &["domain", "filters", "stream"]],
        privileges: &["SELECT", "INSERT", "UPDATE"],
    },
    Table {
        name: "records",
        columns: &[
            ("source", "integer", true),
            ("sequence", "bigint", true),
            ("published", "timestamp with time zone", true),
            ("published_ns", "bigint", true),
            ("subject", "text", true),
            ("headers", "jsonb", true),
            ("payload", "bytea", true),
            ("exact", "json", false),
        ],
        keys: &[&["published_ns", "sequence", "source"]],
        privileges: &["SELECT", "INSERT"],
    },
    Table {
        name: "claims",
        columns: &[
            ("source", "integer", true),
            ("number", "bigint", true),
            ("first_sequence", "bigint", true),
            ("first_published_ns", "bigint", true),
            ("last_sequence", "bigint", true),
            ("last_published_ns", "bigint", true),
            ("claim", "bytea", true),
        ],
        keys: &[&["number", "source"]],
        privileges: &["SELECT", "INSERT", "DELETE"],
    },
    Table {
        name: "checkpoints",
        columns: &[
            ("source", "integer", true),
            ("counter", "bigint", true),
            ("version", "integer", true),
            ("body", "bytea", true),
            ("aside", "boolean", true),
            ("saved", "timestamp with time zone", true),
        ],
        keys: &[&["counter", "source"]],
        privileges: &["SELECT", "INSERT", "UPDATE", "DELETE"],
    },
];

/// A schema by name.
#[derive(Clone, Debug)]
pub(crate) struct Schema {
    name: String,
    quoted: String,
}

impl Schema {
    pub(crate) fn new(name: &str) -> Result<Self, SinkError> {
        // The server would cut a longer one.
        if name.is_empty() || name.len() > 63 || name.contains('\0') {
            return Err(SinkError::Setting(format!("--schema {name:?} must have 1 to 63 bytes")));
        }
        Ok(Self { name: name.to_owned(), quoted: format!("\"{}\"", name.replace('"', "\"\"")) })
    }

    /// Its name as it is, for messages.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// A statement in which `$schema` stands for the schema.
    pub(crate) fn statement(&self, text: &str) -> String {
        text.replace("$schema", &self.quoted)
    }

    /// Makes what is missing, and checks that what is there is what the archive needs.
    pub(crate) async fn prepare(&self, connection: &mut PgConnection) -> Result<(), SinkError> {
        if !self.missing(connection).await?.is_empty() {
            self.create(connection).await?;
        }
        let missing = self.missing(connection).await?;
        if !missing.is_empty() {
            return self.wrong(&missing.join(", "), "is missing");
        }
        for table in &TABLES {
            self.check(connection, table).await?;
        }
        Ok(())
    }

    async fn missing(&self, connection: &mut PgConnection) -> Result<Vec<&'static str>, SinkError> {
        let found: Vec<(String,)> = sqlx::query_as(
            "SELECT c.relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1",
        )
        .bind(&self.name)
        .fetch_all(connection)
        .await
        .map_err(sql("look for the tables"))?;
        Ok(TABLES.iter().map(|table| table.name).filter(|name| !found.iter().any(|(found,)| found == name)).collect())
    }

    async fn create(&self, connection: &mut PgConnection) -> Result<(), SinkError> {
        let error = || sql("create the tables");
        connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE").await.map_err(error())?;
        // Two archivers that begin together would make each other fail.
        sqlx::query("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))")
            .bind(format!("replay-guard {}", self.name))
            .execute(&mut *connection)
            .await
            .map_err(error())?;
        // The other one may have made them.
        if self.missing(connection).await?.is_empty() {
            connection.execute("ROLLBACK").await.map_err(error())?;
            return Ok(());
        }
        let there: (bool,) = sqlx::query_as("SELECT to_regnamespace($1) IS NOT NULL")
            .bind(&self.quoted)
            .fetch_one(&mut *connection)
            .await
            .map_err(error())?;
        if !there.0 {
            let create = self.statement("CREATE SCHEMA $schema");
            connection.execute(&*create).await.map_err(error())?;
        }
        connection.execute(&*self.statement(include_str!("tables.sql"))).await.map_err(error())?;
        connection.execute("COMMIT").await.map_err(error())?;
        Ok(())
    }

    async fn check(&self, connection: &mut PgConnection, table: &Table) -> Result<(), SinkError> {
        let full = format!("{}.{}", self.quoted, table.name);
        let (kind, lasts): (String, bool) = sqlx::query_as(
            "SELECT c.relkind::text, NOT EXISTS (
                SELECT FROM (SELECT c.oid AS relid UNION SELECT relid::oid FROM pg_partition_tree(c.oid::regclass)) part
                JOIN pg_class p ON p.oid = part.relid
                WHERE p.relpersistence <> 'p' OR p.relkind NOT IN ('r', 'p'))
             FROM pg_class c WHERE c.oid = $1::regclass",
        )
        .bind(&full)
        .fetch_one(&mut *connection)
        .await
        .map_err(sql("look at the tables"))?;
        if !["r", "p"].contains(&kind.as_str()) {
            return self.wrong(table.name, "is no table");
        }
        if !lasts {
            return self
                .wrong(table.name, "is unlogged or foreign: what it holds does not survive a crash of the server");
        }
        let columns: Vec<(String, String, bool, bool)> = sqlx::query_as(
            "SELECT attname::text, format_type(atttypid, atttypmod), attnotnull, atthasdef OR attidentity <> ''
             FROM pg_attribute WHERE attrelid = $1::regclass AND attnum > 0 AND NOT attisdropped",
        )
        .bind(&full)
        .fetch_all(&mut *connection)
        .await
        .map_err(sql("look at the tables"))?;
        for (name, kind, not_null) in table.columns {
            let Some(found) = columns.iter().find(|column| column.0 == *name) else {
                return self.wrong(table.name, &format!("has no column {name}"));
            };
            if found.1 != *kind {
                return self.wrong(table.name, &format!("has a column {name} of type {}, not {kind}", found.1));
            }
            if found.2 && !not_null {
                return self.wrong(table.name, &format!("has a column {name} that may not be null"));
            }
        }
        let foreign = columns.iter().find(|(name, _, not_null, default)| {
            *not_null && !*default && !table.columns.iter().any(|column| column.0 == name)
        });
        if let Some((name, ..)) = foreign {
            return self.wrong(table.name, &format!("has a column {name} that must be filled, and nothing fills it"));
        }
        self.check_key(connection, table, &full).await?;
        self.check_privileges(connection, table, &full).await
    }

    /// Without the key nothing would stop a second row, with a smaller one a second life of the stream would not fit.
    async fn check_key(&self, connection: &mut PgConnection, table: &Table, full: &str) -> Result<(), SinkError> {
        let keys: Vec<(Vec<String>,)> = sqlx::query_as(
            "SELECT ARRAY(SELECT a.attname::text FROM pg_attribute a
                          WHERE a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey) ORDER BY a.attname::text COLLATE \"C\")
             FROM pg_index i
             WHERE i.indrelid = $1::regclass AND i.indisunique AND i.indisvalid AND i.indimmediate
               AND i.indpred IS NULL AND i.indexprs IS NULL",
        )
        .bind(full)
        .fetch_all(connection)
        .await
        .map_err(sql("look at the tables"))?;
        match table.keys.iter().find(|key| !keys.iter().any(|(found,)| found == *key)) {
            Some(key) => self.wrong(table.name, &format!("has no unique key on ({})", key.join(", "))),
            None => Ok(()),
        }
    }

    async fn check_privileges(
        &self,
        connection: &mut PgConnection,
        table: &Table,
        full: &str,
    ) -> Result<(), SinkError> {
        for privilege in table.privileges {
            let (may,): (bool,) = sqlx::query_as("SELECT has_table_privilege($1::regclass, $2)")
                .bind(full)
                .bind(*privilege)
                .fetch_one(&mut *connection)
                .await
                .map_err(sql("look at the permissions"))?;
            if !may {
                return self.wrong(table.name, &format!("may not be used by this user: it needs {privilege}"));
            }
        }
        Ok(())
    }

    fn wrong<T>(&self, table: &str, what: &str) -> Result<T, SinkError> {
        Err(SinkError::Setting(format!(
            "table {table} in schema {} {what}; set it right, or choose another --schema",
            self.name
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stays_one_name() -> Result<(), SinkError> {
        let schema = Schema::new("a\"; DROP TABLE x; --")?;
        assert_eq!(schema.statement("SELECT $schema.t"), "SELECT \"a\"\"; DROP TABLE x; --\".t");
        assert!(Schema::new("").is_err());
        assert!(Schema::new(&"x".repeat(64)).is_err());
        Ok(())
    }

    #[test]
    fn what_is_made_is_what_is_checked() {
        let made = include_str!("tables.sql");
        for table in &TABLES {
            assert!(made.contains(&format!("$schema.{} (", table.name)), "{}", table.name);
            for (name, ..) in table.columns {
                assert!(made.contains(&format!("\n    {name} ")), "{name}");
            }
        }
    }
}
