//! What one Parquet file holds: columns, footer, and how it gets its name.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, Read as _, Seek as _, SeekFrom, Write};
use std::path::Path;
use std::sync::Arc;

use arrow_array::builder::{
    BinaryBuilder, ListBuilder, StringBuilder, StructBuilder, TimestampNanosecondBuilder, UInt64Builder,
};
use arrow_array::cast::AsArray;
use arrow_array::types::{TimestampNanosecondType, UInt64Type};
use arrow_array::{Array, ArrayRef, RecordBatch, StringArray, StructArray, TimestampNanosecondArray, UInt64Array};
use arrow_schema::{ArrowError, DataType, Field, Fields, Schema, TimeUnit};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::arrow::{ArrowWriter, ProjectionMask};
use parquet::basic::{Compression, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::metadata::{KeyValue, ParquetMetaDataReader};
use parquet::file::properties::WriterProperties;
use replay_guard::async_nats::HeaderMap;
use replay_guard::{Claim, Record, RecordId, Source};

use crate::disk::{self, SinkError};
use crate::names;

/// Rows are turned into columns in pieces of this many records or payload bytes, so that a flush is not in memory twice.
const PIECE_ROWS: usize = 8_192;
const PIECE_BYTES: usize = 8 << 20;

/// What stands at the end of each Parquet file, after the length of the metadata before it.
const MAGIC: &[u8; 4] = b"PAR1";
/// So much of a file's end is read at once; the metadata of ordinary files takes less.
const TAIL: u64 = 8 << 10;
/// No file of this archive has metadata of this length; a damaged one may say so.
const MAX_METADATA: u64 = 64 << 20;
const PREFIX: &str = "replay-guard";

/// One archived message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) id: RecordId,
    pub(crate) subject: String,
    /// Name and value, one pair per value; names sorted, the values of one name in the order they were published in.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) payload: bytes::Bytes,
}

impl From<Record> for Row {
    fn from(record: Record) -> Self {
        let subject = record.subject.to_string();
        Self { id: record.id(), subject, headers: pairs(&record.headers), payload: record.payload }
    }
}

/// The header map has no order between names; sorted, the same message always gives the same bytes.
fn pairs(headers: &HeaderMap) -> Vec<(String, String)> {
    let mut names: Vec<_> = headers.iter().map(|(name, values)| (name.to_string(), values)).collect();
    names.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    names.iter().flat_map(|(name, values)| values.iter().map(move |value| (name.clone(), value.to_string()))).collect()
}

/// Writes one file and makes it durable. Returns its name and how many bytes it takes, or nothing where there are no rows.
///
/// A file of that name may be there already: the same records again, after a crash before they were checkpointed. It is
/// replaced, and what it holds beyond the new rows is kept: the stream may have dropped some of them since.
pub(crate) fn save(
    directory: &Path,
    source: &Source,
    rows: impl IntoIterator<Item = Row>,
    claim: &Claim,
) -> Result<Option<(String, u64)>, SinkError> {
    let mut rows: BTreeMap<RecordId, Row> = rows.into_iter().map(|row| (row.id, row)).collect();
    let (Some((&first, _)), Some((&last, _))) = (rows.first_key_value(), rows.last_key_value()) else {
        return Ok(None);
    };
    let name = names::file(first, last);
    let path = directory.join(&name);
    match File::open(&path).map(rows_of) {
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(source) => return Err(SinkError::Write { path, source }),
        Ok(Ok(held)) => held.into_iter().for_each(|row| {
            rows.entry(row.id).or_insert(row);
        }),
        Ok(Err(error)) => {
            let kept = disk::set_aside(&path)?;
            tracing::warn!(%error, kept = %kept.display(), "a damaged file was in the way and is kept aside");
        }
    }
    let mut file = disk::temporary(directory, &name)?;
    let rows: Vec<Row> = rows.into_values().collect();
    encode(file.as_file_mut(), source, &rows, claim)
        .map_err(|source| SinkError::Encode { path: path.clone(), source })?;
    let size = file.as_file().metadata().map_or(0, |metadata| metadata.len());
    disk::publish(file, &path)?;
    Ok(Some((name, size)))
}

/// All rows of a file.
pub(crate) fn read(path: &Path) -> Result<Vec<Row>, SinkError> {
    let error = |source| SinkError::Read { path: path.to_owned(), source };
    File::open(path).map_err(ParquetError::from).and_then(rows_of).map_err(error)
}

/// The ids of all rows of a file.
pub(crate) fn ids(path: &Path) -> Result<Vec<RecordId>, SinkError> {
    let error = |source| SinkError::Read { path: path.to_owned(), source };
    File::open(path).map_err(ParquetError::from).and_then(ids_of).map_err(error)
}

fn ids_of(file: File) -> Result<Vec<RecordId>, ParquetError> {
    let builder = ParquetRecordBatchReaderBuilder::try_new(file)?;
    let wanted = ProjectionMask::columns(builder.parquet_schema(), ["sequence", "published"]);
    let mut ids = Vec::new();
    for batch in builder.with_projection(wanted).build()? {
        let batch = batch?;
        let (sequence, published) = id_columns(&batch)?;
        ids.extend(sequence.values().iter().zip(published.values()).map(|(s, p)| RecordId::new(*s, *p)));
    }
    Ok(ids)
}

fn rows_of(file: File) -> Result<Vec<Row>, ParquetError> {
    let mut rows = Vec::new();
    for batch in ParquetRecordBatchReaderBuilder::try_new(file)?.build()? {
        rows.extend(decode(&batch?)?);
    }
    Ok(rows)
}

fn encode(out: &mut File, source: &Source, rows: &[Row], claim: &Claim) -> Result<(), ParquetError> {
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .set_key_value_metadata(Some(footer(source, rows, claim)))
        .build();
    let mut writer = ArrowWriter::try_new(BufWriter::new(out), Arc::new(schema()), Some(properties))?;
    let mut rest = rows;
    while !rest.is_empty() {
        let mut bytes = 0_usize;
        let fits = |row: &&Row| {
            bytes = bytes.saturating_add(row.payload.len());
            bytes <= PIECE_BYTES
        };
        // At least one, however large it is.
        let count = rest.iter().take(PIECE_ROWS).take_while(fits).count().max(1);
        let (piece, others) = rest.split_at(count);
        writer.write(&columns(source, piece)?)?;
        rest = others;
    }
    writer.into_inner()?.flush()?;
    Ok(())
}

/// What the end of a file says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Footer {
    /// What it holds.
    Claim(Claim),
    /// A whole file, which does not say what it holds, for this reason.
    NoClaim(String),
    /// Not a whole Parquet file, for this reason.
    Damaged(String),
}

/// Reads the end of a file. An error is one of reading; it says nothing about the file.
pub(crate) fn footer_of(file: &mut File) -> io::Result<Footer> {
    let length = file.seek(SeekFrom::End(0))?;
    let mut tail = read_last(file, length.min(TAIL))?;
    let Some((rest, &[a, b, c, d, ref magic @ ..])) = tail.split_last_chunk::<8>() else {
        return Ok(Footer::Damaged(format!("it has {length} bytes")));
    };
    let metadata = u64::from(u32::from_le_bytes([a, b, c, d]));
    if magic != MAGIC || metadata > length.saturating_sub(12).min(MAX_METADATA) {
        return Ok(Footer::Damaged(format!("it does not end as a Parquet file does, after {length} bytes")));
    }
    if metadata > rest.len() as u64 {
        tail = read_last(file, metadata + 8)?;
    }
    let end = tail.len().saturating_sub(8);
    let begin = end.saturating_sub(usize::try_from(metadata).map_err(io::Error::other)?);
    match ParquetMetaDataReader::decode_metadata(tail.get(begin..end).unwrap_or_default()) {
        Ok(metadata) => Ok(claim_in(metadata.file_metadata().key_value_metadata())),
        Err(error) => Ok(Footer::Damaged(error.to_string())),
    }
}

fn read_last(file: &mut File, count: u64) -> io::Result<Vec<u8>> {
    file.seek(SeekFrom::End(0_i64.saturating_sub_unsigned(count)))?;
    let mut bytes = Vec::new();
    file.take(count).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn claim_in(footer: Option<&Vec<KeyValue>>) -> Footer {
    let hex = footer.into_iter().flatten().find(|entry| entry.key == format!("{PREFIX}.claim"));
    let Some(hex) = hex.and_then(|entry| entry.value.as_deref()) else {
        return Footer::NoClaim("there is no claim in its footer".into());
    };
    let pairs = hex.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).ok());
    let bytes: Option<Vec<u8>> = pairs.map(|pair| u8::from_str_radix(pair?, 16).ok()).collect();
    match bytes.map(Claim::from_bytes) {
        Some(Ok(claim)) => Footer::Claim(claim),
        Some(Err(error)) => Footer::NoClaim(error.to_string()),
        None => Footer::NoClaim("its claim is not hexadecimal".into()),
    }
}

/// The claim goes with the data, in the same atomic step: the files alone tell what they hold.
fn footer(source: &Source, rows: &[Row], claim: &Claim) -> Vec<KeyValue> {
    let sequence = |row: Option<&Row>| row.map_or(0, |row| row.id.sequence).to_string();
    let claim = claim.as_bytes().iter().fold(String::new(), |mut hex, byte| {
        // Writing to a string cannot fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    });
    [
        ("stream", source.stream().to_owned()),
        ("filter", source.filters().join(" ")),
        ("first", sequence(rows.first())),
        ("last", sequence(rows.last())),
        ("count", rows.len().to_string()),
        ("claim", claim),
    ]
    .map(|(key, value)| KeyValue::new(format!("{PREFIX}.{key}"), value))
    .into()
}

fn header_fields() -> Fields {
    ["name", "value"].map(|name| Field::new(name, DataType::Utf8, false)).into_iter().collect()
}

fn header_item() -> Field {
    Field::new("item", DataType::Struct(header_fields()), false)
}

fn schema() -> Schema {
    Schema::new(vec![
        Field::new("stream", DataType::Utf8, false),
        Field::new("subject", DataType::Utf8, false),
        Field::new("sequence", DataType::UInt64, false),
        Field::new("published", DataType::Timestamp(TimeUnit::Nanosecond, Some("UTC".into())), false),
        Field::new("headers", DataType::List(Arc::new(header_item())), false),
        Field::new("payload", DataType::Binary, false),
    ])
}

fn columns(source: &Source, rows: &[Row]) -> Result<RecordBatch, ArrowError> {
    let mut subject = StringBuilder::new();
    let mut sequence = UInt64Builder::with_capacity(rows.len());
    let mut published = TimestampNanosecondBuilder::with_capacity(rows.len()).with_timezone("UTC");
    let fields = StructBuilder::from_fields(header_fields(), 0);
    let mut headers = ListBuilder::new(fields).with_field(header_item());
    let mut payload = BinaryBuilder::new();
    for row in rows {
        subject.append_value(&row.subject);
        sequence.append_value(row.id.sequence);
        published.append_value(row.id.published);
        for (name, value) in &row.headers {
            let pair = headers.values();
            for (index, text) in [name, value].into_iter().enumerate() {
                let column = pair.field_builder::<StringBuilder>(index);
                column.ok_or_else(|| ArrowError::SchemaError("headers are text".into()))?.append_value(text);
            }
            pair.append(true);
        }
        headers.append(true);
        payload.append_value(&row.payload);
    }
    let columns: Vec<ArrayRef> = vec![
        Arc::new(StringArray::from_iter_values(rows.iter().map(|_| source.stream()))),
        Arc::new(subject.finish()),
        Arc::new(sequence.finish()),
        Arc::new(published.finish()),
        Arc::new(headers.finish()),
        Arc::new(payload.finish()),
    ];
    RecordBatch::try_new(Arc::new(schema()), columns)
}

fn foreign() -> ParquetError {
    ParquetError::General("not a file of this archive: other columns".into())
}

fn id_columns(batch: &RecordBatch) -> Result<(&UInt64Array, &TimestampNanosecondArray), ParquetError> {
    let column = |name| batch.column_by_name(name).ok_or_else(foreign);
    let sequence = column("sequence")?.as_primitive_opt::<UInt64Type>().ok_or_else(foreign)?;
    let published = column("published")?.as_primitive_opt::<TimestampNanosecondType>().ok_or_else(foreign)?;
    Ok((sequence, published))
}

fn decode(batch: &RecordBatch) -> Result<Vec<Row>, ParquetError> {
    let column = |name| batch.column_by_name(name).ok_or_else(foreign);
    let text = |array: &ArrayRef| array.as_string_opt::<i32>().cloned().ok_or_else(foreign);
    let subject = text(column("subject")?)?;
    let (sequence, published) = id_columns(batch)?;
    let headers = column("headers")?.as_list_opt::<i32>().ok_or_else(foreign)?;
    let payload = column("payload")?.as_binary_opt::<i32>().ok_or_else(foreign)?;
    let pairs = |pairs: &StructArray| {
        let part = |name| pairs.column_by_name(name).ok_or_else(foreign).and_then(text);
        let (names, values) = (part("name")?, part("value")?);
        Ok::<_, ParquetError>((0..pairs.len()).map(|i| (names.value(i).into(), values.value(i).into())).collect())
    };
    (0..batch.num_rows())
        .map(|i| {
            Ok(Row {
                id: RecordId::new(sequence.value(i), published.value(i)),
                subject: subject.value(i).into(),
                headers: pairs(headers.value(i).as_struct_opt().ok_or_else(foreign)?)?,
                payload: bytes::Bytes::copy_from_slice(payload.value(i)),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests;
