//! What to try, and trying it.

use std::collections::BTreeSet;
use std::future::Future;
use std::time::Duration;

use bytes::Bytes;

use super::life::{Life, Stop};
use super::report::{Broken, Found, Promise, Report};
use super::scenarios::{self, Scenario};
use super::watched::Watch;
use super::{Hook, Storage};
use crate::error::{SinkFailure, chain};
use crate::rng::Rng;

/// What to try on a sink. See the [module](super).
#[derive(Clone, Debug)]
#[must_use = "nothing is tried before `check`"]
pub struct Conformance {
    pub(super) seed: u64,
    pub(super) cases: u64,
    pub(super) payload: usize,
    pub(super) unit: Duration,
    pub(super) rejects: Vec<(String, Bytes)>,
    one_source: bool,
    must_recover: bool,
    only: Option<(Scenario, u64)>,
}

impl Default for Conformance {
    fn default() -> Self {
        Self::new()
    }
}

impl Conformance {
    /// Everything, with seed 1 and at most 100 cases of a scenario.
    pub const fn new() -> Self {
        Self {
            seed: 1,
            cases: 100,
            payload: 1 << 20,
            unit: Duration::from_nanos(1),
            rejects: Vec::new(),
            one_source: false,
            must_recover: false,
            only: None,
        }
    }

    /// Another seed: other records, other orders, other places to die at. The same seed does the same again.
    pub const fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// At most so many cases of each scenario; at least 1. 100 cases are some 2,500 flushes and 2,000 openings in all: a
    /// quarter of a minute with a database that takes 5 ms for each. Where there are more places to die at than cases, the
    /// seed chooses.
    pub const fn cases(mut self, cases: u64) -> Self {
        self.cases = if cases == 0 { 1 } else { cases };
        self
    }

    /// The largest payload, in bytes. 1 MiB if nothing else is said, which is what servers allow.
    pub const fn max_payload(mut self, bytes: usize) -> Self {
        self.payload = bytes;
        self
    }

    /// The sink keeps publish times in this unit, rounded down; a nanosecond if nothing else is said, at most a second.
    pub const fn time_unit(mut self, unit: Duration) -> Self {
        self.unit = unit;
        self
    }

    /// A message that the sink rejects, to see that it does, and that nothing else suffers. May be called again.
    pub fn rejects(mut self, subject: impl Into<String>, payload: impl Into<Bytes>) -> Self {
        self.rejects.push((subject.into(), payload.into()));
        self
    }

    /// The storage takes one source only. Then several beside each other are not tested.
    pub const fn one_source(mut self) -> Self {
        self.one_source = true;
        self
    }

    /// The sink recovers. Whether it does is found out; with this, one that does not is broken.
    pub const fn must_recover(mut self) -> Self {
        self.must_recover = true;
        self
    }

    /// Only this case of this scenario, as [`Broken`] names it.
    pub const fn only(mut self, scenario: Scenario, case: u64) -> Self {
        self.only = Some((scenario, case));
        self
    }

    /// Tries everything on storages that this function makes, each empty and apart from the others. One is dropped before
    /// the next is made.
    ///
    /// # Errors
    ///
    /// The first promise that is found broken. A storage that cannot be made breaks [`Promise::Works`].
    ///
    /// # Cancel safety
    ///
    /// May be dropped; the storage at hand is dropped with it.
    pub async fn check<S, F>(&self, make: impl Fn() -> F + Send + Sync) -> Result<Report, Broken>
    where
        S: Storage,
        F: Future<Output = Result<S, SinkFailure>> + Send,
    {
        let mut tried =
            Tried { report: Report { seed: self.seed, headers: true, ..Report::default() }, rejected: BTreeSet::new() };
        self.probe(&make, &mut tried).await?;
        for scenario in Scenario::ALL {
            let left_out = match scenario {
                Scenario::Sources => self.one_source,
                Scenario::Rejected => self.rejects.is_empty(),
                Scenario::Failing => !tried.report.failures,
                _ => false,
            };
            if left_out || self.only.is_some_and(|(only, _)| only != scenario) {
                continue;
            }
            let cases = match self.only {
                Some((_, case)) => vec![case],
                None => self.cases_of(scenario, &make, &mut tried).await?,
            };
            for case in &cases {
                self.run(scenario, *case, &make, &mut tried).await?;
            }
            tried.report.cases.insert(scenario, cases.len() as u64);
        }
        let Tried { mut report, rejected } = tried;
        report.rejected = rejected.into_iter().collect();
        Ok(report)
    }

    /// What the storage can do, and whether the sink recovers.
    async fn probe<S, F>(&self, make: &(impl Fn() -> F + Send + Sync), tried: &mut Tried) -> Result<(), Broken>
    where
        S: Storage,
        F: Future<Output = Result<S, SinkFailure>> + Send,
    {
        let watch = Watch::default();
        let broken = |found| Broken::new(found, Scenario::First, 0, self.seed, watch.steps());
        let storage = made(make().await).map_err(broken)?;
        let cannot =
            |error: SinkFailure| broken(Found::of(Promise::Works, format!("a hook failed: {}", chain(&*error))));
        tried.report.durability = storage.power_cut().await.map_err(cannot)? == Hook::Done;
        tried.report.failures = storage.fail_at(None).await.map_err(cannot)? == Hook::Done;
        let facts = tried.facts();
        let mut life = Life::new(self, facts, &storage, "CONFORMANCE".into(), Rng::new(self.seed), watch.clone());
        let recovers = scenarios::probe(&mut life).await;
        drop(life);
        match recovers {
            Ok(recovers) => tried.report.recovers = recovers,
            Err(Stop::Broken(found)) => return Err(broken(*found)),
            Err(Stop::Died) => {
                return Err(broken(Found::of(
                    Promise::Works,
                    "a call came to no end, and nothing was to stop it".into(),
                )));
            }
        }
        if self.must_recover && !tried.report.recovers {
            let what = "a new sink over a storage that holds records does not know of them".to_owned();
            return Err(broken(Found::of(Promise::Claimed, what)));
        }
        Ok(())
    }

    /// Which cases of a scenario are tried.
    async fn cases_of<S, F>(
        &self,
        scenario: Scenario,
        make: &(impl Fn() -> F + Send + Sync),
        tried: &mut Tried,
    ) -> Result<Vec<u64>, Broken>
    where
        S: Storage,
        F: Future<Output = Result<S, SinkFailure>> + Send,
    {
        let few = self.cases.div_ceil(10);
        let all = match scenario {
            Scenario::Crash | Scenario::Dropped => {
                // Once undisturbed, to count the places.
                let places = self.run(scenario, u64::MAX, make, tried).await?;
                if scenario == Scenario::Dropped {
                    tried.report.waits = places;
                }
                places.saturating_mul(scenarios::ways(scenario, tried.facts()))
            }
            Scenario::Failing | Scenario::Lives => self.cases,
            Scenario::First | Scenario::Alone | Scenario::Sizes | Scenario::Odd | Scenario::Rejected => 1,
            Scenario::Redelivery
            | Scenario::Fork
            | Scenario::Recreated
            | Scenario::CheckpointLost
            | Scenario::Recover
            | Scenario::Sources => few,
        };
        if all <= self.cases {
            return Ok((0..all).collect());
        }
        let mut rng = Rng::new(self.seed ^ (scenario as u64) << 32);
        let mut chosen = BTreeSet::new();
        while (chosen.len() as u64) < self.cases {
            chosen.insert(rng.below(all));
        }
        Ok(chosen.into_iter().collect())
    }

    /// One case. Returns how many places to interrupt it at were passed.
    async fn run<S, F>(
        &self,
        scenario: Scenario,
        case: u64,
        make: &(impl Fn() -> F + Send + Sync),
        tried: &mut Tried,
    ) -> Result<u64, Broken>
    where
        S: Storage,
        F: Future<Output = Result<S, SinkFailure>> + Send,
    {
        let watch = Watch::default();
        let broken = |found: Found| Broken::new(found, scenario, case, self.seed, watch.steps());
        let storage = made(make().await).map_err(broken)?;
        let ended = scenarios::run(self, tried, &storage, scenario, case, &watch).await;
        match ended {
            Ok(places) => Ok(places),
            Err(Stop::Broken(found)) => Err(broken(*found)),
            Err(Stop::Died) => {
                Err(broken(Found::of(Promise::Works, "a call came to no end, and nothing was to stop it".into())))
            }
        }
    }
}

/// What is known of a sink under test.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Facts {
    pub(super) recovers: bool,
    pub(super) durability: bool,
    pub(super) failures: bool,
}

/// What was tried so far.
#[derive(Debug)]
pub(super) struct Tried {
    pub(super) report: Report,
    pub(super) rejected: BTreeSet<String>,
}

impl Tried {
    pub(super) const fn facts(&self) -> Facts {
        Facts { recovers: self.report.recovers, durability: self.report.durability, failures: self.report.failures }
    }
}

fn made<S>(storage: Result<S, SinkFailure>) -> Result<S, Found> {
    storage.map_err(|error| Found::of(Promise::Works, format!("no storage could be made: {}", chain(&*error))))
}
