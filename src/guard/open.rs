//! How a guard opens: load, ask the sink, verify, save.

use std::collections::BTreeSet;

use super::Guard;
use super::core::Core;
use super::letters::Letters;
use super::recall::{verify_checkpoint, verify_claims};
use super::report::{Counters, OpenReport, Trust};
use super::verify::newest_alive;
use crate::checkpoint::{Checkpoint, ClaimBody, StateId, Totals};
use crate::claim::Claim;
use crate::coverage::{Coverage, Span};
use crate::dead_letter::{DeadLetters, Hook, shared};
use crate::error::{GuardError, OpenError};
use crate::events;
use crate::fault::{self, Fault};
use crate::ledger::Ledger;
use crate::observer::{ObserveError, Observer, StreamView};
use crate::sink::{Recovered, Sink};
use crate::skip::SkipTracker;
use crate::source::Source;
use crate::store::CheckpointStore;
use crate::witness::Witnesses;

/// How many spans a coverage has at most, if nothing else is said.
const MAX_SPANS: usize = 10_000;

/// What to do when no whole checkpoint is left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnDamage {
    /// Keep the damaged one aside and archive again from the stream's first message: nothing is lost, everything is
    /// written twice.
    #[default]
    WriteAgain,
    /// Do not open; a person decides.
    Refuse,
}

/// Where archiving begins, for a source that the store never held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Origin {
    /// At the stream's first message.
    #[default]
    Beginning,
    /// At this sequence: what lies below is not ours.
    At(u64),
    /// What lies at or below this sequence is archived already, by something else that is trusted. The newest message
    /// of the source there becomes the witness.
    Adopt(u64),
}

/// A guard that is being opened: the checkpoint is loaded and locked, nothing is decided yet.
pub struct Opening {
    source: Source,
    store: Box<dyn CheckpointStore>,
    found: Option<Checkpoint>,
    damaged: Vec<String>,
    set_aside: Option<String>,
    asked: bool,
    claims: Vec<ClaimBody>,
    exactly_from: Option<u64>,
    history: usize,
    state_id: StateId,
    max_spans: usize,
    letters: Letters,
}

impl std::fmt::Debug for Opening {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Opening")
            .field("source", &self.source)
            .field("state_id", &self.state_id)
            .finish_non_exhaustive()
    }
}

impl Opening {
    /// Opens the store, takes its lock, and reads the newest state that is whole.
    ///
    /// # Errors
    ///
    /// If the store fails or is locked, holds another source's checkpoint, or is damaged and the policy is to refuse.
    ///
    /// # Cancel safety
    ///
    /// Drops the store.
    pub async fn load(
        source: Source,
        store: impl CheckpointStore + 'static,
        on_damage: OnDamage,
    ) -> Result<Self, OpenError> {
        let mut store: Box<dyn CheckpointStore> = Box::new(store);
        let stored = store.open().await?;
        let location = store.location();
        let mut damaged = stored.damaged;
        let mut undecodable = None;
        let mut found = None;
        for state in &stored.states {
            match Checkpoint::decode(state.version, &state.body) {
                Ok(checkpoint) => {
                    found = Some(checkpoint);
                    break;
                }
                Err(error) => {
                    damaged.push(format!("state {}: {error}", state.counter));
                    undecodable.get_or_insert(error);
                    // An older state beside one that a newer program wrote is no state to go back to.
                    if matches!(undecodable, Some(crate::checkpoint::DecodeError::Version { .. })) {
                        break;
                    }
                }
            }
        }
        if let Some(checkpoint) = &found
            && checkpoint.source != source
        {
            return Err(OpenError::Foreign {
                location,
                expected: Box::new(source),
                found: Box::new(checkpoint.source.clone()),
            });
        }
        let mut set_aside = None;
        if found.is_none() && !damaged.is_empty() {
            if on_damage == OnDamage::Refuse {
                return Err(match undecodable {
                    Some(error) => OpenError::Undecodable { location, source: error },
                    None => OpenError::Damaged { location, damaged },
                });
            }
            set_aside = store.set_aside().await?;
        }
        for damage in &damaged {
            events::checkpoint_damaged(&source, &location, damage, set_aside.as_deref());
        }
        let state_id = found.as_ref().map_or_else(new_state_id, |checkpoint| checkpoint.state_id);
        Ok(Self {
            source,
            store,
            found,
            damaged,
            set_aside,
            asked: false,
            claims: Vec::new(),
            exactly_from: None,
            history: 0,
            state_id,
            max_spans: MAX_SPANS,
            letters: Letters::default(),
        })
    }

    /// Another limit for the number of spans; at least 2. Past it the smallest spans are forgotten, loudly.
    #[must_use]
    pub const fn max_spans(mut self, spans: usize) -> Self {
        self.max_spans = spans;
        self
    }

    /// Where records go that the sink rejects. Without a hook they are acked with an event and nothing else, and opening
    /// warns.
    #[must_use]
    pub fn dead_letters(self, hook: impl DeadLetters + 'static) -> Self {
        self.hook(Some(shared(hook)))
    }

    pub(crate) fn hook(mut self, hook: Option<Hook>) -> Self {
        self.letters = Letters::new(hook);
        self
    }

    /// Asks the sink what it holds. Where the checkpoint is lost, the newest claim gives state id and origin.
    ///
    /// # Errors
    ///
    /// If the sink fails.
    ///
    /// # Cancel safety
    ///
    /// The sink must be dropped.
    pub async fn recover<S: Sink>(&mut self, sink: &mut S) -> Result<(), OpenError> {
        let nothing = Coverage::default();
        let has = self.found.as_ref().map_or(&nothing, |checkpoint| &checkpoint.coverage);
        let recovered = ask(sink, &self.source, has).await?;
        self.asked = true;
        self.take(recovered);
        if self.found.is_none()
            && let Some(claim) = self.claims.first()
        {
            self.state_id = claim.state_id;
        }
        Ok(())
    }

    /// Keeps what the sink said, in place of what it said before.
    fn take(&mut self, recovered: Recovered) {
        (self.claims, self.exactly_from, self.history) = (Vec::new(), None, 0);
        let claims: Vec<Claim> = match recovered {
            Recovered::Unknown => Vec::new(),
            Recovered::AtLeast(claims) => claims,
            Recovered::Exactly { from, claims } => {
                self.exactly_from = Some(from);
                claims
            }
        };
        for claim in claims {
            match ClaimBody::decode(claim.as_bytes()) {
                Ok(Some(body)) if body.source == self.source => self.claims.push(body),
                Ok(None) => {}
                Ok(Some(_)) | Err(_) => self.history += 1,
            }
        }
        self.claims.sort_by_key(|claim| std::cmp::Reverse(claim.coverage.last().map_or(0, |span| span.last)));
    }

    /// Whether the store never held this source: no checkpoint, no damaged one, and no claim of the sink.
    pub fn is_new(&self) -> bool {
        self.found.is_none() && self.damaged.is_empty() && self.claims.is_empty()
    }

    /// Whether a checkpoint of this source was found.
    pub const fn has_checkpoint(&self) -> bool {
        self.found.is_some()
    }

    /// Whether there was a checkpoint of which nothing could be used.
    pub fn is_damaged(&self) -> bool {
        self.found.is_none() && !self.damaged.is_empty()
    }

    /// The state id: the checkpoint's, else that of the sink's newest claim, else a new one.
    pub const fn state_id(&self) -> StateId {
        self.state_id
    }

    /// The name of the consumer in use, as the checkpoint says.
    pub fn consumer(&self) -> Option<&str> {
        self.found.as_ref().and_then(|checkpoint| checkpoint.consumer.as_deref())
    }

    /// Verifies checkpoint and claims against the stream, saves the result, and gives the guard. `origin` counts only for
    /// a source that is [new](Self::is_new).
    ///
    /// # Errors
    ///
    /// If the stream cannot be asked or the result cannot be saved. Everything is dropped; open again.
    ///
    /// # Cancel safety
    ///
    /// Everything is dropped; open again.
    pub async fn open<S: Sink>(
        mut self,
        mut sink: S,
        observer: impl Observer + 'static,
        origin: Origin,
    ) -> Result<Guard<S>, OpenError> {
        let observer: Box<dyn Observer> = Box::new(observer);
        let view = observer.stream().await?;
        let damaged = self.is_damaged();
        let had = self.found.is_some();
        let checkpoint = match self.found.take() {
            Some(checkpoint) => checkpoint,
            None => self.first(&*observer, view, if damaged { Origin::Beginning } else { origin }).await?,
        };
        let mut core = self.core(checkpoint, observer, view);
        let (trust, forked) = if had { verify_checkpoint(&mut core, &mut sink).await? } else { (Trust::New, false) };
        if forked && self.asked {
            // It was told of more than is left, and its claims may have finer witnesses than the checkpoint.
            let recovered = ask(&mut sink, &self.source, &core.ledger.coverage).await?;
            self.take(recovered);
        }
        let claims = std::mem::take(&mut self.claims);
        let claimed = verify_claims(&mut core, &mut sink, claims, self.exactly_from).await?;
        if !had && claimed.history > 0 && !claimed.equal {
            // The claims are of another stream, and so is the place where they say archiving began.
            core.origin = 1;
        }
        core.report.trust = if damaged { Trust::Damaged } else { trust };
        core.report.claimed = claimed.joined;
        core.report.history = self.history + claimed.history;
        if core.report.claimed + core.report.history > 0 {
            events::claims_recovered(&core.source, core.report.claimed, core.report.history);
        }
        if let Some((count, first, last)) = core.ledger.coverage.bound(core.max_spans, core.start()) {
            core.counters.spans_forgotten += count as u64;
            events::spans_forgotten(&core.source, count, first, last);
        }
        // What a stream dropped before archiving began there is nobody's loss.
        core.look_above_newest(if had { core.origin } else { core.view.first });
        core.report.passed_by = core.report_passed_by(u64::MAX);
        // A move that an earlier run did not finish may lead above what this opening found, and after damage the consumer may
        // stand anywhere.
        if fault::is(Fault::MoveForgotten) {
            core.move_pending = None;
        }
        if forked || damaged || core.move_pending.is_some() {
            let to = core.floor().saturating_add(1);
            core.move_pending = Some(to);
            events::move_required(&core.source, to);
        }
        // A state read after a crash may live only in the page cache: written again, into the other slot, before the
        // first permit.
        if !(had && fault::is(Fault::NoRewriteAtOpening)) {
            core.save().await.map_err(|error| match error {
                GuardError::Encode(error) => OpenError::Encode(error),
                GuardError::Store(error) => OpenError::Store(error),
                other => OpenError::Store(crate::store::StoreError::Other(Box::new(other))),
            })?;
        }
        core.report.floor = core.floor();
        core.report.origin = core.origin;
        core.report.spans = core.ledger.coverage.len();
        core.report.move_to = core.move_pending;
        events::opened(&core.source, &core.report);
        if !core.letters.has_hook() {
            events::no_dead_letters(&core.source);
        }
        Ok(Guard { sink: Some(sink), core })
    }

    /// The checkpoint of a source that has none.
    async fn first(
        &mut self,
        observer: &dyn Observer,
        view: StreamView,
        origin: Origin,
    ) -> Result<Checkpoint, ObserveError> {
        // Of two lives one may have begun lower: doubt means write.
        let claimed = self.claims.iter().map(|claim| claim.origin).min();
        let earliest = self.claims.iter().flat_map(|claim| claim.coverage.spans()).map(|span| span.earliest).min();
        let mut coverage = Coverage::default();
        let mut witnesses = Witnesses::default();
        let origin = match (claimed, origin) {
            (None, Origin::Beginning) => 1,
            (Some(sequence), _) | (None, Origin::At(sequence)) => {
                // The newest message below the origin tells later whether this is still the same stream. What lies between
                // the two holds nothing now; a stream that loses its tail may fill it, and that is ours.
                let below = if sequence > 1 { newest_alive(observer, 1, sequence - 1).await? } else { None };
                // A claim is older than what was found out about its flush: the stream may have lost its tail to below the
                // place where archiving began.
                let later = below.is_some_and(|below| earliest.is_some_and(|earliest| below.id.published > earliest));
                let begin = below.map_or(1, |below| below.sequence().saturating_add(1));
                if later {
                    1
                } else {
                    witnesses.extend(below);
                    // Where acks remove messages, an accident may bring back what others acked.
                    if view.acked_are_removed { sequence.max(1) } else { begin }
                }
            }
            (None, Origin::Adopt(through)) => {
                if let Some(witness) = newest_alive(observer, 1, through).await? {
                    let earliest = observer.next(1).await?.map_or(witness.id.published, |first| first.id.published);
                    let mut span = Span::of(1, witness);
                    span.earliest = earliest.min(witness.id.published);
                    coverage.insert(span, 0);
                }
                1
            }
        };
        Ok(Checkpoint {
            state_id: self.state_id,
            source: self.source.clone(),
            created: view.created,
            origin,
            coverage,
            witnesses,
            rejected: Vec::new(),
            consumer: None,
            move_pending: None,
            totals: Totals::default(),
            overrides: Vec::new(),
        })
    }

    fn core(&mut self, checkpoint: Checkpoint, observer: Box<dyn Observer>, view: StreamView) -> Core {
        let report = OpenReport {
            state_id: checkpoint.state_id,
            trust: Trust::New,
            origin: checkpoint.origin,
            floor: 0,
            spans: 0,
            damaged: std::mem::take(&mut self.damaged),
            set_aside: self.set_aside.take(),
            created: (checkpoint.created != view.created).then_some((checkpoint.created, view.created)),
            claimed: 0,
            history: 0,
            passed_by: None,
            move_to: None,
        };
        let store = std::mem::replace(&mut self.store, Box::new(crate::store::MemoryStore::default()));
        Core {
            source: checkpoint.source,
            state_id: checkpoint.state_id,
            created: checkpoint.created,
            origin: checkpoint.origin,
            consumer: checkpoint.consumer,
            rejected: checkpoint.rejected,
            overrides: checkpoint.overrides,
            totals: checkpoint.totals,
            ledger: Ledger::new(checkpoint.coverage, checkpoint.witnesses),
            view,
            move_pending: checkpoint.move_pending,
            max_spans: self.max_spans,
            store,
            observer,
            counters: Counters::default(),
            report,
            skips: SkipTracker::default(),
            letters: std::mem::take(&mut self.letters),
            full: false,
            gaps_unsaved: false,
            unverified: false,
            last_fork: None,
            blocked: BTreeSet::new(),
            walked: 0,
            looked_below: 0,
        }
    }
}

async fn ask<S: Sink>(sink: &mut S, source: &Source, has: &Coverage) -> Result<Recovered, OpenError> {
    sink.recover_beyond(source, has).await.map_err(|error| OpenError::Sink(Box::new(error)))
}

#[cfg(test)]
thread_local! {
    static STATE_IDS: std::cell::Cell<Option<u128>> = const { std::cell::Cell::new(None) };
}

/// From now on the state ids made on this thread follow from this number.
#[cfg(test)]
pub(crate) fn seed_state_ids(seed: u64) {
    STATE_IDS.set(Some(u128::from(seed) << 64));
}

/// A number nobody else has. The standard library's hasher keys come from the system's randomness.
fn new_state_id() -> StateId {
    use std::hash::{BuildHasher as _, RandomState};
    #[cfg(test)]
    if let Some(next) = STATE_IDS.get() {
        STATE_IDS.set(Some(next + 1));
        return StateId::new(next + 1);
    }
    let half =
        |salt: u64| u128::from(RandomState::new().hash_one((salt, std::process::id(), std::time::SystemTime::now())));
    StateId::new((half(1) << 64) | half(2))
}
