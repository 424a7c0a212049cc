//! What the tests of this package share: a stream, a real archiver process that archives it into a directory, and what is
//! lost or there twice in the end.

#![allow(clippy::missing_errors_doc, reason = "each error says what failed")]

use std::collections::HashMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Error, Result, bail, ensure};
use archiver_support::nats::Server;
use archiver_support::{Process, killing, streams};
use async_nats::jetstream::{Context, stream};
use bytes::Bytes;
use replay_guard::jetstream::Consumer;
use replay_guard::{CheckpointStore as _, FileStore, Source};
use tokio::time::{Instant, sleep};

/// The durable consumer that archivers use.
pub const CONSUMER: &str = "archiver";
/// How long anything may take.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// How often what is waited for is looked at.
pub const POLL: Duration = Duration::from_millis(20);

/// A stream, and the place where it is archived.
#[derive(Debug)]
pub struct Bench {
    /// The archiver.
    pub program: PathBuf,
    url: String,
    /// The connection of the test.
    pub jetstream: Context,
    stream: String,
    logs: PathBuf,
    /// Where the files go.
    pub out: PathBuf,
    /// Where the checkpoint goes.
    pub state: PathBuf,
    /// How many were published.
    pub published: AtomicU64,
    lives: AtomicU32,
}

impl Bench {
    /// Makes the stream and its consumer. `program`: the archiver; `home`: for all that is written.
    pub async fn new(server: &Server, program: &str, stream: &str, home: &Path) -> Result<Self> {
        let jetstream = streams::producer(server.client().await.map_err(Error::from_boxed)?);
        let logs = home.join("logs");
        fs::create_dir_all(&logs)?;
        let bench = Self {
            program: program.into(),
            url: server.url(),
            jetstream,
            stream: stream.into(),
            logs,
            out: home.join("archive"),
            state: home.join("state"),
            published: AtomicU64::new(0),
            lives: AtomicU32::new(0),
        };
        bench.make_stream().await?;
        bench.jetstream.get_stream(stream).await?.create_consumer(streams::impatient(CONSUMER)).await?;
        Ok(bench)
    }

    /// Connects anew, to a server that was away.
    pub async fn connect(&mut self, server: &Server) -> Result<()> {
        self.jetstream = streams::producer(server.client().await.map_err(Error::from_boxed)?);
        Ok(())
    }

    /// Makes the stream where there is none.
    pub async fn make_stream(&self) -> Result<()> {
        let name = self.stream.clone();
        let config = stream::Config { subjects: vec![format!("{name}.>")], name, ..Default::default() };
        self.jetstream.get_or_create_stream(config).await?;
        Ok(())
    }

    /// The files of the source.
    pub fn files(&self) -> PathBuf {
        self.out.join(archiver_parquet::names::directory(&self.source()))
    }

    /// The checkpoint of the source.
    pub fn checkpoint(&self) -> PathBuf {
        FileStore::new(&self.state, &self.source()).location().into()
    }

    fn source(&self) -> Source {
        Source::new(&self.stream)
    }

    /// The archiver's command line: a file for each 50 messages.
    pub fn command(&self) -> Command {
        self.command_flushing(50, "0.1")
    }

    /// The archiver's command line, with other limits for a file: messages, and seconds.
    pub fn command_flushing(&self, records: u32, seconds: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.args(["archive", "--server", &self.url, "--stream", &self.stream, "--consumer", CONSUMER]);
        command.args(["--flush-records", &records.to_string(), "--flush-after", seconds]);
        command.args(["--log", "info,async_nats=off"]);
        command.arg("--out").arg(&self.out).arg("--state").arg(&self.state).current_dir(&self.logs);
        command
    }

    /// Starts an archiver.
    pub fn start(&self) -> Result<Archiver> {
        self.start_as(&mut self.command())
    }

    /// Starts an archiver with another command line.
    pub fn start_as(&self, command: &mut Command) -> Result<Archiver> {
        let log = self.logs.join(format!("archiver-{}", self.lives.fetch_add(1, Ordering::Relaxed)));
        let file = File::create(&log)?;
        command.stdout(file.try_clone()?).stderr(file);
        let process = Process::start("the archiver", command).map_err(Error::from_boxed)?;
        Ok(Archiver { process, log })
    }

    /// Publishes messages, no two alike.
    pub async fn publish(&self, count: u64) -> Result<()> {
        let first = self.published.fetch_add(count, Ordering::Relaxed);
        let mut acks = Vec::new();
        for n in first..first + count {
            let subject = format!("{}.{}", self.stream, n % 3);
            acks.push(self.jetstream.publish(subject, format!("message {n}").into()).await?);
        }
        for ack in acks {
            ack.await?;
        }
        Ok(())
    }

    /// Waits until everything is delivered and acked.
    pub async fn catch_up(&self, archiver: &mut Archiver) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !killing::is_done(&self.jetstream, &self.stream, CONSUMER).await.map_err(Error::from_boxed)? {
            archiver.runs()?;
            ensure!(Instant::now() < deadline, "the archiver does not finish the work:\n{}", archiver.log());
            sleep(POLL).await;
        }
        Ok(())
    }

    /// Lets an archiver finish what there is, and stops it.
    pub async fn finish(&self, mut archiver: Archiver) -> Result<()> {
        self.catch_up(&mut archiver).await?;
        let status = archiver.stop().await?;
        ensure!(status.success(), "the archiver did not stop cleanly ({status}):\n{}", archiver.log());
        Ok(())
    }

    /// What the files hold, and how often each.
    pub fn archived(&self) -> Result<HashMap<(u64, Bytes), u32>> {
        let mut held = HashMap::new();
        count(&self.out, &mut held)?;
        Ok(held)
    }

    /// What the stream holds.
    pub async fn stream(&self) -> Result<Vec<(u64, Bytes)>> {
        let stream = self.jetstream.get_stream(&self.stream).await?;
        let state = &stream.cached_info().state;
        let mut messages = Vec::new();
        for sequence in state.first_sequence..=state.last_sequence {
            messages.push((sequence, stream.get_raw_message(sequence).await?.payload));
        }
        Ok(messages)
    }

    /// Up to which sequence everything is acked, as the server says.
    pub async fn acked(&self) -> Result<u64> {
        let stream = self.jetstream.get_stream(&self.stream).await?;
        let mut acked = 0;
        for name in Consumer::names(CONSUMER) {
            if let Ok(info) = stream.consumer_info(name).await {
                acked = acked.max(info.ack_floor.stream_sequence);
            }
        }
        Ok(acked)
    }

    /// Nothing is archived twice, and all that is acked is archived.
    pub async fn check_so_far(&self) -> Result<()> {
        let held = self.archived()?;
        let twice: Vec<_> = held.iter().filter(|(_, times)| **times > 1).collect();
        ensure!(twice.is_empty(), "archived twice: {twice:?}");
        let acked = self.acked().await?;
        let lost: Vec<_> = self.stream().await?.into_iter().filter(|m| m.0 <= acked && !held.contains_key(m)).collect();
        ensure!(lost.is_empty(), "acked and not archived: {lost:?}");
        Ok(())
    }

    /// How many messages are in the stream and not archived, archived more than once, and archived and not in the stream.
    pub async fn count(&self) -> Result<(usize, u32, usize)> {
        let (stream, held) = (self.stream().await?, self.archived()?);
        let lost = stream.iter().filter(|message| !held.contains_key(message)).count();
        let old = held.len() - (stream.len() - lost);
        Ok((lost, held.values().map(|times| times - 1).sum(), old))
    }

    /// Everything is archived, once.
    pub async fn check(&self) -> Result<()> {
        self.check_so_far().await?;
        let held = self.archived()?;
        let lost: Vec<_> = self.stream().await?.into_iter().filter(|message| !held.contains_key(message)).collect();
        ensure!(lost.is_empty(), "lost: {lost:?}");
        Ok(())
    }
}

fn count(directory: &Path, held: &mut HashMap<(u64, Bytes), u32>) -> Result<()> {
    if !directory.exists() {
        return Ok(());
    }
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            count(&path, held)?;
        } else if path.extension().is_some_and(|kind| kind == "parquet") {
            let rows = archiver_parquet::rows_of(File::open(&path)?);
            for row in rows.with_context(|| format!("cannot read {}", path.display()))? {
                *held.entry((row.id.sequence, row.payload)).or_default() += 1;
            }
        }
    }
    Ok(())
}

/// A running archiver. Dropped: killed.
#[derive(Debug)]
pub struct Archiver {
    /// The process.
    pub process: Process,
    log: PathBuf,
}

impl Archiver {
    /// What it said so far.
    pub fn log(&self) -> String {
        fs::read(&self.log).map_or_else(|error| error.to_string(), |said| String::from_utf8_lossy(&said).into())
    }

    /// An error if it does not run any more.
    pub fn runs(&mut self) -> Result<()> {
        match self.process.ended().map_err(Error::from_boxed)? {
            None => Ok(()),
            Some(status) => bail!("the archiver ended by itself ({status}):\n{}", self.log()),
        }
    }

    /// Waits until a line holds all of this; it must not end before. Returns the line.
    pub async fn says(&mut self, words: &[&str]) -> Result<String> {
        self.says_times(words, 1).await
    }

    /// How many lines so far hold this.
    pub fn said(&self, word: &str) -> usize {
        self.log().lines().filter(|line| line.contains(word)).count()
    }

    /// Waits until so many lines hold all of this. Returns the last.
    pub async fn says_times(&mut self, words: &[&str], times: usize) -> Result<String> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let running = self.runs();
            let log = self.log();
            let mut lines = log.lines().filter(|line| words.iter().all(|word| line.contains(word)));
            if let Some(line) = lines.nth(times - 1) {
                return Ok(line.to_owned());
            }
            running?;
            ensure!(Instant::now() < deadline, "the archiver does not say {words:?}:\n{log}");
            sleep(POLL).await;
        }
    }

    /// Waits until it ends by itself.
    pub async fn ends(&mut self) -> Result<ExitStatus> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.process.ended().map_err(Error::from_boxed)? {
                return Ok(status);
            }
            ensure!(Instant::now() < deadline, "the archiver does not end:\n{}", self.log());
            sleep(POLL).await;
        }
    }

    /// Asks it to stop, and waits until it did.
    pub async fn stop(&mut self) -> Result<ExitStatus> {
        let stopped = self.process.stop(PATIENCE).await;
        stopped.map_err(|error| Error::from_boxed(error).context(self.log()))
    }
}
