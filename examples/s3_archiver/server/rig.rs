//! An archiver between two servers.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use archiver_support::killing::{Published, is_done};
use archiver_support::nats::Server;
use archiver_support::wheel::Result;
use archiver_support::{Process, python, streams};
use async_nats::HeaderMap;
use async_nats::jetstream::Context;
use futures_util::TryStreamExt as _;
use object_store::aws::AmazonS3;
use object_store::path::Path;
use object_store::{ObjectStore as _, ObjectStoreExt as _};

use crate::seaweed::{BUCKET, Seaweed, WRITER};

pub(crate) const STREAM: &str = "S";
pub(crate) const CONSUMER: &str = "archiver";
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(20);

/// A stream, a place in a store, and an archiver's state.
pub(crate) struct Rig {
    pub(crate) nats: Server,
    pub(crate) jetstream: Context,
    pub(crate) directory: tempfile::TempDir,
    pub(crate) store: Arc<AmazonS3>,
    pub(crate) url: String,
    pub(crate) prefix: String,
}

impl Rig {
    pub(crate) async fn new(version: &'static str, store: &Seaweed) -> Result<Self> {
        let nats = Server::start(version).await?;
        let jetstream = streams::producer(nats.client().await?);
        let directory = tempfile::tempdir()?;
        let prefix =
            directory.path().file_name().ok_or("it has a name")?.to_string_lossy().trim_start_matches('.').to_owned();
        let rig = Self { nats, jetstream, directory, store: store.client()?, url: store.url()?, prefix };
        rig.create_stream(STREAM, "s.>").await?;
        Ok(rig)
    }

    pub(crate) async fn create_stream(&self, name: &str, subject: &str) -> Result<()> {
        streams::make(&self.jetstream, name, subject, streams::impatient(CONSUMER)).await
    }

    /// Publishes so many small messages.
    pub(crate) async fn publish(&self, count: usize) -> Result<()> {
        for n in 0..count {
            self.jetstream.publish(format!("s.{}", n % 3), format!("message {n}").into()).await?.await?;
        }
        Ok(())
    }

    pub(crate) async fn publish_with(&self, subject: &str, headers: HeaderMap, payload: Vec<u8>) -> Result<()> {
        self.jetstream.publish_with_headers(subject.to_owned(), headers, payload.into()).await?.await?;
        Ok(())
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.directory.path().join("state")
    }

    /// The archiver, with all it needs; these options in place of the usual ones.
    pub(crate) fn archiver(&self, options: &[(&str, &str)]) -> Result<Command> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_s3_archiver"));
        let log = File::options().create(true).append(true).open(self.directory.path().join("log"))?;
        command.stdout(Stdio::from(log.try_clone()?)).stderr(Stdio::from(log));
        let (server, state) = (self.nats.url(), self.state().display().to_string());
        let usual = [
            ("--server", server.as_str()),
            ("--stream", STREAM),
            ("--consumer", CONSUMER),
            ("--flush-records", "50"),
            ("--flush-after", "0.1"),
            ("--log", "info,async_nats=off"),
            ("--endpoint", &self.url),
            ("--bucket", BUCKET),
            ("--prefix", &self.prefix),
            ("--state", &state),
        ];
        let options: BTreeMap<_, _> = usual.into_iter().chain(options.iter().copied()).collect();
        for (name, value) in options {
            command.args([name, value]);
        }
        command.arg("--allow-http");
        for name in ["AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_SESSION_TOKEN", "AWS_REGION"] {
            command.env_remove(name);
        }
        command.env("AWS_ACCESS_KEY_ID", WRITER[0]).env("AWS_SECRET_ACCESS_KEY", WRITER[1]);
        Ok(command)
    }

    /// What all archivers of this rig logged.
    pub(crate) fn log(&self) -> Result<String> {
        Ok(fs::read_to_string(self.directory.path().join("log"))?)
    }

    /// Archives all there is, and stops.
    pub(crate) async fn archive(&self, mut archiver: Command) -> Result<()> {
        let mut process = Process::start("the archiver", &mut archiver)?;
        self.archived(&mut process).await?;
        let status = process.stop(PATIENCE).await?;
        if !status.success() {
            return Err(format!("the archiver did not stop cleanly ({status}):\n{}", self.log()?).into());
        }
        Ok(())
    }

    /// Waits until the archiver has archived all there is.
    pub(crate) async fn archived(&self, process: &mut Process) -> Result<()> {
        self.wait("the archiver finishes its work", Some(process), async || {
            is_done(&self.jetstream, STREAM, CONSUMER).await
        })
        .await
    }

    /// Waits for something, and for no dead archiver.
    pub(crate) async fn wait(
        &self,
        what: &str,
        mut process: Option<&mut Process>,
        mut is_so: impl AsyncFnMut() -> Result<bool>,
    ) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !is_so().await? {
            if let Some(status) = process.as_mut().map_or(Ok(None), |process| process.ended())? {
                return Err(format!("the archiver ended by itself ({status}):\n{}", self.log()?).into());
            }
            if Instant::now() > deadline {
                return Err(format!("not within {PATIENCE:?}: {what}\n{}", self.log()?).into());
            }
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    /// How an archiver ended that cannot begin.
    pub(crate) async fn refused(&self, mut archiver: Command) -> Result<ExitStatus> {
        let mut process = Process::start("the archiver", &mut archiver)?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = process.ended()? {
                return Ok(status);
            }
            if Instant::now() > deadline {
                return Err(format!("the archiver goes on:\n{}", self.log()?).into());
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Names of the archived objects.
    pub(crate) async fn objects(&self) -> Result<Vec<Path>> {
        let prefix = Path::from(self.prefix.as_str());
        let listed: Vec<_> = self.store.list(Some(&prefix)).try_collect().await?;
        let mut objects: Vec<_> = listed.into_iter().map(|meta| meta.location).collect();
        objects.retain(|object| object.extension() == Some("parquet"));
        objects.sort_unstable();
        Ok(objects)
    }

    /// What the archive holds, as a reader that is not ours sees it.
    pub(crate) async fn rows(&self) -> Result<Vec<python::Row>> {
        let copy = tempfile::tempdir_in(self.directory.path())?;
        for object in self.objects().await? {
            let path = copy.path().join(object.as_ref());
            fs::create_dir_all(path.parent().ok_or("a directory")?)?;
            fs::write(path, self.store.get(&object).await?.bytes().await?)?;
        }
        let directory = copy.path().to_owned();
        tokio::task::spawn_blocking(move || python::read_with_duckdb(&directory)).await?
    }

    /// Whether the archive holds each of so many messages once.
    pub(crate) async fn check(&self, count: u64) -> Result<()> {
        let held: Vec<u64> = self.rows().await?.into_iter().map(|row| row.sequence).collect();
        let expected: Vec<u64> = (1..=count).collect();
        if held != expected {
            return Err(format!("the archive holds {held:?}\n{}", self.log()?).into());
        }
        Ok(())
    }
}

pub(crate) fn published(row: python::Row) -> Published {
    Published { sequence: row.sequence, published: row.published, subject: row.subject, payload: row.payload.into() }
}
