//! Where archiving begins, and what becomes of what lies below.

use crate::{Origin, Reason};

use super::sinks::cut_off_after_the_sink;
use super::writes;
use crate::sim::{AfterLoss, Driver, Recover, World};

/// A driver that began in the middle of ten messages.
fn begun_at_6() -> (World, Driver) {
    let world = World::new();
    world.publish(10);
    let mut driver = Driver::new(&world);
    driver.origin = Origin::At(6);
    driver.consumer.move_to(6);
    driver.open().unwrap();
    (world, driver)
}

#[test]
fn what_lies_below_the_origin_is_not_ours_until_the_stream_is_another_one() {
    let (world, mut driver) = begun_at_6();
    driver.crash();
    world.delete(5);
    driver.open().unwrap();
    assert_eq!(driver.guard().report().origin, 6, "the message below it is gone, which contradicts nothing");
    assert!(driver.moves.is_empty());
    driver.pull(100).unwrap();
    driver.flush(Reason::Due).unwrap();
    assert_eq!((writes(&driver), driver.guard().floor()), (5, 10));

    world.recreate();
    driver.consumer.after_loss(AfterLoss::Ahead);
    world.disconnect();
    world.publish(8);
    driver.finish();
    assert_eq!(writes(&driver), 13);
}

#[test]
fn a_tail_lost_below_the_origin_is_found_while_nothing_is_archived() {
    let (world, mut driver) = begun_at_6();
    world.lose_to(3);
    world.publish(5);
    // The message that told which stream archiving began in is gone, and so is what took its place.
    world.delete(5);
    driver.consumer.after_loss(AfterLoss::Ahead);
    driver.finish();
    for record in world.all("").into_iter().filter(|record| record.sequence > 3) {
        assert!(driver.disk.holds(&record), "{} is lost", record.id());
    }
}

#[test]
fn a_claim_of_two_lives_does_not_say_where_archiving_began() {
    let world = World::new();
    world.publish(10);
    let mut driver = Driver::new(&world);
    driver.disk.inside().recover = Recover::AtLeast;
    driver.origin = Origin::At(6);
    driver.consumer.move_to(6);
    driver.open().unwrap();
    driver.pull(5).unwrap();
    world.lose_to(3);
    world.publish(9);
    driver.pull(2).unwrap();
    // 6 to 10 are of the old life, and 11 and 12 of the new one.
    cut_off_after_the_sink(&mut driver);
    driver.store.place().states.clear();
    driver.open().unwrap();
    driver.finish();
    assert_eq!(driver.guard().report().origin, 1);
    for record in world.all("").into_iter().filter(|record| record.sequence > 3) {
        assert!(driver.disk.holds(&record), "{} is lost", record.id());
    }
}

#[test]
fn a_tail_lost_below_the_origin_makes_new_messages_there_ours() {
    for after in [AfterLoss::Ahead, AfterLoss::PulledBack] {
        for (archived, reopened, new) in
            [(5, false, 3), (5, true, 3), (5, false, 20), (5, true, 20), (0, false, 3), (0, true, 3)]
        {
            let world = World::new();
            world.publish(3);
            world.publish_to("other.1");
            world.publish_to("other.2");
            let mut driver = Driver::filtered(&world, "orders.");
            driver.origin = Origin::At(6);
            driver.consumer.move_to(6);
            driver.open().unwrap();
            world.publish(archived);
            driver.pull(100).unwrap();
            driver.flush(Reason::Due).unwrap();
            // Sequences 4 and 5 were other people's; now 4 is one of ours.
            world.lose_to(3);
            driver.consumer.after_loss(after);
            world.disconnect();
            if !reopened {
                driver.check().unwrap();
            }
            world.publish(new);
            if reopened {
                driver.open().unwrap();
            }
            driver.quiet().unwrap();
            let case = format!("{after:?} {archived} {reopened} {new}");
            for record in world.all("orders.").iter().skip(3) {
                assert!(driver.disk.holds(record), "{case}: {} was passed over", record.id());
            }
            let old: Vec<u64> = driver.disk.sequences().into_iter().filter(|sequence| *sequence <= 3).collect();
            assert!(old.is_empty(), "{case}: {old:?} is not ours");
        }
    }
}

#[test]
fn a_stream_made_anew_before_anything_was_archived_is_archived_from_its_first_message() {
    for (pending, reopened, gone) in
        [(0, false, false), (2, false, false), (0, true, false), (2, true, false), (0, false, true), (0, true, true)]
    {
        let (world, mut driver) = begun_at_6();
        driver.pull(pending).unwrap();
        world.recreate();
        driver.consumer.after_loss(AfterLoss::Ahead);
        world.disconnect();
        world.publish(8);
        if gone {
            world.delete(5); // the number of the only witness
        }
        if reopened {
            driver.open().unwrap();
        }
        driver.quiet().unwrap();
        driver.complete().unwrap();
    }
}

#[test]
fn an_adopted_archive_is_not_written_again() {
    let world = World::new();
    world.publish(10);
    let mut driver = Driver::new(&world);
    driver.origin = Origin::Adopt(6);
    driver.disk.keep(world.all("").into_iter().take(6));
    driver.open().unwrap();
    driver.quiet().unwrap();
    assert_eq!((writes(&driver), driver.guard().floor(), driver.guard().counters().skipped), (4, 10, 6));
}
