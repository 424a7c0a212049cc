//! The guard: decides what reaches a sink, verifies what the sink made durable, and permits acks.

mod check;
mod core;
mod fork;
mod letters;
mod open;
mod passed;
mod permits;
mod recall;
mod refine;
mod report;
mod verify;

use crate::checkpoint::StateId;
use crate::error::{GuardError, chain};
use crate::events;
use crate::ledger::Class;
use crate::observer::ObserveError;
use crate::record::Record;
use crate::sink::{Flush, Reason, Sink, Written};
use crate::source::Source;
use crate::store::CheckpointStore;
use crate::witness::Witness;

use self::core::Core;
pub use letters::Reported;
#[cfg(test)]
pub(crate) use open::seed_state_ids;
pub use open::{OnDamage, Opening, Origin};
pub use permits::{Fork, Permits};
pub use report::{Counters, OpenReport, Trust};

/// What became of a delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Offer {
    /// Handed to the sink.
    Written,
    /// Handed to the sink, which wants a flush before the next record.
    Full,
    /// The sink can never store it, for this reason. It counts as done after the next flush, once the dead-letter hook took it
    /// ([`Guard::report_rejected`]).
    Rejected(String),
    /// This very record is with the sink already: not written again. The acker of this delivery replaces the older one.
    Pending,
    /// Archived: not written. May be acked once a flush has verified it.
    Skipped,
}

/// Where a consumer stands, as its info says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConsumerPosition {
    /// The highest stream sequence delivered.
    pub delivered: u64,
    /// The ack floor's stream sequence. Proof of nothing: it passes messages that nobody acked.
    pub ack_floor: u64,
}

impl ConsumerPosition {
    /// A position from its two stream sequences.
    pub const fn new(delivered: u64, ack_floor: u64) -> Self {
        Self { delivered, ack_floor }
    }
}

/// Whether a consumer stands where it will deliver all that is not archived.
#[derive(Debug)]
#[non_exhaustive]
#[must_use = "a consumer that passed over a message never delivers it by itself"]
pub enum Placement {
    /// It passed over nothing.
    Stands,
    /// It passed over nothing as far as was looked, which is bounded: the next look goes on from there.
    StandsSoFar,
    /// It passed over this message, which is not archived. Look again before acting: the answer may be of the moment.
    PassedOver(u64),
    /// It stands beyond the stream's end; move it to this sequence.
    Beyond {
        /// The sequence its next delivery shall be at or above.
        to: u64,
    },
    /// The stream forked; see [`Permits::fork`].
    Fork(Permits),
    /// The stream could not be asked.
    Unknown(ObserveError),
}

/// Stands in front of a sink: nothing lost, nothing written twice, whatever the server forgot.
///
/// Offer it every delivery, flush it when it is time, ack what the [`Permits`] name. It knows no NATS client, no acks and
/// no clock; [`Driver`](crate::Driver) is a loop around it that does.
///
/// # Cancel safety
///
/// A call that fails, or whose future is dropped half way, closes the guard and drops the sink: a write or a sync that was
/// interrupted has an unknown outcome, and trying it again may report a success that is none. Every later call says
/// [`GuardError::Closed`]. Nothing is lost: what was not permitted is delivered again, to the next guard.
#[derive(Debug)]
pub struct Guard<S> {
    sink: Option<S>,
    core: Core,
}

impl<S: Sink> Guard<S> {
    /// Opens a guard over a sink, in one step: loads the checkpoint, asks the sink what it holds, verifies both against the
    /// stream, and saves. [`Opening`] is the same in steps.
    ///
    /// # Errors
    ///
    /// See [`OpenError`](crate::OpenError). The sink is dropped.
    pub async fn open(
        source: Source,
        mut sink: S,
        store: impl CheckpointStore + 'static,
        observer: impl crate::observer::Observer + 'static,
    ) -> Result<Self, crate::error::OpenError> {
        let mut opening = Opening::load(source, store, OnDamage::default()).await?;
        opening.recover(&mut sink).await?;
        opening.open(sink, observer, Origin::Beginning).await
    }

    /// Begins a session: one subscription on one consumer on one connection. To be called before the first delivery, and
    /// whenever the deliveries may come from another life of the stream: after a reconnect, a move, a new subscription.
    ///
    /// Everything skipped but not yet permitted is forgotten with the ackers it had; records that are with the sink are
    /// kept and read back. Permits nothing; says whether there was a fork or the stream could not be asked. In the latter
    /// case call it again after a while.
    ///
    /// # Errors
    ///
    /// If the checkpoint of a fork cannot be saved, or the stream may not be read. Closes the guard.
    ///
    /// # Cancel safety
    ///
    /// Closes the guard.
    pub async fn begin_session(&mut self) -> Result<Permits, GuardError> {
        let mut sink = self.enter()?;
        let outcome = self.core.begin_session(&mut sink).await;
        let (pending, unreported) = (self.pending(), self.core.ledger.unreported());
        self.leave(sink, outcome.map(|permits| Permits { pending, unreported, ..permits }))
    }

    /// Offers a delivery. `follows` is the driver's knowledge that nothing of the source lies between the stream sequence
    /// it names and this delivery: the delivery before, if both are first deliveries with consecutive consumer sequences in
    /// one session and rising stream sequence. `None` where nothing is known; never with a deliver policy of
    /// `last_per_subject`. The first delivery of a session follows nothing: where a consumer begins, the stream is asked.
    ///
    /// # Errors
    ///
    /// [`GuardError::FlushDue`] and [`GuardError::MovePending`] leave the guard open. A sink that fails closes it.
    ///
    /// # Cancel safety
    ///
    /// Closes the guard if the sink was being written to.
    pub async fn offer(&mut self, record: Record, follows: Option<u64>) -> Result<Offer, GuardError> {
        if self.sink.is_none() {
            return Err(GuardError::Closed);
        }
        let id = record.id();
        let class = self.core.may_offer(id)?;
        let link = self.core.arrive(id, follows);
        match class {
            Class::Archived => {
                self.core.skip(id);
                Ok(Offer::Skipped)
            }
            Class::Pending => {
                self.core.counters.pending += 1;
                Ok(Offer::Pending)
            }
            Class::Fresh => {
                let witness = Witness::new(id, &record.subject, &record.payload);
                let kept = self.core.letters.may_need(&record);
                let mut sink = self.enter()?;
                let written = sink.write(record).await;
                let written = written.map_err(|error| GuardError::Sink { action: "write", source: Box::new(error) });
                let written = self.leave(sink, written)?;
                self.core.accept(witness, link, &written, kept);
                Ok(match written {
                    Written::Accepted => Offer::Written,
                    Written::Full => Offer::Full,
                    Written::Rejected(reason) => Offer::Rejected(reason),
                })
            }
        }
    }

    /// Hands one record that the sink rejected to the dead-letter hook; call it before a flush, as long as there are any
    /// ([`unreported`](Self::unreported)). Only what the hook took is permitted by the next flush; the others stay pending,
    /// with their payload, so a loop takes no more deliveries when too many wait. One that the hook did not take comes up
    /// again after the others; wait a while before that.
    ///
    /// # Errors
    ///
    /// [`GuardError::Closed`] only; a hook that fails is no error but [`Reported::Failed`].
    ///
    /// # Cancel safety
    ///
    /// May be dropped, and leaves the guard open: the record waits, and is handed to the hook again.
    pub async fn report_rejected(&mut self) -> Result<Reported, GuardError> {
        if self.sink.is_none() {
            return Err(GuardError::Closed);
        }
        Ok(self.core.report_rejected().await)
    }

    /// Makes durable what the sink holds, verifies it and everything skipped against the stream, saves the checkpoint, and
    /// says what may be acked. With nothing pending the sink is not called and nothing is saved; what was skipped is
    /// verified all the same.
    ///
    /// # Errors
    ///
    /// A sink or store that fails, or a stream that may not be read, closes the guard; see [`GuardError`]. A stream that
    /// cannot be asked for the moment is no error but [`Permits::unknown`].
    ///
    /// # Cancel safety
    ///
    /// Closes the guard.
    pub async fn flush(&mut self, reason: Reason) -> Result<Permits, GuardError> {
        if let Some(to) = self.core.move_pending() {
            return Err(GuardError::MovePending { to });
        }
        let mut sink = self.enter()?;
        let outcome = Self::flush_with(&mut sink, &mut self.core, reason).await;
        let (pending, unreported) = (self.pending(), self.core.ledger.unreported());
        self.leave(sink, outcome.map(|permits| Permits { pending, unreported, ..permits }))
    }

    async fn flush_with(sink: &mut S, core: &mut Core, reason: Reason) -> Result<Permits, GuardError> {
        core.counters.flushes += 1;
        // A full sink is emptied also where a fork orphaned all that it holds.
        if core.ledger.in_sink() || core.full {
            let claims = core.claims();
            let durable = sink.flush(Flush::new(reason, &claims)).await;
            let durable = durable.map_err(|error| GuardError::Sink { action: "flush", source: Box::new(error) })?;
            core.durable(&durable);
            let left = core.ledger.pending().iter().filter(|entry| entry.stage == crate::ledger::Stage::InSink).count();
            if reason == Reason::Everything && left > 0 {
                return Err(GuardError::NotEverything { left });
            }
        }
        core.full = false;
        core.settle(sink).await
    }

    /// Looks whether the consumer passed over a message that is not archived. To be asked at opening, at the start of a
    /// session and every minute, with a position read just before.
    ///
    /// # Errors
    ///
    /// As [`begin_session`](Self::begin_session).
    ///
    /// # Cancel safety
    ///
    /// Closes the guard.
    pub async fn check(&mut self, position: ConsumerPosition) -> Result<Placement, GuardError> {
        let mut sink = self.enter()?;
        let outcome = self.core.check(position, &mut sink).await;
        self.leave(sink, outcome)
    }

    /// Reads the newest witness back, with one request: whether the stream forked. Enough, in turn with a look at where the
    /// consumer stands, as long as nothing was delivered or flushed and the consumer did not move since a
    /// [`check`](Self::check) that found nothing. Where no witness is as new as the consumer's position, it answers
    /// [`Placement::StandsSoFar`]: it cannot tell whether the stream ends below.
    ///
    /// # Errors
    ///
    /// As [`begin_session`](Self::begin_session).
    ///
    /// # Cancel safety
    ///
    /// Closes the guard.
    pub async fn reread(&mut self, position: ConsumerPosition) -> Result<Placement, GuardError> {
        let mut sink = self.enter()?;
        let outcome = self.core.reread(position, &mut sink).await;
        self.leave(sink, outcome)
    }

    /// Notes, with events and counters, that the consumer of this name stands at `from` and is moved over everything through
    /// [`Permits::verified_through`] unread.
    pub fn fast_forward(&mut self, consumer: &str, from: u64, through: u64) {
        self.core.fast_forward(consumer, from, through);
    }

    /// The consumer was moved where the guard wanted it. Permits flow again; a new session must begin.
    pub fn moved(&mut self) {
        self.core.moved();
    }

    /// Forgets, on the operator's wish, that anything from this sequence on is archived, so that it is written again, once.
    /// The wish is recorded in the checkpoint's history. Returns where the consumer must be moved, as after a fork; where the
    /// stream has forked, the permits tell of that as well, and the wish is carried out on what is left.
    ///
    /// # Errors
    ///
    /// [`GuardError::FlushDue`], which leaves the guard open, while records are pending. Otherwise as
    /// [`begin_session`](Self::begin_session).
    ///
    /// # Cancel safety
    ///
    /// Closes the guard.
    pub async fn replay_from(&mut self, sequence: u64) -> Result<Permits, GuardError> {
        if !self.core.ledger.pending().is_empty() {
            return Err(GuardError::FlushDue);
        }
        let mut sink = self.enter()?;
        let outcome = self.core.replay_from(sequence, &mut sink).await;
        self.leave(sink, outcome)
    }

    /// Saves the name of the consumer that is in use from now on, so that the next opening knows it.
    ///
    /// # Errors
    ///
    /// If the checkpoint cannot be saved. Closes the guard.
    ///
    /// # Cancel safety
    ///
    /// Closes the guard.
    pub async fn use_consumer(&mut self, name: &str) -> Result<(), GuardError> {
        let sink = self.enter()?;
        self.core.consumer = Some(name.to_owned());
        let outcome = self.core.save().await;
        self.leave(sink, outcome)
    }

    /// Takes the sink: while it is out, a cancelled call leaves the guard closed.
    fn enter(&mut self) -> Result<S, GuardError> {
        self.sink.take().ok_or(GuardError::Closed)
    }

    fn leave<T>(&mut self, sink: S, outcome: Result<T, GuardError>) -> Result<T, GuardError> {
        match outcome {
            Ok(value) => {
                self.sink = Some(sink);
                Ok(value)
            }
            Err(error) => {
                events::closed(&self.core.source, &chain(&error));
                Err(error)
            }
        }
    }
}

impl<S> Guard<S> {
    /// Whether an earlier failure or cancelled call closed the guard.
    pub const fn is_closed(&self) -> bool {
        self.sink.is_none()
    }

    /// What lies between the records that are with the sink is to be asked of the stream: the consumer that left it out was
    /// told to deliver something else meanwhile.
    pub(crate) fn forget_links(&mut self) {
        self.core.ledger.forget_links();
    }

    /// Closes the guard and lets go of sink, store and lock.
    pub(crate) fn release(&mut self) {
        self.sink = None;
        self.core.store = Box::new(crate::store::MemoryStore::default());
    }

    /// What the opening found.
    pub const fn report(&self) -> &OpenReport {
        &self.core.report
    }

    /// What was counted since the opening.
    pub const fn counters(&self) -> Counters {
        self.core.counters
    }

    /// The source.
    pub const fn source(&self) -> &Source {
        &self.core.source
    }

    /// The state id: in the checkpoint, the claims and the consumer's metadata.
    pub const fn state_id(&self) -> StateId {
        self.core.state_id
    }

    /// The highest sequence through which everything from the origin, or the stream's first message, on is archived.
    pub fn floor(&self) -> u64 {
        self.core.floor()
    }

    /// How many records are with the sink: not durable, durable and not verified, or rejected and not reported.
    pub fn pending(&self) -> usize {
        self.core.ledger.pending().len()
    }

    /// How many rejected records wait for the dead-letter hook, and how many bytes of payload they hold. Those of an old life
    /// count too: they are reported and acked nowhere.
    pub fn unreported(&self) -> (usize, u64) {
        self.core.letters.waiting()
    }

    /// Where the consumer must be moved before anything else, after a fork or an opening that found one.
    pub const fn move_pending(&self) -> Option<u64> {
        self.core.move_pending()
    }

    /// How many spans the coverage has.
    pub fn spans(&self) -> usize {
        self.core.ledger.coverage.len()
    }

    /// The spans of the coverage, lowest first.
    pub fn coverage(&self) -> &crate::coverage::Coverage {
        &self.core.ledger.coverage
    }
}
