//! What the stream drops before it is archived: gone on from the first message, and told once.

use super::{archive, archived, writes};
use crate::{OnDamage, Opening, Origin, Reason};

use crate::sim::accident::Accident;
use crate::sim::{Driver, World, now};

/// What was told, in all runs: a driver counts anew with each opening.
fn told(driver: &Driver) -> u64 {
    driver.guard().counters().passed_by
}

#[test]
fn c8_a_purge_beyond_the_checkpoint_goes_on_at_the_first_message_and_is_told_once() {
    let (world, mut driver) = archived(20, 10);
    driver.crash();
    world.publish(10);
    world.expire_below(26);
    driver.open().unwrap();
    assert_eq!(driver.guard().report().passed_by, Some((21, 25)));
    driver.finish();
    assert_eq!((writes(&driver), driver.guard().floor(), told(&driver)), (25, 30, 5));
    driver.check().unwrap();
    driver.session().unwrap();
    assert_eq!(told(&driver), 5);
    driver.crash();
    driver.open().unwrap();
    driver.finish();
    assert_eq!((driver.guard().report().passed_by, told(&driver)), (None, 0), "an earlier run told it");
}

#[test]
fn c8_a_limit_that_passes_by_a_running_archiver_is_told_at_the_flush_once_a_run() {
    let (world, mut driver) = archived(20, 10);
    for round in 1..=3 {
        world.publish(10);
        let last = world.last();
        world.expire_below(last - 3);
        archive(&mut driver, 10);
        assert_eq!((told(&driver), driver.guard().floor()), (6 * round, last));
        driver.check().unwrap();
        driver.session().unwrap();
        assert_eq!(told(&driver), 6 * round);
    }
    assert_eq!(writes(&driver), 32);
}

#[test]
fn c8_what_is_with_the_sink_or_on_its_way_when_the_stream_drops_it_is_not_told() {
    let (world, mut driver) = archived(20, 10);
    world.publish(30);
    // Ten are with the sink, and ten were sent.
    driver.pull(10).unwrap();
    driver.fetch(10);
    world.expire_below(45);
    driver.check().unwrap();
    driver.flush(Reason::Due).unwrap();
    assert_eq!(told(&driver), 0);
    driver.offer_buffered().unwrap();
    driver.flush(Reason::Due).unwrap();
    assert_eq!((told(&driver), driver.guard().floor()), (0, 44), "nothing above 40 is looked at yet");
    archive(&mut driver, 10);
    assert_eq!(told(&driver), 4, "41 to 44");
}

#[test]
fn c8_between_two_sessions_the_sink_holds_what_the_stream_drops() {
    let (world, mut driver) = archived(20, 10);
    world.publish(10);
    driver.pull(5).unwrap();
    world.publish(10);
    world.expire_below(36);
    driver.session().unwrap();
    assert_eq!(told(&driver), 10, "26 to 35");
    archive(&mut driver, 10);
    assert_eq!((told(&driver), writes(&driver)), (10, 30));
}

#[test]
fn c8_a_purge_of_everything_is_told_when_something_comes_again() {
    let (world, mut driver) = archived(20, 10);
    world.publish(10);
    world.purge();
    driver.check().unwrap();
    world.publish(1);
    archive(&mut driver, 10);
    assert_eq!((told(&driver), driver.guard().floor()), (10, 31));
}

#[test]
fn c8_what_goes_from_the_middle_or_was_acked_is_not_told() {
    let (world, mut driver) = archived(20, 10);
    world.publish(10);
    for sequence in [22, 23, 27] {
        world.delete(sequence);
    }
    archive(&mut driver, 10);
    assert_eq!(told(&driver), 0);

    let world = World::new();
    world.state().work_queue = true;
    world.publish(30);
    let mut driver = Driver::opened(&world);
    archive(&mut driver, 10);
    driver.crash();
    world.publish(10);
    world.delete(31);
    driver.open().unwrap();
    driver.finish();
    assert_eq!((told(&driver), driver.guard().report().passed_by), (0, None));
}

#[test]
fn c8_a_gap_that_an_earlier_run_left_is_told_when_the_stream_drops_it() {
    let (world, mut driver) = archived(20, 10);
    world.publish(20);
    leave_a_gap(&world, &mut driver);
    driver.open_guard().unwrap();
    world.expire_below(38);
    driver.session().unwrap();
    assert_eq!((told(&driver), driver.guard().report().passed_by), (7, None), "21 to 25, 36 and 37");
    driver.finish();
    assert_eq!(told(&driver), 7);
}

#[test]
pub(crate) fn c8_a_gap_that_closes_since_the_stream_has_passed_it_is_told_before() {
    let (world, mut driver) = archived(20, 10);
    world.publish(20);
    leave_a_gap(&world, &mut driver);
    driver.open_guard().unwrap();
    driver.session().unwrap();
    driver.consumer.progress.again.clear();
    world.expire_below(30);
    driver.pull(5).unwrap();
    driver.flush(Reason::Everything).unwrap();
    let guard = driver.guard();
    assert_eq!((guard.counters().gaps_closed, guard.floor(), told(&driver)), (1, 40, 5), "21 to 25");
    driver.session().unwrap();
    assert_eq!(told(&driver), 5);
}

#[test]
fn c8_a_limit_that_passes_a_gap_between_two_questions_is_told_all_the_same() {
    for requests in 1..=30 {
        let (world, mut driver) = archived(20, 10);
        world.publish(20);
        lose_five(&mut driver);
        driver.pull(5).unwrap();
        driver.flush(Reason::Everything).unwrap();
        lose_five(&mut driver);
        driver.pull(5).unwrap();
        // The upper gap, 31 to 35, is empty; the lower one, 21 to 25, will be.
        (31..=35).for_each(|sequence| world.delete(sequence));
        world.state().server.later.push((requests, Accident::Expire(625)));
        driver.flush(Reason::Everything).unwrap();
        world.expire_below(26);
        driver.session().unwrap();
        assert_eq!((told(&driver), driver.guard().floor()), (5, 40), "after {requests} requests");
    }
}

#[test]
fn c8_what_goes_from_a_gap_while_nobody_runs_is_not_told() {
    let (world, mut driver) = archived(20, 10);
    world.publish(20);
    leave_a_gap(&world, &mut driver);
    world.expire_below(38);
    driver.open().unwrap();
    driver.finish();
    assert_eq!(
        (told(&driver), driver.guard().report().passed_by),
        (2, Some((36, 37))),
        "an earlier run may have told of 21 to 25"
    );
}

/// 21 to 25 are not archived, 26 to 35 are, and nobody runs.
fn leave_a_gap(world: &World, driver: &mut Driver) {
    lose_five(driver);
    driver.pull(10).unwrap();
    driver.flush(Reason::Everything).unwrap();
    assert_eq!((told(driver), driver.guard().floor(), world.last()), (0, 20, 40));
    driver.crash();
}

/// Five are on their way when the process dies; what comes after them is archived by the next.
fn lose_five(driver: &mut Driver) {
    driver.fetch(5);
    driver.crash();
    driver.open_guard().unwrap();
    driver.session().unwrap();
    driver.consumer.progress.again.clear();
}

#[test]
fn what_is_skipped_where_a_gap_was_is_acked_after_the_gap_is_saved() {
    let (world, mut driver) = archived(20, 10);
    world.publish(10);
    lose_five(&mut driver);
    driver.pull(5).unwrap();
    driver.flush(Reason::Everything).unwrap();
    (21..=25).for_each(|sequence| world.delete(sequence));
    driver.consumer.forget();
    driver.session().unwrap();
    driver.pull(100).unwrap();
    let saves = driver.guard().counters().saves;
    driver.flush(Reason::Everything).unwrap();
    assert_eq!((driver.guard().counters().gaps_closed, driver.guard().counters().saves), (1, saves + 1));
    driver.consumer.forget();
    driver.session().unwrap();
    driver.pull(100).unwrap();
    driver.flush(Reason::Everything).unwrap();
    assert_eq!(driver.guard().counters().saves, saves + 1, "skipping alone saves nothing");
}

#[test]
fn c8_what_was_dropped_before_archiving_began_is_nobodys_loss() {
    let world = World::new();
    world.publish(10);
    world.expire_below(6);
    let mut driver = Driver::opened(&world);
    driver.finish();
    assert_eq!((told(&driver), writes(&driver), driver.guard().report().passed_by), (0, 5, None));
}

#[test]
fn c8_with_filters_it_is_a_bound_and_no_session_tells_other_peoples() {
    let world = World::new();
    for _ in 0..10 {
        world.publish_to("a");
    }
    let mut driver = Driver::filtered(&world, "a");
    driver.open().unwrap();
    driver.finish();
    for _ in 0..5 {
        world.publish_to("other");
        world.publish_to("a");
    }
    world.expire_below(16);
    archive(&mut driver, 10);
    assert_eq!(told(&driver), 0, "two of ours, or none: nothing tells");
    driver.crash();
    world.publish_to("other");
    world.publish_to("a");
    world.publish_to("a");
    let last = world.last();
    world.expire_below(last);
    driver.open().unwrap();
    assert_eq!((driver.guard().report().passed_by, told(&driver)), (Some((last - 2, last - 1)), 2), "one of ours");
}

#[test]
fn c8_of_a_stream_made_anew_what_it_dropped_above_the_old_archive_is_told() {
    let (world, mut driver) = archived(20, 10);
    driver.crash();
    world.recreate();
    world.publish(40);
    world.expire_below(31);
    driver.open().unwrap();
    driver.finish();
    assert_eq!((driver.guard().report().passed_by, told(&driver)), (Some((21, 30)), 10));
    driver.crash();
    let opening = now(Opening::load(driver.source(), crate::MemoryStore::default(), OnDamage::WriteAgain)).unwrap();
    let guard = now(opening.open(driver.disk.sink(&world), world.observer(""), Origin::Beginning)).unwrap();
    assert_eq!(guard.counters().passed_by, 0, "archiving begins there");
}
