//! What replay-guard's conformance kit makes of the sink, against a real server.

#[expect(dead_code, reason = "the tests of the program use the rest")]
#[path = "../tests/target.rs"]
mod target;

use std::sync::atomic::AtomicU32;
use std::time::Duration;

use replay_guard::SinkFailure;
use replay_guard::async_nats::HeaderMap;
use replay_guard::testing::{Conformance, Held, Storage};

use self::target::{ClickHouse, Kind};
use super::*;

/// So much that some flushes are asked for by the sink.
const MAX_BYTES: usize = 4_000;

/// A table of its own, in a server that all cases share.
struct Table<'a> {
    server: &'a ClickHouse,
    archive: Archive,
}

impl<'a> Table<'a> {
    fn new(server: &'a ClickHouse) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let archive = Archive::new(TargetSettings {
            url: server.url(),
            database: "default".into(),
            table: format!("case_{}", COUNT.fetch_add(1, Ordering::Relaxed)),
            user: None,
            password: None,
            compression: cli::Compression::Lz4,
            timeout: Duration::from_secs(60),
        });
        Self { server, archive }
    }
}

impl Storage for Table<'_> {
    type Sink = ClickHouseSink;

    async fn open(&self, source: &Source) -> Result<ClickHouseSink, SinkFailure> {
        let sink = self.archive.sink(source.clone(), MAX_BYTES, &Arc::default()).await?;
        // A merge would make one row of two copies.
        self.server.query(&format!("SYSTEM STOP MERGES {}", self.archive.settings.table))?;
        Ok(sink)
    }

    async fn held(&self, source: &Source) -> Result<Vec<Held>, SinkFailure> {
        let rows = self.server.query(&format!(
            "SELECT hex(source), sequence, published, hex(subject), hex(payload),
                arrayStringConcat(arrayMap(text -> hex(text), headers.name), ','),
                arrayStringConcat(arrayMap(text -> hex(text), headers.value), ',')
             FROM {}",
            self.archive.settings.table
        ))?;
        let mut held = Vec::new();
        for line in rows.lines() {
            let [of, sequence, published, subject, payload, names, values] = line.split('\t').collect::<Vec<_>>()[..]
            else {
                return Err(format!("an unexpected row: {line}").into());
            };
            if text(of)? != source.to_string() {
                continue;
            }
            let mut headers = HeaderMap::new();
            // No name is empty.
            for (name, value) in names.split(',').zip(values.split(',')).filter(|(name, _)| !name.is_empty()) {
                headers.append(text(name)?, text(value)?);
            }
            let row = Held::new(sequence.parse()?, published.parse()?, text(subject)?, unhex(payload)?);
            held.push(row.with_headers(headers));
        }
        Ok(held)
    }
}

fn text(hex: &str) -> Result<String, SinkFailure> {
    Ok(String::from_utf8(unhex(hex)?)?)
}

fn unhex(hex: &str) -> Result<Vec<u8>, SinkFailure> {
    let pairs = hex.as_bytes().chunks(2).map(|pair| Ok(u8::from_str_radix(str::from_utf8(pair)?, 16)?));
    pairs.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn keeps_what_a_sink_promises() -> Result<(), SinkFailure> {
    let server = ClickHouse::start(Kind::Old).await?;
    let kit = Conformance::new().cases(4).must_recover();
    let report = Box::pin(kit.check(async || Ok(Table::new(&server)))).await?;
    println!("{report}");
    assert!(report.headers && report.full > 0 && report.waits > 0, "{report}");
    Ok(())
}
