//! Where a plan is between two sessions, and what it knows in one.

use std::time::Duration;

use async_nats::Subject;

use super::action::{Action, Connection};
use super::others::Others;
use crate::fault::{self, Fault};
use crate::guard::ConsumerPosition;
use crate::jetstream::ack::Answer;
use crate::jetstream::position::Position;
use crate::jetstream::session::Chain;
use crate::sink::Reason;

/// A step on the way to a session.
#[derive(Debug)]
pub(super) enum Step {
    Find,
    Make,
    Mark,
    Look,
    Subscribe,
}

#[derive(Debug)]
pub(super) struct Starting {
    pub(super) connection: u64,
    pub(super) step: Step,
    pub(super) position: Option<Box<Position>>,
    pub(super) suspect: Option<u64>,
    pub(super) not_before: Duration,
}

/// Whom a check asks, where one question is enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asks {
    Consumer,
    Stream,
}

/// Why a consumer is looked at in a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// It is time for it.
    Check,
    /// A flush is to rely on its filters, and waits.
    ForFlush,
}

#[derive(Debug)]
pub(super) struct Running {
    pub(super) connection: u64,
    /// When the consumer was created, and what it delivers: another one of its name is another session.
    pub(super) created: i64,
    pub(super) filters: Vec<String>,
    pub(super) chain: Chain,
    pub(super) others: Others,
    pub(super) ack_all: bool,
    /// What a flush permitted and was not sent yet.
    pub(super) answers: Vec<(Subject, Answer)>,
    /// The last flush was made: when its answers are sent, all is done.
    pub(super) last: bool,
    /// The stream could not be asked: nothing is pulled or written before this time.
    pub(super) blocked: Option<Duration>,
    pub(super) round: Duration,
    pub(super) next_round: Duration,
    pub(super) next_check: Duration,
    /// Why the consumer is being looked at.
    pub(super) look: Option<Look>,
    /// The consumer passed over sequences since it was looked at. That nothing of the source lies there is its filters' word.
    pub(super) passed_over: bool,
    pub(super) position: Option<ConsumerPosition>,
    /// Where the consumer was looked at last and stood well, as long as nothing came and nothing was flushed since: then one
    /// question is enough at a time.
    pub(super) quiet: Option<ConsumerPosition>,
    /// Whom the next check asks, if all is quiet until then.
    pub(super) asks: Asks,
    pub(super) suspect: Option<u64>,
}

impl Running {
    /// Whether this is the connection on which the session began.
    pub(super) fn is_on(&self, connection: Connection) -> bool {
        connection.up && (self.connection == connection.count || fault::is(Fault::OldDeliveriesAccepted))
    }

    /// A flush; before it a look at the consumer, if the flush is to rely on its filters.
    pub(super) fn flush(&mut self, reason: Reason) -> Action {
        if self.passed_over {
            self.look = Some(Look::ForFlush);
            return Action::Find;
        }
        Action::Flush(reason)
    }
}

#[derive(Debug)]
pub(super) enum Phase {
    Between,
    Starting(Starting),
    Running(Box<Running>),
    /// Everything that could be flushed and acked was.
    WoundUp,
}

/// Moving the consumer over what is archived, unread.
#[derive(Clone, Copy, Debug)]
pub(super) struct Jump {
    pub(super) allowed: bool,
    /// Everything through here is archived and was read back when the session began.
    pub(super) verified_through: Option<u64>,
    /// Where it was moved last: never twice to one place.
    pub(super) last: Option<u64>,
    /// It is to be moved. That only spares a backlog, and is given up if it fails.
    pub(super) under_way: bool,
}

/// What a sink brings into a session.
#[derive(Clone, Copy, Debug)]
pub(super) struct Carried {
    /// It holds records.
    pub(super) pending: bool,
    /// It wants a flush.
    pub(super) full: bool,
}
