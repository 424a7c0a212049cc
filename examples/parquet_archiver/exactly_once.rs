//! With a real server: the archiver dies at the worst moment, or its checkpoint is lost, and nothing is written twice.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Error, Result, anyhow, bail};
use archiver_support::killing::{self, Published};
use archiver_support::nats::{APART, Server, versions};
use archiver_support::{FlushSettings, Job, Progress, streams};
use replay_guard::async_nats::jetstream::{self, Context};
use replay_guard::jetstream::Denials;
use replay_guard::{Coverage, Driver, Durable, Flush, Record, RecordId, Recovered, Sink, Source, Written};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout};

use crate::disk::SinkError;
use crate::file;
use crate::sink::{Archive, ParquetSink};

const STREAM: &str = "S";
const CONSUMER: &str = "archiver";
const PATIENCE: Duration = Duration::from_secs(60);
const EACH: usize = 50;

/// Says when a file is durable, and never comes back.
struct DiesAfterFile {
    inside: ParquetSink,
    left: usize,
    died: mpsc::Sender<()>,
}

impl Sink for DiesAfterFile {
    type Error = SinkError;

    async fn write(&mut self, record: Record) -> Result<Written, SinkError> {
        self.inside.write(record).await
    }

    async fn flush(&mut self, flush: Flush<'_>) -> Result<Durable, SinkError> {
        let durable = self.inside.flush(flush).await?;
        if self.left == 0 {
            // A test that waits no longer has failed already.
            let _ = self.died.send(()).await;
            std::future::pending::<()>().await;
        }
        self.left -= 1;
        Ok(durable)
    }

    async fn recover(&mut self, source: &Source) -> Result<Recovered, SinkError> {
        self.inside.recover(source).await
    }

    async fn recover_beyond(&mut self, source: &Source, checkpoint: &Coverage) -> Result<Recovered, SinkError> {
        self.inside.recover_beyond(source, checkpoint).await
    }
}

struct Rig {
    server: Server,
    jetstream: Context,
    directory: tempfile::TempDir,
    job: Job,
}

impl Rig {
    async fn new(version: &'static str) -> Result<Self> {
        let server = Server::start(version).await.map_err(Error::from_boxed)?;
        let jetstream = jetstream::new(server.client().await.map_err(Error::from_boxed)?);
        streams::make(&jetstream, STREAM, "s", streams::impatient(CONSUMER)).await.map_err(Error::from_boxed)?;
        let directory = tempfile::tempdir()?;
        let job = Job {
            stream: STREAM.into(),
            filters: Vec::new(),
            consumer: CONSUMER.into(),
            state: Some(directory.path().join("state")),
            flush: FlushSettings { records: EACH, after: Duration::from_millis(100), bytes: 1 << 20 },
            start: None,
            fast_forward: true,
            denials: Denials::default(),
        };
        Ok(Self { server, jetstream, directory, job })
    }

    fn out(&self) -> PathBuf {
        self.directory.path().join("archive")
    }

    fn state(&self) -> PathBuf {
        self.directory.path().join("state")
    }

    async fn publish(&self, count: usize) -> Result<()> {
        for n in 0..count {
            self.jetstream.publish("s", format!("{n}").into()).await?.await?;
        }
        Ok(())
    }

    /// Archives until so many files are there, and dies after the next one, before its checkpoint.
    async fn die_after(&self, files: usize) -> Result<()> {
        let (died, mut dead) = mpsc::channel(1);
        let inside = ParquetSink::open(&self.out(), Source::new(STREAM), 1 << 20, Arc::default()).await?;
        let driver = Driver::builder(self.jetstream.clone(), STREAM)
            .consumer(&self.job.consumer)
            .state_dir(self.state())
            .flush_every(EACH as u64, Duration::from_secs(60))
            .open(DiesAfterFile { inside, left: files, died })
            .await?;
        let task = tokio::spawn(driver.run_until(std::future::pending()));
        timeout(PATIENCE, dead.recv()).await.context("the archiver does not come to its end")?;
        task.abort();
        // It holds the lock until it is gone.
        match task.await {
            Err(error) if error.is_cancelled() => Ok(()),
            other => bail!("the archiver was to be aborted: {other:?}"),
        }
    }

    /// Runs an archiver until the server has nothing left for it: how many rows it wrote.
    async fn archive(&self) -> Result<u64> {
        let progress = Arc::new(Progress::default());
        let (stop, stopped) = watch::channel(false);
        let archive = Archive::new(self.out());
        let run =
            archiver_support::run(self.jetstream.clone(), self.job.clone(), archive, Arc::clone(&progress), stopped);
        let task = tokio::spawn(run);
        let deadline = Instant::now() + PATIENCE;
        while !task.is_finished() {
            if progress.has_begun() && self.is_idle().await? {
                break;
            }
            if Instant::now() > deadline {
                bail!("the archiver does not catch up");
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        stop.send_replace(true);
        task.await?.map_err(|failure| anyhow!("{failure}"))?;
        Ok(progress.records())
    }

    /// Whether everything is delivered and acked.
    async fn is_idle(&self) -> Result<bool> {
        let last = self.jetstream.get_stream(STREAM).await?.cached_info().state.last_sequence;
        let stream = self.jetstream.get_stream_no_info(STREAM).await?;
        // While it is made anew there is none.
        let Ok(info) = stream.consumer_info(&self.job.consumer).await else { return Ok(false) };
        Ok((info.num_pending, info.num_ack_pending) == (0, 0) && info.delivered.stream_sequence >= last)
    }

    /// All rows of the archive, in order.
    fn rows(&self) -> Result<Vec<RecordId>> {
        let mut rows = Vec::new();
        below(&self.out(), &mut rows)?;
        let mut rows: Vec<RecordId> = rows.into_iter().map(|row| row.id).collect();
        rows.sort_unstable();
        Ok(rows)
    }

    /// Whether the archive holds each of so many messages once.
    fn check(&self, count: u64) -> Result<()> {
        let rows: Vec<u64> = self.rows()?.into_iter().map(|id| id.sequence).collect();
        assert_eq!(rows, (1..=count).collect::<Vec<_>>());
        Ok(())
    }
}

fn below(directory: &Path, rows: &mut Vec<file::Row>) -> Result<()> {
    for entry in directory.read_dir()? {
        let path = entry?.path();
        if path.is_dir() {
            below(&path, rows)?;
        } else if path.extension().is_some_and(|kind| kind == "parquet") {
            rows.extend(file::read(&path)?);
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_death_between_file_and_checkpoint_writes_nothing_twice() -> Result<()> {
    for version in versions(&APART) {
        let mut rig = Rig::new(version).await?;
        rig.publish(4 * EACH).await?;
        for files in [1, 0] {
            rig.die_after(files).await?;
        }
        let held = rig.rows()?.len();
        // What comes again need not all come in the second life.
        assert!(held > 2 * EACH, "{version}: three files, and a checkpoint of the first");
        // As at another hour: what is written again does not just replace what was there.
        rig.job.flush.records -= 7;
        rig.publish(5).await?;
        assert_eq!(rig.archive().await?, (4 * EACH + 5 - held) as u64, "{version}");
        rig.check(4 * EACH as u64 + 5)?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_state_directory_writes_nothing_twice() -> Result<()> {
    for version in versions(&APART) {
        let mut rig = Rig::new(version).await?;
        rig.publish(4 * EACH).await?;
        // Together with a death in the window: the consumer stands below what the files hold.
        rig.die_after(2).await?;
        std::fs::remove_dir_all(rig.state())?;
        rig.job.flush.records -= 7;
        assert_eq!(rig.archive().await?, EACH as u64, "{version}: the consumer's mark is that of the claims");

        // And the server has forgotten what was acked.
        rig.server.kill().map_err(Error::from_boxed)?;
        rig.server.empty_consumer_state(STREAM, &rig.job.consumer).map_err(Error::from_boxed)?;
        rig.server.restart().await.map_err(Error::from_boxed)?;
        rig.jetstream = jetstream::new(rig.server.client().await.map_err(Error::from_boxed)?);
        std::fs::remove_dir_all(rig.state())?;
        rig.publish(3).await?;
        assert_eq!(rig.archive().await?, 3, "{version}");
        rig.check(4 * EACH as u64 + 3)?;
        assert!(rig.state().exists());
    }
    Ok(())
}

/// The archiver itself, which is not built with its tests.
fn program() -> Result<PathBuf> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--example", "parquet_archiver"]);
    // Beside these tests, so as they were built.
    let built = cargo.args((!cfg!(debug_assertions)).then_some("--release")).status()?;
    anyhow::ensure!(built.success(), "the archiver cannot be built: {built}");
    Ok(std::env::current_exe()?.with_file_name("parquet_archiver"))
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_again_and_again_it_archives_each_message_once() -> Result<()> {
    let program = program()?;
    let partitioned = versions(&APART).into_iter().take(1).map(|version| (version, "hour"));
    for (version, partition) in versions(&APART).into_iter().map(|version| (version, "none")).chain(partitioned) {
        let server = Server::start(version).await.map_err(Error::from_boxed)?;
        let directory = tempfile::tempdir()?;
        let out = directory.path().join("archive");
        let archiver = || {
            let mut command = Command::new(&program);
            command.args(["archive", "--server", &server.url(), "--log", "warn", "--flush-after", "0.05"]);
            command.args(["--stream", killing::STREAM, "--consumer", killing::CONSUMER, "--flush-records", "300"]);
            command
                .args(["--partition-by", partition])
                .arg("--out")
                .arg(&out)
                .arg("--state")
                .arg(directory.path().join("state"));
            command
        };
        let killed = killing::kill_again_and_again(&server, archiver, async |_| Ok(())).await;
        let killed = killed.map_err(Error::from_boxed)?;
        let mut rows = Vec::new();
        below(&out, &mut rows)?;
        let held = rows.into_iter().map(|row| Published {
            sequence: row.id.sequence,
            published: row.id.published,
            subject: row.subject,
            payload: row.payload,
        });
        killing::check(&killed.published, held.collect()).map_err(Error::from_boxed)?;
    }
    Ok(())
}
