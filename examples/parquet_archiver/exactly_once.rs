//! With a real server: the archiver dies at the worst moment, or its checkpoint is lost, and nothing is written twice.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Error, Result, anyhow, bail};
use replay_guard::async_nats::jetstream::consumer::pull;
use replay_guard::async_nats::jetstream::{self, Context, stream};
use replay_guard::jetstream::Denials;
use replay_guard::{Coverage, Driver, Durable, Flush, Record, RecordId, Recovered, Sink, Source, Written};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout};

use crate::archive::{self, Job};
use crate::cli::FlushSettings;
use crate::disk::SinkError;
use crate::file;
use crate::nats::{APART, Server, versions};
use crate::progress::Progress;
use crate::sink::ParquetSink;

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
        let config = stream::Config { name: STREAM.into(), subjects: vec!["s".into()], ..Default::default() };
        let stream = jetstream.create_stream(config).await?;
        // What a dead archiver was given comes again soon.
        let consumer = pull::Config {
            durable_name: Some(CONSUMER.into()),
            ack_wait: Duration::from_secs(1),
            ..Default::default()
        };
        stream.create_consumer(consumer).await?;
        let directory = tempfile::tempdir()?;
        let job = Job {
            stream: STREAM.into(),
            filters: Vec::new(),
            consumer: CONSUMER.into(),
            out: directory.path().join("archive"),
            state: directory.path().join("state"),
            flush: FlushSettings { records: EACH, after: Duration::from_millis(100), bytes: 1 << 20 },
            start: None,
            rewrite_missing_from: None,
            fast_forward: true,
            denials: Denials::default(),
        };
        Ok(Self { server, jetstream, directory, job })
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
        let inside = ParquetSink::open(&self.job.out, Source::new(STREAM), 1 << 20, Arc::default()).await?;
        let driver = Driver::builder(self.jetstream.clone(), STREAM)
            .consumer(&self.job.consumer)
            .state_dir(&self.job.state)
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
        let run = archive::run(self.jetstream.clone(), self.job.clone(), Arc::clone(&progress), stopped);
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
        below(&self.job.out, &mut rows)?;
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

fn below(directory: &Path, rows: &mut Vec<RecordId>) -> Result<()> {
    for entry in directory.read_dir()? {
        let path = entry?.path();
        if path.is_dir() {
            below(&path, rows)?;
        } else if path.extension().is_some_and(|kind| kind == "parquet") {
            rows.extend(file::read(&path)?.into_iter().map(|row| row.id));
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
        assert_eq!(held, 3 * EACH, "{version}: three files, and a checkpoint of the first");
        // As at another hour: what is written again does not just replace what was there.
        rig.job.flush.records -= 7;
        rig.publish(5).await?;
        assert_eq!(rig.archive().await?, EACH as u64 + 5, "{version}");
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
        std::fs::remove_dir_all(&rig.job.state)?;
        rig.job.flush.records -= 7;
        assert_eq!(rig.archive().await?, EACH as u64, "{version}: the consumer's mark is that of the claims");

        // And the server has forgotten what was acked.
        rig.server.kill().map_err(Error::from_boxed)?;
        rig.server.empty_consumer_state(STREAM, &rig.job.consumer).map_err(Error::from_boxed)?;
        rig.server.restart().await.map_err(Error::from_boxed)?;
        rig.jetstream = jetstream::new(rig.server.client().await.map_err(Error::from_boxed)?);
        std::fs::remove_dir_all(&rig.job.state)?;
        rig.publish(3).await?;
        assert_eq!(rig.archive().await?, 3, "{version}");
        rig.check(4 * EACH as u64 + 3)?;
        assert!(rig.directory.path().join("state").exists());
    }
    Ok(())
}
