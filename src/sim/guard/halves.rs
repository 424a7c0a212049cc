//! The stream lost its tail within a flush, and the sink says record by record what it holds.

use crate::{Reason, Trust};

use super::{archived, writes};
use crate::sim::{AfterLoss, Driver, Recover, World};

const NONE: [u64; 0] = [];

/// Two flushes; the stream is then cut within the second, and others take the numbers.
fn cut_within(each: usize, through: u64, tells: Option<usize>) -> (World, Driver) {
    let (world, driver) = archived(2 * each as u64, each);
    driver.disk.inside().tells = tells;
    world.lose_to(through);
    world.publish(30);
    (world, driver)
}

/// What is durable more than once.
fn twice(driver: &Driver) -> Vec<u64> {
    driver.disk.repeated().iter().map(|(id, _)| id.sequence).collect()
}

#[test]
fn nothing_that_stands_is_written_again_wherever_the_cut_lies() {
    for through in 50..100 {
        for (few, reopened) in [(1, false), (3, true), (1_000, false), (1_000, true)] {
            let (world, mut driver) = cut_within(50, through, Some(few));
            if reopened {
                driver.crash();
                driver.consumer.after_loss(AfterLoss::PulledBack);
                driver.open().unwrap();
                assert_eq!(driver.guard().report().trust, Trust::Through(through));
            } else {
                world.disconnect();
                driver.consumer.after_loss(AfterLoss::PulledBack);
            }
            driver.finish();
            assert_eq!(twice(&driver), NONE, "cut at {through}, {few} at a time, reopened: {reopened}");
            assert_eq!(writes(&driver), 130);
        }
    }
}

#[test]
fn a_sink_that_does_not_tell_gets_some_of_it_again() {
    let (world, mut driver) = cut_within(500, 611, None);
    world.disconnect();
    driver.consumer.after_loss(AfterLoss::PulledBack);
    driver.finish();
    assert!(!twice(&driver).is_empty() && twice(&driver).iter().all(|sequence| (501..=611).contains(sequence)));
}

#[test]
fn a_sink_that_fails_to_tell_closes_the_guard_before_anything_is_cut() {
    for reopened in [false, true] {
        let (world, mut driver) = cut_within(500, 611, Some(1_000));
        driver.disk.inside().fail_tell = true;
        world.disconnect();
        driver.consumer.after_loss(AfterLoss::PulledBack);
        let saved = driver.store.place().states.clone();
        if reopened {
            driver.crash();
            assert!(driver.open().is_err());
        } else {
            assert!(driver.session().is_err());
            assert!(driver.guard().is_closed());
            driver.crash();
        }
        assert_eq!(driver.store.place().states, saved, "the next one knows all that this one did");
        driver.disk.inside().fail_tell = false;
        driver.open().unwrap();
        driver.finish();
        assert_eq!(twice(&driver), NONE, "reopened: {reopened}");
    }
}

#[test]
fn a_second_fork_in_the_midst_of_the_first_makes_nothing_come_again() {
    for second in [612, 613, 640, 700, 1_000] {
        let (world, mut driver) = cut_within(500, 611, Some(2_000));
        world.publish(470);
        world.disconnect();
        driver.consumer.after_loss(AfterLoss::PulledBack);
        driver.session().unwrap();
        driver.pull(500).unwrap();
        driver.flush(Reason::Due).unwrap();
        assert_eq!((driver.guard().floor(), driver.guard().counters().flushes), (1_111, 3));
        // From 612 on the sink holds two lives.
        world.lose_to(second);
        world.publish(40);
        world.disconnect();
        driver.consumer.after_loss(AfterLoss::PulledBack);
        driver.finish();
        assert_eq!(twice(&driver), NONE, "cut at 611, then at {second}");
    }
}

#[test]
fn the_lower_half_of_a_claim_counts() {
    for through in [1, 50, 51, 77, 99, 100] {
        let (world, mut driver) = archived(100, 50);
        {
            let mut inside = driver.disk.inside();
            (inside.tells, inside.recover) = (Some(7), Recover::AtLeast);
        }
        driver.crash();
        driver.store.place().states.clear();
        world.lose_to(through);
        world.publish(30);
        driver.consumer.after_loss(AfterLoss::PulledBack);
        driver.open().unwrap();
        assert_eq!(driver.guard().floor(), through);
        driver.finish();
        assert_eq!(twice(&driver), NONE, "cut at {through}");
    }
}

#[test]
fn a_claim_of_a_life_that_ended_costs_one_question() {
    let (world, mut driver) = archived(100, 50);
    {
        let mut inside = driver.disk.inside();
        (inside.tells, inside.recover) = (Some(7), Recover::AtLeast);
    }
    driver.crash();
    driver.store.place().states.clear();
    world.recreate();
    world.publish(200);
    driver.open().unwrap();
    assert_eq!(driver.disk.inside().told, 0, "what stands lowest is too young");
    driver.finish();
    assert_eq!(writes(&driver), 300);
}

#[test]
fn records_of_two_lives_at_one_sequence_prove_nothing() {
    let (world, mut driver) = archived(1_000, 500);
    driver.disk.inside().tells = Some(1_000);
    // An orphan at each sequence of the second flush, as an earlier fork leaves it.
    let orphans: Vec<_> = world.all("").into_iter().filter(|record| record.sequence > 500).collect();
    driver.disk.keep(orphans.into_iter().map(|mut record| {
        record.published += 1;
        record
    }));
    world.lose_to(611);
    world.disconnect();
    driver.consumer.after_loss(AfterLoss::PulledBack);
    world.publish(30);
    driver.finish();
    assert!(twice(&driver).contains(&611), "in doubt it is written again");
}
