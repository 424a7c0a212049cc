//! What replay-guard's conformance kit makes of the sink, against a real server.

#[expect(dead_code, reason = "the tests of the program use the rest")]
#[path = "../tests/postgres.rs"]
mod postgres;

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use replay_guard::SinkFailure;
use replay_guard::async_nats::HeaderMap;
use replay_guard::testing::{Conformance, Held, Hook, Report, Storage};
use serde_json::Value;
use sqlx::ConnectOptions as _;

use self::postgres::Postgres;
use super::*;
use crate::address;
use crate::schema::Schema;

/// So much that some flushes are asked for by the sink.
const MAX_BYTES: usize = 3_000;
/// What the server says where there are no tables.
const NO_TABLE: &str = "42P01";

/// A schema of its own, in a server that all cases share.
struct Place {
    server: Arc<Mutex<Postgres>>,
    database: Database,
    /// Whether the server dies where the power is cut.
    dies: bool,
}

impl Place {
    fn new(server: &Arc<Mutex<Postgres>>, dies: bool) -> Result<Self, SinkFailure> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let url = server.lock().unwrap_or_else(PoisonError::into_inner).url();
        let access = Access {
            options: address::options(Some(&url), None)?,
            schema: Schema::new(&format!("case {}", COUNT.fetch_add(1, Ordering::Relaxed)))?,
            patience: Duration::from_secs(60),
            without_fsync: false,
        };
        Ok(Self { server: Arc::clone(server), database: Database::new(access), dies })
    }
}

impl Storage for Place {
    type Sink = PostgresSink;

    async fn open(&self, source: &Source) -> Result<PostgresSink, SinkFailure> {
        let sink = self.database.sink(source, MAX_BYTES, &Arc::default()).await?;
        // The checkpoint's part, which the kit keeps elsewhere.
        sink.session.lock().await.lock().await?;
        Ok(sink)
    }

    async fn held(&self, source: &Source) -> Result<Vec<Held>, SinkFailure> {
        let Access { options, schema, .. } = &self.database.access;
        let mut connection = options.connect().await?;
        // With what `text` and `jsonb` cannot hold, where there is such.
        let rows = sqlx::query_as::<_, (i64, i64, String, Vec<u8>)>(&schema.statement(
            "SELECT sequence, published_ns,
                coalesce(exact::text, jsonb_build_object('subject', subject, 'headers', headers)::text), payload
             FROM $schema.records JOIN $schema.sources ON source = id
             WHERE domain = $1 AND stream = $2 AND filters = $3",
        ))
        .bind(source.domain().unwrap_or_default())
        .bind(source.stream())
        .bind(source.filters())
        .fetch_all(&mut connection)
        .await;
        let rows = match rows {
            // Nothing was said to be durable yet, so a power cut took them with it.
            Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some(NO_TABLE) => return Ok(Vec::new()),
            rows => rows?,
        };
        rows.into_iter()
            .map(|(sequence, published, texts, payload)| {
                let texts: Value = serde_json::from_str(&texts)?;
                let text = |value: &Value| value.as_str().map(str::to_owned).ok_or("a text is none");
                let mut headers = HeaderMap::new();
                for pair in texts["headers"].as_array().ok_or("headers are no array")? {
                    headers.append(text(&pair["name"])?, text(&pair["value"])?);
                }
                let row = Held::new(u64::try_from(sequence)?, published, text(&texts["subject"])?, payload);
                Ok(row.with_headers(headers))
            })
            .collect()
    }

    async fn power_cut(&self) -> Result<Hook, SinkFailure> {
        if !self.dies {
            return Ok(Hook::Missing);
        }
        let server = Arc::clone(&self.server);
        let restart = move || server.lock().unwrap_or_else(PoisonError::into_inner).restart();
        tokio::task::spawn_blocking(restart).await??;
        Ok(Hook::Done)
    }
}

/// Tries so many cases on one server. What that one is set to is less than the sink promises, and in no hurry.
async fn check(cases: u64, dies: bool) -> Result<Report, SinkFailure> {
    let server = tokio::task::spawn_blocking(|| {
        let mut server = Postgres::start()?;
        server.configure("synchronous_commit = off\nwal_writer_delay = 10s\n")?;
        server.restart()?;
        Ok::<_, SinkFailure>(Arc::new(Mutex::new(server)))
    });
    let server = server.await??;
    let report = Conformance::new().cases(cases).must_recover().check(async || Place::new(&server, dies)).await?;
    println!("{report}");
    assert!(report.headers && report.full > 0 && report.waits > 0, "{report}");
    Ok(report)
}

#[tokio::test(flavor = "multi_thread")]
async fn keeps_what_a_sink_promises() -> Result<(), SinkFailure> {
    check(8, false).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn keeps_it_when_its_server_dies() -> Result<(), SinkFailure> {
    assert!(check(1, true).await?.durability);
    Ok(())
}
