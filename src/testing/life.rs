//! The loop around a guard, with a stream and a consumer in memory: what a driver does.

mod accidents;

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use async_nats::HeaderMap;
use bytes::Bytes;

use super::books::Books;
use super::conformance::{Conformance, Facts};
use super::report::{Found, Promise};
use super::watched::{Watch, Watched, WatchedStore};
use super::{Held, Storage};
use crate::coverage::Coverage;
use crate::error::{GuardError, OpenError, chain};
use crate::guard::{Guard, Offer, Permits};
use crate::memory_stream::MemoryStream;
use crate::record::{Record, RecordId};
use crate::rng::Rng;
use crate::sink::{Reason, Recovered};
use crate::source::Source;
use crate::store::MemoryStore;

/// After so many rounds without coming to rest something writes for ever.
const ROUNDS: usize = 6;

/// Why a step did not come to its end.
#[derive(Debug)]
pub(super) enum Stop {
    /// The process died, or a call failed, as planned. What follows is [`Life::crash`].
    Died,
    Broken(Box<Found>),
}

impl From<Found> for Stop {
    fn from(found: Found) -> Self {
        Self::Broken(Box::new(found))
    }
}

pub(super) fn broken<T>(promise: Promise, what: impl Into<String>) -> Result<T, Stop> {
    Err(Found::of(promise, what.into()).into())
}

/// What dies with the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Crash {
    /// The power goes too, and with it what was not synced.
    pub(super) power: bool,
    /// The checkpoint is gone as well.
    pub(super) checkpoint: bool,
}

impl Crash {
    pub(super) const KILL: Self = Self { power: false, checkpoint: false };
    pub(super) const POWER: Self = Self { power: true, checkpoint: false };
}

/// One source, its stream, its consumer and its guard, over a storage.
pub(super) struct Life<'a, S: Storage> {
    pub(super) facts: Facts,
    storage: &'a S,
    pub(super) source: Source,
    stream: MemoryStream,
    pub(super) watch: Watch,
    pub(super) rng: Rng,
    pub(super) books: Books,
    pub(super) guard: Option<Guard<Watched<S::Sink>>>,
    place: MemoryStore,
    /// What the stream holds.
    messages: Vec<Record>,
    acked: BTreeSet<u64>,
    /// What the consumer delivers next, in this order.
    pub(super) queue: VecDeque<u64>,
    /// Delivered in this session.
    seen: BTreeSet<u64>,
    /// The newest first delivery of this session.
    newest: Option<u64>,
    /// A fork that no guard has been told of.
    forked: bool,
    /// The sink says `Exactly`.
    exact: bool,
    /// The storage is to fail, so the sink may.
    failing: bool,
}

impl<'a, S: Storage> Life<'a, S> {
    pub(super) fn new(kit: &Conformance, facts: Facts, storage: &'a S, name: String, rng: Rng, watch: Watch) -> Self {
        Self {
            facts,
            storage,
            source: Source::new(name),
            stream: MemoryStream::new(),
            watch,
            rng,
            books: Books::new(kit.unit),
            guard: None,
            place: MemoryStore::new(),
            messages: Vec::new(),
            acked: BTreeSet::new(),
            queue: VecDeque::new(),
            seen: BTreeSet::new(),
            newest: None,
            forked: false,
            exact: false,
            failing: false,
        }
    }

    /// A message comes into the stream.
    pub(super) fn publish_message(&mut self, subject: &str, headers: HeaderMap, payload: impl Into<Bytes>) -> RecordId {
        // Times as servers give them, not whole seconds.
        self.stream.pass(Duration::from_nanos(self.rng.below(1_000_000_007)));
        let record = self.stream.publish_with_headers(subject, headers, payload);
        let id = record.id();
        self.books.published(record.clone());
        self.queue.push_back(record.sequence);
        self.messages.push(record);
        id
    }

    /// So many ordinary messages.
    pub(super) fn publish(&mut self, count: u64) {
        for _ in 0..count {
            let kind = self.rng.below(4);
            let subject = self.source.filters().first().cloned().unwrap_or_else(|| format!("conformance.{kind}"));
            let mut headers = HeaderMap::new();
            if kind == 0 {
                headers.append("Kind", "zero");
            }
            let text = format!("{} {} {:016x}", self.source, self.books.lives(), self.rng.next());
            self.publish_message(&subject, headers, text);
        }
        self.watch.step(format!("published {count}, through {}", self.last()));
    }

    pub(super) fn last(&self) -> u64 {
        self.messages.last().map_or(0, |record| record.sequence)
    }

    pub(super) fn messages(&self) -> &[Record] {
        &self.messages
    }

    /// Opens a guard over a new sink and begins a session.
    pub(super) async fn open(&mut self) -> Result<(), Stop> {
        self.watch.step("a new sink");
        let sink = self.new_sink().await?;
        let store = WatchedStore::new(self.place.clone(), self.watch.clone());
        let opening =
            Guard::open(self.source.clone(), Watched::new(sink, self.watch.clone()), store, self.stream.clone());
        let opened = self.watch.run(opening).await;
        // What the sink said counts, also if the opening came no further: it may be in a checkpoint by now.
        let recovered = std::mem::take(&mut self.watch.notes().recovered);
        self.see(Promise::Kept).await?;
        for recovered in &recovered {
            let named = self.books.named(&self.source, recovered);
            self.books.recovered(named)?;
        }
        self.compare_lists()?;
        let guard = match opened {
            None => return Err(Stop::Died),
            Some(Err(error)) => return Err(self.failed(&error, matches!(error, OpenError::Sink(_)))),
            Some(Ok(guard)) => guard,
        };
        self.books.opened(guard.coverage());
        // An exact sink speaks against the checkpoint, and its claims have one witness for a run of records: what a fork left
        // of a run is written again after the next opening.
        self.exact |= recovered.iter().any(|recovered| matches!(recovered, Recovered::Exactly { .. }));
        if self.forked || self.may_forget() {
            self.books.allow_uncovered(guard.coverage());
        }
        let to = guard.report().move_to;
        self.guard = Some(guard);
        if let Some(to) = to {
            self.move_to(to);
        }
        self.session().await
    }

    /// Whether what a fork left of a run of records may be written again at an opening.
    const fn may_forget(&self) -> bool {
        self.exact && self.books.lives() > 1
    }

    /// Compares what the sink listed meanwhile, if it was asked.
    pub(super) async fn see_lists(&mut self) -> Result<(), Stop> {
        if self.watch.notes().listed.is_empty() {
            return Ok(());
        }
        self.see(Promise::Kept).await?;
        self.compare_lists()
    }

    /// The same with what was just seen to be held.
    fn compare_lists(&mut self) -> Result<(), Stop> {
        let lists = std::mem::take(&mut self.watch.notes().listed);
        for listed in lists {
            self.books.listed(&listed)?;
        }
        Ok(())
    }

    /// A sink that nobody watches.
    pub(super) async fn new_sink(&mut self) -> Result<S::Sink, Stop> {
        match self.storage.open(&self.source).await {
            Ok(sink) => Ok(sink),
            Err(_) if self.failing => Err(Stop::Died),
            Err(error) => broken(Promise::Works, format!("no new sink: {}", chain(&*error))),
        }
    }

    /// A new subscription: what is not acked is delivered again.
    pub(super) async fn session(&mut self) -> Result<(), Stop> {
        for _ in 0..ROUNDS {
            self.seen.clear();
            self.newest = None;
            self.queue =
                self.messages.iter().map(|record| record.sequence).filter(|s| !self.acked.contains(s)).collect();
            let Some(guard) = self.guard.as_mut() else { return broken(Promise::Works, "there is no guard") };
            let permits = self.watch.run(guard.begin_session()).await;
            self.see_lists().await?;
            let permits = self.outcome(permits)?;
            let moved = permits.move_to().is_some();
            self.obey(&permits).await?;
            if !moved {
                self.forked = false;
                return Ok(());
            }
        }
        broken(Promise::Works, "session follows session")
    }

    fn move_to(&mut self, to: u64) {
        self.acked.retain(|sequence| *sequence < to);
        if let Some(guard) = self.guard.as_mut() {
            guard.moved();
        }
    }

    /// Delivers the next of the queue; `false` if there is none.
    pub(super) async fn deliver_next(&mut self) -> Result<bool, Stop> {
        let Some(sequence) = self.queue.pop_front() else { return Ok(false) };
        self.deliver(sequence).await?;
        Ok(true)
    }

    /// Delivers all of the queue, and flushes whenever so many were delivered, and in the end.
    pub(super) async fn archive(&mut self, each: usize) -> Result<(), Stop> {
        let mut count = 0;
        while self.deliver_next().await? {
            count += 1;
            if count == each {
                self.flush(Reason::Due).await?;
                count = 0;
            }
        }
        if count > 0 { self.flush(Reason::Due).await } else { Ok(()) }
    }

    /// Delivers this message, for the first time or again.
    pub(super) async fn deliver(&mut self, sequence: u64) -> Result<(), Stop> {
        let Ok(index) = self.messages.binary_search_by_key(&sequence, |record| record.sequence) else { return Ok(()) };
        for _ in 0..ROUNDS {
            let Some(record) = self.messages.get(index).cloned() else { return Ok(()) };
            let id = record.id();
            let follows = self.follows(index, sequence);
            let Some(guard) = self.guard.as_mut() else { return broken(Promise::Works, "there is no guard") };
            let offered = self.watch.run(guard.offer(record, follows)).await;
            if let Some(Err(GuardError::FlushDue)) = offered {
                self.flush(Reason::Due).await?;
                continue;
            }
            if !matches!(offered, Some(Ok(Offer::Skipped | Offer::Pending))) {
                self.books.offered(id);
            }
            let offer = self.outcome(offered)?;
            if self.seen.insert(sequence) {
                self.newest = Some(sequence);
            }
            return if offer == Offer::Full { self.flush(Reason::Due).await } else { Ok(()) };
        }
        broken(Promise::Works, "a flush is due before every record")
    }

    /// What is known of the way from the delivery before to this one: nothing lies between, if both came first and the
    /// stream holds nothing between them.
    fn follows(&self, index: usize, sequence: u64) -> Option<u64> {
        let before = index.checked_sub(1).and_then(|before| self.messages.get(before)).map(|record| record.sequence);
        before.filter(|_| !self.seen.contains(&sequence)).filter(|before| self.newest == Some(*before))
    }

    pub(super) async fn flush_for_some_reason(&mut self) -> Result<(), Stop> {
        let reason = if self.rng.one_in(3) { Reason::Everything } else { Reason::Due };
        self.flush(reason).await
    }

    pub(super) async fn flush(&mut self, reason: Reason) -> Result<(), Stop> {
        let Some(guard) = self.guard.as_mut() else { return broken(Promise::Works, "there is no guard") };
        let flushes = self.watch.notes().flushes;
        let permits = self.watch.run(guard.flush(reason)).await;
        let reached = self.watch.notes().flushes > flushes;
        let permits = self.outcome(permits)?;
        if reached {
            self.watch.step(format!("flushed, {reason:?}: {} acks", permits.acks().len()));
        }
        // Where nothing reached the sink, and nothing is acked, there is no step to die between.
        if !permits.acks().is_empty() && self.watch.reach("after the checkpoint, before the acks").is_some() {
            return Err(Stop::Died);
        }
        self.obey(&permits).await?;
        if permits.move_to().is_some() { self.session().await } else { Ok(()) }
    }

    async fn obey(&mut self, permits: &Permits) -> Result<(), Stop> {
        if let Some(error) = permits.unknown() {
            return broken(Promise::Works, format!("the stream in memory could not be asked: {error}"));
        }
        for id in permits.acks() {
            self.books.permitted(*id)?;
            self.acked.insert(id.sequence);
        }
        if let Some(fork) = permits.fork() {
            self.watch.step(format!("the guard finds a fork at {}", fork.at));
            self.books.orphaned(&fork.orphaned);
            self.see(Promise::Kept).await?;
            let covered = self.guard.as_ref().map(|guard| guard.coverage().clone()).unwrap_or_default();
            self.books.allow_uncovered(&covered);
        }
        if let Some(to) = permits.move_to() {
            self.move_to(to);
        }
        Ok(())
    }

    /// Takes down what the sink said, and what a call came to.
    fn outcome<T>(&mut self, outcome: Option<Result<T, GuardError>>) -> Result<T, Stop> {
        self.listen()?;
        match outcome {
            None => Err(Stop::Died),
            Some(Ok(value)) => Ok(value),
            Some(Err(GuardError::NotEverything { left })) => {
                broken(Promise::Answered, format!("a flush of everything left {left} records that are not durable"))
            }
            Some(Err(error)) => Err(self.failed(&error, matches!(error, GuardError::Sink { .. }))),
        }
    }

    fn failed(&self, error: &(dyn std::error::Error + 'static), of_sink: bool) -> Stop {
        if self.watch.was_struck() || (self.failing && of_sink) {
            let said = self.watch.notes().error.take();
            if let Some(said) = said {
                self.watch.step(format!("the sink fails: {said}"));
            }
            return Stop::Died;
        }
        Found::of(Promise::Works, format!("nothing was made to fail, and: {}", chain(error))).into()
    }

    /// What the sink said since.
    pub(super) fn listen(&mut self) -> Result<(), Stop> {
        let (durable, rejected, offence) = {
            let mut notes = self.watch.notes();
            (std::mem::take(&mut notes.durable), std::mem::take(&mut notes.rejected), notes.offence.take())
        };
        self.books.said(durable);
        for id in rejected {
            self.books.rejected(id);
        }
        match offence {
            Some(offence) => broken(Promise::Answered, offence),
            None => Ok(()),
        }
    }

    /// Looks at what is held; `lost_by` is broken if something is missing.
    pub(super) async fn see(&mut self, lost_by: Promise) -> Result<(), Stop> {
        let held = self.held().await?;
        Ok(self.books.audit(&held, lost_by)?)
    }

    async fn held(&mut self) -> Result<Vec<Held>, Stop> {
        self.storage
            .held(&self.source)
            .await
            .or_else(|error| broken(Promise::Faithful, format!("what is held cannot be read: {}", chain(&*error))))
    }

    /// Delivers everything again until nothing is written any more, and has all that the stream has.
    pub(super) async fn rest(&mut self) -> Result<(), Stop> {
        self.mend().await?;
        for _ in 0..ROUNDS {
            let writes = self.watch.notes().writes;
            self.rewind().await?;
            self.archive(usize::MAX).await?;
            self.flush(Reason::Everything).await?;
            let pending = self.guard.as_ref().map_or(0, Guard::pending);
            if pending == 0 && self.watch.notes().writes == writes {
                self.see(Promise::Kept).await?;
                return Ok(self.books.complete(&self.messages)?);
            }
        }
        broken(Promise::Once, "what was archived is written again and again, whenever it is delivered")
    }

    /// Comes to rest, stops, with the power cut, begins again, and has nothing to do.
    pub(super) async fn finish(&mut self) -> Result<(), Stop> {
        if self.guard.is_none() {
            self.open().await?;
        }
        self.rest().await?;
        self.crash(Crash::POWER).await?;
        let taken = self.watch.notes().taken;
        self.open().await?;
        self.rest().await?;
        // One that the sink rejects may come again: an exact sink has no claim for it.
        let again = self.watch.notes().taken - taken;
        if again > 0 && !self.may_forget() {
            return broken(Promise::Once, format!("{again} records were written again after a clean stop"));
        }
        self.crash(Crash::KILL).await
    }

    pub(super) fn coverage(&self) -> Coverage {
        self.guard.as_ref().map(|guard| guard.coverage().clone()).unwrap_or_default()
    }
}
