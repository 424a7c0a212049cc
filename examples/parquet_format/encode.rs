//! From rows to a file.

use std::fmt::Write as _;
use std::io::Write;
use std::sync::Arc;

use arrow_array::builder::{
    BinaryBuilder, ListBuilder, StringBuilder, StructBuilder, TimestampNanosecondBuilder, UInt64Builder,
};
use arrow_array::{ArrayRef, RecordBatch, StringArray};
use arrow_schema::{ArrowError, DataType, Field, Fields, Schema, TimeUnit};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use replay_guard::{Claim, Source};

use crate::Row;
use crate::footer::PREFIX;

/// Rows are turned into columns in pieces of this many records or payload bytes, so that a flush is not in memory twice.
const PIECE_ROWS: usize = 8_192;
const PIECE_BYTES: usize = 8 << 20;

/// Writes a whole file. The same rows with the same claim give the same bytes.
pub fn encode<W: Write + Send>(out: W, source: &Source, rows: &[Row], claim: &Claim) -> Result<W, ParquetError> {
    write(out, source, rows, footer(source, rows, claim))
}

/// A whole file without rows, which claims nothing; `note`: why it is there, for the footer.
pub fn encode_empty<W: Write + Send>(out: W, source: &Source, note: String) -> Result<W, ParquetError> {
    write(out, source, &[], vec![KeyValue::new(format!("{PREFIX}.note"), note)])
}

fn write<W: Write + Send>(out: W, source: &Source, rows: &[Row], footer: Vec<KeyValue>) -> Result<W, ParquetError> {
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .set_key_value_metadata(Some(footer))
        .build();
    let mut writer = ArrowWriter::try_new(out, Arc::new(schema()), Some(properties))?;
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
    writer.into_inner()
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
