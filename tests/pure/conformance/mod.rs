//! The conformance kit: right sinks pass, and each wrong one is caught by the promise that it breaks.

mod log;
mod model;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use replay_guard::testing::{Broken, Conformance, Held, Hook, Promise, Report, Scenario, Storage};
use replay_guard::{SinkFailure, Source};

use self::log::LogStorage;
use self::model::{Build, Flaw, Kind, Model};

async fn check(kit: &Conformance, build: Build) -> Result<Report, Broken> {
    kit.check(async || Ok(Model::new(build))).await
}

fn kit() -> Conformance {
    Conformance::new().cases(60).max_payload(100_000).rejects("never", "x")
}

#[tokio::test]
async fn right_sinks_pass_and_nothing_is_left_untested() {
    for kind in [Kind::Plain, Kind::AtLeast, Kind::Exactly] {
        for partial in [false, true] {
            let report = check(&kit(), Build::right(kind, partial)).await.unwrap();
            let recovers = kind != Kind::Plain;
            assert_eq!((report.recovers, report.partial > 0), (recovers, partial), "{kind:?} {report}");
            let left: &[&str] = if recovers { &[] } else { &["exactly once: the sink does not recover"] };
            assert_eq!(report.not_tested(), left, "{kind:?}");
            // What is counted was done.
            assert!(report.crashes > 500 && report.writes > 3_000 && report.waits > 30, "{report}");
            assert_eq!(report.cases.len(), Scenario::ALL.len());
            assert_eq!(report.cases[&Scenario::Crash], 60);
        }
    }
}

#[tokio::test]
async fn a_sink_that_lists_nothing_may_get_again_what_a_fork_left_of_a_flush() {
    for kind in [Kind::Plain, Kind::AtLeast, Kind::Exactly] {
        let silent = Build { lists: false, ..Build::right(kind, false) };
        check(&kit().cases(120), silent).await.unwrap();
    }
}

#[tokio::test]
async fn other_seeds_find_nothing_in_right_sinks_either() {
    for seed in 2..5 {
        for (kind, partial) in
            [(Kind::Plain, true), (Kind::AtLeast, false), (Kind::AtLeast, true), (Kind::Exactly, true)]
        {
            let lists = seed % 2 == 0;
            check(&kit().seed(seed).cases(30), Build { lists, ..Build::right(kind, partial) }).await.unwrap();
        }
    }
}

/// Each mistake, on a sink of this kind, and what it breaks.
const WRONG: [(Kind, Flaw, Promise); 33] = [
    (Kind::Plain, Flaw::NoSync, Promise::Synced),
    (Kind::AtLeast, Flaw::NoSync, Promise::Synced),
    (Kind::Plain, Flaw::NoDirectorySync, Promise::Synced),
    (Kind::Plain, Flaw::SyncsAgain, Promise::Synced),
    (Kind::AtLeast, Flaw::RecoversUnsynced, Promise::Synced),
    (Kind::Exactly, Flaw::RecoversUnsynced, Promise::Synced),
    (Kind::Plain, Flaw::TruncatesOnOpen, Promise::Kept),
    (Kind::Plain, Flaw::SwallowsErrors, Promise::Kept),
    (Kind::Plain, Flaw::NamesUnwritten, Promise::Kept),
    (Kind::Plain, Flaw::LosesWhenFull, Promise::Kept),
    (Kind::Plain, Flaw::DropsEmpty, Promise::Kept),
    (Kind::Plain, Flaw::SkipsBelow, Promise::Kept),
    (Kind::AtLeast, Flaw::ClaimsAll, Promise::Claimed),
    (Kind::Plain, Flaw::ListsBuffer, Promise::Claimed),
    (Kind::AtLeast, Flaw::ClaimFirst, Promise::Claimed),
    (Kind::AtLeast, Flaw::ClaimLast, Promise::Once),
    (Kind::AtLeast, Flaw::DropsClaims, Promise::Once),
    (Kind::Exactly, Flaw::ExactlyBeyond, Promise::Once),
    (Kind::AtLeast, Flaw::NewestClaim, Promise::Once),
    (Kind::Exactly, Flaw::NewestClaim, Promise::Once),
    (Kind::AtLeast, Flaw::ReplaysJournal, Promise::Once),
    (Kind::Plain, Flaw::NamesBySequence, Promise::LivesApart),
    (Kind::AtLeast, Flaw::NamesBySequence, Promise::LivesApart),
    (Kind::Plain, Flaw::NamesWithoutSource, Promise::SourcesApart),
    (Kind::Plain, Flaw::NamesLossySource, Promise::SourcesApart),
    (Kind::Plain, Flaw::TruncatesPayload, Promise::Faithful),
    (Kind::Plain, Flaw::LosesHeaders, Promise::Faithful),
    (Kind::Plain, Flaw::MendsSubjects, Promise::Faithful),
    (Kind::Plain, Flaw::NamesUnknown, Promise::Answered),
    (Kind::Plain, Flaw::ListsNewest, Promise::Answered),
    (Kind::Plain, Flaw::KeepsBack, Promise::Answered),
    (Kind::Plain, Flaw::RejectsInSilence, Promise::Answered),
    (Kind::Plain, Flaw::FailsWhenEmpty, Promise::Works),
];

#[tokio::test]
async fn each_wrong_sink_is_caught_by_the_promise_it_breaks() {
    for (kind, flaw, promise) in WRONG {
        let broken = check(&kit(), Build::wrong(kind, flaw)).await.expect_err(&format!("{kind:?} {flaw:?} passed"));
        assert_eq!(broken.promise(), promise, "{kind:?} {flaw:?}\n{broken}");
        // Its case alone shows the very same again.
        let only = kit().seed(broken.seed()).only(broken.scenario(), broken.case());
        let again = check(&only, Build::wrong(kind, flaw)).await.expect_err(&format!("{kind:?} {flaw:?} passed alone"));
        assert_eq!((again.what(), again.steps()), (broken.what(), broken.steps()), "{kind:?} {flaw:?}");
        assert_eq!((again.lost(), again.twice()), (broken.lost(), broken.twice()));
    }
}

/// A mistake that one scenario finds by itself, whatever comes before it.
const FOUND_BY: [(Scenario, Kind, Flaw, Promise); 14] = [
    (Scenario::Alone, Kind::Plain, Flaw::SkipsBelow, Promise::Kept),
    (Scenario::Sizes, Kind::Plain, Flaw::LosesWhenFull, Promise::Kept),
    (Scenario::Odd, Kind::Plain, Flaw::TruncatesPayload, Promise::Faithful),
    (Scenario::Redelivery, Kind::Plain, Flaw::SkipsBelow, Promise::Kept),
    (Scenario::Rejected, Kind::Plain, Flaw::RejectsInSilence, Promise::Answered),
    (Scenario::Crash, Kind::AtLeast, Flaw::ReplaysJournal, Promise::Once),
    (Scenario::Dropped, Kind::AtLeast, Flaw::ClaimLast, Promise::Once),
    (Scenario::Failing, Kind::Plain, Flaw::SyncsAgain, Promise::Synced),
    (Scenario::Fork, Kind::Plain, Flaw::NamesBySequence, Promise::LivesApart),
    (Scenario::Recreated, Kind::Plain, Flaw::NamesBySequence, Promise::LivesApart),
    (Scenario::CheckpointLost, Kind::AtLeast, Flaw::NewestClaim, Promise::Once),
    (Scenario::Recover, Kind::AtLeast, Flaw::RecoversUnsynced, Promise::Synced),
    (Scenario::Sources, Kind::Plain, Flaw::NamesLossySource, Promise::SourcesApart),
    (Scenario::Lives, Kind::AtLeast, Flaw::ClaimFirst, Promise::Claimed),
];

#[tokio::test]
async fn each_scenario_finds_a_mistake_by_itself() {
    assert_eq!(FOUND_BY.map(|(scenario, ..)| scenario).into_iter().collect::<BTreeSet<_>>().len(), Scenario::ALL.len());
    for (scenario, kind, flaw, promise) in FOUND_BY {
        let mut found = None;
        for case in 0..200 {
            let only = kit().only(scenario, case);
            check(&only, Build::right(kind, false)).await.unwrap();
            found = check(&only, Build::wrong(kind, flaw)).await.err();
            if found.is_some() {
                break;
            }
        }
        let found = found.unwrap_or_else(|| panic!("{scenario} does not find {flaw:?}"));
        assert_eq!((found.scenario(), found.promise()), (scenario, promise), "{flaw:?}\n{found}");
    }
}

#[tokio::test]
async fn what_is_broken_is_said_with_what_it_takes_to_see_it_again() {
    let broken = check(&kit().seed(7), Build::wrong(Kind::AtLeast, Flaw::ClaimLast)).await.unwrap_err();
    let text = broken.to_string();
    assert_eq!(format!("{broken:?}"), text, "`unwrap` shows the same");
    let (scenario, case) = (broken.scenario(), broken.case());
    for part in [
        "broken: nothing is written twice",
        &format!("again: Conformance::new().seed(7).only(Scenario::{scenario:?}, {case})"),
        "the process is gone",
        "a new sink",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    assert!(!broken.twice().is_empty() && broken.twice().iter().all(|(_, count)| *count == 2), "{text}");
    assert!(broken.twice().iter().all(|(id, _)| text.contains(&id.to_string())), "{text}");
    assert!(broken.lost().is_empty());
}

#[tokio::test]
async fn another_seed_does_other_things_and_the_same_seed_the_same() {
    let of = async |seed| {
        let wrong = Build::wrong(Kind::AtLeast, Flaw::DropsClaims);
        check(&kit().seed(seed), wrong).await.unwrap_err().to_string()
    };
    assert_eq!(of(3).await, of(3).await);
    assert_ne!(of(3).await, of(4).await);
}

#[tokio::test]
async fn without_hooks_the_report_says_what_was_not_tested() {
    // This one would be caught with the power cut.
    let build = Build::wrong(Kind::AtLeast, Flaw::NoSync);
    let kit = Conformance::new().cases(20).one_source();
    let report = kit.check(async || Ok(Model::without_hooks(build))).await.unwrap();
    let text = report.to_string();
    for part in [
        "not tested: durability: Storage::power_cut is not implemented",
        "not tested: failures of the storage: Storage::fail_at is not implemented",
        "not tested: rejected records: Conformance::rejects names none",
        "not tested: several sources in one storage: Conformance::one_source left them out",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    assert_eq!(report.not_tested().len(), 4, "{text}");
    assert!(!report.cases.contains_key(&Scenario::Failing) && !report.cases.contains_key(&Scenario::Sources));
}

#[tokio::test]
async fn a_sink_that_must_recover_and_does_not_is_caught() {
    let kit = Conformance::new().cases(1).must_recover();
    let broken = check(&kit, Build::right(Kind::Plain, false)).await.unwrap_err();
    assert_eq!((broken.promise(), broken.scenario()), (Promise::Claimed, Scenario::First));
    check(&kit, Build::right(Kind::AtLeast, false)).await.unwrap();
}

#[tokio::test]
async fn the_number_of_cases_is_bounded() {
    let few = check(&kit().cases(1), Build::right(Kind::AtLeast, true)).await.unwrap();
    assert!(few.cases.values().all(|cases| *cases == 1), "{few}");
    // And not raised: there are not that many places.
    let all = kit().cases(1_000_000).only(Scenario::First, 0);
    assert!(
        check(&all, Build::right(Kind::Plain, true)).await.unwrap().cases.is_empty(),
        "the first archive is no case"
    );
}

#[tokio::test]
async fn odd_records_that_a_sink_rejects_are_told() {
    let build = Build { rejects_binary: true, ..Build::right(Kind::Exactly, true) };
    let report = check(&kit(), build).await.unwrap();
    assert_eq!(report.rejected, ["bytes that are no text", "the largest payload", "the largest payload less one"]);
    assert!(report.to_string().contains("rejected by the sink: bytes that are no text"));
}

/// A storage that keeps times in milliseconds.
#[derive(Debug)]
struct Coarse(Model);

impl Storage for Coarse {
    type Sink = model::ModelSink;
    async fn open(&self, source: &Source) -> Result<Self::Sink, SinkFailure> {
        self.0.open(source).await
    }
    async fn held(&self, source: &Source) -> Result<Vec<Held>, SinkFailure> {
        let mut held = self.0.held(source).await?;
        for held in &mut held {
            held.published -= held.published % 1_000_000;
        }
        Ok(held)
    }
    async fn power_cut(&self) -> Result<Hook, SinkFailure> {
        self.0.power_cut().await
    }
}

#[tokio::test]
async fn coarser_times_are_a_breach_unless_the_unit_is_said() {
    let make = async || Ok(Coarse(Model::new(Build::right(Kind::AtLeast, false))));
    let broken = kit().cases(5).check(make).await.unwrap_err();
    assert_eq!(broken.promise(), Promise::Faithful);
    kit().cases(5).time_unit(Duration::from_millis(1)).check(make).await.unwrap();
}

/// A storage that fails, at the second opening or when it is read.
#[derive(Debug)]
struct Failing {
    model: Model,
    opened: AtomicU32,
    unreadable: bool,
}

impl Storage for Failing {
    type Sink = model::ModelSink;
    async fn open(&self, source: &Source) -> Result<Self::Sink, SinkFailure> {
        if !self.unreadable && self.opened.fetch_add(1, Ordering::Relaxed) > 0 {
            return Err("it is still locked".into());
        }
        self.model.open(source).await
    }
    async fn held(&self, source: &Source) -> Result<Vec<Held>, SinkFailure> {
        if self.unreadable { Err("no footer".into()) } else { self.model.held(source).await }
    }
}

#[tokio::test]
async fn a_storage_that_cannot_be_made_opened_again_or_read_is_said() {
    let broken = kit().check(async || Err::<Model, _>("the bucket is gone".into())).await.unwrap_err();
    assert_eq!(broken.promise(), Promise::Works);
    assert!(broken.what().contains("the bucket is gone"), "{broken}");
    for (unreadable, promise, said) in
        [(false, Promise::Works, "it is still locked"), (true, Promise::Faithful, "no footer")]
    {
        let model = || Model::new(Build::right(Kind::Plain, false));
        let make = async || Ok(Failing { model: model(), opened: AtomicU32::new(0), unreadable });
        let broken = kit().check(make).await.unwrap_err();
        assert_eq!((broken.promise(), broken.scenario()), (promise, Scenario::First));
        assert!(broken.what().contains(said), "{broken}");
    }
}

#[tokio::test]
async fn a_sink_with_real_files_passes() {
    let kit = Conformance::new().cases(12).max_payload(10_000).must_recover();
    let report = kit.check(async || Ok(LogStorage::new()?)).await.unwrap();
    assert_eq!(report.not_tested().len(), 4, "{report}");
    assert!(report.waits > 10, "{report}");
}

/// The check can be run in a task.
#[test]
fn a_check_may_go_to_another_thread() {
    fn sent<T: Send>(_: T) {}
    sent(kit().check(|| std::future::ready(Ok(Model::new(Build::right(Kind::Plain, false))))));
}
