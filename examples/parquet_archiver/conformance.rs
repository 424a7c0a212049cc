//! What replay-guard's conformance kit makes of the sink.

use std::fs;
use std::io::ErrorKind;
use std::sync::Arc;

use anyhow::Result;
use replay_guard::async_nats::HeaderMap;
use replay_guard::testing::{Conformance, Held, Storage};
use replay_guard::{SinkFailure, Source};
use tempfile::TempDir;

use crate::file;
use crate::names;
use crate::sink::ParquetSink;

/// So much that some flushes are asked for by the sink.
const MAX_BYTES: usize = 3_000;

/// A directory of its own.
struct Directory(TempDir);

impl Storage for Directory {
    type Sink = ParquetSink;

    async fn open(&self, source: &Source) -> Result<ParquetSink, SinkFailure> {
        Ok(ParquetSink::open(self.0.path(), source.clone(), MAX_BYTES, Arc::default()).await?)
    }

    async fn held(&self, source: &Source) -> Result<Vec<Held>, SinkFailure> {
        let files = match fs::read_dir(self.0.path().join(names::directory(source))) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            files => files?,
        };
        let mut held = Vec::new();
        for file in files {
            let path = file?.path();
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
    let report =
        Conformance::new().cases(15).must_recover().check(async || Ok(Directory(tempfile::tempdir()?))).await?;
    println!("{report}");
    assert!(report.headers && report.full > 0 && report.waits > 0, "{report}");
    Ok(())
}
