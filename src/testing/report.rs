//! What the kit found.

use std::collections::BTreeMap;
use std::fmt;

use super::scenarios::Scenario;
use crate::record::RecordId;

/// What a sink owes, and what was found broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Promise {
    /// What a flush called durable is held from then on, also by the sinks that are opened afterwards.
    Kept,
    /// What a flush called durable, or `recover` reported, is held after a power cut too.
    Synced,
    /// Nothing is held twice: by a sink that recovers never, by another only what was in flight at a crash.
    Once,
    /// What `recover` and `records_in` name is held.
    Claimed,
    /// A record is held as it was given: subject, payload, publish time, and headers where they can be read back.
    Faithful,
    /// A later life of the stream, which gives the same sequences to other messages, leaves the earlier one's records alone.
    LivesApart,
    /// Another source in the same storage leaves this one's records alone.
    SourcesApart,
    /// A sink says only what it may: a flush names records that it was given, and leaves nothing when everything is due;
    /// `records_in` names all of a sequence that it names.
    Answered,
    /// A sink works as long as nothing around it fails, and after a failure a new one over the same storage does.
    Works,
}

impl Promise {
    const fn text(self) -> &'static str {
        match self {
            Self::Kept => "what is called durable is kept",
            Self::Synced => "what is called durable, or recovered, survives a power cut",
            Self::Once => "nothing is written twice",
            Self::Claimed => "what recover or records_in names is held",
            Self::Faithful => "a record is held as it was given",
            Self::LivesApart => "two lives of a stream never share a name",
            Self::SourcesApart => "two sources in one storage do not touch each other",
            Self::Answered => "a sink says only what it may",
            Self::Works => "a sink works, and a new one goes on after a failure",
        }
    }
}

impl fmt::Display for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

/// A broken promise, before it is known where.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) promise: Promise,
    what: String,
    lost: Vec<RecordId>,
    twice: Vec<(RecordId, usize)>,
}

impl Found {
    pub(super) const fn of(promise: Promise, what: String) -> Self {
        Self { promise, what, lost: Vec::new(), twice: Vec::new() }
    }

    /// The same, as a breach of another promise.
    pub(super) fn instead(self, promise: Promise) -> Self {
        Self { promise, ..self }
    }

    pub(super) fn with_lost(self, lost: Vec<RecordId>) -> Self {
        Self { lost, ..self }
    }

    pub(super) fn with_twice(self, twice: Vec<(RecordId, usize)>) -> Self {
        Self { twice, ..self }
    }
}

/// A promise that the sink breaks, where, and how to see it again.
///
/// Its text, also the one that `unwrap` shows, says all of it and what was done before.
pub struct Broken(Box<Inside>);

struct Inside {
    found: Found,
    scenario: Scenario,
    case: u64,
    seed: u64,
    steps: Vec<String>,
}

impl Broken {
    pub(super) fn new(found: Found, scenario: Scenario, case: u64, seed: u64, steps: Vec<String>) -> Self {
        Self(Box::new(Inside { found, scenario, case, seed, steps }))
    }

    /// Which promise.
    pub const fn promise(&self) -> Promise {
        self.0.found.promise
    }

    /// In which scenario.
    pub const fn scenario(&self) -> Scenario {
        self.0.scenario
    }

    /// In which case of the scenario.
    pub const fn case(&self) -> u64 {
        self.0.case
    }

    /// With which seed.
    pub const fn seed(&self) -> u64 {
        self.0.seed
    }

    /// What was found, in words.
    pub fn what(&self) -> &str {
        &self.0.found.what
    }

    /// Records that must be held and are not.
    pub fn lost(&self) -> &[RecordId] {
        &self.0.found.lost
    }

    /// Records that are held too often, and how often.
    pub fn twice(&self) -> &[(RecordId, usize)] {
        &self.0.found.twice
    }

    /// What was done before, the last steps.
    pub fn steps(&self) -> &[String] {
        &self.0.steps
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inside { found, scenario, case, seed, steps } = &*self.0;
        writeln!(f, "broken: {}", found.promise)?;
        writeln!(f, "  found: {}", found.what)?;
        writeln!(f, "  scenario: {scenario}; {}", scenario.about())?;
        writeln!(f, "  again: Conformance::new().seed({seed}).only(Scenario::{scenario:?}, {case})")?;
        write!(f, "  what was done:")?;
        for step in steps {
            write!(f, "\n    {step}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Broken {}

/// What was tried, and what could not be. Its text is for people; print it once and read what it says was not tested.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[expect(clippy::struct_excessive_bools, reason = "each is an answer of its own")]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// How many cases of each scenario were run. One that is not named was left out.
    pub cases: BTreeMap<Scenario, u64>,
    /// Writes, flushes and crashes in all of them.
    pub writes: u64,
    /// Flushes that reached the sink.
    pub flushes: u64,
    /// How often the process died, with or without the power.
    pub crashes: u64,
    /// Whether the sink recovers: a new one says what is held.
    pub recovers: bool,
    /// Whether power was cut, so that durability was tested.
    pub durability: bool,
    /// Whether the storage was made to fail.
    pub failures: bool,
    /// Whether headers were read back.
    pub headers: bool,
    /// How often a call of the sink waited in the run that was interrupted at each of these places. 0: it never waits.
    pub waits: u64,
    /// Answers of [`Written::Full`](crate::Written::Full).
    pub full: u64,
    /// Answers of [`Durable::Only`](crate::Durable::Only).
    pub partial: u64,
    /// Records of the kit's own that the sink rejected; what they were.
    pub rejected: Vec<String>,
}

impl Report {
    /// What was not tested, and what it takes.
    pub fn not_tested(&self) -> Vec<&'static str> {
        let ran = |scenario| self.cases.contains_key(&scenario);
        [
            (!self.durability, "durability: Storage::power_cut is not implemented"),
            (!self.failures, "failures of the storage: Storage::fail_at is not implemented"),
            (!self.headers, "headers: Held::headers is not filled"),
            (!self.recovers, "exactly once: the sink does not recover"),
            (self.full == 0, "a full sink: it never was; give it a smaller bound for this test"),
            (ran(Scenario::Dropped) && self.waits == 0, "calls dropped half way: the sink's calls never wait"),
            (!ran(Scenario::Rejected), "rejected records: Conformance::rejects names none"),
            (!ran(Scenario::Sources), "several sources in one storage: Conformance::one_source left them out"),
        ]
        .into_iter()
        .filter_map(|(is_so, what)| is_so.then_some(what))
        .collect()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cases: Vec<String> = self.cases.iter().map(|(scenario, count)| format!("{scenario} {count}")).collect();
        writeln!(f, "conformance with seed {}: {}", self.seed, cases.join(", "))?;
        write!(f, "{} writes, {} flushes, {} crashes", self.writes, self.flushes, self.crashes)?;
        for what in &self.rejected {
            write!(f, "\nrejected by the sink: {what}")?;
        }
        for what in self.not_tested() {
            write!(f, "\nnot tested: {what}")?;
        }
        Ok(())
    }
}
