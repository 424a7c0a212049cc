//! The other name takes over.

use async_nats::jetstream::consumer::Config;

use super::consumer::Consumer;
use super::error::ConsumerError;
use crate::error::GuardError;
use crate::guard::Guard;
use crate::sink::Sink;

/// Lets the consumer of the other name take over, to begin at `to`; says where it begins. The new consumer is made before
/// the old one is deleted, so that an interest stream keeps what is not acked; the checkpoint says which name counts before
/// anything is made.
pub(crate) async fn take_over<S: Sink>(
    guard: &mut Guard<S>,
    consumer: &mut Consumer,
    config: &mut Config,
    to: u64,
    mark: &str,
) -> Result<Result<u64, ConsumerError>, GuardError> {
    let other = consumer.other();
    if let Err(error) = other.remove(mark).await {
        return Ok(Err(error));
    }
    guard.use_consumer(other.name()).await?;
    let old = std::mem::replace(consumer, other);
    match consumer.create(config, to, mark).await {
        Ok(made) => {
            *config = made.position.config;
            Ok(old.remove(mark).await.map(|_| made.to))
        }
        Err(error) => Ok(Err(error)),
    }
}
