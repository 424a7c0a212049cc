//! Evidence of what one message was.

use crate::record::RecordId;

/// A record id with a digest of the message: enough to tell, when the stream is read back, whether the message that
/// stands at a sequence today is the one that was archived.
///
/// The digest is the crc32 of the subject, a zero byte and the payload. Headers are left out: what is delivered and
/// what is read back differ in them (repeated names, `Nats-Pin-Id`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Witness {
    /// Sequence and publish time.
    pub id: RecordId,
    /// crc32 over subject, a zero byte, payload.
    pub digest: u32,
}

impl Witness {
    /// The witness of a message with this id, subject and payload.
    pub fn new(id: RecordId, subject: &str, payload: &[u8]) -> Self {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(subject.as_bytes());
        hasher.update(&[0]);
        hasher.update(payload);
        Self { id, digest: hasher.finalize() }
    }

    /// The sequence of its record.
    pub const fn sequence(&self) -> u64 {
        self.id.sequence
    }
}
