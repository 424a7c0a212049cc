//! The stream, and how it is asked.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use futures_util::future::BoxFuture;
use replay_guard::{ObserveError, Observer, Reading, Record, RecordId, StreamView, Witness};

use super::{MS, Stutter};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) subject: String,
    pub(crate) payload: String,
    pub(crate) published: i64,
}

impl Message {
    pub(crate) fn record(&self, sequence: u64) -> Record {
        Record::new(sequence, self.published, self.subject.clone(), self.payload.clone())
    }

    pub(crate) const fn id(&self, sequence: u64) -> RecordId {
        RecordId::new(sequence, self.published)
    }

    fn witness(&self, sequence: u64) -> Witness {
        Witness::new(self.id(sequence), &self.subject, self.payload.as_bytes())
    }
}

#[derive(Clone, Debug)]
pub(crate) struct State {
    pub(crate) messages: BTreeMap<u64, Message>,
    pub(crate) last: u64,
    /// The wall clock, Unix nanoseconds.
    pub(crate) clock: i64,
    pub(crate) created: i64,
    pub(crate) work_queue: bool,
    /// How many messages of one subject are kept.
    pub(crate) per_subject: Option<usize>,
    /// Changes when a client would notice that the server went away.
    pub(crate) connection: u64,
    /// So many requests about the stream fail.
    pub(crate) silent: u32,
    pub(crate) denied: bool,
    pub(crate) requests: u64,
    /// Every call is pending so many times before and after it does its work.
    pub(crate) stutter: u32,
    /// How far the clock moves with a publish.
    pub(crate) pace: i64,
    serial: u64,
    backup: Option<(BTreeMap<u64, Message>, u64)>,
}

/// A stream that everybody in the test shares.
#[derive(Clone, Debug)]
pub(crate) struct World(Arc<Mutex<State>>);

impl World {
    pub(crate) fn new() -> Self {
        let clock = 1_700_000_000_000_000_000;
        Self(Arc::new(Mutex::new(State {
            messages: BTreeMap::new(),
            last: 0,
            clock,
            created: clock,
            work_queue: false,
            per_subject: None,
            connection: 1,
            silent: 0,
            denied: false,
            requests: 0,
            stutter: 0,
            pace: MS,
            serial: 0,
            backup: None,
        })))
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    pub(crate) fn pass(&self, nanoseconds: i64) {
        self.state().clock += nanoseconds;
    }

    pub(crate) fn publish_to(&self, subject: &str) -> u64 {
        let mut state = self.state();
        state.clock += state.pace;
        state.serial += 1;
        state.last += 1;
        let (sequence, payload, published) = (state.last, format!("message {}", state.serial), state.clock);
        state.messages.insert(sequence, Message { subject: subject.to_owned(), payload, published });
        if let Some(keep) = state.per_subject {
            let mut same: Vec<u64> =
                state.messages.iter().filter(|(_, message)| message.subject == subject).map(|(at, _)| *at).collect();
            same.truncate(same.len().saturating_sub(keep));
            for at in same {
                state.messages.remove(&at);
            }
        }
        sequence
    }

    pub(crate) fn publish(&self, count: u64) {
        for _ in 0..count {
            self.publish_to("orders.new");
        }
    }

    pub(crate) fn delete(&self, sequence: u64) {
        self.state().messages.remove(&sequence);
    }

    pub(crate) fn purge(&self) {
        self.state().messages.clear();
    }

    pub(crate) fn expire_below(&self, sequence: u64) {
        let mut state = self.state();
        state.messages = state.messages.split_off(&sequence);
    }

    /// A power cut takes all above this sequence. The numbers are used again.
    pub(crate) fn lose_to(&self, sequence: u64) {
        let mut state = self.state();
        state.clock += 150 * MS;
        if sequence < state.last {
            state.messages.split_off(&(sequence + 1));
            state.last = sequence;
        }
    }

    /// Deleted and made anew.
    pub(crate) fn recreate(&self) {
        let mut state = self.state();
        state.clock += 150 * MS;
        state.messages.clear();
        state.last = 0;
        state.created = state.clock;
    }

    /// The creation time moves for the very same stream.
    pub(crate) fn drift(&self) {
        let mut state = self.state();
        state.created += 7 * MS;
    }

    pub(crate) fn back_up(&self) {
        let mut state = self.state();
        state.backup = Some((state.messages.clone(), state.last));
    }

    /// Deleted and restored from the backup: the same messages, another creation time.
    pub(crate) fn restore(&self) {
        let mut state = self.state();
        let (messages, last) = state.backup.clone().unwrap();
        state.clock += 150 * MS;
        state.messages = messages;
        state.last = last;
        state.created = state.clock;
    }

    /// The server goes away for a moment and every client notices.
    pub(crate) fn disconnect(&self) {
        self.state().connection += 1;
    }

    pub(crate) fn get(&self, sequence: u64) -> Option<Message> {
        self.state().messages.get(&sequence).cloned()
    }

    /// The first message of the source at or above this sequence.
    pub(crate) fn first_at(&self, sequence: u64, prefix: &str) -> Option<(u64, Message)> {
        let state = self.state();
        let found = state.messages.range(sequence..).find(|(_, message)| message.subject.starts_with(prefix));
        found.map(|(at, message)| (*at, message.clone()))
    }

    pub(crate) fn all(&self, prefix: &str) -> Vec<Record> {
        let state = self.state();
        let ours = state.messages.iter().filter(|(_, message)| message.subject.starts_with(prefix));
        ours.map(|(at, message)| message.record(*at)).collect()
    }

    pub(crate) fn last(&self) -> u64 {
        self.state().last
    }

    pub(crate) fn requests(&self) -> u64 {
        self.state().requests
    }

    pub(crate) fn stutter(&self) -> Stutter {
        Stutter(self.state().stutter)
    }

    pub(crate) fn observer(&self, prefix: &str) -> WorldObserver {
        WorldObserver { world: self.clone(), prefix: prefix.to_owned() }
    }
}

/// Asks the world's stream.
#[derive(Clone, Debug)]
pub(crate) struct WorldObserver {
    world: World,
    prefix: String,
}

impl WorldObserver {
    async fn ask<T: Send>(&self, answer: impl FnOnce(&State) -> T + Send) -> Result<T, ObserveError> {
        self.world.stutter().await;
        let answer = {
            let mut state = self.world.state();
            state.requests += 1;
            if state.denied {
                return Err(ObserveError::Denied { subject: "$JS.API".into(), reason: "no permission".into() });
            }
            if state.silent > 0 {
                state.silent -= 1;
                return Err(ObserveError::Unavailable { reason: "no answer".into() });
            }
            answer(&state)
        };
        self.world.stutter().await;
        Ok(answer)
    }
}

impl Observer for WorldObserver {
    fn stream(&self) -> BoxFuture<'_, Result<StreamView, ObserveError>> {
        Box::pin(self.ask(|state| {
            let first = state.messages.keys().next().copied().unwrap_or(state.last + 1);
            let published = state.messages.values().next_back().map_or(0, |message| message.published);
            StreamView::new(state.created, first, state.last, published).with_acked_removed(state.work_queue)
        }))
    }

    fn read(&self, sequence: u64) -> BoxFuture<'_, Result<Reading, ObserveError>> {
        Box::pin(self.ask(move |state| match state.messages.get(&sequence) {
            Some(message) => Reading::Message(message.witness(sequence)),
            None if sequence > state.last => Reading::Above,
            None => Reading::Gone,
        }))
    }

    fn next(&self, sequence: u64) -> BoxFuture<'_, Result<Option<Witness>, ObserveError>> {
        Box::pin(self.ask(move |state| {
            let mut above = state.messages.range(sequence..);
            above.find(|(_, message)| message.subject.starts_with(&self.prefix)).map(|(at, found)| found.witness(*at))
        }))
    }
}
