//! What belongs to one session: one subscription on one consumer instance on one connection. Pure.

use async_nats::Subject;

use super::ack::{Answer, Delivery};
use crate::fault::{self, Fault};
use crate::guard::Permits;
use crate::record::RecordId;

/// Why a session is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SessionEnd {
    /// The connection was lost or is another one. What is buffered may be from before.
    Reconnected,
    /// The consumer's sequence began anew: the consumer was reset, or made again.
    ConsumerRestarted {
        /// The consumer sequence before.
        before: u64,
        /// The consumer sequence now.
        now: u64,
    },
    /// A first delivery does not lie above the one before: the consumer or the stream went back.
    WentBack {
        /// The stream sequence before.
        before: u64,
        /// The stream sequence now.
        now: u64,
    },
    /// One stream sequence came with two publish times.
    TwoTimes {
        /// The stream sequence.
        sequence: u64,
    },
    /// The consumer was made anew, or filters otherwise.
    Replaced,
    /// The server said so, or said nothing for too long.
    Server(String),
}

impl std::fmt::Display for SessionEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Reconnected => write!(f, "the connection is another one"),
            Self::ConsumerRestarted { before, now } => write!(f, "the consumer's sequence went from {before} to {now}"),
            Self::WentBack { before, now } => write!(f, "first deliveries went from stream sequence {before} to {now}"),
            Self::Replaced => write!(f, "the consumer is another one"),
            Self::TwoTimes { sequence } => write!(f, "stream sequence {sequence} came with two publish times"),
            Self::Server(said) => f.write_str(said),
        }
    }
}

/// Follows the chain of deliveries.
#[derive(Debug)]
pub(crate) struct Chain {
    /// Whether consecutive first deliveries have nothing of the source between them. Not so for `last_per_subject`.
    dense: bool,
    consumer_sequence: u64,
    /// The last first delivery's stream sequence.
    first: Option<u64>,
    /// The delivery just before, if it was a first one and none was missed since.
    before: Option<u64>,
}

impl Chain {
    /// A session's chain. It begins with the first delivery: where a fresh consumer begins is no link, since somebody may
    /// have moved it since it was asked.
    pub(crate) const fn new(dense: bool) -> Self {
        Self { dense, consumer_sequence: 0, first: None, before: None }
    }

    /// Takes a delivery: says which stream sequence it follows with nothing of the source between, or why the session is
    /// over.
    pub(crate) fn take(&mut self, delivery: &Delivery) -> Result<Option<u64>, SessionEnd> {
        let now = delivery.consumer_sequence;
        if now <= self.consumer_sequence {
            return Err(SessionEnd::ConsumerRestarted { before: self.consumer_sequence, now });
        }
        let unbroken = now == self.consumer_sequence + 1 || fault::is(Fault::MergeOverBrokenChain);
        self.consumer_sequence = now;
        let sequence = delivery.id.sequence;
        if delivery.times > 1 {
            self.before = None;
            return Ok(None);
        }
        if let Some(before) = self.first.replace(sequence)
            && sequence <= before
        {
            return Err(SessionEnd::WentBack { before, now: sequence });
        }
        Ok(self.before.replace(sequence).filter(|_| unbroken && self.dense))
    }
}

/// One delivery that waits for its ack.
#[derive(Debug)]
struct Waiting {
    id: RecordId,
    /// Where to answer; `None` once it is answered.
    reply: Option<Box<str>>,
    /// The round of in-progress acks in which it came.
    round: u32,
}

/// The deliveries of the session that are not answered yet.
#[derive(Debug, Default)]
pub(crate) struct Window {
    /// Sorted by stream sequence, one each: two publish times at one sequence end the session. Almost always grows at its
    /// end. Between two calls none is answered.
    waiting: Vec<Waiting>,
    round: u32,
}

impl Window {
    pub(crate) const fn len(&self) -> usize {
        self.waiting.len()
    }

    #[cfg(test)]
    pub(crate) fn waits_for(&self, id: RecordId) -> bool {
        self.waiting.iter().any(|waiting| waiting.id == id)
    }

    /// A delivery came; a newer one of the same record replaces the older.
    pub(crate) fn add(&mut self, id: RecordId, reply: Box<str>) -> Result<(), SessionEnd> {
        let waiting = Waiting { id, reply: Some(reply), round: self.round };
        if self.waiting.last().is_none_or(|last| last.id.sequence < id.sequence) {
            self.waiting.push(waiting);
            return Ok(());
        }
        let at = self.waiting.partition_point(|before| before.id.sequence < id.sequence);
        match self.waiting.get_mut(at).filter(|same| same.id.sequence == id.sequence) {
            Some(same) if same.id != id => return Err(SessionEnd::TwoTimes { sequence: id.sequence }),
            Some(same) => *same = waiting,
            None => self.waiting.insert(at, waiting),
        }
        Ok(())
    }

    /// What to send after a flush. With ack-all, one ack for all: it names the highest delivery at or below the floor, if one
    /// waits there, new or come again since its ack was lost; nothing is ever terminated, since that acks everything below.
    pub(crate) fn answers(&mut self, permits: &Permits, ack_all: bool) -> Vec<(Subject, Answer)> {
        let mut answers = Vec::new();
        if ack_all {
            let floor = if fault::is(Fault::AckAllAboveFloor) { u64::MAX } else { permits.floor() };
            let rejected = permits.rejected().first().filter(|_| fault::is(Fault::TermOnAckAll));
            if let Some(id) = rejected {
                answers.extend(self.take(*id).map(|reply| (reply, Answer::Term)));
            }
            if answers.is_empty() {
                let through = self.waiting.partition_point(|waiting| waiting.id.sequence <= floor);
                let highest = self.waiting.drain(..through).next_back().and_then(|waiting| waiting.reply);
                answers.extend(highest.map(|reply| (String::from(reply).into(), Answer::Ack)));
            }
        } else {
            answers.reserve(permits.acks().len());
            for id in permits.rejected() {
                answers.extend(self.take(*id).map(|reply| (reply, Answer::Term)));
            }
            for id in permits.acks() {
                answers.extend(self.take(*id).map(|reply| (reply, Answer::Ack)));
            }
        }
        self.waiting.retain(|waiting| waiting.reply.is_some());
        answers
    }

    fn take(&mut self, id: RecordId) -> Option<Subject> {
        let at = self.waiting.binary_search_by_key(&id, |waiting| waiting.id).ok()?;
        let reply = self.waiting.get_mut(at)?.reply.take()?;
        Some(String::from(reply).into())
    }

    /// The deliveries that have waited for a whole round: to be called twice within an ack deadline.
    pub(crate) fn overdue(&mut self) -> Vec<Subject> {
        let round = self.round;
        self.round = self.round.wrapping_add(1);
        let overdue = self.waiting.iter().filter(|waiting| waiting.round != round);
        overdue.filter_map(|waiting| waiting.reply.as_deref().map(Subject::from)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delivery(sequence: u64, consumer_sequence: u64, times: u64) -> Delivery {
        Delivery { id: RecordId::new(sequence, 0), times, consumer_sequence, remaining: 0 }
    }

    #[test]
    fn consecutive_first_deliveries_follow_one_another() {
        let mut chain = Chain::new(true);
        assert_eq!(chain.take(&delivery(3, 5, 1)), Ok(None));
        assert_eq!(chain.take(&delivery(9, 6, 1)), Ok(Some(3)));
        assert_eq!(chain.take(&delivery(12, 8, 1)), Ok(None), "one was missed");
        assert_eq!(chain.take(&delivery(3, 9, 2)), Ok(None), "a redelivery follows nothing");
        assert_eq!(chain.take(&delivery(13, 10, 1)), Ok(None));
        assert_eq!(chain.take(&delivery(14, 11, 1)), Ok(Some(13)));
    }

    #[test]
    fn last_per_subject_is_no_chain() {
        let mut chain = Chain::new(false);
        assert_eq!(chain.take(&delivery(16, 1, 1)), Ok(None));
        assert_eq!(chain.take(&delivery(17, 2, 1)), Ok(None));
    }

    #[test]
    fn what_goes_back_ends_the_session() {
        let mut chain = Chain::new(true);
        chain.take(&delivery(20, 20, 1)).expect("in order");
        assert_eq!(chain.take(&delivery(16, 21, 1)), Err(SessionEnd::WentBack { before: 20, now: 16 }));
        let mut chain = Chain::new(true);
        chain.take(&delivery(20, 20, 1)).expect("in order");
        assert_eq!(chain.take(&delivery(21, 1, 1)), Err(SessionEnd::ConsumerRestarted { before: 20, now: 1 }));
    }

    #[test]
    fn two_publish_times_at_one_sequence_end_the_session() {
        let mut window = Window::default();
        window.add(RecordId::new(1, 10), "a".into()).expect("new");
        window.add(RecordId::new(1, 10), "b".into()).expect("a redelivery");
        assert_eq!(window.add(RecordId::new(1, 11), "c".into()), Err(SessionEnd::TwoTimes { sequence: 1 }));
    }

    #[test]
    fn only_what_waits_for_a_whole_round_is_overdue() {
        let mut window = Window::default();
        window.add(RecordId::new(1, 1), "a".into()).expect("new");
        assert_eq!(window.overdue(), Vec::<Subject>::new());
        window.add(RecordId::new(2, 2), "b".into()).expect("new");
        assert_eq!(window.overdue(), vec![Subject::from("a")]);
        assert_eq!(window.overdue().len(), 2);
    }
    fn window(sequences: &[u64]) -> Window {
        let mut window = Window::default();
        for sequence in sequences {
            window.add(RecordId::new(*sequence, 1), format!("{sequence}").into()).expect("new");
        }
        window
    }

    fn named(answers: Vec<(Subject, Answer)>) -> Vec<(String, Answer)> {
        answers.into_iter().map(|(reply, answer)| (reply.to_string(), answer)).collect()
    }

    #[test]
    fn each_permitted_delivery_of_the_session_is_answered_once() {
        let id = |sequence| RecordId::new(sequence, 1);
        let mut window = window(&[1, 2, 3]);
        assert_eq!(window.len(), 3);
        let permits = Permits::for_acks(&[id(1), id(2), id(9), RecordId::new(3, 2)], 9).with_rejected(&[id(2)]);
        let expected = [("2".to_owned(), Answer::Term), ("1".to_owned(), Answer::Ack)];
        assert_eq!(named(window.answers(&permits, false)), expected, "9 is of another session, 3 of another life");
        assert_eq!((window.len(), window.answers(&permits, false)), (1, Vec::new()));
        assert_eq!(named(window.answers(&Permits::for_acks(&[id(3)], 9), false)), [("3".to_owned(), Answer::Ack)]);
    }

    #[test]
    fn with_ack_all_the_highest_at_or_below_the_floor_is_acked_for_all() {
        let mut window = window(&[1, 2, 4]);
        let floor = |floor| Permits::for_acks(&[RecordId::new(4, 1)], floor).with_rejected(&[RecordId::new(1, 1)]);
        assert_eq!(window.answers(&floor(0), true), []);
        assert_eq!(named(window.answers(&floor(3), true)), [("2".to_owned(), Answer::Ack)]);
        assert_eq!((window.len(), window.answers(&floor(3), true)), (1, Vec::new()), "1 and 2 are done");
        assert_eq!(named(window.answers(&floor(4), true)), [("4".to_owned(), Answer::Ack)]);
        assert_eq!(window.len(), 0);
    }

    #[test]
    fn a_newer_delivery_of_a_record_is_the_one_to_answer() {
        let mut window = window(&[1]);
        window.add(RecordId::new(1, 1), "again".into()).expect("a redelivery");
        assert_eq!(named(window.answers(&Permits::for_acks(&[RecordId::new(1, 1)], 1), false))[0].0, "again");
    }

    #[test]
    fn the_same_sequence_again_ends_the_session_unless_it_is_a_redelivery() {
        let mut chain = Chain::new(true);
        assert_eq!(chain.take(&delivery(5, 1, 1)), Ok(None));
        assert_eq!(chain.take(&delivery(5, 2, 2)), Ok(None));
        assert_eq!(chain.take(&delivery(5, 3, 1)), Err(SessionEnd::WentBack { before: 5, now: 5 }));
        let mut chain = Chain::new(true);
        assert_eq!(chain.take(&delivery(5, 4, 1)), Ok(None));
        let again = SessionEnd::ConsumerRestarted { before: 4, now: 4 };
        assert_eq!(chain.take(&delivery(6, 4, 1)), Err(again));
    }
}
