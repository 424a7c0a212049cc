//! The rows of one flush.

use clickhouse::Row;
use replay_guard::async_nats::HeaderMap;
use replay_guard::{Claim, Record, RecordId, Source};
use serde::{Deserialize, Serialize};

/// One message, as it stands in the table.
#[derive(Clone, Debug, PartialEq, Eq, Row, Serialize, Deserialize)]
pub(crate) struct Message {
    /// Which source it belongs to: domain, stream and filters. No two sources have the same text.
    pub(crate) source: String,
    pub(crate) stream: String,
    pub(crate) sequence: u64,
    /// Unix nanoseconds.
    pub(crate) published: i64,
    pub(crate) subject: String,
    /// Names sorted, the values of one name in the order they were published in.
    #[serde(rename = "headers.name")]
    pub(crate) header_names: Vec<String>,
    #[serde(rename = "headers.value")]
    pub(crate) header_values: Vec<String>,
    pub(crate) payload: bytes::Bytes,
    /// In the last row of a batch: what the batch makes durable. Else empty.
    pub(crate) claim: bytes::Bytes,
    /// Beside a claim: the first record of the batch. Else 0.
    pub(crate) claim_first_sequence: u64,
    pub(crate) claim_first_published: i64,
}

impl Message {
    pub(crate) fn new(source: &Source, record: Record) -> Self {
        let (header_names, header_values) = pairs(&record.headers).into_iter().unzip();
        Self {
            source: source.to_string(),
            stream: source.stream().to_owned(),
            sequence: record.sequence,
            published: record.published,
            subject: record.subject.to_string(),
            header_names,
            header_values,
            payload: record.payload,
            claim: bytes::Bytes::new(),
            claim_first_sequence: 0,
            claim_first_published: 0,
        }
    }

    pub(crate) const fn id(&self) -> RecordId {
        RecordId::new(self.sequence, self.published)
    }

    /// What it takes in memory, roughly.
    pub(crate) fn size(&self) -> usize {
        const OVERHEAD: usize = 320;
        let texts = self.header_names.iter().chain(&self.header_values).map(|text| 24 + text.len()).sum::<usize>();
        OVERHEAD + self.source.len() + self.stream.len() + self.subject.len() + self.payload.len() + texts
    }
}

/// The header map has no order between names; sorted, the same message always gives the same row.
fn pairs(headers: &HeaderMap) -> Vec<(String, String)> {
    let mut names: Vec<_> = headers.iter().map(|(name, values)| (name.to_string(), values)).collect();
    names.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    names.iter().flat_map(|(name, values)| values.iter().map(move |value| (name.clone(), value.to_string()))).collect()
}

/// Sorts the rows of a flush and puts the claim into the last of them.
pub(crate) fn batch(mut rows: Vec<Message>, claim: &Claim) -> Vec<Message> {
    rows.sort_unstable_by_key(Message::id);
    let first = rows.first().map(Message::id);
    if let (Some(first), Some(last)) = (first, rows.last_mut()) {
        last.claim = bytes::Bytes::copy_from_slice(claim.as_bytes());
        (last.claim_first_sequence, last.claim_first_published) = (first.sequence, first.published);
    }
    rows
}

#[cfg(test)]
mod tests {
    use replay_guard::{Flush, Reason};

    use super::*;

    #[test]
    fn the_last_row_says_where_its_batch_began() {
        let source = Source::new("S");
        let rows = [5, 2, 9].map(|sequence| Message::new(&source, Record::new(sequence, 7, "s", "x"))).to_vec();
        let rows = batch(rows, &Flush::without_guard(Reason::Due).claim());
        let said: Vec<_> = rows.iter().map(|row| (row.sequence, row.claim_first_sequence)).collect();
        assert_eq!(said, [(2, 0), (5, 0), (9, 2)]);
        assert_eq!(rows.last().map(|row| row.claim_first_published), Some(7));
    }

    #[test]
    fn headers_are_pairs_in_order() {
        let mut headers = HeaderMap::new();
        headers.append("b", "2");
        headers.append("a", "x");
        headers.append("b", "1");
        let row = Message::new(&Source::new("S"), Record::new(1, 7, "s", "").with_headers(headers));
        assert_eq!(
            (row.header_names, row.header_values),
            (vec!["a".into(), "b".into(), "b".into()], vec!["x".into(), "2".into(), "1".into()])
        );
    }
}
