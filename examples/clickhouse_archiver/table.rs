//! The table: how it is made, and whether one that is there will do.

use clickhouse::Row;
use serde::Deserialize;

use crate::abilities::Abilities;

/// The columns that are written, in the order of [`Message`](crate::batch::Message).
const COLUMNS: [(&str, &str); 11] = [
    ("source", "String"),
    ("stream", "String"),
    ("sequence", "UInt64"),
    ("published", "Int64"),
    ("subject", "String"),
    ("headers.name", "Array(String)"),
    ("headers.value", "Array(String)"),
    ("payload", "String"),
    ("claim", "String"),
    ("claim_first_sequence", "UInt64"),
    ("claim_first_published", "Int64"),
];
/// What identifies a message: rows that are the same in this are one.
const KEY: &str = "source, sequence, published";
/// How many of the last tokens a table remembers.
const TOKENS: u32 = 1_000;

/// Names and types, as in `CREATE TABLE`.
pub(crate) fn columns() -> String {
    COLUMNS.map(|(name, kind)| format!("`{name}` {kind}")).join(", ")
}

/// Names, as in `INSERT`.
pub(crate) fn names() -> String {
    COLUMNS.map(|(name, _)| format!("`{name}`")).join(", ")
}

/// Makes the table where it is missing. No partitions: an insert must make one part.
///
/// What is inserted is synced where the server can do it. What it merges later is not, but the parts it merged stay for
/// minutes (`old_parts_lifetime`).
pub(crate) fn create(abilities: &Abilities) -> String {
    let shown = if abilities.nanoseconds {
        "DateTime64(9, 'UTC') ALIAS fromUnixTimestamp64Nano(published, 'UTC')"
    } else {
        "DateTime ALIAS toDateTime(intDiv(published, 1000000000))"
    };
    let mut settings = Vec::new();
    for (name, value) in [
        ("fsync_after_insert", 1),
        ("fsync_part_directory", 1),
        ("non_replicated_deduplication_window", if abilities.takes_tokens() { TOKENS } else { 0 }),
    ] {
        if value > 0 && abilities.table_default(name).is_some() {
            settings.push(format!("{name} = {value}"));
        }
    }
    let settings = if settings.is_empty() { String::new() } else { format!(" SETTINGS {}", settings.join(", ")) };
    let columns = columns();
    format!(
        "CREATE TABLE IF NOT EXISTS ?.? ({columns}, `published_at` {shown}) ENGINE = ReplacingMergeTree \
         ORDER BY ({KEY}){settings}"
    )
}

/// What the server says of a table.
#[derive(Debug, Clone, Row, Deserialize)]
pub(crate) struct Described {
    pub(crate) engine: String,
    pub(crate) engine_full: String,
    pub(crate) partition_key: String,
    pub(crate) sorting_key: String,
}

/// What the server says of a column.
#[derive(Debug, Clone, Row, Deserialize)]
pub(crate) struct Column {
    pub(crate) name: String,
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) default_kind: String,
}

/// Why a table will not do, to be read after "the table ... ".
pub(crate) fn refuse(table: &Described, columns: &[Column]) -> Option<String> {
    if !table.engine.ends_with("ReplacingMergeTree") {
        return Some(format!("has the engine {}, not ReplacingMergeTree", table.engine));
    }
    if table.sorting_key != KEY {
        return Some(format!("is sorted by ({}), not by ({KEY})", table.sorting_key));
    }
    if !matches!(table.partition_key.as_str(), "" | "source") {
        let key = &table.partition_key;
        return Some(format!("has partitions by {key}, so that an insert may be done in part, and not at once"));
    }
    COLUMNS.iter().find_map(|&(name, kind)| match columns.iter().find(|column| column.name == name) {
        None => Some(format!("has no column `{name}` {kind}")),
        Some(column) if column.kind != kind || !column.default_kind.is_empty() => {
            let (found, default) = (&column.kind, &column.default_kind);
            Some(format!("has a column `{name}` {found} {default}, where {kind} is needed").replace(" ,", ","))
        }
        Some(_) => None,
    })
}

/// What an acknowledged insert into a table may not survive.
pub(crate) fn warnings(table: &Described, abilities: &Abilities) -> Vec<String> {
    let mut warnings = Vec::new();
    let unsynced: Vec<_> = ["fsync_after_insert", "fsync_part_directory"]
        .into_iter()
        .filter(|name| !is_on(table, abilities, name))
        .collect();
    if abilities.table_default("fsync_after_insert").is_none() {
        warnings.push(format!(
            "ClickHouse {} cannot sync what is inserted: a power cut of its machine may lose acknowledged messages",
            abilities.version
        ));
    } else if !unsynced.is_empty() {
        warnings.push(format!(
            "the table does not sync what is inserted: a power cut of its machine may lose acknowledged messages; \
             ALTER TABLE ... MODIFY SETTING {} = 1",
            unsynced.join(" = 1, ")
        ));
    }
    if table.engine != "ReplacingMergeTree" {
        warnings.push(format!(
            "with {} an insert is acknowledged by one replica: set insert_quorum for more, and always ask the same one",
            table.engine
        ));
    }
    warnings
}

fn is_on(table: &Described, abilities: &Abilities, setting: &str) -> bool {
    let said = table.engine_full.split_once(&format!("{setting} = ")).map(|(_, value)| value.chars().next());
    match said {
        Some(value) => value == Some('1'),
        None => abilities.table_default(setting) == Some("1"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new_server() -> Abilities {
        let table = ["fsync_after_insert", "fsync_part_directory", "non_replicated_deduplication_window"];
        Abilities::of(&["insert_deduplication_token"], &table.map(|name| (name, "0")))
    }

    fn described(engine_full: &str) -> Described {
        Described {
            engine: "ReplacingMergeTree".into(),
            engine_full: engine_full.into(),
            partition_key: String::new(),
            sorting_key: KEY.into(),
        }
    }

    fn all() -> Vec<Column> {
        COLUMNS
            .map(|(name, kind)| Column { name: name.into(), kind: kind.into(), default_kind: String::new() })
            .to_vec()
    }

    #[test]
    fn a_new_server_syncs_and_remembers_tokens_and_an_old_one_is_not_asked_to() {
        let new = create(&new_server());
        for setting in
            ["fsync_after_insert = 1", "fsync_part_directory = 1", "non_replicated_deduplication_window = 1000"]
        {
            assert!(new.contains(setting), "{new}");
        }
        let old = create(&Abilities::of(&[], &[]));
        assert!(!old.contains("SETTINGS") && old.contains("DateTime ALIAS"), "{old}");
    }

    #[test]
    fn a_table_of_another_shape_is_refused_with_the_reason() {
        let fits = described("");
        assert_eq!(refuse(&fits, &all()), None);
        let source = Described { partition_key: "source".into(), ..fits.clone() };
        assert_eq!(refuse(&source, &all()), None);
        let mut more = all();
        more.push(Column { name: "note".into(), kind: "String".into(), default_kind: "DEFAULT".into() });
        assert_eq!(refuse(&fits, &more), None);

        let says = |table: Described, columns: &[Column], part: &str| {
            let reason = refuse(&table, columns).unwrap_or_default();
            assert!(reason.contains(part), "{reason:?} {part}");
        };
        says(Described { engine: "MergeTree".into(), ..fits.clone() }, &all(), "the engine MergeTree");
        says(Described { sorting_key: "sequence".into(), ..fits.clone() }, &all(), "sorted by (sequence)");
        says(Described { partition_key: "toDate(1)".into(), ..fits.clone() }, &all(), "partitions by toDate(1)");
        for (index, (name, _)) in COLUMNS.iter().enumerate() {
            let mut columns = all();
            columns.remove(index);
            says(fits.clone(), &columns, &format!("no column `{name}`"));
            let mut columns = all();
            columns[index].kind = "Float64".into();
            says(fits.clone(), &columns, "Float64, where");
            let mut columns = all();
            columns[index].default_kind = "ALIAS".into();
            says(fits.clone(), &columns, "ALIAS, where");
        }
    }

    #[test]
    fn what_a_power_cut_may_take_is_said() {
        let warns = |table: &str, abilities: &Abilities| warnings(&described(table), abilities).join("\n");
        assert!(warns("", &Abilities::of(&[], &[])).contains("cannot sync"));
        assert!(warns("", &new_server()).contains("fsync_after_insert = 1, fsync_part_directory = 1"));
        let half = "... SETTINGS fsync_after_insert = 1, fsync_part_directory = 0";
        assert!(warns(half, &new_server()).contains("SETTING fsync_part_directory = 1"));
        assert_eq!(warns("... SETTINGS fsync_after_insert = 1, fsync_part_directory = 1", &new_server()), "");
        let on = Abilities::of(&[], &[("fsync_after_insert", "1"), ("fsync_part_directory", "1")]);
        assert_eq!(warns("", &on), "");
        let replicated = Described { engine: "ReplicatedReplacingMergeTree".into(), ..described("") };
        assert!(warnings(&replicated, &on).join("").contains("insert_quorum"));
    }
}
