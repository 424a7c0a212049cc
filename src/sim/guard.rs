//! A guard over a small world: one accident each, and what must come of it.

mod checkpoints;
pub(super) mod forks;
mod gone;
mod halves;
mod origins;
pub(super) mod passed;
mod rejects;
mod sinks;

use crate::{Offer, Origin, Reason, Record, Trust};

use crate::sim::accident::Accident;
use crate::sim::held::Kept;
use crate::sim::{AfterLoss, Driver, MS, World, now};

/// Archives what the stream holds, in flushes of so many.
fn archive(driver: &mut Driver, each: usize) {
    while driver.pull(each).unwrap() > 0 {
        driver.flush(Reason::Due).unwrap();
    }
    driver.complete().unwrap();
}

fn archived(count: u64, each: usize) -> (World, Driver) {
    let world = World::new();
    world.publish(count);
    let mut driver = Driver::opened(&world);
    archive(&mut driver, each);
    (world, driver)
}

fn writes(driver: &Driver) -> u64 {
    driver.disk.inside().writes
}

#[test]
fn a_first_archive_writes_every_message_once_and_acks_it() {
    let (_, driver) = archived(1_000, 100);
    assert_eq!(driver.disk.sequences(), (1..=1_000).collect::<Vec<_>>());
    assert_eq!(driver.acked.len(), 1_000);
    assert_eq!((driver.guard().floor(), driver.guard().spans()), (1_000, 1));
    assert_eq!(driver.guard().counters().saves, 11);
    assert!(driver.world.requests() < 40, "{} requests for ten flushes", driver.world.requests());
}

#[test]
fn a_consumer_that_forgot_everything_leads_to_no_write() {
    let (_, mut driver) = archived(1_000, 100);
    driver.crash();
    driver.consumer.forget();
    driver.open().unwrap();
    driver.finish();
    assert_eq!(writes(&driver), 1_000);
    assert_eq!(driver.guard().counters().rewinds, 1);
    assert_eq!(driver.guard().counters().skipped, 1_000);
    assert_eq!(driver.guard().counters().saves, 1, "skipping saves nothing but the opening");
    assert_eq!(driver.guard().report().trust, Trust::Whole);
    assert_eq!(driver.runs.len(), 1);
    assert_eq!((driver.runs[0].count, driver.runs[0].first, driver.runs[0].last), (1_000, 1, 1_000));
}

#[test]
fn what_was_skipped_in_an_earlier_session_is_not_permitted() {
    let (world, mut driver) = archived(5, 5);
    let mut guard = driver.guard.take().unwrap();
    let record = || world.get(3).unwrap().record(3);
    assert_eq!(now(guard.offer(record(), None)).unwrap(), Offer::Skipped);
    _ = now(guard.begin_session()).unwrap();
    assert!(now(guard.flush(Reason::Due)).unwrap().acks().is_empty());
    assert_eq!(now(guard.offer(record(), None)).unwrap(), Offer::Skipped);
    assert_eq!(now(guard.flush(Reason::Due)).unwrap().acks(), [record().id()]);
}

#[test]
fn a_consumer_that_fell_back_half_way_gets_only_what_is_new_written() {
    let world = World::new();
    world.publish(50);
    let mut driver = Driver::opened(&world);
    archive(&mut driver, 10);
    driver.consumer.remember();
    world.publish(50);
    archive(&mut driver, 10);
    driver.crash();
    driver.consumer.fall_back();
    world.publish(5);
    driver.open().unwrap();
    driver.finish();
    assert_eq!(writes(&driver), 105);
    assert_eq!(driver.guard().counters().skipped, 50);
}

#[test]
fn a_creation_time_that_moved_leads_to_no_write() {
    let (world, mut driver) = archived(20, 7);
    driver.crash();
    world.drift();
    driver.consumer.forget();
    driver.open().unwrap();
    driver.finish();
    assert_eq!(writes(&driver), 20);
    let report = driver.guard().report();
    assert_eq!(report.trust, Trust::Whole);
    assert!(report.created.is_some() && report.move_to.is_none());
}

#[test]
fn a_restored_stream_is_known_by_its_messages() {
    let (world, mut driver) = archived(20, 7);
    world.back_up();
    driver.crash();
    world.restore();
    driver.consumer.forget();
    driver.open().unwrap();
    driver.finish();
    assert_eq!(writes(&driver), 20);
    assert_eq!(driver.guard().report().trust, Trust::Whole);
}

#[test]
fn messages_that_were_deleted_or_expired_are_neither_lost_nor_written_again() {
    let (world, mut driver) = archived(40, 10);
    for sequence in [5, 31, 39, 40] {
        world.delete(sequence);
    }
    world.expire_below(4);
    driver.crash();
    driver.consumer.forget();
    driver.open().unwrap();
    world.publish(3);
    driver.finish();
    assert_eq!(writes(&driver), 43);
    assert_eq!(driver.guard().report().trust, Trust::Whole, "38 stands, and 39 and 40 are safe");
    assert!(driver.forks.is_empty() && driver.moves.is_empty());
}

#[test]
fn an_archive_of_a_stream_that_keeps_one_message_a_subject_is_not_taken_for_a_fork() {
    let world = World::new();
    world.state().per_subject = Some(1);
    let mut driver = Driver::opened(&world);
    for round in 0..30 {
        for subject in ["a", "b", "c"] {
            world.publish_to(subject);
        }
        driver.pull(2 + round % 3).unwrap();
        driver.flush(Reason::Due).unwrap();
    }
    driver.finish();
    driver.crash();
    world.purge();
    driver.open().unwrap();
    driver.finish();
    assert_eq!(driver.guard().report().trust, Trust::ByTime);
    assert!(driver.forks.is_empty() && driver.moves.is_empty());
}

#[test]
fn a_work_queue_is_archived_over_forgetting_and_forks() {
    let world = World::new();
    world.state().work_queue = true;
    world.publish(30);
    let mut driver = Driver::opened(&world);
    archive(&mut driver, 10);
    assert!(world.all("").is_empty(), "what is archived is acked, and so removed");
    let requests = world.requests();
    world.publish(30);
    archive(&mut driver, 10);
    assert!(world.requests() - requests < 12, "a gone witness is ordinary here: {}", world.requests() - requests);
    driver.crash();
    driver.consumer.forget();
    driver.open().unwrap();
    driver.finish();
    assert_eq!(writes(&driver), 60);

    for after in [AfterLoss::Ahead, AfterLoss::PulledBack] {
        let last = world.last();
        world.lose_to(last - 5);
        driver.consumer.after_loss(after);
        world.disconnect();
        world.publish(3);
        driver.finish();
        world.publish(20);
        driver.finish();
        assert!(world.all("").is_empty());
    }
    assert_eq!(writes(&driver), 60 + 2 * 23);
    assert_eq!(driver.forks.len(), 2);
}

#[test]
fn while_the_stream_cannot_be_asked_nothing_is_acked_and_nothing_new_is_written() {
    let world = World::new();
    world.publish(20);
    let mut driver = Driver::opened(&world);
    driver.pull(10).unwrap();
    world.state().silent = 2;
    driver.flush(Reason::Due).unwrap();
    assert_eq!((driver.acked.len(), driver.guard().pending()), (0, 10));
    assert_eq!(driver.disk.sequences().len(), 10, "held: durable and not verified");
    let saves = driver.store.place().saves;
    let mut guard = driver.guard.take().unwrap();
    let due = now(guard.offer(world.get(11).unwrap().record(11), None));
    assert!(matches!(due, Err(crate::GuardError::FlushDue)), "{due:?}");
    driver.guard = Some(guard);
    driver.flush(Reason::Due).unwrap();
    assert_eq!((driver.acked.len(), driver.store.place().saves), (0, saves));
    driver.flush(Reason::Due).unwrap();
    assert_eq!((driver.acked.len(), driver.guard().pending()), (10, 0));
    assert_eq!(driver.disk.inside().flushes, 1);
    driver.finish();
    assert_eq!(writes(&driver), 20);
}

#[test]
fn a_missing_permission_is_an_error_and_not_an_outage() {
    let world = World::new();
    world.publish(3);
    let mut driver = Driver::opened(&world);
    driver.pull(3).unwrap();
    world.state().denied = true;
    let stop = driver.flush(Reason::Due).unwrap_err();
    assert!(matches!(stop, crate::sim::Stop::Guard(crate::GuardError::Observe(_))), "{stop:?}");
    assert!(driver.guard().is_closed() && driver.acked.is_empty());
    let stop = driver.open().unwrap_err();
    assert!(matches!(stop, crate::sim::Stop::Open(crate::OpenError::Observe(_))), "{stop:?}");
}

#[test]
fn what_an_operator_wants_again_is_written_again_once() {
    let (world, mut driver) = archived(30, 10);
    let mut guard = driver.guard.take().unwrap();
    let permits = now(guard.replay_from(15)).unwrap();
    driver.guard = Some(guard);
    assert_eq!((permits.move_to(), permits.acks().len()), (Some(15), 0));
    driver.allowed = (15..=30).map(|sequence| (world.get(sequence).unwrap().id(sequence), 1)).collect();
    driver.crash();
    driver.open().unwrap();
    assert_eq!(driver.moves, [15], "the move is redone by the next opening");
    driver.finish();
    assert_eq!(writes(&driver), 46);
    driver.consumer.forget();
    driver.crash();
    driver.open().unwrap();
    driver.finish();
    assert_eq!(writes(&driver), 46);
}

#[test]
fn a_wish_that_meets_a_fork_is_for_what_the_fork_leaves() {
    let (world, mut driver) = archived(30, 10);
    let mut guard = driver.guard.take().unwrap();
    world.lose_to(25);
    world.publish(3);
    let permits = now(guard.replay_from(15)).unwrap();
    assert_eq!((permits.fork().is_some(), permits.move_to(), guard.floor()), (true, Some(15), 14));
    driver.guard = Some(guard);
    driver.crash();
    driver.open().unwrap();
    assert_eq!(driver.moves, [15]);
}

#[test]
fn a_tail_that_is_lost_while_a_wish_is_carried_out_takes_nothing_along() {
    for (from, requests) in (15..=40).flat_map(|from| (1..=10).map(move |requests| (from, requests))) {
        let (world, mut driver) = archived(40, 40);
        driver.allowed = (1..=40).map(|sequence| (world.get(sequence).unwrap().id(sequence), 1)).collect();
        let loss = Accident::Loss { tail: 20, kept: Kept::All, noticed: false, then: 10 };
        world.state().server.later.push((requests, loss));
        let mut guard = driver.guard.take().unwrap();
        _ = now(guard.replay_from(from)).unwrap();
        driver.guard = Some(guard);
        driver.crash();
        driver.consumer.forget();
        driver.open().unwrap();
        driver.finish();
        for record in world.all("") {
            assert!(driver.disk.holds(&record), "{} is lost: from {from}, {requests} requests", record.id());
        }
    }
}

#[test]
fn a_filtered_source_ends_with_one_span_after_many_sessions() {
    let world = World::new();
    let mut driver = Driver::filtered(&world, "orders.");
    driver.open().unwrap();
    for _ in 0..40 {
        for subject in ["orders.a", "other.a", "orders.b", "other.b", "orders.c"] {
            world.publish_to(subject);
        }
        driver.quiet().unwrap();
        world.disconnect();
    }
    driver.finish();
    assert_eq!(driver.guard().spans(), 1);
    assert_eq!(writes(&driver), 120);
    assert!(world.requests() < 40 * 40, "{} requests", world.requests());
}

#[test]
fn without_links_a_filtered_source_ends_with_one_span_too() {
    let world = World::new();
    let mut driver = Driver::filtered(&world, "orders.");
    driver.links = false;
    driver.open().unwrap();
    for _ in 0..10 {
        world.publish_to("orders.a");
        world.publish_to("other.a");
    }
    driver.finish();
    assert_eq!((driver.guard().spans(), driver.guard().floor()), (1, 19));
}

#[test]
fn a_message_that_the_consumer_passed_over_is_found_and_archived() {
    let (world, mut driver) = archived(10, 5);
    world.publish(10);
    // Another worker took four and never acked them: their consumer sequences are missing.
    driver.consumer.progress.delivered = 14;
    driver.consumer.progress.consumer_sequence += 4;
    driver.pull(100).unwrap();
    driver.flush(Reason::Due).unwrap();
    assert_eq!(driver.guard().floor(), 10);
    driver.check().unwrap();
    assert!(driver.moves.is_empty(), "seen once is not enough");
    driver.check().unwrap();
    assert_eq!(driver.moves, [11]);
    driver.finish();
    assert_eq!(writes(&driver), 20);
}

#[test]
fn a_move_back_takes_along_what_is_only_with_the_sink() {
    let (world, mut driver) = archived(10, 5);
    world.publish(10);
    driver.pull(3).unwrap();
    // Another worker acked all, these as well.
    driver.consumer.progress.pending.clear();
    driver.consumer.progress.delivered = 20;
    driver.check().unwrap();
    driver.check().unwrap();
    assert_eq!(driver.moves, [11], "14 was passed over, and 11 to 13 die with the process");
    driver.crash();
    driver.open().unwrap();
    assert_eq!(driver.moves, [11]);
    driver.finish();
    assert_eq!(driver.disk.sequences(), (1..=20).collect::<Vec<_>>());
}

#[test]
fn a_message_passed_over_above_a_gap_that_cannot_close_is_found() {
    let world = World::new();
    world.state().work_queue = true;
    world.publish(3);
    let mut driver = Driver::opened(&world);
    archive(&mut driver, 3);
    world.disconnect();
    world.publish(3);
    // An ack that got lost leaves an archived message in the stream.
    driver.fetch(3);
    driver.offer_buffered().unwrap();
    driver.pull(3).unwrap();
    driver.flush(Reason::Due).unwrap();
    world.publish(6);
    driver.consumer.progress.delivered = 9;
    driver.finish();
    assert_eq!(driver.disk.sequences(), (1..=12).collect::<Vec<_>>());
}

#[test]
fn a_consumer_beyond_the_end_of_a_stream_is_moved_back() {
    let (_, mut driver) = archived(10, 5);
    driver.consumer.progress.delivered = 500;
    driver.check().unwrap();
    assert_eq!(driver.moves, [11]);
    driver.world.publish(5);
    driver.finish();
    assert_eq!(writes(&driver), 15);
}

#[test]
fn the_floor_passes_a_record_that_was_deleted_between_two_sessions() {
    for reopened in [false, true] {
        let (world, mut driver) = archived(10, 5);
        world.delete(10);
        world.disconnect();
        if reopened {
            driver.open().unwrap();
        }
        world.publish(5);
        driver.finish();
        assert_eq!((driver.guard().floor(), driver.guard().spans(), writes(&driver)), (15, 1, 15));
    }
}

#[test]
fn a_clock_that_steps_back_over_a_fork_is_caught_by_the_witness_alone() {
    let (world, mut driver) = archived(20, 5);
    world.lose_to(15);
    // The new messages lie inside the times of the archive.
    world.state().clock -= 170 * MS;
    driver.consumer.after_loss(AfterLoss::PulledBack);
    world.disconnect();
    world.publish(4);
    driver.quiet().unwrap();
    assert_eq!(driver.forks.len(), 1, "the witness at 20 is beyond the end");
    for sequence in 16..=19 {
        let message: Record = world.get(sequence).unwrap().record(sequence);
        assert!(driver.disk.holds(&message), "{sequence} is archived");
    }
}

#[test]
fn a_clock_that_steps_back_deceives_only_where_the_witness_is_gone_as_well() {
    let (world, mut driver) = archived(20, 5);
    world.lose_to(15);
    // Back into the times of the archive, and the message that would tell is deleted.
    world.state().clock -= 165 * MS;
    world.publish(6);
    world.delete(20);
    driver.consumer.after_loss(AfterLoss::PulledBack);
    driver.consumer.progress.delivered = 15;
    driver.session().unwrap();
    driver.pull(4).unwrap();
    // Known: times alone do not hold against such a clock. Four new messages are taken for archived ones.
    assert!(matches!(driver.flush(Reason::Due), Err(crate::sim::Stop::Broken(_))));
    let counters = driver.guard().counters();
    assert_eq!(counters.skipped, 4);
    assert!(counters.by_time > 0, "but it is counted that times alone decided");
}

#[test]
pub(super) fn a_record_that_stands_inside_a_span_and_is_none_of_it_cuts_the_span() {
    let world = World::new();
    world.publish(3);
    // The clock was wrong for one message, so it lies outside the times of what is adopted.
    world.state().clock += 3_600_000 * MS;
    world.publish(1);
    world.state().clock -= 3_600_000 * MS;
    world.publish(2);
    let mut driver = Driver::new(&world);
    driver.origin = Origin::Adopt(6);
    driver.disk.keep(world.all("").into_iter().filter(|record| record.sequence != 4));
    driver.open().unwrap();
    // Else its newest record would say that all below is of one life.
    world.delete(6);
    driver.pull(6).unwrap();
    driver.flush(Reason::Due).unwrap();
    assert_eq!(driver.forks.len(), 1);
    driver.finish();
}
