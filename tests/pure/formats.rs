//! A checkpoint file of every format version that was ever released is read by today's code. A file here never changes; a new
//! version adds one.

use std::fs;
use std::path::Path;

use replay_guard::{
    CheckpointStore as _, Durable, FileStore, Flush, Guard, MemoryStream, Offer, Reason, Record, Sink, Source, Trust,
    Written,
};

/// Each version's file, written after [`MESSAGES`] messages were archived from the stream below.
const FORMATS: [(u16, &[u8]); 1] = [(1, include_bytes!("formats/v1.ckpt"))];
const MESSAGES: u64 = 10;
const STATE_ID: &str = "6a5b405bdb8c56ff1a838208dc56c84f";

/// A sink that must not be written to.
struct Nothing;

impl Sink for Nothing {
    type Error = std::io::Error;
    async fn write(&mut self, record: Record) -> Result<Written, Self::Error> {
        Err(std::io::Error::other(format!("{} is archived", record.id())))
    }
    async fn flush(&mut self, _: Flush<'_>) -> Result<Durable, Self::Error> {
        Ok(Durable::All)
    }
}

fn stream() -> (MemoryStream, Vec<Record>) {
    let stream = MemoryStream::new();
    let records = (1..=MESSAGES).map(|n| stream.publish("orders.new", format!("order {n}"))).collect();
    (stream, records)
}

fn put(directory: &Path, source: &Source, bytes: &[u8]) {
    let location = FileStore::new(directory, source).location();
    let path = Path::new(&location);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

#[tokio::test]
async fn c5_a_file_of_every_released_format_version_is_read() {
    for (version, bytes) in FORMATS {
        assert_eq!(bytes[8..10], version.to_le_bytes(), "the file says its version");
        let directory = tempfile::tempdir().unwrap();
        let source = Source::new("ORDERS").with_filters(["orders.>"]);
        put(directory.path(), &source, bytes);
        let (stream, records) = stream();
        let store = FileStore::new(directory.path(), &source);
        let mut guard = Guard::open(source, Nothing, store, stream).await.unwrap();
        let report = guard.report();
        assert_eq!((&report.trust, report.floor, report.spans), (&Trust::Whole, MESSAGES, 1), "version {version}");
        assert_eq!((report.damaged.len(), report.state_id.to_string().as_str()), (0, STATE_ID));
        let _ = guard.begin_session().await.unwrap();
        let mut before = None;
        for record in records {
            let sequence = record.sequence;
            assert_eq!(guard.offer(record, before).await.unwrap(), Offer::Skipped, "{sequence}");
            before = Some(sequence);
        }
        assert_eq!(guard.flush(Reason::Due).await.unwrap().acks().len() as u64, MESSAGES);
    }
}
