//! The smallest archiver: one file to which payloads are appended.
//!
//! `cargo run --example lines -- nats://localhost:4222`, with a stream `ORDERS` over `orders.>`.

use std::path::Path;
use std::time::Duration;

use replay_guard::{Driver, Durable, Flush, Record, Sink, Written, async_nats};
use tokio::io::AsyncWriteExt as _;

/// Appends payloads to a file.
#[derive(Debug)]
pub struct Lines(pub tokio::fs::File);

impl Lines {
    /// Opens the file, or makes it, and sees to it that the file itself survives a power cut.
    ///
    /// # Errors
    ///
    /// If the file cannot be opened, or it or its directory cannot be synced.
    pub async fn open(path: impl AsRef<Path>) -> std::io::Result<Self> {
        let path = path.as_ref();
        let file = tokio::fs::OpenOptions::new().create(true).append(true).open(path).await?;
        file.sync_all().await?;
        // A new file's entry belongs to its directory: without this sync, the file may be gone with all that was acked.
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        tokio::fs::File::open(directory).await?.sync_all().await?;
        Ok(Self(file))
    }
}

impl Sink for Lines {
    type Error = std::io::Error;

    async fn write(&mut self, record: Record) -> Result<Written, Self::Error> {
        self.0.write_all(&record.payload).await?;
        Ok(Written::Accepted)
    }

    async fn flush(&mut self, _: Flush<'_>) -> Result<Durable, Self::Error> {
        // tokio writes in the background: a failed write is reported here, not by sync_all.
        self.0.flush().await?;
        self.0.sync_all().await?;
        Ok(Durable::All)
    }
}

async fn shutdown_signal() {
    // Without a handler for it the process ends at the signal as ever; nothing is lost by that either.
    let _ = tokio::signal::ctrl_c().await;
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "nats://localhost:4222".to_owned());
    let context = async_nats::jetstream::new(async_nats::connect(url).await?);
    let ended = Driver::builder(context, "ORDERS")
        .consumer("archiver")
        .filter("orders.>")
        .state_dir("state")
        .flush_every(1_000, Duration::from_secs(5))
        .open(Lines::open("orders.log").await?)
        .await?
        .run_until(shutdown_signal())
        .await?;
    println!("archived through sequence {}", ended.floor);
    Ok(())
}
