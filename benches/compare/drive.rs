//! The driver against a bare loop over the same stream with a consumer of the same configuration.

use std::time::{Duration, Instant};

use async_nats::jetstream::consumer::{AckPolicy, IntoConsumerConfig as _, pull};
use futures_util::StreamExt as _;
use replay_guard::async_nats;

use crate::reads::cpu;
use crate::rig::{BATCH, Result, Rig, STREAM, Size, consumer, run};
use crate::table::Table;

/// What is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    measure: &'static str,
    policy: AckPolicy,
}

pub(crate) const EXPLICIT: Kind = Kind { measure: "driver, explicit acks", policy: AckPolicy::Explicit };
pub(crate) const ALL: Kind = Kind { measure: "driver, `AckPolicy::All`", policy: AckPolicy::All };

const GUARDED: &str = "guarded";

/// How long something took, and how much of it this process was at work.
pub(crate) type Took = (Duration, Duration);

fn at_work() -> Result<Duration> {
    Ok(Duration::from_secs_f64(cpu(None)?))
}

/// The client's own loop: acks each message when it came, or one for a batch.
pub(crate) async fn bare(rig: &Rig, policy: AckPolicy) -> Result<Took> {
    let context = rig.context().await?;
    let config: pull::Config = consumer("bare", policy);
    let consumer = context.create_consumer_on_stream(config, STREAM).await?;
    let (began, before) = (Instant::now(), at_work()?);
    let mut messages = consumer.stream().max_messages_per_batch(usize::try_from(BATCH)?).messages().await?;
    for count in 1..=rig.messages {
        let message = messages.next().await.ok_or("the messages ended")??;
        std::hint::black_box(&message.payload);
        if policy == AckPolicy::Explicit || count % BATCH == 0 || count == rig.messages {
            message.ack().await?;
        }
    }
    context.client().flush().await?;
    let took = (began.elapsed(), at_work()?.saturating_sub(before));
    drop(messages);
    rig.forget("bare").await?;
    Ok(took)
}

async fn guarded(rig: &Rig, policy: AckPolicy) -> Result<Took> {
    let state = tempfile::tempdir()?;
    let builder = rig.driver(GUARDED, state.path()).await?;
    let config = consumer(GUARDED, policy).into_consumer_config();
    let before = at_work()?;
    let (took, ended) = run(builder.consumer_config(config), rig.messages).await?;
    let took = (took, at_work()?.saturating_sub(before));
    assert_eq!(ended.counters.archived, rig.messages);
    rig.forget(GUARDED).await?;
    Ok(took)
}

pub(crate) async fn measure(rig: &Rig, size: Size, kind: Kind, table: &mut Table) -> Result<()> {
    let mut pairs = Vec::new();
    for _ in 0..size.rounds {
        pairs.push((guarded(rig, kind.policy).await?, bare(rig, kind.policy).await?));
    }
    add(table, kind.measure, &pairs, ">= 0.97");
    Ok(())
}

/// Everything comes again and is read, skipped and acked, against a loop that only acks.
pub(crate) async fn measure_skips(rig: &Rig, size: Size, table: &mut Table) -> Result<()> {
    let state = tempfile::tempdir()?;
    let mut pairs = Vec::new();
    let config = || consumer(GUARDED, AckPolicy::Explicit).into_consumer_config();
    run(rig.driver(GUARDED, state.path()).await?.consumer_config(config()), rig.messages).await?;
    for _ in 0..size.rounds {
        rig.forget(GUARDED).await?;
        // Made by somebody else: the driver would make one that begins where it is to go on.
        rig.context().await?.create_consumer_on_stream(consumer(GUARDED, AckPolicy::Explicit), STREAM).await?;
        let builder = rig.driver(GUARDED, state.path()).await?.fast_forward(false);
        let before = at_work()?;
        let (took, ended) = run(builder, rig.messages).await?;
        let took = (took, at_work()?.saturating_sub(before));
        assert_eq!((ended.counters.archived, ended.counters.skipped), (0, rig.messages));
        pairs.push((took, bare(rig, AckPolicy::Explicit).await?));
    }
    rig.forget(GUARDED).await?;
    add(table, "skip run that is read", &pairs, ">= 0.95");
    Ok(())
}

/// One line for the time, and one for the processor's: what others do on the machine spares that.
fn add(table: &mut Table, measure: &str, pairs: &[(Took, Took)], bar: &str) {
    let time: Vec<_> = pairs.iter().map(|(ours, limit)| (ours.0, limit.0)).collect();
    let work: Vec<_> = pairs.iter().map(|(ours, limit)| (ours.1, limit.1)).collect();
    table.pairs(measure, &time, bar);
    table.pairs(&format!("{measure}: processor time of the client"), &work, "");
}
