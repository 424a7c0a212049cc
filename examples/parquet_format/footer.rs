//! What the end of a file says of it.

use parquet::file::metadata::{KeyValue, ParquetMetaDataReader};
use replay_guard::Claim;

/// What our entries in a footer begin with.
pub(crate) const PREFIX: &str = "replay-guard";

/// What stands at the end of each Parquet file, after the length of the metadata before it.
const MAGIC: &[u8; 4] = b"PAR1";
/// So much of a file's end is worth reading at once; the metadata of ordinary files takes less.
pub const TAIL: u64 = 8 << 10;
/// No file of an archive has metadata of this length; a damaged one may say so.
const MAX_METADATA: u64 = 64 << 20;

/// What the end of a file says.
#[derive(Debug, PartialEq, Eq)]
pub enum Footer {
    /// What it holds.
    Claim(Claim),
    /// A whole file without rows.
    Empty,
    /// A whole file, which does not say what it holds, for this reason.
    NoClaim(String),
    /// Not a whole Parquet file, for this reason.
    Damaged(String),
}

/// What a file of this length is, by its last bytes, of which [`TAIL`] are mostly enough.
///
/// # Errors
///
/// How many of its last bytes it takes to tell, if these are too few.
pub fn footer_of(length: u64, tail: &[u8]) -> Result<Footer, u64> {
    let Some((rest, &[a, b, c, d, ref magic @ ..])) = tail.split_last_chunk::<8>() else {
        return Ok(Footer::Damaged(format!("it has {length} bytes")));
    };
    let metadata = u64::from(u32::from_le_bytes([a, b, c, d]));
    if magic != MAGIC || metadata > length.saturating_sub(12).min(MAX_METADATA) {
        return Ok(Footer::Damaged(format!("it does not end as a Parquet file does, after {length} bytes")));
    }
    let begin = usize::try_from(metadata).ok().and_then(|metadata| rest.len().checked_sub(metadata));
    let Some(metadata) = begin.and_then(|begin| rest.get(begin..)) else { return Err(metadata + 8) };
    Ok(match ParquetMetaDataReader::decode_metadata(metadata) {
        Ok(metadata) if metadata.file_metadata().num_rows() == 0 => Footer::Empty,
        Ok(metadata) => claim_in(metadata.file_metadata().key_value_metadata()),
        Err(error) => Footer::Damaged(error.to_string()),
    })
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
