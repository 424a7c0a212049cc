//! The other name takes over.

use async_nats::jetstream::consumer::Config;

use super::consumer::Consumer;
use super::error::ConsumerError;
use crate::error::GuardError;
use crate::guard::Guard;
use crate::sink::Sink;

/// Lets the consumer of the other name take over, to begin at `to`; says where it begins. The new consumer is made before
/// the old one, the leftover, is deleted, so that an interest stream keeps what is not acked; the checkpoint says which name
/// counts before anything is made.
pub(crate) async fn take_over<S: Sink>(
    guard: &mut Guard<S>,
    consumer: &mut Consumer,
    leftover: &mut Option<Box<Consumer>>,
    config: &mut Config,
    to: u64,
    mark: &str,
) -> Result<Result<u64, ConsumerError>, GuardError> {
    let other = consumer.other();
    let found = match other.find().await {
        Ok(found) => found.filter(|position| position.mark() == Some(mark)),
        Err(error) => return Ok(Err(error)),
    };
    // One of ours that delivers all that is wanted: on an interest stream nobody else may keep that.
    let stands = found.as_ref().is_some_and(|position| position.stands_at() < to);
    if !stands && let Err(error) = other.remove(mark).await {
        return Ok(Err(error));
    }
    guard.use_consumer(other.name()).await?;
    let position = match found.filter(|_| stands) {
        Some(position) => position,
        None => match other.create(config, to, mark).await {
            Ok(made) => made.position,
            // Tried again, and not with the name that cannot be made.
            Err(error) => return Ok(Err(error)),
        },
    };
    *leftover = Some(Box::new(std::mem::replace(consumer, other)));
    let from = position.stands_at().saturating_add(1);
    *config = position.config;
    remove_leftover(leftover, consumer.name(), mark).await;
    Ok(Ok(from))
}

/// Deletes the consumer that another took over from, sooner or later: it keeps messages of an interest stream.
pub(crate) async fn remove_leftover(leftover: &mut Option<Box<Consumer>>, in_use: &str, mark: &str) {
    if let Some(old) = leftover.as_ref().filter(|old| old.name() != in_use)
        && let Err(error) = old.remove(mark).await
    {
        tracing::debug!(consumer = old.name(), %error, "not deleted yet");
        return;
    }
    *leftover = None;
}
