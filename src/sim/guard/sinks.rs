//! What sinks do: keep claims, keep things open, reject, fill up, fail, and are interrupted.

use crate::{GuardError, Offer, Reason, Record, Trust};

use super::{archive, archived, writes};
use crate::sim::{Driver, Partial, Recover, Stop, World, now};

/// An archive in flushes of so many, by a sink that keeps their claims.
fn claimed(count: u64, each: usize, recover: Recover) -> (World, Driver) {
    let world = World::new();
    world.publish(count);
    let mut driver = Driver::new(&world);
    driver.disk.inside().recover = recover;
    driver.open().unwrap();
    archive(&mut driver, each);
    (world, driver)
}

/// A driver whose process dies after the sink made everything durable and before the checkpoint is saved.
fn died_in_the_window(recover: Recover) -> (World, Driver) {
    let (world, mut driver) = archived(10, 10);
    driver.disk.inside().recover = recover;
    world.publish(10);
    driver.pull(10).unwrap();
    driver.store.place().fail_save = true;
    let stop = driver.flush(Reason::Due).unwrap_err();
    assert!(matches!(stop, Stop::Guard(GuardError::Store(_))), "{stop:?}");
    assert!(driver.guard().is_closed());
    assert_eq!((driver.acked.len(), driver.disk.sequences().len()), (10, 20));
    driver.store.place().fail_save = false;
    (world, driver)
}

#[test]
fn a_sink_without_claims_gets_at_most_one_flush_again() {
    let (_, mut driver) = died_in_the_window(Recover::Unknown);
    driver.open().unwrap();
    driver.finish();
    assert_eq!(writes(&driver), 30);
}

#[test]
fn a_sink_that_keeps_claims_has_no_window() {
    for recover in [Recover::AtLeast, Recover::Exactly(11)] {
        let (_, mut driver) = died_in_the_window(recover);
        driver.open().unwrap();
        assert_eq!(driver.guard().floor(), 20, "{recover:?}");
        driver.allowed.clear();
        driver.finish();
        assert_eq!(writes(&driver), 20, "{recover:?}");
    }
}

#[test]
fn a_lost_checkpoint_is_rebuilt_from_the_claims() {
    for recover in [Recover::AtLeast, Recover::Exactly(1)] {
        let (_, mut driver) = claimed(60, 7, recover);
        let state_id = driver.guard().state_id();
        driver.crash();
        driver.store.place().states.clear();
        driver.consumer.forget();
        driver.open().unwrap();
        driver.finish();
        assert_eq!((writes(&driver), driver.guard().spans()), (60, 1));
        assert_eq!(driver.guard().state_id(), state_id);
    }
}

#[test]
fn claims_that_the_checkpoint_has_cost_no_request() {
    let requests = |recover| {
        let (world, mut driver) = claimed(1_000, 5, recover);
        assert!(driver.disk.inside().files.len() >= 200);
        driver.crash();
        let mut opened = Vec::new();
        // The sink names all of them in one of two openings.
        for _ in 0..2 {
            let before = world.requests();
            driver.open().unwrap();
            assert_eq!((driver.guard().floor(), driver.guard().report().claimed), (1_000, 0));
            opened.push(world.requests() - before);
        }
        opened
    };
    assert_eq!(requests(Recover::AtLeast), requests(Recover::Unknown));
}

#[test]
fn a_claim_around_what_the_checkpoint_has_holds_on_both_sides() {
    let (world, mut driver) = claimed(10, 10, Recover::AtLeast);
    world.publish(10);
    driver.disk.inside().partial = Partial::Even;
    driver.pull(10).unwrap();
    driver.flush(Reason::Due).unwrap();
    driver.crash();
    // The checkpoint has the even ones, and one flush claims the odd ones as one span.
    (12..=20).step_by(2).for_each(|sequence| world.delete(sequence));
    driver.disk.inside().partial = Partial::All;
    driver.open_guard().unwrap();
    driver.consumer.move_to(11);
    driver.session().unwrap();
    driver.pull(5).unwrap();
    cut_off_after_the_sink(&mut driver);
    world.delete(19);
    driver.open().unwrap();
    driver.finish();
    assert_eq!(writes(&driver), 25, "20, and the odd ones once more");
}

/// The process dies when the sink has made everything durable.
pub(super) fn cut_off_after_the_sink(driver: &mut Driver) {
    driver.disk.inside().hang = true;
    driver.budget = Some(100);
    let stop = driver.flush(Reason::Due).unwrap_err();
    assert!(matches!(stop, Stop::Crashed), "{stop:?}");
    driver.budget = None;
    driver.crash();
}

#[test]
fn a_lost_checkpoint_costs_one_request_for_each_claim() {
    let (world, mut driver) = claimed(1_000, 5, Recover::AtLeast);
    let claims = driver.disk.inside().files.len() as u64;
    driver.crash();
    driver.store.place().states.clear();
    let before = world.requests();
    driver.open().unwrap();
    assert_eq!((driver.guard().floor(), driver.guard().spans()), (1_000, 1));
    let requests = world.requests() - before;
    assert!(requests < claims + 20, "{requests} requests for {claims} claims");
}

#[test]
fn claims_are_finer_than_what_a_long_archive_remembers() {
    let (world, mut driver) = claimed(8_000, 2, Recover::AtLeast);
    driver.crash();
    world.lose_to(1_001);
    world.publish(10);
    driver.consumer.forget();
    // It leaves out what the checkpoint has.
    driver.disk.inside().asked = 0;
    driver.open().unwrap();
    assert_eq!(driver.guard().floor(), 1_000, "asked again, for what the fork left of the checkpoint");
}

#[test]
fn claims_of_a_life_that_is_over_claim_nothing() {
    let (world, mut driver) = claimed(20, 5, Recover::AtLeast);
    driver.crash();
    driver.store.place().states.clear();
    world.lose_to(12);
    world.publish(20);
    driver.consumer.forget();
    driver.open().unwrap();
    assert_eq!((driver.guard().floor(), driver.guard().report().history), (10, 2));
    driver.quiet().unwrap();
    driver.allowed = [11, 12].map(|sequence| (world.get(sequence).unwrap().id(sequence), 1)).into();
    driver.complete().unwrap();
    assert_eq!(writes(&driver), 20 + 22);
}

#[test]
fn claims_above_the_end_of_a_stream_are_not_asked_about_one_by_one() {
    let (world, mut driver) = claimed(200, 5, Recover::AtLeast);
    driver.crash();
    driver.store.place().states.clear();
    world.lose_to(12);
    driver.consumer.forget();
    let before = world.requests();
    driver.open().unwrap();
    assert_eq!((driver.guard().floor(), driver.guard().report().history), (10, 38));
    // A server says for each with a second request, a second later, that it is above.
    assert!(world.requests() - before < 20, "{} requests", world.requests() - before);
}

#[test]
fn c7_an_exact_sink_that_lost_a_file_gets_just_that_again() {
    let (_, mut driver) = claimed(40, 10, Recover::Exactly(1));
    driver.crash();
    {
        let mut inside = driver.disk.inside();
        let (_, ids) = inside.files.remove(1);
        inside.durable.retain(|record| !ids.contains(&record.id()));
    }
    driver.open().unwrap();
    assert_eq!((driver.guard().floor(), driver.guard().spans()), (10, 2));
    driver.finish();
    assert_eq!(writes(&driver), 50, "11..20 again, found by the check of the consumer's position");
    assert_eq!(driver.guard().spans(), 1);
}

#[test]
fn an_exact_sink_may_have_dropped_what_is_old() {
    let (_, mut driver) = archived(40, 10);
    driver.crash();
    driver.disk.inside().recover = Recover::Exactly(21);
    driver.disk.inside().files.drain(..2);
    driver.consumer.forget();
    driver.open().unwrap();
    driver.finish();
    assert_eq!(writes(&driver), 40);
}

#[test]
fn a_full_sink_is_emptied_where_a_fork_orphaned_all_that_it_holds() {
    let (world, mut driver) = archived(20, 10);
    world.publish(5);
    driver.disk.inside().full_at = Some(5);
    let mut guard = driver.guard.take().unwrap();
    let record = |sequence: u64| world.get(sequence).unwrap().record(sequence);
    let offers: Vec<Offer> = (21..=25).map(|sequence| now(guard.offer(record(sequence), None)).unwrap()).collect();
    assert_eq!(offers.last(), Some(&Offer::Full));
    world.lose_to(20);
    world.publish(5);
    let permits = now(guard.begin_session()).unwrap();
    assert_eq!((permits.fork().map(|fork| fork.orphaned.len()), permits.move_to()), (Some(5), Some(21)));
    guard.moved();
    let permits = now(guard.begin_session()).unwrap();
    assert!(permits.flush_due());
    assert!(matches!(now(guard.offer(record(21), None)), Err(crate::GuardError::FlushDue)));
    _ = now(guard.flush(Reason::Due)).unwrap();
    assert_eq!(now(guard.offer(record(21), None)).unwrap(), Offer::Written, "it has room");
}

#[test]
fn what_a_sink_keeps_open_is_permitted_when_it_is_durable() {
    let world = World::new();
    world.publish(10);
    let mut driver = Driver::opened(&world);
    driver.disk.inside().partial = Partial::Even;
    driver.pull(10).unwrap();
    driver.flush(Reason::Due).unwrap();
    let mut acked: Vec<u64> = driver.acked.iter().map(|id| id.sequence).collect();
    acked.sort_unstable();
    assert_eq!(acked, [2, 4, 6, 8, 10]);
    assert_eq!((driver.guard().pending(), driver.guard().spans()), (5, 5));
    driver.consumer.expire();
    assert_eq!(driver.pull(10).unwrap(), 5);
    assert_eq!(driver.guard().counters().pending, 5, "not written again");
    driver.disk.inside().partial = Partial::All;
    driver.finish();
    assert_eq!((driver.acked.len(), driver.guard().spans(), writes(&driver)), (10, 1, 10));
}

#[test]
fn a_sink_that_keeps_something_back_when_everything_is_due_closes_the_guard() {
    let world = World::new();
    world.publish(3);
    let mut driver = Driver::opened(&world);
    driver.disk.inside().partial = Partial::Even;
    driver.pull(3).unwrap();
    let stop = driver.flush(Reason::Everything).unwrap_err();
    assert!(matches!(stop, Stop::Guard(GuardError::NotEverything { left: 2 })), "{stop:?}");
}

#[test]
fn ids_nobody_waits_for_are_counted_and_permit_nothing() {
    struct Liar;
    impl crate::Sink for Liar {
        type Error = std::io::Error;
        async fn write(&mut self, _: Record) -> Result<crate::Written, std::io::Error> {
            Ok(crate::Written::Accepted)
        }
        async fn flush(&mut self, _: crate::Flush<'_>) -> Result<crate::Durable, std::io::Error> {
            Ok(crate::Durable::Only(vec![crate::RecordId::new(99, 1), crate::RecordId::new(1, 1)]))
        }
    }
    let world = World::new();
    world.publish(1);
    let (source, store) = (crate::Source::new("ORDERS"), crate::MemoryStore::new());
    let mut guard = now(crate::Guard::open(source, Liar, store, world.observer(""))).unwrap();
    _ = now(guard.begin_session()).unwrap();
    _ = now(guard.offer(world.get(1).unwrap().record(1), None)).unwrap();
    let permits = now(guard.flush(Reason::Due)).unwrap();
    assert!(permits.acks().is_empty());
    assert_eq!((guard.counters().ids_ignored, guard.pending()), (2, 1));
}

#[test]
fn a_record_the_sink_can_never_store_is_reported_and_counts_as_done() {
    let world = World::new();
    world.publish(49);
    world.publish_to("orders.bad");
    world.publish(50);
    let mut driver = Driver::opened(&world);
    driver.disk.inside().rejects.insert("orders.bad".into());
    driver.pull(100).unwrap();
    let mut guard = driver.guard.take().unwrap();
    let permits = now(guard.flush(Reason::Due)).unwrap();
    assert_eq!(permits.rejected().iter().map(|id| id.sequence).collect::<Vec<_>>(), [50]);
    assert_eq!(permits.acks().len(), 100);
    assert_eq!((guard.floor(), guard.spans(), guard.counters().rejected), (100, 1, 1));
    driver.guard = Some(guard);
    driver.crash();
    driver.consumer.forget();
    driver.open().unwrap();
    driver.finish();
    assert_eq!(driver.disk.inside().rejected.len(), 1, "not offered to the sink again");
}

#[test]
fn a_full_sink_gets_a_flush_before_the_next_record() {
    let world = World::new();
    world.publish(10);
    let mut driver = Driver::opened(&world);
    driver.disk.inside().full_at = Some(3);
    let mut guard = driver.guard.take().unwrap();
    let record = |sequence| world.get(sequence).unwrap().record(sequence);
    for (sequence, offer) in [(1, Offer::Written), (2, Offer::Written), (3, Offer::Full)] {
        assert_eq!(now(guard.offer(record(sequence), None)).unwrap(), offer);
    }
    for _ in 0..2 {
        assert!(matches!(now(guard.offer(record(4), None)), Err(GuardError::FlushDue)));
    }
    assert_eq!(now(guard.offer(record(3), None)).unwrap(), Offer::Pending, "what needs no write needs no room");
    assert_eq!(now(guard.flush(Reason::Due)).unwrap().acks().len(), 3);
    assert_eq!(now(guard.offer(record(4), None)).unwrap(), Offer::Written);
    drop(guard);
    driver.open().unwrap();
    driver.finish();
}

#[test]
fn a_sink_that_fails_leads_to_no_ack_and_no_checkpoint() {
    for in_write in [true, false] {
        let (world, mut driver) = archived(10, 10);
        world.publish(10);
        driver.pull(5).unwrap();
        let saved = driver.store.newest();
        driver.disk.inside().fail_write = in_write;
        driver.disk.inside().fail_flush = true;
        let stop = driver.pull(5).and_then(|_| driver.flush(Reason::Due)).unwrap_err();
        assert!(matches!(stop, Stop::Guard(GuardError::Sink { .. })), "{stop:?}");
        assert_eq!((driver.acked.len(), driver.store.newest()), (10, saved));
        let mut guard = driver.guard.take().unwrap();
        assert!(matches!(now(guard.flush(Reason::Due)), Err(GuardError::Closed)));
        driver.guard = Some(guard);
        driver.disk.inside().fail_write = false;
        driver.disk.inside().fail_flush = false;
        driver.open().unwrap();
        driver.finish();
        assert_eq!(driver.disk.sequences(), (1..=20).collect::<Vec<_>>());
    }
}

#[test]
fn c4_a_sink_that_makes_only_every_second_record_durable_leads_to_no_storm() {
    let world = World::new();
    world.state().pace = 1_000;
    let mut driver = Driver::opened(&world);
    driver.disk.inside().partial = Partial::Even;
    driver.max_spans = 1_000;
    driver.open().unwrap();
    for _ in 0..100 {
        world.publish(500);
        driver.pull(500).unwrap();
        driver.flush(Reason::Due).unwrap();
    }
    let guard = driver.guard();
    assert_eq!(driver.acked.len(), 25_000);
    assert!(guard.spans() <= 1_000 && guard.counters().spans_forgotten > 20_000, "{}", guard.spans());
    assert!(world.requests() < 100 * 30, "{} requests", world.requests());
    assert!(driver.store.newest().unwrap().len() < 64 * 1024);
}

/// Cancels the k-th poll of everything that a short archive does.
fn interrupted(after: u32, recover: Recover) -> bool {
    let (world, mut driver) = claimed(6, 3, recover);
    world.publish(6);
    world.state().stutter = 1;
    driver.budget = Some(after);
    let outcome = driver
        .pull(4)
        .and_then(|_| driver.flush(Reason::Due))
        .and_then(|()| driver.check())
        .and_then(|()| driver.session())
        .and_then(|()| driver.pull(2))
        .and_then(|_| driver.flush(Reason::Everything));
    let died = match outcome {
        Ok(()) => false,
        Err(Stop::Crashed) => true,
        Err(stop) => panic!("{stop:?}"),
    };
    driver.budget = None;
    if died {
        let mut guard = driver.guard.take().unwrap();
        // Polled at least once, or not begun: a call that was not begun leaves the guard open.
        if guard.is_closed() {
            assert!(matches!(now(guard.begin_session()), Err(GuardError::Closed)));
            assert!(matches!(now(guard.flush(Reason::Due)), Err(GuardError::Closed)));
        }
        driver.guard = Some(guard);
    }
    driver.open().unwrap();
    if recover == Recover::AtLeast {
        driver.allowed.clear();
    }
    driver.finish();
    assert!(matches!(driver.guard().report().trust, Trust::Whole), "{:?}", driver.guard().report().trust);
    died
}

#[test]
fn a_call_dropped_at_any_await_loses_nothing() {
    for recover in [Recover::Unknown, Recover::AtLeast] {
        let mut polls = 0;
        while interrupted(polls, recover) {
            polls += 1;
        }
        assert!(polls > 40, "{polls}");
    }
}

#[test]
fn an_opening_dropped_at_any_await_loses_nothing() {
    let mut polls = 0;
    loop {
        let (world, mut driver) = archived(20, 5);
        driver.crash();
        world.lose_to(15);
        driver.consumer.progress.delivered = 25;
        world.publish(10);
        world.state().stutter = 1;
        driver.budget = Some(polls);
        let outcome = driver.open();
        driver.budget = None;
        let died = match outcome {
            Ok(()) => false,
            Err(Stop::Crashed) => true,
            Err(stop) => panic!("{stop:?}"),
        };
        if died {
            driver.open().unwrap();
        }
        driver.finish();
        assert_eq!(driver.disk.inside().durable.len(), 30);
        if !died {
            break;
        }
        polls += 1;
    }
    assert!(polls > 15, "{polls}");
}
