//! The test that every archiver must pass: it is killed again and again while messages are published, and must end with
//! each of them once.

use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use async_nats::jetstream::Context;
use async_nats::jetstream::consumer::pull;
use bytes::Bytes;
use replay_guard::jetstream::Consumer;

use crate::nats::Server;
use crate::process::Process;
use crate::streams;
use crate::wheel::Result;

/// The stream the archiver is told to archive.
pub const STREAM: &str = "KILLED";
/// The durable consumer it is told to use.
pub const CONSUMER: &str = "archiver";

/// How long an archiver may take for what is left, and then to stop.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often what is waited for is looked at.
const POLL: Duration = Duration::from_millis(20);
/// How many messages are published at a time, and how long after one another.
const BATCH: u64 = 20;
const PAUSE: Duration = Duration::from_millis(10);

/// A message that must be archived once.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Published {
    /// Its stream sequence.
    pub sequence: u64,
    /// When the server took it, in nanoseconds since 1970.
    pub published: i64,
    /// Its subject.
    pub subject: String,
    /// Its payload.
    pub payload: Bytes,
}

/// What happened.
#[derive(Debug)]
pub struct Killed {
    /// What must be archived, in order.
    pub published: Vec<Published>,
    /// How often the archiver was killed.
    pub kills: usize,
}

/// How long: a few seconds, or as many as the environment variable `REPLAY_GUARD_KILL_SECONDS` says.
fn duration() -> Result<Duration> {
    match std::env::var("REPLAY_GUARD_KILL_SECONDS") {
        Ok(seconds) => Ok(Duration::from_secs(
            seconds.parse().map_err(|error| format!("REPLAY_GUARD_KILL_SECONDS={seconds}: {error}"))?,
        )),
        Err(_) => Ok(Duration::from_secs(8)),
    }
}

/// Publishes, and kills the archiver about every 300 ms meanwhile, at another moment each time; the last one finishes the
/// work and is stopped. `archiver`: the command, with `--stream`, `--consumer` and all else it needs.
///
/// `between` is called after each kill, to do to the target what may happen to it; its argument counts the kills.
pub async fn kill_again_and_again(
    server: &Server,
    archiver: impl Fn() -> Command,
    mut between: impl AsyncFnMut(usize) -> Result<()>,
) -> Result<Killed> {
    let jetstream = streams::producer(server.client().await?);
    let consumer = pull::Config { max_ack_pending: 5_000, ..streams::impatient(CONSUMER) };
    streams::make(&jetstream, STREAM, "killed.*", consumer).await?;

    let seed = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    println!("seed {seed}");
    let until = Instant::now() + duration()?;
    let producer = tokio::spawn(publish(jetstream.clone(), until));
    let mut kills = 0;
    while Instant::now() < until {
        let mut process = Process::start("the archiver", &mut archiver())?;
        tokio::time::sleep(life(seed, kills)).await;
        if let Some(status) = process.ended()? {
            return Err(format!("the archiver ended by itself after kill {kills}: {status}").into());
        }
        process.kill()?;
        kills += 1;
        between(kills).await?;
    }
    let number = producer.await??;
    if kills < 3 {
        return Err(format!("the archiver was killed only {kills} times").into());
    }

    let mut process = Process::start("the archiver", &mut archiver())?;
    // All may be done before it: it must be seen at work before it is told to stop.
    jetstream.publish("killed.last", "the last message".into()).await?.await?;
    let published = streams::read_back(&jetstream, STREAM, number + 1).await?;
    let deadline = Instant::now() + PATIENCE;
    while !is_done(&jetstream, STREAM, CONSUMER).await? {
        if let Some(status) = process.ended()? {
            return Err(format!("the last archiver ended by itself: {status}").into());
        }
        if Instant::now() > deadline {
            return Err("the last archiver does not finish the work".into());
        }
        tokio::time::sleep(POLL).await;
    }
    let status = process.stop(PATIENCE).await?;
    if !status.success() {
        return Err(format!("the last archiver did not stop cleanly: {status}").into());
    }
    println!("{} messages, {kills} kills", published.len());
    Ok(Killed { published, kills })
}

/// How long the archiver lives before this kill: 100 to 500 ms.
fn life(seed: u64, kills: usize) -> Duration {
    let mixed = (seed ^ kills as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    Duration::from_millis(100 + (mixed >> 32) % 400)
}

/// Publishes for a while: how many messages.
async fn publish(jetstream: Context, until: Instant) -> Result<u64> {
    let mut number = 0;
    while Instant::now() < until {
        let mut acks = Vec::new();
        for _ in 0..BATCH {
            number += 1;
            acks.push(jetstream.publish(format!("killed.{}", number % 3), format!("message {number}").into()).await?);
        }
        for ack in acks {
            ack.await?;
        }
        tokio::time::sleep(PAUSE).await;
    }
    Ok(number)
}

/// Whether everything is delivered and acked.
pub async fn is_done(jetstream: &Context, stream: &str, consumer: &str) -> Result<bool> {
    let stream = jetstream.get_stream(stream).await?;
    let last = stream.cached_info().state.last_sequence;
    // The driver may work with another name.
    for name in Consumer::names(consumer) {
        if let Ok(info) = stream.consumer_info(name).await
            && (info.num_pending, info.num_ack_pending) == (0, 0)
            && info.delivered.stream_sequence >= last
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether what is archived is what was published, each once: else an error that says what is lost and what is there twice.
pub fn check(published: &[Published], mut archived: Vec<Published>) -> Result<()> {
    archived.sort_unstable();
    let total = archived.len();
    archived.dedup();
    let twice = total - archived.len();
    let lost = published.iter().filter(|message| archived.binary_search(message).is_err()).count();
    let foreign = archived.iter().filter(|message| published.binary_search(message).is_err()).count();
    if (lost, twice, foreign) == (0, 0, 0) {
        return Ok(());
    }
    Err(format!("of {}: lost {lost}, twice {twice}, never published {foreign}", published.len()).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(sequence: u64) -> Published {
        Published { sequence, published: 7, subject: "killed.1".into(), payload: "x".into() }
    }

    #[test]
    fn what_is_lost_twice_or_foreign_is_counted() {
        let published: Vec<_> = (1..=5).map(message).collect();
        assert!(check(&published, (1..=5).rev().map(message).collect()).is_ok());
        let error = check(&published, [1, 2, 2, 5, 9, 9, 9].map(message).to_vec()).map_err(|error| error.to_string());
        assert_eq!(error, Err("of 5: lost 2, twice 3, never published 1".into()));
    }
}
