use std::path::PathBuf;

use anyhow::{Context, Result};
use parquet::file::metadata::ColumnChunkMetaData;
use replay_guard::async_nats::HeaderMap;
use replay_guard::{Flush, Guard, MemoryStore, MemoryStream, Reason};

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

#[test]
fn what_is_written_is_read_by_any_parquet_reader() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let mut headers = HeaderMap::new();
    headers.append("Trace", "second");
    headers.append("Trace", "first");
    headers.append("Id", "");
    let records = [
        Record::new(9, 30, "s.b", vec![0, 255, 10]),
        Record::new(7, 50, "s.a", "").with_headers(headers),
        Record::new(7, 40, "s.a", "of an earlier life"),
    ];
    let path = saved(directory.path(), records.map(Row::from))?;

    let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(&path)?)?;
    let types: Vec<_> = reader.schema().fields().iter().map(|f| format!("{} {}", f.name(), f.data_type())).collect();
    assert_eq!(
        types.iter().take(4).collect::<Vec<_>>(),
        ["stream Utf8", "subject Utf8", "sequence UInt64", "published Timestamp(ns, \"UTC\")"]
    );
    let codecs: Vec<_> =
        reader.metadata().row_group(0).columns().iter().map(ColumnChunkMetaData::compression).collect();
    assert!(codecs.iter().all(|codec| matches!(codec, Compression::ZSTD(_))), "{codecs:?}");
    let batches = reader.build()?.collect::<Result<Vec<_>, _>>()?;
    let [batch] = batches.as_slice() else { anyhow::bail!("{} batches", batches.len()) };

    assert_eq!(batch["stream"].as_string::<i32>().iter().flatten().collect::<Vec<_>>(), ["S", "S", "S"]);
    assert_eq!(batch["subject"].as_string::<i32>().iter().flatten().collect::<Vec<_>>(), ["s.a", "s.a", "s.b"]);
    assert_eq!(batch["sequence"].as_primitive::<UInt64Type>().values(), &[7, 7, 9]);
    assert_eq!(batch["published"].as_primitive::<TimestampNanosecondType>().values(), &[40, 50, 30]);
    let payloads: Vec<_> = batch["payload"].as_binary::<i32>().iter().collect();
    assert_eq!(payloads, [Some(&b"of an earlier life"[..]), Some(&[]), Some(&[0, 255, 10])]);

    let headers = batch["headers"].as_list::<i32>();
    assert_eq!(headers.offsets().iter().copied().collect::<Vec<_>>(), [0, 0, 3, 3]);
    let pairs = headers.values().as_struct();
    assert_eq!(pairs["name"].as_string::<i32>().iter().flatten().collect::<Vec<_>>(), ["Id", "Trace", "Trace"]);
    assert_eq!(pairs["value"].as_string::<i32>().iter().flatten().collect::<Vec<_>>(), ["", "second", "first"]);
    Ok(())
}

#[tokio::test]
async fn the_footer_says_what_the_file_holds_and_keeps_the_claim() -> Result<()> {
    let out = tempfile::tempdir()?;
    let (stream, source) = (MemoryStream::new(), source());
    let sink = ParquetSink::open(out.path(), source.clone(), usize::MAX, Arc::default()).await?;
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
fn many_and_large_rows_are_written_in_pieces() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let large = Row { payload: vec![7; PIECE_BYTES + 1].into(), ..row(30_000) };
    let rows: Vec<_> = (1..=20_000).map(row).chain([large, row(30_001)]).collect();
    let path = saved(directory.path(), rows.clone())?;
    assert!(read(&path)? == rows, "the rows differ");
    Ok(())
}

#[test]
fn no_rows_make_no_file() -> Result<()> {
    let directory = tempfile::tempdir()?;
    assert!(save(directory.path(), &source(), [], &no_claim())?.is_none());
    assert_eq!(std::fs::read_dir(directory.path())?.count(), 0);
    Ok(())
}
