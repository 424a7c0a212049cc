use anyhow::{Context as _, Result};
use arrow_array::cast::AsArray as _;
use arrow_array::types::{TimestampNanosecondType, UInt64Type};
use bytes::Bytes;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::basic::Compression;
use parquet::file::metadata::ColumnChunkMetaData;
use replay_guard::async_nats::HeaderMap;
use replay_guard::{Claim, Flush, Reason, Record, Source};

use super::*;

fn no_claim() -> Claim {
    Flush::without_guard(Reason::Due).claim()
}

fn file(rows: &[Row]) -> Result<Bytes> {
    Ok(encode(Vec::new(), &Source::new("S").with_filters(["s.b", "s.a"]), rows, &no_claim())?.into())
}

fn row(sequence: u64) -> Row {
    Record::new(sequence, 1_700_000_000_000_000_000, "s.a", format!("payload {sequence}")).into()
}

#[test]
fn what_is_written_is_read_by_any_parquet_reader() -> Result<()> {
    let mut headers = HeaderMap::new();
    headers.append("Trace", "second");
    headers.append("Trace", "first");
    headers.append("Id", "");
    let records = [
        Record::new(7, 40, "s.a", "of an earlier life"),
        Record::new(7, 50, "s.a", "").with_headers(headers),
        Record::new(9, 30, "s.b", vec![0, 255, 10]),
    ];
    let reader = ParquetRecordBatchReaderBuilder::try_new(file(&records.map(Row::from))?)?;
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

#[test]
fn many_and_large_rows_are_written_in_pieces() -> Result<()> {
    let large = Row { payload: vec![7; (8 << 20) + 1].into(), ..row(30_000) };
    let rows: Vec<_> = (1..=20_000).map(row).chain([large, row(30_001)]).collect();
    assert!(rows_of(file(&rows)?)? == rows, "the rows differ");
    Ok(())
}

#[test]
fn the_same_rows_give_the_same_bytes() -> Result<()> {
    let mut headers = HeaderMap::new();
    for name in ["b", "a", "c", "d"] {
        headers.append(name, name);
    }
    let rows =
        || (1..50).map(|n| Record::new(n, 1, "s.a", "x").with_headers(headers.clone()).into()).collect::<Vec<_>>();
    assert_eq!(file(&rows())?, file(&rows())?);
    Ok(())
}

#[test]
fn the_end_of_a_file_is_enough_and_it_says_how_much_of_it() -> Result<()> {
    let bytes = file(&[row(1)])?;
    let length = bytes.len() as u64;
    let claim = Ok(Footer::Claim(no_claim()));
    assert_eq!(footer_of(length, &bytes), claim);
    let Err(more) = footer_of(length, &bytes[bytes.len() - 100..]) else { anyhow::bail!("100 bytes are too few") };
    let tail = &bytes[bytes.len() - usize::try_from(more)?..];
    assert_eq!(footer_of(length, tail), claim);
    assert_eq!(footer_of(length, &tail[1..]), Err(more), "and one less is too few");
    Ok(())
}

#[test]
fn a_file_without_rows_says_so() -> Result<()> {
    let bytes = Bytes::from(encode_empty(Vec::new(), &Source::new("S"), "a test".into())?);
    assert_eq!(footer_of(bytes.len() as u64, &bytes), Ok(Footer::Empty));
    assert_eq!(rows_of(bytes)?, []);
    Ok(())
}

#[test]
fn what_was_cut_short_is_damaged() -> Result<()> {
    let bytes = file(&[row(1), row(2)])?;
    for length in [0, 3, 11, 12, bytes.len() / 2, bytes.len() - 1] {
        let footer = footer_of(length as u64, bytes.get(..length).context("shorter")?);
        assert!(matches!(footer, Ok(Footer::Damaged(_))), "cut to {length}: {footer:?}");
    }
    Ok(())
}
