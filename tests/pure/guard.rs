//! A guard over a small world: one accident each, and what must come of it.

use crate::world::{AfterLoss, Driver, World};
use replay_guard::Reason;

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

#[test]
fn a_first_archive_writes_every_message_once_and_acks_it() {
    let (_, driver) = archived(1_000, 100);
    assert_eq!(driver.disk.sequences(), (1..=1_000).collect::<Vec<_>>());
    assert_eq!(driver.acked.len(), 1_000);
    assert_eq!((driver.guard().floor(), driver.guard().spans()), (1_000, 1));
    assert_eq!(driver.guard().counters().saves, 11);
}

#[test]
fn a_consumer_that_forgot_everything_leads_to_no_write() {
    let (_, mut driver) = archived(1_000, 100);
    driver.crash();
    driver.consumer.forget();
    driver.open().unwrap();
    driver.finish();
    assert_eq!(driver.disk.inside().writes, 1_000);
    assert_eq!(driver.guard().counters().rewinds, 1);
    assert_eq!(driver.guard().counters().skipped, 1_000);
    assert_eq!(driver.runs.len(), 1);
    assert_eq!((driver.runs[0].count, driver.runs[0].first, driver.runs[0].last), (1_000, 1, 1_000));
}

#[test]
fn a_tail_lost_at_a_flush_boundary_is_found_there() {
    for after in [AfterLoss::Ahead, AfterLoss::PulledBack] {
        let (world, mut driver) = archived(1_000, 100);
        world.lose_to(900);
        driver.consumer.after_loss(after);
        world.disconnect();
        world.publish(200);
        driver.finish();
        assert_eq!(driver.forks.len(), 1);
        assert_eq!(driver.forks[0].at, 900);
        let sequences = driver.disk.sequences();
        assert_eq!(sequences.len(), 1_200, "901..1000 of the old life stay, 200 new ones come");
        assert_eq!(driver.disk.inside().durable.iter().filter(|record| record.sequence <= 900).count(), 900);
        assert_eq!(driver.moves, [901]);
    }
}
