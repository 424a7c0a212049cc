//! One record as a row, in the binary format of `COPY`.

use std::time::Duration;

use bytes::{BufMut as _, BytesMut};
use replay_guard::async_nats::HeaderMap;
use replay_guard::{Record, RecordId};
use serde_json::{Value, json};

use crate::error::SinkError;

/// The columns of a row, in the order they are written in.
pub(crate) const COLUMNS: &str = "source, sequence, published, published_ns, subject, headers, payload, exact";
const COLUMN_COUNT: i16 = 8;

/// What a row costs in memory beside its text and payload, roughly.
const OVERHEAD: usize = 160;

/// `timestamptz` counts from the year 2000.
const EPOCH_2000: Duration = Duration::from_secs(946_684_800);

/// One record, checked: each of its parts has a form that the database takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) sequence: i64,
    pub(crate) published_ns: i64,
    pub(crate) subject: String,
    /// An array of objects with `name` and `value`, one per value; names sorted, the values of one name in their order.
    pub(crate) headers: String,
    pub(crate) payload: bytes::Bytes,
    /// Subject and headers as JSON, where they hold a NUL, which is all that `text` and `jsonb` cannot.
    pub(crate) exact: Option<String>,
}

impl Row {
    /// A row from a record.
    pub(crate) fn new(record: Record) -> Result<Self, SinkError> {
        let RecordId { sequence, published } = record.id();
        let sequence = i64::try_from(sequence).map_err(|_| SinkError::Sequence(sequence))?;
        let subject = record.subject.as_str();
        let pairs = pairs(&record.headers);
        let has_nul =
            subject.contains('\0') || pairs.iter().any(|(name, value)| name.contains('\0') || value.contains('\0'));
        let exact =
            has_nul.then(|| json!({ "subject": subject, "headers": objects(&pairs, str::to_owned) }).to_string());
        Ok(Self {
            sequence,
            published_ns: published,
            subject: shown(subject),
            headers: objects(&pairs, shown).to_string(),
            payload: record.payload,
            exact,
        })
    }

    /// What it takes in memory, in bytes, roughly.
    pub(crate) fn size(&self) -> usize {
        let exact = self.exact.as_ref().map_or(0, String::len);
        OVERHEAD + self.subject.len() + self.headers.len() + self.payload.len() + exact
    }

    /// Sequence and publish time.
    pub(crate) const fn id(&self) -> (i64, i64) {
        (self.sequence, self.published_ns)
    }

    /// Writes the row.
    pub(crate) fn encode(&self, source: i32, out: &mut BytesMut) -> Result<(), SinkError> {
        out.put_i16(COLUMN_COUNT);
        out.put_i32(4);
        out.put_i32(source);
        for number in [self.sequence, microseconds(self.published_ns), self.published_ns] {
            out.put_i32(8);
            out.put_i64(number);
        }
        put(out, &[self.subject.as_bytes()])?;
        // The version of the format that follows.
        put(out, &[&[1], self.headers.as_bytes()])?;
        put(out, &[&self.payload])?;
        match &self.exact {
            Some(exact) => put(out, &[exact.as_bytes()])?,
            None => out.put_i32(-1),
        }
        Ok(())
    }
}

/// What stands before the first row.
pub(crate) fn begin(out: &mut BytesMut) {
    out.put_slice(b"PGCOPY\n\xff\r\n\0");
    // No flags, no more header.
    out.put_i32(0);
    out.put_i32(0);
}

/// What stands after the last row.
pub(crate) fn end(out: &mut BytesMut) {
    out.put_i16(-1);
}

fn put(out: &mut BytesMut, parts: &[&[u8]]) -> Result<(), SinkError> {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let length = i32::try_from(length)
        .map_err(|_| SinkError::Setting(format!("a value of {length} bytes is more than a column can hold")))?;
    out.put_i32(length);
    for part in parts {
        out.put_slice(part);
    }
    Ok(())
}

/// What `text` can hold of a string: a NUL is shown as the replacement character.
fn shown(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

/// Microseconds since 2000, the time at or before.
fn microseconds(published_ns: i64) -> i64 {
    let epoch = i64::try_from(EPOCH_2000.as_micros()).unwrap_or(i64::MAX);
    published_ns.div_euclid(1_000) - epoch
}

/// The header map has no order between names; sorted, the same message always gives the same bytes.
fn pairs(headers: &HeaderMap) -> Vec<(String, String)> {
    let mut names: Vec<_> = headers.iter().map(|(name, values)| (name.to_string(), values)).collect();
    names.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    names.iter().flat_map(|(name, values)| values.iter().map(move |value| (name.clone(), value.to_string()))).collect()
}

fn objects(pairs: &[(String, String)], form: impl Fn(&str) -> String) -> Value {
    pairs.iter().map(|(name, value)| json!({ "name": form(name), "value": form(value) })).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_keep_the_values_of_a_name_in_order() -> Result<(), SinkError> {
        let mut headers = HeaderMap::new();
        headers.append("B", "2");
        headers.append("A", "\"q\" \u{e9}");
        headers.append("B", "1");
        let row = Row::new(Record::new(1, 5, "s", "").with_headers(headers))?;
        let expected = json!([
            { "name": "A", "value": "\"q\" \u{e9}" },
            { "name": "B", "value": "2" },
            { "name": "B", "value": "1" },
        ]);
        assert_eq!(row.headers, expected.to_string());
        assert_eq!(Row::new(Record::new(1, 5, "s", ""))?.headers, "[]");
        assert_eq!(row.exact, None);
        Ok(())
    }

    #[test]
    fn what_text_cannot_hold_is_kept_beside_it() -> Result<(), SinkError> {
        let row = Row::new(Record::new(1, 5, "a\0b", "\0"))?;
        assert_eq!(row.subject, "a\u{fffd}b");
        assert_eq!(row.exact.as_deref(), Some(r#"{"headers":[],"subject":"a\u0000b"}"#));
        // A subject that holds the replacement character is what it looks like.
        assert_eq!(Row::new(Record::new(1, 5, "a\u{fffd}b", ""))?.exact, None);
        Ok(())
    }

    #[test]
    fn a_sequence_that_no_column_holds_is_an_error() {
        assert!(Row::new(Record::new(i64::MAX as u64, 5, "s", "")).is_ok());
        assert!(matches!(Row::new(Record::new(1 << 63, 5, "s", "")), Err(SinkError::Sequence(_))));
    }

    #[test]
    fn times_are_cut_to_the_microsecond_before() {
        assert_eq!(microseconds(946_684_800_000_001_999), 1);
        assert_eq!(microseconds(946_684_800_000_000_000), 0);
        assert_eq!(microseconds(946_684_799_999_999_999), -1);
    }

    #[test]
    fn a_row_has_the_form_that_copy_reads() -> Result<(), SinkError> {
        let mut out = BytesMut::new();
        Row::new(Record::new(7, 946_684_800_000_002_000, "s", "xy"))?.encode(3, &mut out)?;
        let mut expected: Vec<u8> = vec![0, 8, 0, 0, 0, 4, 0, 0, 0, 3];
        expected.extend([0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 7]);
        expected.extend([0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 2]);
        expected.extend([0, 0, 0, 8, 0x0d, 0x23, 0x4c, 0xcf, 0x52, 0x43, 0x07, 0xd0]);
        expected.extend([0, 0, 0, 1, b's', 0, 0, 0, 3, 1, b'[', b']', 0, 0, 0, 2, b'x', b'y']);
        expected.extend([0xff; 4]);
        assert_eq!(out, expected);
        Ok(())
    }
}
