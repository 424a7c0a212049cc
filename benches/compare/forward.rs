//! A consumer that forgot everything is moved over what is archived: as many requests and as much time for any length.

use std::time::Duration;

use async_nats::jetstream::consumer::AckPolicy;
use replay_guard::async_nats;

use crate::reads::Spy;
use crate::rig::{Result, Rig, STREAM, Size, consumer, run};
use crate::table::{Table, median, spread, time};

const NAME: &str = "forgetful";

pub(crate) async fn measure(messages: u64, size: Size, table: &mut Table) -> Result<()> {
    let rig = Rig::start(messages, 16).await?;
    let state = tempfile::tempdir()?;
    let builder = rig.driver(NAME, state.path()).await?.flush_every(1_000, Duration::from_secs(60));
    run(builder, messages).await?;
    let spy = Spy::new(&rig.server).await?;
    let (mut took, mut requests) = (Vec::new(), Vec::new());
    for _ in 0..size.rounds {
        rig.forget(NAME).await?;
        rig.context().await?.create_consumer_on_stream(consumer(NAME, AckPolicy::Explicit), STREAM).await?;
        rig.publish(1).await?;
        spy.count().await?;
        let builder = rig.driver(NAME, state.path()).await?.flush_every(1, Duration::from_secs(60));
        let (time, ended) = run(builder, 1).await?;
        assert_eq!((ended.counters.archived, ended.counters.fast_forwards), (1, 1), "of {messages} messages");
        took.push(time.as_secs_f64());
        requests.push(spy.count().await?);
    }
    requests.sort_unstable();
    requests.dedup();
    let asked = requests.iter().map(u64::to_string).collect::<Vec<_>>().join(" or ");
    let ms = spread(took.iter().map(|seconds| seconds * 1e3));
    table.row(
        &format!("replay of {messages} messages, fast-forward"),
        &time(median(took.iter().copied())),
        &format!("{asked} requests"),
        &format!("{ms} ms"),
        "the same for all",
    );
    Ok(())
}
