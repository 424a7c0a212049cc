//! A store that ignores conditions: nanio, from `PyPI`.

use std::fs;
use std::time::{Duration, Instant};

use archiver_support::Port;
use archiver_support::python::Package;
use archiver_support::wheel::Result;
use object_store::{ObjectStoreExt as _, PutPayload};

use crate::lifeline::Lifeline;
use crate::seaweed::{BUCKET, WRITER, client};

const VERSION: &str = "0.1.7";
const DEADLINE: Duration = Duration::from_secs(60);

/// One nanio with a bucket.
#[derive(Debug)]
pub(crate) struct Nanio {
    port: Port,
    _running: Lifeline,
}

impl Nanio {
    pub(crate) async fn start() -> Result<Self> {
        let package = tokio::task::spawn_blocking(|| Package::install("nanio", VERSION)).await??;
        let directory = tempfile::Builder::new().prefix("replay-guard-nanio-").tempdir()?.keep();
        let port = Port::reserve()?;
        let [id, secret] = WRITER;
        let mut command = package.python();
        // A bucket is a directory.
        let data = directory.join("data");
        fs::create_dir_all(data.join(BUCKET))?;
        command.args(["-m", "nanio", "serve", "--host", "127.0.0.1", "--port", &port.number.to_string()]);
        command.arg("--data-dir").arg(data).env("NANIO_ACCESS_KEY", id).env("NANIO_SECRET_KEY", secret);
        let server = Self { port, _running: Lifeline::start(&command, &directory)? };
        let client = client(&server.url(), WRITER)?;
        let deadline = Instant::now() + DEADLINE;
        while let Err(error) = client.put(&"ready".into(), PutPayload::from_static(b"yes")).await {
            if Instant::now() > deadline {
                return Err(format!("nanio does not answer after {DEADLINE:?}: {error}").into());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(server)
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port.number)
    }
}
