//! A server with a stream, and what all measures share.

use std::path::Path;
use std::time::Duration;

use archiver_support::nats::{Server, Want};
use async_nats::jetstream::consumer::pull;
use async_nats::jetstream::{Context, stream};
use futures_util::future::try_join_all;
use replay_guard::{Driver, DriverBuilder, Ended, async_nats};

pub(crate) use crate::common::Null;

pub(crate) type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    /// How often each pair is run.
    pub(crate) rounds: usize,
    /// Whole batches: what is left over would wait for its flush.
    pub(crate) messages: u64,
    /// Whole thousands.
    pub(crate) replays: &'static [u64],
    pub(crate) saves: usize,
    pub(crate) guards: u64,
    pub(crate) seconds: u32,
    pub(crate) reads: u64,
}

impl Size {
    pub(crate) const FULL: Self = Self {
        rounds: 9,
        messages: 200_000,
        replays: &[1_000, 100_000, 1_000_000],
        saves: 301,
        guards: 1_000,
        seconds: 10,
        reads: 20_000,
    };
    pub(crate) const QUICK: Self =
        Self { rounds: 1, messages: 10_000, replays: &[1_000, 3_000], saves: 3, guards: 20, seconds: 1, reads: 100 };
}

/// The stream's name, and its only subject.
pub(crate) const STREAM: &str = "BENCH";
/// After how many messages there is a flush, and how many one pull asks for.
pub(crate) const BATCH: u64 = 5_000;
/// No flush for its age.
const NEVER: Duration = Duration::from_secs(3_600);

/// A server with a stream.
pub(crate) struct Rig {
    pub(crate) server: Server,
    pub(crate) messages: u64,
    pub(crate) payload: usize,
}

impl Rig {
    pub(crate) async fn start(messages: u64, payload: usize) -> Result<Self> {
        let rig = Self { server: Server::start(Want::Installed).await?, messages, payload };
        let context = rig.context().await?;
        let config = stream::Config { name: STREAM.into(), subjects: vec![STREAM.into()], ..stream::Config::default() };
        context.create_stream(config).await?;
        rig.publish(messages).await?;
        Ok(rig)
    }

    pub(crate) async fn publish(&self, count: u64) -> Result<()> {
        let context = self.context().await?;
        let mut left = count;
        while left > 0 {
            let now = left.min(500);
            let sent = (0..now).map(|_| context.publish(STREAM, vec![b'x'; self.payload].into()));
            for stored in try_join_all(sent).await? {
                stored.await?;
            }
            left -= now;
        }
        Ok(())
    }

    /// On a connection of its own.
    pub(crate) async fn context(&self) -> Result<Context> {
        Ok(async_nats::jetstream::new(self.server.client().await?))
    }

    /// A driver over a sink that keeps nothing, with its checkpoint in this directory.
    pub(crate) async fn driver(&self, name: &str, state: &Path) -> Result<DriverBuilder> {
        let builder = Driver::builder(self.context().await?, STREAM).consumer(name).state_dir(state);
        Ok(builder.flush_every(BATCH, NEVER))
    }

    pub(crate) async fn forget(&self, name: &str) -> Result<()> {
        self.context().await?.delete_consumer_from_stream(name, STREAM).await?;
        Ok(())
    }
}

/// A consumer, the same for both sides.
pub(crate) fn consumer(name: &str, ack_policy: async_nats::jetstream::consumer::AckPolicy) -> pull::Config {
    pull::Config { durable_name: Some(name.into()), ack_policy, max_ack_pending: 100_000, ..pull::Config::default() }
}

/// Runs a driver until it took so many messages and all of them are acked.
pub(crate) async fn run(builder: DriverBuilder, count: u64) -> Result<(Duration, Ended)> {
    let driver = Box::pin(builder.open(Null)).await?;
    let mut status = driver.status();
    let began = std::time::Instant::now();
    let stop = async move {
        // An error means that the driver is gone.
        _ = status.wait_for(|status| status.counters.archived + status.counters.skipped >= count).await;
    };
    let ended = Box::pin(driver.run_until(stop)).await?;
    Ok((began.elapsed(), ended))
}
