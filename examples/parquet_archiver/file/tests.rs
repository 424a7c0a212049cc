use std::path::PathBuf;

use anyhow::{Context, Result};
use archiver_support::python;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use replay_guard::async_nats::HeaderMap;
use replay_guard::{Flush, Guard, MemoryStore, MemoryStream, Reason, Record};

use super::*;
use crate::sink::ParquetSink;

fn source() -> Source {
    Source::new("S").with_filters(["s.b", "s.a"])
}

fn no_claim() -> Claim {
    Flush::without_guard(Reason::Due).claim()
}

fn row(sequence: u64) -> Row {
    Record::new(sequence, 1_700_000_000_000_000_000, "s.a", format!("payload {sequence}")).into()
}

fn saved(directory: &Path, rows: impl IntoIterator<Item = Row>) -> Result<PathBuf> {
    let (name, _) = save(directory, &source(), rows, &no_claim())?.context("rows were given")?;
    Ok(directory.join(name))
}

#[tokio::test]
async fn the_footer_says_what_the_file_holds_and_keeps_the_claim() -> Result<()> {
    let out = tempfile::tempdir()?;
    let (stream, source) = (MemoryStream::new(), source());
    let sink = ParquetSink::open(out.path(), source.clone(), usize::MAX, std::sync::Arc::default()).await?;
    let mut guard = Guard::open(source.clone(), sink, MemoryStore::default(), stream.clone()).await?;
    let _ = guard.begin_session().await?;
    let first = stream.publish("s.a", "1");
    for record in [first.clone(), stream.publish("s.b", "2")] {
        let _ = guard.offer(record, None).await?;
    }
    let permits = guard.flush(Reason::Due).await?;
    assert_eq!(permits.acks().len(), 2);

    let name = names::file(first.id(), RecordId::new(2, 2 * first.published));
    let path = out.path().join(names::directory(&source)).join(name);
    let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(path)?)?;
    let footer = reader.metadata().file_metadata().key_value_metadata().context("a footer")?;
    let value = |key: &str| {
        let entry = footer.iter().find(|entry| entry.key == format!("replay-guard.{key}"));
        entry.and_then(|entry| entry.value.as_deref())
    };
    let found = ["stream", "filter", "first", "last", "count"].map(value);
    assert_eq!(found, [Some("S"), Some("s.a s.b"), Some("1"), Some("2"), Some("2")]);
    let hex = value("claim").context("a claim")?;
    let bytes = (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(hex.get(i..i + 2).unwrap_or_default(), 16));
    let claim = Claim::from_bytes(bytes.collect::<Result<Vec<_>, _>>()?)?;
    assert!(!claim.as_bytes().is_empty());
    Ok(())
}

#[test]
fn a_reader_that_is_not_ours_agrees() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let mut headers = HeaderMap::new();
    headers.append("Trace", "second");
    headers.append("Trace", "first, \"quoted\"\t\u{fc}");
    headers.append("Empty", "");
    let records = [
        Record::new(1, i64::from(u32::MAX), "s.a", ""),
        Record::new(7, 1_700_000_000_123_456_789, "s.'\u{fc}/..\\\"", vec![0, 255, 10]).with_headers(headers),
        // Of an earlier life.
        Record::new(7, 1_600_000_000_000_000_001, "s.a", "x"),
        Record::new(u64::MAX, -1, "s.b", vec![7; 1 << 20]),
    ];
    let mut rows: Vec<Row> = records.map(Row::from).into();
    saved(directory.path(), rows.drain(..2).collect::<Vec<_>>())?;
    saved(directory.path(), rows)?;
    let read = python::read_with_duckdb(directory.path()).map_err(anyhow::Error::from_boxed)?;
    let found: Vec<_> = read.iter().map(|row| (row.sequence, row.published, row.subject.as_str())).collect();
    let expected = [
        (1, i64::from(u32::MAX), "s.a"),
        (7, 1_600_000_000_000_000_001, "s.a"),
        (7, 1_700_000_000_123_456_789, "s.'\u{fc}/..\\\""),
        (u64::MAX, -1, "s.b"),
    ];
    assert_eq!(found, expected);
    let headers: Vec<(&str, &str)> =
        read[2].headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!(headers, [("Empty", ""), ("Trace", "second"), ("Trace", "first, \"quoted\"\t\u{fc}")]);
    assert_eq!(read.iter().map(|row| row.payload.len()).collect::<Vec<_>>(), [0, 1, 3, 1 << 20]);
    assert_eq!(read[2].payload, [0, 255, 10]);
    Ok(())
}

#[test]
fn m4_the_same_records_flushed_at_another_time_get_the_same_name() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let path = saved(directory.path(), [row(1), row(2), row(3)])?;
    let before = std::fs::read(&path)?;
    // In another order, and one of them twice, as deliveries come after a restart.
    assert_eq!(saved(directory.path(), [row(3), row(1), row(2), row(1)])?, path);
    assert_eq!(read(&path)?, [row(1), row(2), row(3)]);
    assert_eq!(std::fs::read_dir(directory.path())?.count(), 1, "one file for one span");
    let elsewhere = tempfile::tempdir()?;
    let again = saved(elsewhere.path(), [row(1), row(2), row(3)])?;
    assert_eq!((again.file_name(), std::fs::read(&again)?), (path.file_name(), before));
    Ok(())
}

#[test]
fn records_that_the_stream_dropped_since_stay_in_a_file_that_is_written_again() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let path = saved(directory.path(), [row(1), row(2), row(3)])?;
    assert_eq!(saved(directory.path(), [row(1), row(3)])?, path);
    assert_eq!(read(&path)?, [row(1), row(2), row(3)]);
    Ok(())
}

#[test]
fn a_damaged_file_is_kept_aside_and_replaced() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let path = saved(directory.path(), [row(1), row(2)])?;
    for n in 1..=2 {
        std::fs::write(&path, "rot")?;
        assert!(read(&path).is_err_and(|error| error.to_string().contains("00002-")));
        assert_eq!(saved(directory.path(), [row(1), row(2)])?, path);
        assert_eq!(read(&path)?.len(), 2);
        assert_eq!(std::fs::read(path.with_extension(format!("parquet.damaged-{n}")))?, b"rot");
    }
    Ok(())
}

#[test]
fn what_cannot_be_read_is_not_taken_for_damaged() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let path = saved(directory.path(), [row(1), row(2)])?;
    std::fs::remove_file(&path)?;
    std::fs::create_dir(&path)?;
    let error = saved(directory.path(), [row(1), row(2)]).map_or_else(|error| error.to_string(), |_| String::new());
    assert!(error.contains(&path.display().to_string()), "{error}");
    assert!(path.is_dir(), "it is left where it is");
    Ok(())
}

#[test]
fn no_rows_make_no_file() -> Result<()> {
    let directory = tempfile::tempdir()?;
    assert!(save(directory.path(), &source(), [], &no_claim())?.is_none());
    assert_eq!(std::fs::read_dir(directory.path())?.count(), 0);
    Ok(())
}
