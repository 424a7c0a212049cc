//! Where to begin: what the checkpoint, the consumer and the operator say about a first opening. Pure.

use super::position::Position;
use crate::guard::Origin;

/// Where archiving begins for a source that the store never held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Start {
    /// Where the consumer stands; a consumer that does not exist is made to deliver the whole stream.
    Consumer,
    /// What the consumer has acked is archived already, by another archiver. This trusts a number that proves nothing: a
    /// consumer's ack floor passes messages that nobody acked in many ways.
    Adopt,
    /// At the stream's first message, wherever the consumer stands.
    Beginning,
}

/// Why a first opening needs a decision.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The consumer was used by an archiver whose checkpoint is not here.
    #[error(
        "consumer {consumer} belongs to the archive with state id {mark}, and its checkpoint is not in {location}; give \
         the right state directory, or choose Start::Beginning (archive the whole stream again), Start::Adopt (what the \
         consumer has acked is archived) or Start::Consumer (begin where it stands)"
    )]
    LostCheckpoint {
        /// Its name.
        consumer: String,
        /// The state id in its metadata.
        mark: String,
        /// Where a checkpoint was looked for.
        location: String,
    },
    /// The consumer stands beyond the stream's end, so it was made for another life of the stream.
    #[error(
        "consumer {consumer} stands at {position}, beyond the stream's last sequence {last}: the stream lost messages or \
         was made anew; choose Start::Beginning to archive what it holds now, or set the consumer right and choose \
         Start::Adopt"
    )]
    Beyond {
        /// Its name.
        consumer: String,
        /// The highest sequence it delivered or acked.
        position: u64,
        /// The stream's last sequence.
        last: u64,
    },
    /// There is nothing to adopt.
    #[error("there is no consumer {consumer} whose acks could be adopted")]
    NothingToAdopt {
        /// Its name.
        consumer: String,
    },
}

/// What a first opening does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct First {
    pub(crate) origin: Origin,
    /// Where the consumer must be moved, wherever it stands.
    pub(crate) move_to: Option<u64>,
}

/// Decides a first opening. `ours`: the state id of the sink's claims, if the sink gave any.
pub(crate) fn first(
    consumer: &str,
    found: Option<&Position>,
    start: Option<Start>,
    last: u64,
    ours: Option<&str>,
    location: &str,
) -> Result<First, StartError> {
    let Some(position) = found else {
        return match start {
            Some(Start::Adopt) => Err(StartError::NothingToAdopt { consumer: consumer.to_owned() }),
            _ => Ok(First { origin: Origin::Beginning, move_to: None }),
        };
    };
    if let Some(mark) = position.mark()
        && start.is_none()
        && ours != Some(mark)
    {
        let (consumer, mark, location) = (consumer.to_owned(), mark.to_owned(), location.to_owned());
        return Err(StartError::LostCheckpoint { consumer, mark, location });
    }
    let start = start.unwrap_or(Start::Consumer);
    let highest = position.delivered.max(position.ack_floor);
    if start != Start::Beginning && highest > last {
        return Err(StartError::Beyond { consumer: consumer.to_owned(), position: highest, last });
    }
    Ok(match start {
        Start::Beginning => First { origin: Origin::Beginning, move_to: Some(1) },
        Start::Consumer => First { origin: Origin::At(position.stands_at().saturating_add(1)), move_to: None },
        Start::Adopt => First { origin: Origin::Adopt(position.stands_at()), move_to: None },
    })
}

#[cfg(test)]
mod tests {
    use async_nats::jetstream::consumer::Config;

    use super::super::settings::METADATA_KEY;
    use super::*;

    fn position(delivered: u64, ack_floor: u64, mark: Option<&str>) -> Position {
        let mut config = Config::default();
        if let Some(mark) = mark {
            config.metadata.insert(METADATA_KEY.to_owned(), mark.to_owned());
        }
        Position { ack_pending: delivered - ack_floor, ..Position::at(delivered, ack_floor, config) }
    }

    fn decide(
        found: Option<&Position>,
        start: Option<Start>,
        last: u64,
        ours: Option<&str>,
    ) -> Result<First, StartError> {
        first("c", found, start, last, ours, "state")
    }

    #[test]
    fn by_default_archiving_begins_where_the_consumer_stands() {
        let here = Ok(First { origin: Origin::At(6), move_to: None });
        assert_eq!(decide(Some(&position(8, 5, None)), None, 10, None), here);
        assert_eq!(decide(Some(&position(8, 5, None)), Some(Start::Consumer), 10, None), here);
        assert_eq!(decide(None, None, 10, None), Ok(First { origin: Origin::Beginning, move_to: None }));
    }

    #[test]
    fn a_mark_without_a_checkpoint_needs_a_decision() {
        let marked = position(8, 5, Some("ab"));
        assert!(matches!(decide(Some(&marked), None, 10, None), Err(StartError::LostCheckpoint { .. })));
        assert!(matches!(decide(Some(&marked), None, 10, Some("cd")), Err(StartError::LostCheckpoint { .. })));
        assert!(decide(Some(&marked), None, 10, Some("ab")).is_ok(), "the sink holds the claims of this archive");
        let begin = Ok(First { origin: Origin::Beginning, move_to: Some(1) });
        assert_eq!(decide(Some(&marked), Some(Start::Beginning), 10, None), begin);
    }

    #[test]
    fn a_consumer_beyond_the_stream_is_adopted_by_nobody() {
        for start in [None, Some(Start::Consumer), Some(Start::Adopt)] {
            assert!(matches!(decide(Some(&position(11, 5, None)), start, 10, None), Err(StartError::Beyond { .. })));
        }
        assert!(decide(Some(&position(11, 5, None)), Some(Start::Beginning), 10, None).is_ok());
        assert!(matches!(decide(None, Some(Start::Adopt), 10, None), Err(StartError::NothingToAdopt { .. })));
        let adopted = Ok(First { origin: Origin::Adopt(5), move_to: None });
        assert_eq!(decide(Some(&position(8, 5, None)), Some(Start::Adopt), 10, None), adopted);
    }
}
