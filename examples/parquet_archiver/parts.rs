//! Records by partition, each of which becomes files of its own.

use std::collections::BTreeMap;
use std::time::Instant;

use archiver_support::FlushSettings;
use clap::ValueEnum;
use time::OffsetDateTime;

use crate::file::Row;

/// What the files of an archive are partitioned by: the time a message was published, in UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Partition {
    /// Not at all: one file per flush
    #[default]
    None,
    /// A directory for each day
    Day,
    /// A directory for each hour
    Hour,
}

impl Partition {
    /// The directory of a message, below that of its source; empty for the latter itself.
    fn of(self, published: i64) -> String {
        // Every number of nanoseconds in an i64 is a date.
        let time = OffsetDateTime::from_unix_timestamp_nanos(published.into()).unwrap_or(OffsetDateTime::UNIX_EPOCH);
        let (date, hour) = (time.date(), time.hour());
        let day = format!("day={:04}-{:02}-{:02}", date.year(), u8::from(date.month()), date.day());
        match self {
            Self::None => String::new(),
            Self::Day => day,
            Self::Hour => format!("{day}T{hour:02}"),
        }
    }
}

/// Whether a directory of this name is a partition's.
pub(crate) fn is_partition(name: &str) -> bool {
    let digits = |text: &str, form: &str| {
        text.len() == form.len()
            && text.bytes().zip(form.bytes()).all(|(c, f)| if f == b'0' { c.is_ascii_digit() } else { c == f })
    };
    name.strip_prefix("day=").is_some_and(|time| digits(time, "0000-00-00") || digits(time, "0000-00-00T00"))
}

/// What is not archived yet of one partition.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) rows: Vec<Row>,
    bytes: usize,
    since: Instant,
}

/// All that is not archived yet.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    by: Partition,
    open: BTreeMap<String, Part>,
    bytes: usize,
}

impl Parts {
    pub(crate) fn new(by: Partition) -> Self {
        Self { by, ..Self::default() }
    }

    /// How many bytes all of it takes in memory.
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    pub(crate) fn push(&mut self, row: Row) {
        let bytes = row.memory();
        let part = self.open.entry(self.by.of(row.id.published)).or_insert_with(|| Part {
            rows: Vec::new(),
            bytes: 0,
            since: Instant::now(),
        });
        part.bytes += bytes;
        part.rows.push(row);
        self.bytes += bytes;
    }

    /// Takes the parts that are to become files: all, or those that are large or old enough by themselves. `limit`: the
    /// most that all may take in memory.
    pub(crate) fn due(&mut self, all: bool, roll: FlushSettings, limit: usize) -> BTreeMap<String, Part> {
        let all = all || self.by == Partition::None || self.bytes >= limit;
        let is_due = |part: &Part| {
            part.rows.len() >= roll.records || part.bytes >= roll.bytes || part.since.elapsed() >= roll.after
        };
        let (due, open): (BTreeMap<_, _>, BTreeMap<_, _>) =
            std::mem::take(&mut self.open).into_iter().partition(|(_, part)| all || is_due(part));
        self.open = open;
        self.bytes = self.open.values().map(|part| part.bytes).sum();
        due
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use replay_guard::Record;

    use super::*;

    const HOUR: i64 = 3_600_000_000_000;

    #[test]
    fn a_partition_is_a_directory_that_is_known_again() {
        let at = 1_767_225_599_999_999_999;
        assert_eq!(Partition::Day.of(at), "day=2025-12-31");
        assert_eq!(
            (Partition::Hour.of(at), Partition::Hour.of(at + 1)),
            ("day=2025-12-31T23".into(), "day=2026-01-01T00".into())
        );
        assert_eq!(Partition::None.of(at), "");
        for at in [0, at, at + 1, i64::MAX, i64::MIN] {
            assert!(is_partition(&Partition::Day.of(at)) && is_partition(&Partition::Hour.of(at)), "{at}");
        }
        for other in
            ["", "day=", "day=2025-1-01", "day=2025-12-31T", "day=2025-12-31T2", "2025-12-31", "day=2025-12-31x"]
        {
            assert!(!is_partition(other), "{other}");
        }
    }

    fn parts(by: Partition, hours: &[i64]) -> Parts {
        let mut parts = Parts::new(by);
        for (sequence, hour) in (1..).zip(hours) {
            parts.push(Record::new(sequence, hour * HOUR, "s", "x").into());
        }
        parts
    }

    fn counts(due: &BTreeMap<String, Part>) -> Vec<usize> {
        due.values().map(|part| part.rows.len()).collect()
    }

    const ROLL: FlushSettings = FlushSettings { records: 3, after: Duration::from_secs(3_600), bytes: 1 << 20 };

    #[test]
    fn a_part_is_due_by_its_own_records_bytes_and_age() {
        let mut mixed = parts(Partition::Hour, &[1, 2, 1, 2, 1]);
        let before = mixed.bytes();
        assert_eq!(counts(&mixed.due(false, ROLL, usize::MAX)), [3]);
        assert_eq!(mixed.bytes(), before / 5 * 2);
        assert!(mixed.due(false, ROLL, usize::MAX).is_empty());
        assert_eq!(counts(&mixed.due(false, FlushSettings { bytes: 2, ..ROLL }, usize::MAX)), [2]);
        assert!(mixed.is_empty());
        let mut old = parts(Partition::Hour, &[1, 2]);
        assert_eq!(counts(&old.due(false, FlushSettings { after: Duration::ZERO, ..ROLL }, usize::MAX)), [1, 1]);
    }

    #[test]
    fn all_is_due_when_it_must_be() {
        assert_eq!(counts(&parts(Partition::Hour, &[1, 2]).due(true, ROLL, usize::MAX)), [1, 1]);
        assert_eq!(counts(&parts(Partition::Hour, &[1, 2]).due(false, ROLL, 10)), [1, 1], "memory");
        assert_eq!(counts(&parts(Partition::None, &[1, 2]).due(false, ROLL, usize::MAX)), [2], "one file per flush");
    }
}
