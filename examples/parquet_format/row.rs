//! One archived message.

use replay_guard::async_nats::HeaderMap;
use replay_guard::{Record, RecordId};

/// What a row costs in memory beside its text and payload, roughly.
const OVERHEAD: usize = 160;

/// One archived message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Stream sequence and publish time.
    pub id: RecordId,
    /// Its subject.
    pub subject: String,
    /// Name and value, one pair per value; names sorted, the values of one name in the order they were published in.
    pub headers: Vec<(String, String)>,
    /// Its payload.
    pub payload: bytes::Bytes,
}

impl Row {
    /// How many bytes it takes in memory, roughly.
    pub fn memory(&self) -> usize {
        let headers: usize = self.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
        OVERHEAD + self.subject.len() + self.payload.len() + headers
    }
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
