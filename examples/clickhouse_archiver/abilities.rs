//! What the server can do, asked of it and not derived from its version: the settings it knows.

use std::collections::HashMap;
use std::collections::HashSet;

use clickhouse::{Client, Row};
use serde::Deserialize;

use crate::error::SinkError;
use crate::session::within;

/// What matters of a server.
#[derive(Clone, Debug, Default)]
pub(crate) struct Abilities {
    pub(crate) version: String,
    settings: HashSet<String>,
    /// With the server's defaults.
    table_settings: HashMap<String, String>,
    /// Whether times can be shown in nanoseconds.
    pub(crate) nanoseconds: bool,
}

/// Settings that are used where the server knows them.
const SETTINGS: [&str; 5] = [
    "async_insert",
    "describe_include_subcolumns",
    "insert_deduplication_token",
    "max_insert_threads",
    "use_strict_insert_block_limits",
];
const TABLE_SETTINGS: [&str; 3] = ["fsync_after_insert", "fsync_part_directory", "non_replicated_deduplication_window"];
const NANOSECONDS: &str = "fromUnixTimestamp64Nano";

#[derive(Row, Deserialize)]
struct Named {
    name: String,
}

#[derive(Row, Deserialize)]
struct Valued {
    name: String,
    value: String,
}

impl Abilities {
    /// Asks; `client` must not validate, which old servers do not understand.
    pub(crate) async fn ask(client: &Client, timeout: std::time::Duration) -> Result<Self, SinkError> {
        let version = client.query("SELECT version() AS name").fetch_one::<Named>();
        let version = within(timeout, "ask ClickHouse for its version", version).await?.name;
        let what = "ask ClickHouse for the settings it knows";
        let query = client.query("SELECT ?fields FROM system.settings WHERE has(?, name)").bind(SETTINGS.as_slice());
        let settings = within(timeout, what, query.fetch_all::<Named>()).await?;
        let query = client.query("SELECT ?fields FROM system.merge_tree_settings WHERE has(?, name)");
        let table_settings = query.bind(TABLE_SETTINGS.as_slice()).fetch_all::<Valued>();
        let table_settings = within(timeout, what, table_settings).await?;
        let functions = client.query("SELECT ?fields FROM system.functions WHERE name = ?").bind(NANOSECONDS);
        let functions = within(timeout, what, functions.fetch_all::<Named>()).await?;
        Ok(Self {
            version,
            settings: settings.into_iter().map(|setting| setting.name).collect(),
            table_settings: table_settings.into_iter().map(|setting| (setting.name, setting.value)).collect(),
            nanoseconds: !functions.is_empty(),
        })
    }

    /// Whether it knows a setting of queries.
    pub(crate) fn knows(&self, setting: &str) -> bool {
        self.settings.contains(setting)
    }

    /// Its default for a setting of tables, if it knows it.
    pub(crate) fn table_default(&self, setting: &str) -> Option<&str> {
        self.table_settings.get(setting).map(String::as_str)
    }

    /// Whether types can be checked on the way, both ways.
    pub(crate) fn validates(&self) -> bool {
        self.knows("describe_include_subcolumns")
    }

    /// Whether an insert with a token it has seen is ignored.
    pub(crate) fn takes_tokens(&self) -> bool {
        self.knows("insert_deduplication_token") && self.table_default("non_replicated_deduplication_window").is_some()
    }

    #[cfg(test)]
    pub(crate) fn of(settings: &[&str], table_settings: &[(&str, &str)]) -> Self {
        let owned = |text: &&str| (*text).to_owned();
        Self {
            version: "test".into(),
            settings: settings.iter().map(owned).collect(),
            table_settings: table_settings.iter().map(|(name, value)| (owned(name), owned(value))).collect(),
            nanoseconds: !table_settings.is_empty(),
        }
    }
}
