//! A clean stop while the server is away, so that nothing can be verified.

use std::time::Duration;

use anyhow::{Error, Result, ensure};
use tokio::time::{Instant, sleep};

use replay_guard_disk_tests::{CONSUMER, PATIENCE, POLL};

use super::{Place, on_each};

/// A supervisor kills after ten seconds at the earliest; a busy machine gets more.
const STOP: Duration = Duration::from_secs(30);

/// Waits until the archiver was given everything.
async fn delivered(place: &Place) -> Result<()> {
    let stream = place.bench.jetstream.get_stream("S").await?;
    let last = stream.cached_info().state.last_sequence;
    let deadline = Instant::now() + PATIENCE;
    while stream.consumer_info(CONSUMER).await?.delivered.stream_sequence < last {
        ensure!(Instant::now() < deadline, "the archiver does not take what is published");
        sleep(POLL).await;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clean_stop_while_the_server_is_away_takes_seconds() -> Result<()> {
    on_each(async |mut place| {
        for hangs in [true, false] {
            // Old enough for a flush only when it is asked to stop.
            let mut archiver = place.bench.start_as(&mut place.bench.command_flushing(1_000, "60"))?;
            archiver.says(&["archiving"]).await?;
            place.bench.publish(60).await?;
            delivered(&place).await?;
            if hangs { place.server.pause() } else { place.server.kill() }.map_err(Error::from_boxed)?;
            let status = archiver.process.stop(STOP).await.map_err(Error::from_boxed)?;
            ensure!(status.success(), "{status}:\n{}", archiver.log());
            if hangs {
                place.server.resume().map_err(Error::from_boxed)?;
            } else {
                place.server.restart().await.map_err(Error::from_boxed)?;
            }
        }
        place.bench.finish(place.bench.start()?).await?;
        place.bench.check().await
    })
    .await
}
