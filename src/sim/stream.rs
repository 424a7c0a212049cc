//! The stream, and how it is asked.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::{ObserveError, Observer, Reading, Record, RecordId, StreamView, Witness};
use futures_util::future::BoxFuture;

use super::{MS, Server, Stutter};

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
    pub(super) backup: Option<(BTreeMap<u64, Message>, u64)>,
    /// What the server is beyond a stream, in the lives of a whole archiver.
    pub(crate) server: Server,
}

impl State {
    pub(crate) fn pass(&mut self, nanoseconds: i64) {
        self.clock += nanoseconds;
        self.server.mono += nanoseconds;
    }

    pub(crate) fn publish(&mut self, subject: &str) -> u64 {
        self.pass(self.pace);
        self.serial += 1;
        self.last += 1;
        let (sequence, payload, published) = (self.last, format!("message {}", self.serial), self.clock);
        self.messages.insert(sequence, Message { subject: subject.to_owned(), payload, published });
        if let Some(keep) = self.per_subject {
            let mut same: Vec<u64> =
                self.messages.iter().filter(|(_, message)| message.subject == subject).map(|(at, _)| *at).collect();
            same.truncate(same.len().saturating_sub(keep));
            for at in same {
                self.messages.remove(&at);
            }
        }
        sequence
    }

    /// No server comes back within 100 ms; nor does its clock, set back meanwhile, happen to say so.
    fn restart_clock(&mut self) {
        self.pass(150 * MS);
        while self.messages.values().any(|message| (0..100 * MS).contains(&(self.clock - message.published))) {
            self.pass(150 * MS);
        }
    }

    pub(crate) fn lose_to(&mut self, sequence: u64) {
        self.restart_clock();
        if sequence < self.last {
            self.messages.split_off(&(sequence + 1));
            self.last = sequence;
        }
    }

    pub(crate) fn recreate(&mut self) {
        self.restart_clock();
        self.messages.clear();
        self.last = 0;
        self.created = self.clock;
    }

    pub(crate) fn restore(&mut self) {
        let Some((messages, last)) = self.backup.clone() else { return };
        self.restart_clock();
        self.messages = messages;
        self.last = last;
        self.created = self.clock;
    }
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
            server: Server::default(),
        })))
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    pub(crate) fn pass(&self, nanoseconds: i64) {
        self.state().pass(nanoseconds);
    }

    pub(crate) fn publish_to(&self, subject: &str) -> u64 {
        self.state().publish(subject)
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
        self.state().lose_to(sequence);
    }

    /// Deleted and made anew.
    pub(crate) fn recreate(&self) {
        self.state().recreate();
    }

    /// The creation time moves for the very same stream.
    pub(crate) fn drift(&self) {
        self.state().created += 7 * MS;
    }

    pub(crate) fn back_up(&self) {
        let mut state = self.state();
        state.backup = Some((state.messages.clone(), state.last));
    }

    /// Deleted and restored from the backup: the same messages, another creation time.
    pub(crate) fn restore(&self) {
        self.state().restore();
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

    /// The first message of the source for which this holds.
    pub(crate) fn find(&self, prefix: &str, mut wanted: impl FnMut(RecordId, &Message) -> bool) -> Option<RecordId> {
        let state = self.state();
        let mut ours = state.messages.iter().filter(|(_, message)| message.subject.starts_with(prefix));
        ours.find(|(at, message)| wanted(message.id(**at), message)).map(|(at, message)| message.id(*at))
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
            state.tick();
            if state.denied {
                return Err(ObserveError::Denied { subject: "$JS.API".into(), reason: "no permission".into() });
            }
            if state.is_silent() {
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
