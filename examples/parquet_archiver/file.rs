//! How one Parquet file gets its rows and its name, and is read back.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufWriter, ErrorKind, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;

pub(crate) use archiver_parquet::{Footer, Row};
use archiver_parquet::{TAIL, encode, ids_of, rows_of};
use bytes::Bytes;
use parquet::errors::ParquetError;
use replay_guard::{Claim, RecordId, Source};

use crate::disk::{self, SinkError};
use crate::names;

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
    // Read first and decoded then: what the disk cannot give is not damaged.
    match fs::read(&path).map(|bytes| rows_of(Bytes::from(bytes))) {
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
    let encoded = encode(BufWriter::new(file.as_file_mut()), source, &rows, claim);
    encoded
        .and_then(|mut buffer| Ok(buffer.flush()?))
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

/// Reads the end of a file. An error is one of reading; it says nothing about the file.
pub(crate) fn footer_of(file: &mut File) -> io::Result<Footer> {
    let length = file.seek(SeekFrom::End(0))?;
    let tail = read_last(file, length.min(TAIL))?;
    let footer = match archiver_parquet::footer_of(length, &tail) {
        Ok(footer) => return Ok(footer),
        Err(more) => archiver_parquet::footer_of(length, &read_last(file, more)?),
    };
    Ok(footer.unwrap_or_else(|_| Footer::Damaged("it was cut while it was read".into())))
}

fn read_last(file: &mut File, count: u64) -> io::Result<Vec<u8>> {
    file.seek(SeekFrom::End(0_i64.saturating_sub_unsigned(count)))?;
    let mut bytes = Vec::new();
    file.take(count).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests;
