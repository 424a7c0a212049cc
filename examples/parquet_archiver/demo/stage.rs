//! Server, producers and archiver of the demo.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Error, Result, anyhow, bail};
use archiver_support::nats::{Server, Want};
use archiver_support::{Failure, FlushSettings, Job, Progress};
use futures_util::future::try_join_all;
use replay_guard::Ended;
use replay_guard::async_nats::jetstream::{self, Context, stream};
use replay_guard::jetstream::Denials;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::sink::Archive;

use super::data::Message;
use super::verdict::Published;

const STREAM: &str = "TEMPS";
/// How many acknowledgements of the server a producer waits for at a time.
const BATCH: usize = 500;
/// How long nothing may happen before something is wrong.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);

/// What archivers did, by their own account.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Run {
    pub(super) delivered: u64,
    pub(super) written: u64,
    pub(super) skipped: u64,
}

impl Run {
    pub(super) const fn add(&mut self, other: Self) {
        self.delivered += other.delivered;
        self.written += other.written;
        self.skipped += other.skipped;
    }
}

pub(super) struct Stage {
    server: Server,
    producer: Context,
    job: Job,
    archive: PathBuf,
}

impl Stage {
    /// A server with an empty stream.
    pub(super) async fn set(directory: &Path) -> Result<Self> {
        let server = Server::start(Want::Installed).await.map_err(Error::from_boxed)?;
        let producer = jetstream::new(server.client().await.map_err(Error::from_boxed)?);
        let config = stream::Config { name: STREAM.into(), subjects: vec!["temps.*".into()], ..Default::default() };
        producer.create_stream(config).await.context("cannot create the stream")?;
        let job = Job {
            stream: STREAM.into(),
            filters: Vec::new(),
            consumer: "archiver".into(),
            state: Some(directory.join("state")),
            flush: FlushSettings { records: 1_000, after: Duration::from_millis(200), bytes: 64 << 20 },
            start: None,
            // What the server forgot shall come again, to be seen.
            fast_forward: false,
            denials: Denials::default(),
        };
        Ok(Self { server, producer, job, archive: directory.join("archive") })
    }

    pub(super) fn archive(&self) -> &Path {
        &self.archive
    }

    /// Publishes, and notes the number the stream gave to each message.
    pub(super) async fn publish(&self, messages: Vec<Message>) -> Result<Vec<Published>> {
        let mut published = Vec::with_capacity(messages.len());
        for batch in messages.chunks(BATCH) {
            let sent = batch.iter().map(async |Message { subject, payload }| {
                let ack = self.producer.publish(*subject, payload.clone().into()).await?.await?;
                Ok::<_, jetstream::context::PublishError>((ack.sequence, (*subject).to_owned(), payload.clone().into()))
            });
            published.extend(try_join_all(sent).await.context("cannot publish")?);
        }
        Ok(published)
    }

    pub(super) async fn messages_in_stream(&self) -> Result<u64> {
        Ok(self.producer.get_stream(STREAM).await?.cached_info().state.messages)
    }

    pub(super) fn kill_server(&mut self) -> Result<()> {
        self.server.kill().map_err(Error::from_boxed)
    }

    pub(super) async fn restart_server(&mut self) -> Result<()> {
        self.server.restart().await.map_err(Error::from_boxed)?;
        // The producers' connection comes back by itself; what they send before would only be late.
        let deadline = Instant::now() + PATIENCE;
        while self.producer.query_account().await.is_err() {
            if Instant::now() > deadline {
                bail!("the producers do not reach the server again");
            }
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    /// Copies what the server has on disk.
    pub(super) fn copy_store(&self) -> Result<PathBuf> {
        self.server.snapshot_store().map_err(Error::from_boxed)
    }

    /// Puts an old copy back, if wished together with today's state of the consumers: then these are ahead of the stream.
    pub(super) fn put_back(&self, old: &Path, keep_consumers: bool) -> Result<()> {
        let mut states = Vec::new();
        for name in self.consumers()? {
            let state = self.server.consumer_state(STREAM, &name).map_err(Error::from_boxed)?;
            states.push((name, state));
        }
        self.server.restore_store(old).map_err(Error::from_boxed)?;
        let names = self.consumers()?;
        for (name, state) in states.iter().filter(|(name, _)| keep_consumers && names.contains(name)) {
            self.server.put_consumer_state(STREAM, name, state).map_err(Error::from_boxed)?;
        }
        Ok(())
    }

    pub(super) fn empty_consumer_state(&self) -> Result<()> {
        for name in self.consumers()? {
            self.server.empty_consumer_state(STREAM, &name).map_err(Error::from_boxed)?;
        }
        Ok(())
    }

    /// Deletes what the archiver remembers beside the archive.
    pub(super) fn delete_checkpoint(&self) -> Result<()> {
        let Some(state) = &self.job.state else { bail!("there is no checkpoint") };
        std::fs::remove_dir_all(state).context("cannot delete the checkpoint")
    }

    /// The consumers on the server's disk that have a state; the guard works with one of two names.
    fn consumers(&self) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in self.server.stream_directory(STREAM).join("obs").read_dir()? {
            let entry = entry?;
            if entry.path().join("o.dat").exists() {
                names.push(entry.file_name().to_string_lossy().into_owned());
            }
        }
        Ok(names)
    }

    /// Starts an archiver as another process would, and waits until it is at work.
    pub(super) async fn start_archiver(&mut self) -> Result<Archiver> {
        // As at another hour, files end elsewhere: what is written again does not just replace what was there.
        self.job.flush.records -= 70;
        let client = self.server.client().await.map_err(Error::from_boxed)?;
        let jetstream = jetstream::new(client);
        let progress = Arc::new(Progress::default());
        let (stop, stopped) = watch::channel(false);
        let archive = Archive::new(self.archive.clone());
        let run = archiver_support::run(jetstream.clone(), self.job.clone(), archive, Arc::clone(&progress), stopped);
        let archiver = Archiver { jetstream, job: self.job.clone(), progress, stop, task: tokio::spawn(run) };
        archiver.wait_for("does not begin", async |archiver| archiver.progress.has_begun()).await?;
        Ok(archiver)
    }
}

/// An archiver at work.
pub(super) struct Archiver {
    jetstream: Context,
    job: Job,
    progress: Arc<Progress>,
    stop: watch::Sender<bool>,
    task: JoinHandle<Result<Option<Ended>, Failure>>,
}

impl Archiver {
    /// Waits until it has archived so many, and stops it.
    pub(super) async fn archive(self, count: usize) -> Result<Run> {
        // What is missing is for the count at the end to say.
        if self.wait_for("", async |archiver| archiver.progress.records() >= count as u64).await.is_err() {
            return self.stop().await;
        }
        self.catch_up().await
    }

    /// Waits until the server has nothing left for it, and stops it.
    pub(super) async fn catch_up(self) -> Result<Run> {
        let _ = self.wait_for("", async |archiver| archiver.is_idle().await).await;
        self.stop().await
    }

    async fn stop(self) -> Result<Run> {
        // An error means that it has ended by itself; why is known below.
        let _ = self.stop.send(true);
        let ended = self.task.await?.map_err(|failure| anyhow!("the archiver failed: {failure}"))?;
        let ended = ended.context("the archiver ended before it began")?;
        let counters = ended.counters;
        Ok(Run { delivered: counters.offered, written: self.progress.records(), skipped: counters.skipped })
    }

    /// Whether everything is delivered and acknowledged, as the server says.
    async fn is_idle(&self) -> bool {
        let Ok(stream) = self.jetstream.get_stream_no_info(&self.job.stream).await else { return false };
        for name in self.job.consumer_names() {
            if let Ok(info) = stream.consumer_info(name).await
                && (info.num_pending, info.num_ack_pending) == (0, 0)
            {
                return true;
            }
        }
        false
    }

    /// Waits as long as something happens.
    async fn wait_for(&self, or: &'static str, done: impl AsyncFn(&Self) -> bool) -> Result<()> {
        let (mut deadline, mut records) = (Instant::now() + PATIENCE, 0);
        while !self.task.is_finished() {
            if done(self).await {
                return Ok(());
            }
            if self.progress.records() > records {
                (deadline, records) = (Instant::now() + PATIENCE, self.progress.records());
            }
            if Instant::now() > deadline {
                bail!("the archiver {or}");
            }
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }
}
