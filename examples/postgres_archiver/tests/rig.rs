//! A stream, a database, and archivers between them.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use archiver_support::nats::{Server, V2_15};
use archiver_support::wheel::Result;
use archiver_support::{Process, streams};
use async_nats::jetstream::Context;

use crate::postgres::Postgres;

pub(crate) const STREAM: &str = "S";
pub(crate) const CONSUMER: &str = "archiver";
/// Messages of one flush.
pub(crate) const EACH: usize = 50;
/// What the archiver says when it was made to write again what the table holds.
pub(crate) const AGAIN: &str = "in the table already";

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);

/// The archiver, as built for these tests.
pub(crate) fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_postgres_archiver"));
    for name in ["DATABASE_URL", "PGPASSWORD", "PGPASSFILE", "PGSSLMODE", "PGHOST", "PGUSER", "PGDATABASE"] {
        command.env_remove(name);
    }
    command
}

/// Waits until something is so.
pub(crate) async fn until(what: &str, mut is: impl AsyncFnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !is().await? {
        if Instant::now() > deadline {
            return Err(format!("it does not come to this: {what}").into());
        }
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}

/// An archiver that runs, and what it says.
#[derive(Debug)]
pub(crate) struct Archiver {
    pub(crate) process: Process,
    log: PathBuf,
}

impl Archiver {
    /// What it wrote to standard error.
    pub(crate) fn log(&self) -> Result<String> {
        Ok(fs::read_to_string(&self.log)?)
    }

    /// Waits until it ends by itself.
    pub(crate) async fn end(&mut self) -> Result<ExitStatus> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.process.ended()? {
                return Ok(status);
            }
            if Instant::now() > deadline {
                return Err(format!("the archiver does not end:\n{}", self.log()?).into());
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Stops it as a supervisor does; it must end well. What it said.
    pub(crate) async fn stop(mut self) -> Result<String> {
        let status = self.process.stop(PATIENCE).await?;
        let log = self.log()?;
        if status.success() { Ok(log) } else { Err(format!("the archiver ended with {status}:\n{log}").into()) }
    }
}

/// Both servers. The database is dropped before its directory.
pub(crate) struct Rig {
    pub(crate) nats: Server,
    pub(crate) jetstream: Context,
    pub(crate) postgres: Postgres,
    directory: tempfile::TempDir,
    archivers: AtomicU32,
}

impl Rig {
    pub(crate) async fn new() -> Result<Self> {
        let nats = Server::start(V2_15).await?;
        let jetstream = streams::producer(nats.client().await?);
        let postgres = tokio::task::spawn_blocking(Postgres::start).await??;
        let rig = Self { nats, jetstream, postgres, directory: tempfile::tempdir()?, archivers: AtomicU32::new(0) };
        rig.make(STREAM, "s.>").await?;
        Ok(rig)
    }

    /// A stream, and a consumer whose deliveries come again soon.
    pub(crate) async fn make(&self, stream: &str, subject: &str) -> Result<()> {
        streams::make(&self.jetstream, stream, subject, streams::impatient(CONSUMER)).await
    }

    pub(crate) async fn publish(&self, subject: &str, count: usize) -> Result<()> {
        for number in 0..count {
            self.jetstream.publish(subject.to_owned(), format!("{number}").into()).await?.await?;
        }
        Ok(())
    }

    /// The command of an archiver of this stream.
    pub(crate) fn command(&self, stream: &str) -> Command {
        self.command_with(stream, CONSUMER, EACH, "0.1")
    }

    /// As [`command`](Self::command), with another consumer, and other flushes.
    pub(crate) fn command_with(&self, stream: &str, consumer: &str, records: usize, seconds: &str) -> Command {
        let mut command = program();
        command.args(["--server", &self.nats.url(), "--stream", stream, "--consumer", consumer]);
        command.args(["--flush-records", &records.to_string(), "--flush-after", seconds]);
        command.env("DATABASE_URL", self.postgres.url());
        command
    }

    pub(crate) fn start(&self, command: &mut Command) -> Result<Archiver> {
        let number = self.archivers.fetch_add(1, Ordering::Relaxed);
        let log = self.directory.path().join(format!("archiver-{number}"));
        let process = Process::start("the archiver", command.stderr(fs::File::create(&log)?))?;
        Ok(Archiver { process, log })
    }

    /// A file for the archivers.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Waits until everything in a stream is delivered and acked.
    pub(crate) async fn caught_up(&self, stream: &str, archiver: &mut Archiver) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !self.is_done(stream).await? {
            if let Some(status) = archiver.process.ended()? {
                return Err(format!("the archiver ended with {status}:\n{}", archiver.log()?).into());
            }
            if Instant::now() > deadline {
                return Err(format!("the archiver does not catch up:\n{}", archiver.log()?).into());
            }
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    async fn is_done(&self, stream: &str) -> Result<bool> {
        let Ok(stream) = self.jetstream.get_stream(stream).await else { return Ok(false) };
        let last = stream.cached_info().state.last_sequence;
        // While it is made anew there is none.
        let Ok(info) = stream.consumer_info(CONSUMER).await else { return Ok(false) };
        Ok((info.num_pending, info.num_ack_pending) == (0, 0) && info.ack_floor.stream_sequence >= last)
    }

    /// Runs an archiver until it has caught up, and stops it: what it said.
    pub(crate) async fn archive(&self, stream: &str) -> Result<String> {
        self.archive_with(stream, &mut self.command(stream)).await
    }

    pub(crate) async fn archive_with(&self, stream: &str, command: &mut Command) -> Result<String> {
        let mut archiver = self.start(command)?;
        until("the archiver has begun", async || {
            Ok(archiver.log()?.contains("archiving") || archiver.process.ended()?.is_some())
        })
        .await?;
        self.caught_up(stream, &mut archiver).await?;
        archiver.stop().await
    }

    /// How many rows there are.
    pub(crate) fn rows(&self) -> Result<u64> {
        self.postgres.count("SELECT count(*) FROM archive.records")
    }

    /// How many rows there are once the tables are.
    pub(crate) fn rows_if_any(&self) -> u64 {
        self.rows().unwrap_or(0)
    }

    /// The sequences of the first source, in order.
    pub(crate) fn sequences(&self) -> Result<Vec<u64>> {
        let sequences = self.postgres.ask("SELECT sequence FROM archive.records WHERE source = 1 ORDER BY 1")?;
        sequences.lines().map(|line| Ok(line.parse()?)).collect()
    }

    /// Each message of a stream of this length must be there once.
    pub(crate) fn check(&self, count: usize) -> Result<()> {
        let found = self.sequences()?;
        let expected: Vec<u64> = (1..=count as u64).collect();
        if found == expected { Ok(()) } else { Err(format!("of {count} there are {}: {found:?}", found.len()).into()) }
    }

    /// What an archiver said must not be that it wrote again.
    pub(crate) fn never_again(log: &str) -> Result<()> {
        if log.contains(AGAIN) { Err(format!("it wrote again what was there:\n{log}").into()) } else { Ok(()) }
    }
}
