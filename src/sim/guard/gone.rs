//! Records that left the stream after they were archived, and such as come back.

use crate::sim::{Driver, World};
use crate::{Origin, Reason};

#[test]
fn a_gap_below_a_record_that_left_closes_though_nothing_of_the_source_is_left_above() {
    let world = World::new();
    for subject in ["orders.a", "other.a", "orders.b"] {
        world.publish_to(subject);
    }
    let mut driver = Driver::filtered(&world, "orders.");
    driver.links = false;
    driver.open().unwrap();
    driver.pull(10).unwrap();
    world.delete(3);
    driver.flush(Reason::Due).unwrap();
    assert_eq!((driver.guard().floor(), driver.guard().spans()), (3, 1));
}

#[test]
fn a_message_that_comes_back_below_one_that_stands_is_no_fork() {
    let world = World::new();
    for subject in ["other.a", "orders.a", "orders.b", "orders.c"] {
        world.publish_to(subject);
    }
    world.back_up();
    world.delete(2);
    world.delete(3);
    let mut driver = Driver::filtered(&world, "orders.");
    driver.origin = Origin::At(2);
    driver.consumer.move_to(2);
    driver.open().unwrap();
    driver.pull(10).unwrap();
    driver.flush(Reason::Due).unwrap();
    assert_eq!((driver.disk.sequences(), driver.guard().floor()), (vec![4], 4));
    world.restore();
    driver.crash();
    driver.consumer.forget();
    driver.consumer.move_to(2);
    driver.open().unwrap();
    driver.finish();
    assert_eq!(driver.disk.sequences(), [2, 3, 4], "each is durable once");
    assert!(driver.forks.is_empty(), "{:?}", driver.forks);
    // They are known from now on.
    driver.crash();
    driver.consumer.forget();
    driver.consumer.move_to(2);
    driver.open().unwrap();
    driver.finish();
    assert_eq!(driver.disk.inside().writes, 3);
}

#[test]
fn many_messages_that_come_back_cost_little_more_than_a_request_each() {
    const COUNT: u64 = 200;
    let world = World::new();
    world.publish_to("other.a");
    for _ in 0..COUNT + 2 {
        world.publish_to("orders.a");
    }
    let newest = COUNT + 3;
    world.back_up();
    (2..newest - 1).for_each(|sequence| world.delete(sequence));
    let mut driver = Driver::filtered(&world, "orders.");
    driver.origin = Origin::At(2);
    driver.consumer.move_to(2);
    driver.open().unwrap();
    driver.pull(10).unwrap();
    driver.flush(Reason::Due).unwrap();
    assert_eq!((driver.guard().floor(), driver.guard().spans()), (newest, 1));
    world.restore();
    // The newest record cannot speak for those below.
    world.delete(newest);
    driver.crash();
    driver.consumer.forget();
    driver.consumer.move_to(2);
    driver.open().unwrap();
    while driver.pull(usize::try_from(COUNT).unwrap()).unwrap() > 0 {}
    let before = world.requests();
    driver.flush(Reason::Due).unwrap();
    assert!(world.requests() - before < COUNT + 40, "{} requests", world.requests() - before);
    assert!(driver.forks.is_empty(), "{:?}", driver.forks);
    driver.finish();
    assert_eq!(driver.disk.inside().writes, COUNT + 2);
}
