//! What happens to a sink, and in which order.

mod accidents;
mod plain;
mod streams;

use std::fmt;

use super::Storage;
use super::conformance::{Conformance, Facts, Tried};
use super::life::{Crash, Life, Stop};
use super::report::{Found, Promise};
use super::watched::{Strike, Watch};
use crate::rng::Rng;
use crate::sink::{Reason, Recovered, Sink as _};

/// One kind of things that happen to a sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Scenario {
    /// A first small archive, to find out whether the sink recovers. Always comes first, and is no part of [`Self::ALL`].
    First,
    /// Without a guard: flushes of many sizes, an empty one, for either reason, records in any order; then a new sink.
    Alone,
    /// Behind a guard, as all that follow: flushes of many sizes, and after a clean stop nothing to write.
    Sizes,
    /// Empty and large payloads, bytes that are no text, odd subjects, headers with several values.
    Odd,
    /// Deliveries in any order, again while they are with the sink, and again when they are archived.
    Redelivery,
    /// Records that the sink rejects, among others and alone. Needs [`Conformance::rejects`].
    Rejected,
    /// At every point between two steps (before and after a write, a flush, a checkpoint, an ack) the call fails or the
    /// process dies; then a new sink. With the power or without, with the checkpoint or, for a sink that recovers, without.
    Crash,
    /// At every place where a call waits it is dropped; then a new sink, as above.
    Dropped,
    /// The storage fails once, at any operation. Needs [`Storage::fail_at`].
    Failing,
    /// The stream loses its tail, and other messages get the same sequences: while records are with the sink, or while no
    /// guard is open.
    Fork,
    /// The stream is made anew and begins with 1 again: two lives in one storage.
    Recreated,
    /// The checkpoint is lost altogether, and all is delivered again.
    CheckpointLost,
    /// What `recover`, `recover_beyond` and `records_in` say after a death in a flush, compared with what is held, and held
    /// after a power cut.
    Recover,
    /// Several sources beside each other in one storage, with names that look alike and the same sequences and times.
    Sources,
    /// All of the above in any order.
    Lives,
}

impl Scenario {
    /// All, in the order in which they are tried: the simple ones first.
    pub const ALL: [Self; 14] = [
        Self::Alone,
        Self::Sizes,
        Self::Odd,
        Self::Redelivery,
        Self::Rejected,
        Self::Recover,
        Self::Crash,
        Self::Dropped,
        Self::Failing,
        Self::Fork,
        Self::Recreated,
        Self::CheckpointLost,
        Self::Sources,
        Self::Lives,
    ];

    pub(super) const fn about(self) -> &'static str {
        match self {
            Self::First => "a first small archive",
            Self::Alone => "the sink without a guard",
            Self::Sizes => "flushes of many sizes",
            Self::Odd => "odd payloads, subjects and headers",
            Self::Redelivery => "deliveries in any order, and again",
            Self::Rejected => "records that the sink rejects",
            Self::Crash => "a failure or a death between two steps, then a new sink",
            Self::Dropped => "a call dropped where it waits, then a new sink",
            Self::Failing => "the storage fails once",
            Self::Fork => "the stream lost its tail and gave the numbers to others",
            Self::Recreated => "the stream was made anew",
            Self::CheckpointLost => "the checkpoint is lost",
            Self::Recover => "what the sink says it holds",
            Self::Sources => "several sources in one storage",
            Self::Lives => "everything in any order",
        }
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// What follows an accident.
#[derive(Clone, Copy, Debug)]
struct After {
    crash: Crash,
    /// The power goes once more, when the next guard has opened.
    power_later: bool,
}

impl After {
    /// All that can be had with this sink.
    fn all(facts: Facts) -> Vec<Self> {
        let mut all = Vec::new();
        for checkpoint in [false, true] {
            if checkpoint && !facts.recovers {
                continue;
            }
            all.push(Self { crash: Crash { power: false, checkpoint }, power_later: false });
            if facts.durability {
                all.push(Self { crash: Crash { power: true, checkpoint }, power_later: false });
                all.push(Self { crash: Crash { power: false, checkpoint }, power_later: true });
            }
        }
        all
    }

    fn of(facts: Facts, number: u64) -> Self {
        let all = Self::all(facts);
        let index = usize::try_from(number).unwrap_or(0) % all.len().max(1);
        all.get(index).copied().unwrap_or(Self { crash: Crash::KILL, power_later: false })
    }

    async fn happen<S: Storage>(self, life: &mut Life<'_, S>) -> Result<(), Stop> {
        life.crash(self.crash).await?;
        life.open().await?;
        if self.power_later {
            life.crash(Crash::POWER).await?;
            life.open().await?;
        }
        Ok(())
    }
}

/// In how many ways a place is struck.
pub(super) fn ways(scenario: Scenario, facts: Facts) -> u64 {
    let after = After::all(facts).len() as u64;
    if scenario == Scenario::Crash { 2 * after } else { after }
}

/// One case. Returns how many places it passed at which it could be interrupted. Case `u64::MAX` is undisturbed.
pub(super) async fn run<S: Storage>(
    kit: &Conformance,
    tried: &mut Tried,
    storage: &S,
    scenario: Scenario,
    case: u64,
    watch: &Watch,
) -> Result<u64, Stop> {
    let facts = tried.facts();
    if scenario == Scenario::Sources {
        return streams::sources(kit, tried, storage, case, watch).await.map(|()| 0);
    }
    // The cases of an enumeration differ in nothing but the place.
    let enumerated = matches!(scenario, Scenario::Crash | Scenario::Dropped);
    let salt = if enumerated { 0 } else { case.wrapping_add(1) << 8 | scenario as u64 };
    let rng = Rng::new(kit.seed.wrapping_mul(0x1_0001) ^ salt);
    let mut life = Life::new(kit, facts, storage, "CONFORMANCE".into(), rng, watch.clone());
    let outcome = match scenario {
        Scenario::Alone => plain::alone(&mut life).await,
        Scenario::Sizes => plain::sizes(&mut life).await,
        Scenario::Odd => plain::odd(&mut life, kit.payload, &mut tried.rejected).await,
        Scenario::Redelivery => plain::redelivery(&mut life).await,
        Scenario::Rejected => plain::rejected(&mut life, &kit.rejects).await,
        Scenario::Crash => accidents::crash(&mut life, case).await,
        Scenario::Dropped => accidents::dropped(&mut life, case).await,
        Scenario::Failing => accidents::failing(&mut life).await,
        Scenario::Fork => streams::fork(&mut life).await,
        Scenario::Recreated => streams::recreated(&mut life).await,
        Scenario::CheckpointLost => accidents::checkpoint_lost(&mut life).await,
        Scenario::Recover => plain::recover(&mut life).await,
        Scenario::Lives | Scenario::Sources | Scenario::First => accidents::lives(&mut life).await,
    };
    tally(&life, tried);
    outcome?;
    let notes = watch.notes();
    Ok(if scenario == Scenario::Dropped { notes.waits } else { notes.points })
}

/// Adds up what a life did.
fn tally<S: Storage>(life: &Life<'_, S>, tried: &mut Tried) {
    let notes = life.watch.notes();
    tried.report.writes += notes.writes;
    tried.report.flushes += notes.flushes;
    tried.report.crashes += notes.crashes;
    tried.report.full += notes.full;
    tried.report.partial += notes.partial;
    tried.report.headers &= life.books.headers;
}

/// Whether a new sink knows what the storage holds.
pub(super) async fn probe<S: Storage>(life: &mut Life<'_, S>) -> Result<bool, Stop> {
    life.open().await?;
    life.publish(3);
    life.archive(2).await?;
    life.flush(Reason::Everything).await?;
    life.crash(Crash::KILL).await?;
    let mut sink = life.new_sink().await?;
    match sink.recover(&life.source).await {
        Ok(recovered) => Ok(recovered != Recovered::Unknown),
        Err(error) => Err(Found::of(Promise::Works, format!("recover failed: {}", crate::error::chain(&error))).into()),
    }
}
