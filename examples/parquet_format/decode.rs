//! From a file to rows.

use arrow_array::cast::AsArray;
use arrow_array::types::{TimestampNanosecondType, UInt64Type};
use arrow_array::{Array, ArrayRef, RecordBatch, StructArray, TimestampNanosecondArray, UInt64Array};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::errors::ParquetError;
use parquet::file::reader::ChunkReader;
use replay_guard::RecordId;

use crate::Row;

/// All rows of a file.
pub fn rows_of<F: ChunkReader + 'static>(file: F) -> Result<Vec<Row>, ParquetError> {
    let mut rows = Vec::new();
    for batch in ParquetRecordBatchReaderBuilder::try_new(file)?.build()? {
        rows.extend(decode(&batch?)?);
    }
    Ok(rows)
}

/// The ids of all rows of a file; nothing else is decoded.
pub fn ids_of<F: ChunkReader + 'static>(file: F) -> Result<Vec<RecordId>, ParquetError> {
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
