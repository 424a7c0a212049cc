//! A durable pull consumer as servers behave, not as they promise.

use std::collections::BTreeSet;

use crate::{ConsumerPosition, Record, RecordId};

use super::{Rng, World};

/// What a server does with a consumer that stands beyond the end of its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AfterLoss {
    /// Nothing: it passes over the new messages below (2.12.8).
    Ahead,
    /// It is pulled back to the stream's last message (2.15).
    PulledBack,
}

#[derive(Clone, Debug)]
pub(crate) struct Delivery {
    pub(crate) record: Record,
    pub(crate) consumer_sequence: u64,
    pub(crate) first: bool,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Progress {
    pub(crate) delivered: u64,
    pub(crate) consumer_sequence: u64,
    /// Delivered and not acked.
    pub(crate) pending: BTreeSet<u64>,
    /// Whose ack wait is over, in the order they come again.
    pub(crate) again: Vec<u64>,
}

#[derive(Clone, Debug)]
pub(crate) struct Consumer {
    world: World,
    prefix: String,
    pub(crate) progress: Progress,
    snapshot: Progress,
    /// Where it was told to begin, until its first delivery.
    pub(crate) begins: Option<u64>,
    /// Acks that hit another message than they were meant for.
    pub(crate) wrong_acks: Vec<RecordId>,
}

impl Consumer {
    pub(crate) fn new(world: &World, prefix: &str) -> Self {
        Self {
            world: world.clone(),
            prefix: prefix.to_owned(),
            progress: Progress::default(),
            snapshot: Progress::default(),
            begins: Some(1),
            wrong_acks: Vec::new(),
        }
    }

    pub(crate) fn position(&self) -> ConsumerPosition {
        let floor = self.progress.pending.first().map_or(self.progress.delivered, |lowest| lowest - 1);
        ConsumerPosition::new(self.progress.delivered, floor)
    }

    pub(crate) fn pull(&mut self, count: usize) -> Vec<Delivery> {
        let mut deliveries = Vec::new();
        while deliveries.len() < count {
            let Some(delivery) = self.redelivery().or_else(|| self.first_delivery()) else { break };
            deliveries.push(delivery);
        }
        deliveries
    }

    fn redelivery(&mut self) -> Option<Delivery> {
        while !self.progress.again.is_empty() {
            let sequence = self.progress.again.remove(0);
            if !self.progress.pending.contains(&sequence) {
                continue;
            }
            // Whatever stands there now: after a fork, a message that was never delivered.
            if let Some(message) = self.world.get(sequence).filter(|message| message.subject.starts_with(&self.prefix))
            {
                self.progress.consumer_sequence += 1;
                let record = message.record(sequence);
                return Some(Delivery { record, consumer_sequence: self.progress.consumer_sequence, first: false });
            }
            self.progress.pending.remove(&sequence);
        }
        None
    }

    fn first_delivery(&mut self) -> Option<Delivery> {
        let (sequence, message) = self.world.first_at(self.progress.delivered + 1, &self.prefix)?;
        self.progress.delivered = sequence;
        self.progress.consumer_sequence += 1;
        self.progress.pending.insert(sequence);
        let record = message.record(sequence);
        Some(Delivery { record, consumer_sequence: self.progress.consumer_sequence, first: true })
    }

    pub(crate) fn ack(&mut self, id: RecordId) {
        let there = self.world.get(id.sequence).filter(|message| message.subject.starts_with(&self.prefix));
        if there.as_ref().is_some_and(|message| message.published != id.published) {
            self.wrong_acks.push(id);
        }
        if self.progress.pending.remove(&id.sequence) && self.world.state().work_queue {
            self.world.delete(id.sequence);
        }
    }

    /// The ack wait of all that is pending is over.
    pub(crate) fn expire(&mut self) {
        self.progress.again = self.progress.pending.iter().copied().collect();
    }

    /// The same; they come again in any order.
    pub(crate) fn expire_shuffled(&mut self, rng: &mut Rng) {
        self.expire();
        let again = &mut self.progress.again;
        for at in (1..again.len()).rev() {
            let other = usize::try_from(rng.below(at as u64 + 1)).unwrap();
            again.swap(at, other);
        }
    }

    /// Reset, or made anew, to begin here.
    pub(crate) fn move_to(&mut self, sequence: u64) {
        self.progress = Progress { delivered: sequence - 1, ..Progress::default() };
        self.begins = Some(sequence);
    }

    /// The server kept nothing of its state.
    pub(crate) fn forget(&mut self) {
        self.progress = Progress::default();
        self.begins = None;
    }

    pub(crate) fn remember(&mut self) {
        self.snapshot = self.progress.clone();
    }

    /// The server falls back to an older state of it.
    pub(crate) fn fall_back(&mut self) {
        if self.snapshot.delivered <= self.progress.delivered {
            self.progress = self.snapshot.clone();
            self.begins = None;
            self.expire();
        }
    }

    /// The stream lost its tail.
    pub(crate) fn after_loss(&mut self, what: AfterLoss) {
        let last = self.world.last();
        if what == AfterLoss::PulledBack {
            self.progress.delivered = self.progress.delivered.min(last);
            self.progress.pending.retain(|sequence| *sequence <= last);
        }
        self.expire();
    }
}
