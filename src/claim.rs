//! What one flush makes durable, encoded for a sink to keep.

use bytes::Bytes;

use crate::checkpoint::ClaimBody;

/// What one flush makes durable, encoded: a sink may keep it with its data and give it back from
/// [`Sink::recover`](crate::Sink::recover).
///
/// A claim is evidence that the sink holds the records, never that the stream agrees: it is written before the guard has
/// verified anything, so an opening verifies each of its spans.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim(pub(crate) Bytes);

/// Why bytes are not a claim.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("not a claim: {0}")]
pub struct ClaimError(pub(crate) String);

impl Claim {
    /// The largest claim, in bytes.
    pub const MAX_LEN: usize = 64 * 1024;

    pub(crate) const fn empty() -> Self {
        Self(Bytes::new())
    }

    /// The bytes to keep; at most [`MAX_LEN`](Self::MAX_LEN). Empty for a flush without records.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// A claim from the bytes that were kept.
    ///
    /// # Errors
    ///
    /// If the bytes are damaged, longer than [`MAX_LEN`](Self::MAX_LEN) or of an unknown version.
    pub fn from_bytes(bytes: impl Into<Bytes>) -> Result<Self, ClaimError> {
        let bytes = bytes.into();
        ClaimBody::decode(&bytes)?;
        Ok(Self(bytes))
    }
}
