//! The sink under test with somebody who listens and interferes: notes what it was told and what it answered, and lets the
//! call at hand fail, or the process die, where the scenario wants it.

use std::collections::BTreeSet;
use std::future::{Future, pending, poll_fn};
use std::ops::RangeInclusive;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use bytes::Bytes;
use futures_util::future::BoxFuture;

use crate::coverage::Coverage;
use crate::error::chain;
use crate::record::{Record, RecordId};
use crate::sink::{Durable, Flush, Reason, Recovered, Sink, Written};
use crate::source::Source;
use crate::store::{CheckpointStore, MemoryStore, StoreError, Stored};

/// How many of the last steps a report tells.
const STEPS: usize = 60;

/// What happens at a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Strike {
    /// The call fails.
    Fail,
    /// The call never comes back, and is dropped.
    Die,
}

/// What is known of a sink and what is planned for it. Clones share it; it outlives the sink.
#[derive(Clone, Debug, Default)]
pub(super) struct Watch(Arc<Mutex<Notes>>);

#[derive(Debug, Default)]
pub(super) struct Notes {
    /// Points between two steps that were reached so far.
    pub(super) points: u64,
    strike: Option<(u64, Strike)>,
    struck: bool,
    died: bool,
    /// How often a call waited so far.
    pub(super) waits: u64,
    waits_left: Option<u64>,
    /// With the sink at hand, and not named as durable yet.
    accepted: BTreeSet<RecordId>,
    /// All that the sink at hand ever accepted.
    known: BTreeSet<RecordId>,
    /// Named as durable, not taken from here yet.
    pub(super) durable: Vec<RecordId>,
    pub(super) rejected: Vec<RecordId>,
    pub(super) recovered: Vec<Recovered>,
    /// What the sink answered when it was asked which records of a range it holds.
    pub(super) listed: Vec<Vec<RecordId>>,
    pub(super) writes: u64,
    /// Writes of records that the sink took.
    pub(super) taken: u64,
    pub(super) flushes: u64,
    pub(super) full: u64,
    pub(super) partial: u64,
    pub(super) crashes: u64,
    /// An answer that a sink may not give.
    pub(super) offence: Option<String>,
    /// What the sink itself failed with.
    pub(super) error: Option<String>,
    steps: Vec<String>,
    forgotten: usize,
}

impl Watch {
    pub(super) fn notes(&self) -> MutexGuard<'_, Notes> {
        // A panic elsewhere leaves nothing half done in here.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on the point of this number, 0 being the next, is struck.
    pub(super) fn strike_at(&self, point: u64, strike: Strike) {
        let mut notes = self.notes();
        notes.strike = Some((notes.points.saturating_add(point), strike));
    }

    /// Nothing is planned any more. Whether something still was.
    pub(super) fn calm_plans(&self) -> bool {
        let mut notes = self.notes();
        let planned = notes.strike.is_some() || notes.waits_left.is_some();
        (notes.strike, notes.waits_left) = (None, None);
        planned
    }

    /// From now on a call that has waited so often is dropped.
    pub(super) fn cut_off_after(&self, waits: u64) {
        self.notes().waits_left = Some(waits);
    }

    /// Nothing is planned any more, and the sink at hand is gone.
    pub(super) fn calm(&self) {
        let mut notes = self.notes();
        notes.strike = None;
        notes.struck = false;
        notes.died = false;
        notes.waits_left = None;
        notes.error = None;
        notes.accepted.clear();
        notes.known.clear();
    }

    /// Whether the failure at hand was planned.
    pub(super) fn was_struck(&self) -> bool {
        self.notes().struck
    }

    /// Notes what was done.
    pub(super) fn step(&self, step: impl Into<String>) {
        let mut notes = self.notes();
        if notes.steps.len() >= STEPS {
            notes.steps.remove(0);
            notes.forgotten += 1;
        }
        notes.steps.push(step.into());
    }

    /// The last steps, one a line.
    pub(super) fn steps(&self) -> Vec<String> {
        let notes = self.notes();
        let before = (notes.forgotten > 0).then(|| format!("({} steps before)", notes.forgotten));
        before.into_iter().chain(notes.steps.iter().cloned()).collect()
    }

    /// A point between two steps. `Some`: here it happens.
    pub(super) fn reach(&self, point: &str) -> Option<Strike> {
        let mut notes = self.notes();
        let number = notes.points;
        notes.points += 1;
        let strike = notes.strike.take_if(|(at, _)| *at == number).map(|(_, strike)| strike)?;
        notes.struck = true;
        notes.died = strike == Strike::Die;
        drop(notes);
        self.step(match strike {
            Strike::Fail => format!("a failure {point}"),
            Strike::Die => format!("the process dies {point}"),
        });
        Some(strike)
    }

    async fn pass(&self, point: &str) -> Result<(), Struck> {
        match self.reach(point) {
            None => Ok(()),
            Some(Strike::Fail) => Err(Struck),
            Some(Strike::Die) => pending().await,
        }
    }

    /// Runs a call to its end, or drops it where that is planned: then `None`.
    pub(super) async fn run<T: Send>(&self, call: impl Future<Output = T> + Send) -> Option<T> {
        let mut call = pin!(call);
        poll_fn(|context| match call.as_mut().poll(context) {
            Poll::Ready(value) => Poll::Ready(Some(value)),
            Poll::Pending if self.ends_here() => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        })
        .await
    }

    fn ends_here(&self) -> bool {
        let mut notes = self.notes();
        if notes.died {
            return true;
        }
        notes.waits += 1;
        let Some(left) = notes.waits_left.as_mut() else { return false };
        let Some(less) = left.checked_sub(1) else {
            notes.struck = true;
            drop(notes);
            self.step("the call at hand is dropped where it waits");
            return true;
        };
        *left = less;
        false
    }

    fn wrote(&self, id: RecordId, written: &Written) {
        let mut notes = self.notes();
        notes.writes += 1;
        match written {
            Written::Rejected(_) => notes.rejected.push(id),
            Written::Accepted | Written::Full => {
                notes.full += u64::from(*written == Written::Full);
                notes.taken += 1;
                notes.accepted.insert(id);
                notes.known.insert(id);
            }
        }
    }

    fn flushed(&self, reason: Reason, durable: &Durable) {
        let mut notes = self.notes();
        notes.flushes += 1;
        match durable {
            Durable::All => {
                let accepted = std::mem::take(&mut notes.accepted);
                notes.durable.extend(accepted);
            }
            Durable::Only(ids) => {
                notes.partial += 1;
                for id in ids {
                    if notes.accepted.remove(id) {
                        notes.durable.push(*id);
                    } else if !notes.known.contains(id) {
                        notes.offence.get_or_insert(format!("a flush named {id}, which the sink was never given"));
                    }
                }
            }
        }
        let left = notes.accepted.len();
        if reason == Reason::Everything && left > 0 {
            notes.offence.get_or_insert(format!("a flush of everything left {left} records that are not durable"));
        }
    }
}

/// The failure that the scenario wanted.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("a failure that the conformance kit made")]
pub(super) struct Struck;

/// The error of a sink, or one that was made.
#[derive(Debug, thiserror::Error)]
pub(super) enum WatchedError<E: std::error::Error> {
    #[error(transparent)]
    Sink(E),
    #[error(transparent)]
    Struck(#[from] Struck),
}

/// The sink under test, watched.
#[derive(Debug)]
pub(super) struct Watched<S> {
    inner: S,
    watch: Watch,
}

impl<S: Sink> Watched<S> {
    pub(super) const fn new(inner: S, watch: Watch) -> Self {
        Self { inner, watch }
    }

    fn failed(watch: &Watch, error: S::Error) -> WatchedError<S::Error> {
        watch.notes().error = Some(chain(&error));
        WatchedError::Sink(error)
    }
}

impl<S: Sink> Sink for Watched<S> {
    type Error = WatchedError<S::Error>;

    async fn write(&mut self, record: Record) -> Result<Written, Self::Error> {
        self.watch.pass("before a write").await?;
        let id = record.id();
        let written = self.inner.write(record).await.map_err(|error| Self::failed(&self.watch, error))?;
        self.watch.wrote(id, &written);
        self.watch.pass("after a write").await?;
        Ok(written)
    }

    async fn flush(&mut self, flush: Flush<'_>) -> Result<Durable, Self::Error> {
        self.watch.pass("before a flush").await?;
        let durable = self.inner.flush(flush).await.map_err(|error| Self::failed(&self.watch, error))?;
        self.watch.flushed(flush.reason(), &durable);
        self.watch.pass("between the sink's flush and the checkpoint").await?;
        Ok(durable)
    }

    async fn recover(&mut self, source: &Source) -> Result<Recovered, Self::Error> {
        self.recover_beyond(source, &Coverage::default()).await
    }

    async fn recover_beyond(&mut self, source: &Source, checkpoint: &Coverage) -> Result<Recovered, Self::Error> {
        self.watch.pass("before the sink says what it holds").await?;
        let recovered = self.inner.recover_beyond(source, checkpoint).await;
        let recovered = recovered.map_err(|error| Self::failed(&self.watch, error))?;
        self.watch.notes().recovered.push(recovered.clone());
        self.watch.pass("after the sink said what it holds").await?;
        Ok(recovered)
    }

    async fn records_in(
        &mut self,
        source: &Source,
        sequences: RangeInclusive<u64>,
    ) -> Result<Vec<RecordId>, Self::Error> {
        self.watch.pass("before the sink says which records it holds").await?;
        let named = self.inner.records_in(source, sequences).await;
        let named = named.map_err(|error| Self::failed(&self.watch, error))?;
        self.watch.notes().listed.push(named.clone());
        Ok(named)
    }
}

/// A checkpoint in memory that may fail to be saved, or die on the way.
#[derive(Debug)]
pub(super) struct WatchedStore {
    inner: MemoryStore,
    watch: Watch,
}

impl WatchedStore {
    pub(super) const fn new(inner: MemoryStore, watch: Watch) -> Self {
        Self { inner, watch }
    }
}

fn struck(struck: Struck) -> StoreError {
    StoreError::Other(Box::new(struck))
}

impl CheckpointStore for WatchedStore {
    fn open(&mut self) -> BoxFuture<'_, Result<Stored, StoreError>> {
        self.inner.open()
    }

    fn save(&mut self, version: u16, body: Bytes) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            self.watch.pass("before the checkpoint is saved").await.map_err(struck)?;
            self.inner.save(version, body).await?;
            self.watch.pass("after the checkpoint was saved").await.map_err(struck)
        })
    }

    fn set_aside(&mut self) -> BoxFuture<'_, Result<Option<String>, StoreError>> {
        self.inner.set_aside()
    }

    fn location(&self) -> String {
        self.inner.location()
    }
}
