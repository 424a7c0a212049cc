//! A NATS server, a ClickHouse, and archivers between them.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use archiver_support::killing::{Published, is_done};
use archiver_support::nats::Server;
use archiver_support::wheel::Result;
use archiver_support::{Process, streams};
use async_nats::jetstream::Context;
use async_nats::jetstream::consumer::pull;

use crate::target::{ClickHouse, Kind};

pub(crate) const STREAM: &str = "S";
pub(crate) const CONSUMER: &str = "archiver";
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);

pub(crate) struct Rig {
    pub(crate) nats: Server,
    pub(crate) jetstream: Context,
    pub(crate) clickhouse: ClickHouse,
    pub(crate) directory: tempfile::TempDir,
}

impl Rig {
    /// With a stream that keeps `s.>`.
    pub(crate) async fn new(version: &'static str, kind: Kind) -> Result<Self> {
        Self::with(version, ClickHouse::start(kind).await?).await
    }

    pub(crate) async fn with(version: &'static str, clickhouse: ClickHouse) -> Result<Self> {
        let nats = Server::start(version).await?;
        let jetstream = streams::producer(nats.client().await?);
        let rig = Self { nats, jetstream, clickhouse, directory: tempfile::tempdir()? };
        rig.create_stream().await?;
        Ok(rig)
    }

    pub(crate) async fn create_stream(&self) -> Result<()> {
        let consumer = pull::Config { max_ack_pending: 50_000, ..streams::impatient(CONSUMER) };
        streams::make(&self.jetstream, STREAM, "s.>", consumer).await
    }

    pub(crate) async fn publish(&self, count: usize) -> Result<()> {
        let mut acks = Vec::new();
        for n in 0..count {
            acks.push(self.jetstream.publish("s.a", format!("message {n}").into()).await?);
        }
        for ack in acks {
            ack.await?;
        }
        Ok(())
    }

    /// What the stream holds.
    pub(crate) async fn published(&self) -> Result<Vec<Published>> {
        let stream = self.jetstream.get_stream(STREAM).await?;
        streams::read_back(&self.jetstream, STREAM, stream.cached_info().state.last_sequence).await
    }

    /// The archiver, with small flushes.
    pub(crate) fn archiver(&self, more: &[&str]) -> Command {
        self.archiver_at(&self.clickhouse.url(), more)
    }

    /// The same with another way to the server.
    pub(crate) fn archiver_at(&self, clickhouse: &str, more: &[&str]) -> Command {
        self.archiver_flushing(clickhouse, ("300", "0.05"), more)
    }

    /// The same with flushes after so many records, or so many seconds.
    pub(crate) fn archiver_flushing(&self, clickhouse: &str, flush: (&str, &str), more: &[&str]) -> Command {
        let mut command = archiver(&self.nats.url(), clickhouse, self.clickhouse.compression(), flush);
        command
            .args(["--stream", STREAM, "--consumer", CONSUMER])
            .arg("--state")
            .arg(self.directory.path().join("state"));
        command.args(more);
        command
    }

    pub(crate) fn start(&self, more: &[&str]) -> Result<Process> {
        Process::start("the archiver", &mut self.archiver(more))
    }

    /// Archives until the table has so many rows and the server has nothing left, and stops.
    pub(crate) async fn archive(&self, rows: usize, more: &[&str]) -> Result<()> {
        let mut process = self.start(more)?;
        self.wait_for("rows in the table", || Ok(self.rows()? >= rows)).await?;
        self.wait_until_done().await?;
        let status = process.stop(PATIENCE).await?;
        if status.success() { Ok(()) } else { Err(format!("the archiver did not stop cleanly: {status}").into()) }
    }

    pub(crate) async fn wait_until_done(&self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !is_done(&self.jetstream, STREAM, CONSUMER).await? {
            if Instant::now() > deadline {
                let info = self.jetstream.get_stream(STREAM).await?.consumer_info(CONSUMER).await;
                return Err(format!("the archiver does not finish the work: {info:?}").into());
            }
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    pub(crate) async fn wait_for(&self, what: &str, mut is: impl FnMut() -> Result<bool>) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !is()? {
            if Instant::now() > deadline {
                return Err(format!("waited too long for {what}").into());
            }
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    /// How many rows there are, each copy counted; none where there is no table yet.
    pub(crate) fn rows(&self) -> Result<usize> {
        match self.clickhouse.query("SELECT count() FROM messages") {
            Ok(count) => Ok(count.trim().parse()?),
            Err(error) if error.to_string().contains("Code: 60") => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// That the table holds these once: without counting copies, and each copy counted.
    pub(crate) fn check(&self, published: &[Published]) -> Result<()> {
        check(&self.clickhouse, published)
    }
}

pub(crate) fn check(clickhouse: &ClickHouse, published: &[Published]) -> Result<()> {
    archiver_support::killing::check(published, held(clickhouse, "FINAL")?)
        .map_err(|error| format!("FINAL: {error}"))?;
    archiver_support::killing::check(published, held(clickhouse, "")?)
        .map_err(|error| format!("copies: {error}").into())
}

fn held(clickhouse: &ClickHouse, how: &str) -> Result<Vec<Published>> {
    let sql = format!("SELECT sequence, published, hex(subject), hex(payload) FROM messages {how}");
    let mut held = Vec::new();
    for line in clickhouse.query(&sql)?.lines() {
        let [sequence, published, subject, payload] = line.split('\t').collect::<Vec<_>>()[..] else {
            return Err(format!("an unexpected row: {line}").into());
        };
        held.push(Published {
            sequence: sequence.parse()?,
            published: published.parse()?,
            subject: String::from_utf8(unhex(subject)?)?,
            payload: unhex(payload)?.into(),
        });
    }
    Ok(held)
}

pub(crate) fn unhex(text: &str) -> Result<Vec<u8>> {
    let pairs = text.as_bytes().chunks(2).map(|pair| Ok(u8::from_str_radix(std::str::from_utf8(pair)?, 16)?));
    pairs.collect()
}

/// The archiver between two servers, with small flushes.
pub(crate) fn archiver(nats: &str, clickhouse: &str, compression: &str, flush: (&str, &str)) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_clickhouse_archiver"));
    command.args(["--server", nats, "--clickhouse", clickhouse, "--compression", compression]);
    command.args(["--log", "warn", "--flush-records", flush.0, "--flush-after", flush.1]).stdout(Stdio::null());
    command
}
