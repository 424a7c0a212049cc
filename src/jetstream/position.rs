//! Where a consumer stands.

use std::time::Duration;

use async_nats::jetstream::consumer::{Config, DeliverPolicy, SequenceInfo};
use serde::Deserialize;

use super::error::ConsumerError;
use super::settings::{self, METADATA_KEY};
use super::time::unix_nanos;

/// What the server says about a consumer. None of its numbers is evidence that anything is archived.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Position {
    /// When it was created, Unix nanoseconds. Moves by milliseconds at the first restart of some servers.
    pub created: i64,
    /// The highest stream sequence delivered. May lie above the stream's last, and is 2^64-1 on a 2.10 server whose
    /// consumer state is damaged.
    pub delivered: u64,
    /// The number of deliveries, redeliveries included, since it was created or reset.
    pub deliveries: u64,
    /// The stream sequence of its ack floor.
    pub ack_floor: u64,
    /// Messages delivered and neither acked nor given up.
    pub ack_pending: u64,
    /// Messages not delivered yet.
    pub pending: u64,
    /// Until when it is paused and delivers nothing, Unix nanoseconds; `None` if it is not. Servers from 2.11.
    pub paused_until: Option<i64>,
    /// Its configuration, defaults filled in by the server.
    pub config: Config,
}

impl Position {
    /// The sequence up to which it will deliver nothing more of itself: delivered if no ack is pending, else the ack
    /// floor, and never below its configured start.
    ///
    /// Servers before 2.14 report floor 0 for a consumer that was created with a start sequence.
    pub fn stands_at(&self) -> u64 {
        let reported = if self.ack_pending == 0 { self.delivered } else { self.ack_floor };
        match self.config.deliver_policy {
            DeliverPolicy::ByStartSequence { start_sequence } => reported.max(start_sequence.saturating_sub(1)),
            _ => reported,
        }
    }

    /// The state id in its metadata, where there is one.
    pub fn mark(&self) -> Option<&str> {
        self.config.metadata.get(METADATA_KEY).map(String::as_str)
    }

    /// The subjects it delivers, sorted; empty for all.
    pub fn filters(&self) -> Vec<String> {
        settings::filters(&self.config)
    }

    /// After how long the server delivers an un-acked message for the second time.
    pub fn ack_deadline(&self) -> Duration {
        settings::ack_deadline(&self.config)
    }
}

/// What a move did.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Moved {
    /// The lowest sequence that may come next. Not the one asked for where that is beyond the stream's end, or on a
    /// work-queue stream (1: what was not acked there must be delivered to be removed).
    pub to: u64,
    /// Whether the consumer was made, anew or for the first time; else it was reset. Either way deliveries and acks from
    /// before are void.
    pub created: bool,
    /// Where it stands now.
    pub position: Position,
}

/// What is needed of `CONSUMER.INFO`, and of every answer that contains it.
#[derive(Deserialize)]
pub(super) struct Info {
    created: String,
    config: Config,
    delivered: SequenceInfo,
    ack_floor: SequenceInfo,
    num_ack_pending: u64,
    num_pending: u64,
    #[serde(default)]
    paused: bool,
    /// Nanoseconds, as of `ts`.
    #[serde(default)]
    pause_remaining: i64,
    #[serde(default)]
    ts: String,
}

impl Info {
    pub(super) fn position(self) -> Result<Position, ConsumerError> {
        let created = unix_nanos(&self.created).ok_or_else(|| ConsumerError::Unavailable {
            reason: format!("the consumer's creation time is {:?}", self.created),
        })?;
        // A pause whose end cannot be read is one all the same.
        let until = || unix_nanos(&self.ts).unwrap_or(0).saturating_add(self.pause_remaining);
        Ok(Position {
            paused_until: self.paused.then(until),
            created,
            delivered: self.delivered.stream_sequence,
            deliveries: self.delivered.consumer_sequence,
            ack_floor: self.ack_floor.stream_sequence,
            ack_pending: self.num_ack_pending,
            pending: self.num_pending,
            config: self.config,
        })
    }
}

#[cfg(test)]
impl Position {
    /// A consumer that stands there and waits for nothing.
    pub(super) const fn at(delivered: u64, ack_floor: u64, config: Config) -> Self {
        let (created, deliveries, ack_pending, pending) = (0, 0, 0, 0);
        Self { created, delivered, deliveries, ack_floor, ack_pending, pending, paused_until: None, config }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn position(delivered: u64, ack_floor: u64, ack_pending: u64, deliver_policy: DeliverPolicy) -> Position {
        let config = Config { deliver_policy, ..Config::default() };
        Position { ack_pending, ..Position::at(delivered, ack_floor, config) }
    }

    #[test]
    fn where_it_stands() {
        let start = |start_sequence| DeliverPolicy::ByStartSequence { start_sequence };
        assert_eq!(position(10, 5, 0, DeliverPolicy::All).stands_at(), 10);
        assert_eq!(position(10, 5, 3, DeliverPolicy::All).stands_at(), 5);
        assert_eq!(position(13, 0, 3, start(11)).stands_at(), 10, "2.12 reports floor 0");
        assert_eq!(position(13, 10, 3, start(11)).stands_at(), 10);
        assert_eq!(position(13, 12, 1, start(11)).stands_at(), 12);
        assert_eq!(position(0, 0, 0, start(0)).stands_at(), 0);
    }
}
