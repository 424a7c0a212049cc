//! A storage on a real file system: one log per source, to which each flush appends a frame with its records and its claim.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use replay_guard::async_nats::HeaderMap;
use replay_guard::testing::{Held, Storage};
use replay_guard::{Claim, Durable, Flush, Record, Recovered, Sink, SinkFailure, Source, Written};
use serde_json::{Value, json};

/// A directory of its own.
#[derive(Debug)]
pub(crate) struct LogStorage(tempfile::TempDir);

impl LogStorage {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(tempfile::tempdir()?))
    }

    fn path(&self, source: &Source) -> PathBuf {
        // Hexadecimal, so that no two sources share a name, whatever the file system makes of letters.
        let text = format!("{:?} {} {:?}", source.domain(), source.stream(), source.filters());
        self.0.path().join(hex(text.as_bytes()))
    }
}

/// Length and checksum, then a line of JSON.
fn frames(path: &Path) -> io::Result<(Vec<Value>, u64)> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok((Vec::new(), 0)),
        Err(error) => return Err(error),
    };
    let (mut frames, mut rest) = (Vec::new(), &bytes[..]);
    while let Some((head, body)) = rest.split_first_chunk::<8>() {
        let length = u32::from_le_bytes(head[..4].try_into().unwrap()) as usize;
        let Some(frame) = body.get(..length) else { break };
        if crc32(frame) != head[4..] {
            break;
        }
        frames.push(serde_json::from_slice(frame)?);
        rest = &body[length..];
    }
    Ok((frames, (bytes.len() - rest.len()) as u64))
}

/// Bit by bit; short enough for a test.
fn crc32(bytes: &[u8]) -> [u8; 4] {
    let crc = bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg()))
    });
    (!crc).to_le_bytes()
}

fn hex(bytes: &[u8]) -> String {
    let digit = |half: u8| char::from_digit(u32::from(half), 16).unwrap();
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

fn unhex(text: &Value) -> Vec<u8> {
    let text = text.as_str().unwrap();
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

fn row(record: &Record) -> Value {
    let headers: Vec<Value> = record
        .headers
        .iter()
        .flat_map(|(name, values)| values.iter().map(move |value| json!([name.to_string(), value.as_str()])))
        .collect();
    json!([record.sequence, record.published, record.subject.as_str(), headers, hex(&record.payload)])
}

fn held(row: &Value) -> Held {
    let mut headers = HeaderMap::new();
    for header in row[3].as_array().unwrap() {
        headers.append(header[0].as_str().unwrap(), header[1].as_str().unwrap());
    }
    let payload = Bytes::from(unhex(&row[4]));
    let (sequence, published) = (row[0].as_u64().unwrap(), row[1].as_i64().unwrap());
    Held::new(sequence, published, row[2].as_str().unwrap(), payload).with_headers(headers)
}

impl Storage for LogStorage {
    type Sink = LogSink;

    async fn open(&self, source: &Source) -> Result<LogSink, SinkFailure> {
        let path = self.path(source);
        let (_, whole) = frames(&path)?;
        let file = OpenOptions::new().create(true).append(true).open(&path)?;
        // What a crash left half written would hide all that comes after it.
        file.set_len(whole)?;
        file.sync_all()?;
        File::open(self.0.path())?.sync_all()?;
        Ok(LogSink { file, path, buffer: Vec::new() })
    }

    async fn held(&self, source: &Source) -> Result<Vec<Held>, SinkFailure> {
        let (frames, _) = frames(&self.path(source))?;
        Ok(frames.iter().flat_map(|frame| frame["rows"].as_array().unwrap().iter().map(held)).collect())
    }
}

#[derive(Debug)]
pub(crate) struct LogSink {
    file: File,
    path: PathBuf,
    buffer: Vec<Value>,
}

impl Sink for LogSink {
    type Error = io::Error;

    async fn write(&mut self, record: Record) -> io::Result<Written> {
        self.buffer.push(row(&record));
        Ok(Written::Accepted)
    }

    async fn flush(&mut self, flush: Flush<'_>) -> io::Result<Durable> {
        let rows = std::mem::take(&mut self.buffer);
        if rows.is_empty() {
            return Ok(Durable::All);
        }
        let frame = json!({ "rows": rows, "claim": hex(flush.claim().as_bytes()) }).to_string();
        let mut bytes = u32::try_from(frame.len()).map_err(io::Error::other)?.to_le_bytes().to_vec();
        bytes.extend(crc32(frame.as_bytes()));
        bytes.extend(frame.as_bytes());
        // In two parts, so that a crash may come between.
        let (first, second) = bytes.split_at(bytes.len() / 2);
        tokio::task::yield_now().await;
        self.file.write_all(first)?;
        tokio::task::yield_now().await;
        self.file.write_all(second)?;
        tokio::task::yield_now().await;
        self.file.sync_all()?;
        tokio::task::yield_now().await;
        Ok(Durable::All)
    }

    async fn recover(&mut self, _: &Source) -> io::Result<Recovered> {
        self.file.sync_all()?;
        let (frames, _) = frames(&self.path)?;
        let claims = frames.iter().map(|frame| Claim::from_bytes(unhex(&frame["claim"])).map_err(io::Error::other));
        Ok(Recovered::AtLeast(claims.collect::<io::Result<_>>()?))
    }
}
