//! Streams for tests, and what they hold.

use std::time::Duration;

use async_nats::Client;
use async_nats::jetstream::consumer::pull;
use async_nats::jetstream::{self, Context, stream};

use crate::killing::Published;
use crate::wheel::Result;

/// For producers on a busy machine, where an answer may take longer than usual.
pub fn producer(client: Client) -> Context {
    let mut context = jetstream::new(client);
    context.set_timeout(Duration::from_secs(30));
    context
}

/// A durable consumer that delivers soon again what a dead archiver was given.
pub fn impatient(name: &str) -> pull::Config {
    pull::Config { durable_name: Some(name.into()), ack_wait: Duration::from_secs(1), ..Default::default() }
}

/// A stream that keeps this subject, with a consumer.
pub async fn make(jetstream: &Context, name: &str, subject: &str, consumer: pull::Config) -> Result<()> {
    let config = stream::Config { name: name.into(), subjects: vec![subject.into()], ..Default::default() };
    jetstream.create_stream(config).await?.create_consumer(consumer).await?;
    Ok(())
}

/// What a stream holds through this sequence. All of it must be there.
pub async fn read_back(jetstream: &Context, name: &str, last: u64) -> Result<Vec<Published>> {
    let stream = jetstream.get_stream(name).await?;
    let mut published = Vec::new();
    for sequence in 1..=last {
        let message = stream.get_raw_message(sequence).await?;
        published.push(Published {
            sequence,
            published: i64::try_from(message.time.unix_timestamp_nanos())?,
            subject: message.subject.to_string(),
            payload: message.payload,
        });
    }
    Ok(published)
}
