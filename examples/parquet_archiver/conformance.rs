//! What replay-guard's conformance kit makes of the sink.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use archiver_support::FlushSettings;
use replay_guard::async_nats::HeaderMap;
use replay_guard::testing::{Conformance, Held, Storage};
use replay_guard::{SinkFailure, Source};
use tempfile::TempDir;

use crate::file;
use crate::names;
use crate::parts::Partition;
use crate::sink::ParquetSink;

/// So much that some flushes are asked for by the sink.
const MAX_BYTES: usize = 3_000;

/// A directory of its own.
struct Directory {
    place: TempDir,
    partition: Partition,
}

impl Storage for Directory {
    type Sink = ParquetSink;

    async fn open(&self, source: &Source) -> Result<ParquetSink, SinkFailure> {
        let sink = ParquetSink::open(self.place.path(), source.clone(), MAX_BYTES, Arc::default()).await?;
        let roll = FlushSettings { records: 3, after: Duration::from_secs(3_600), bytes: MAX_BYTES };
        Ok(if self.partition == Partition::None { sink } else { sink.partitioned_by(self.partition, roll) })
    }

    async fn held(&self, source: &Source) -> Result<Vec<Held>, SinkFailure> {
        let directory = self.place.path().join(names::directory(source));
        if !directory.exists() {
            return Ok(Vec::new());
        }
        let mut held = Vec::new();
        let mut paths = vec![directory];
        while let Some(path) = paths.pop() {
            if path.is_dir() {
                for entry in fs::read_dir(&path)? {
                    paths.push(entry?.path());
                }
                continue;
            }
            // As readers of the archive look for them: the others are half written.
            if path.extension().is_none_or(|kind| kind != "parquet") {
                continue;
            }
            for row in file::read(&path)? {
                let mut headers = HeaderMap::new();
                for (name, value) in &row.headers {
                    headers.append(name.as_str(), value.as_str());
                }
                let row = Held::new(row.id.sequence, row.id.published, row.subject, row.payload);
                held.push(row.with_headers(headers));
            }
        }
        Ok(held)
    }
}

#[tokio::test]
async fn keeps_what_a_sink_promises() -> Result<()> {
    for partition in [Partition::None, Partition::Hour] {
        let place = async || Ok(Directory { place: tempfile::tempdir()?, partition });
        let report = Conformance::new().cases(15).must_recover().check(place).await?;
        println!("{report}");
        assert!(report.headers && report.full > 0 && report.waits > 0, "{report}");
    }
    Ok(())
}
