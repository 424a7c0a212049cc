//! The other name takes over.

use async_nats::jetstream::consumer::Config;
use futures_util::future::join_all;

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
    leftovers: &mut Vec<Consumer>,
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
            Err(error) => {
                // Tried again, and not with a name that cannot be made.
                if matches!(error, ConsumerError::Damaged { .. }) {
                    leave(consumer, other, leftovers);
                }
                return Ok(Err(error));
            }
        },
    };
    leave(consumer, other, leftovers);
    let from = position.stands_at().saturating_add(1);
    *config = position.config;
    remove_leftovers(leftovers, mark).await;
    Ok(Ok(from))
}

fn leave(consumer: &mut Consumer, other: Consumer, leftovers: &mut Vec<Consumer>) {
    leftovers.retain(|old| old.name() != other.name());
    leftovers.push(std::mem::replace(consumer, other));
}

/// Deletes the consumers that another took over from, sooner or later: they keep messages of an interest stream.
pub(crate) async fn remove_leftovers(leftovers: &mut Vec<Consumer>, mark: &str) {
    // All at once: each may wait for an answer that does not come.
    let removed = join_all(leftovers.iter().map(|old| old.remove(mark))).await;
    let mut removed = removed.into_iter();
    leftovers.retain(|old| match removed.next() {
        Some(Err(error)) => {
            tracing::debug!(consumer = old.name(), %error, "not deleted yet");
            true
        }
        Some(Ok(_)) | None => false,
    });
}
