//! The stream lost its tail, or is another one.

use crate::{GuardError, Offer, OnDamage, Reason, Record, Trust};

use super::{archive, archived, writes};
use crate::sim::{AfterLoss, Driver, Recover, World, now};

#[test]
fn a_tail_lost_at_a_flush_boundary_is_found_there() {
    for after in [AfterLoss::Ahead, AfterLoss::PulledBack] {
        for reopened in [false, true] {
            let (world, mut driver) = archived(1_000, 100);
            if reopened {
                driver.crash();
            }
            world.lose_to(900);
            driver.consumer.after_loss(after);
            world.disconnect();
            world.publish(200);
            if reopened {
                driver.open().unwrap();
                assert_eq!(driver.guard().report().trust, Trust::Through(900));
            }
            driver.finish();
            if !reopened {
                assert_eq!((driver.forks.len(), driver.forks[0].at), (1, 900));
            }
            let inside = driver.disk.inside();
            assert_eq!(inside.durable.len(), 1_200, "901..1000 of the old life stay, 200 new ones come");
            assert_eq!(inside.durable.iter().filter(|record| record.sequence <= 900).count(), 900);
            assert_eq!(driver.moves, [901]);
        }
    }
}

#[test]
fn what_a_fork_makes_us_write_again_is_bounded_by_its_length() {
    for lost in [1, 3, 10, 77, 400] {
        let (world, mut driver) = archived(2_000, 50);
        world.lose_to(2_000 - lost);
        world.disconnect();
        driver.consumer.after_loss(AfterLoss::PulledBack);
        world.publish(lost + 10);
        driver.finish();
        let twice = writes(&driver) - 2_000 - lost - 10;
        assert!(twice <= lost, "{lost} lost, {twice} twice");
    }
}

#[test]
fn a_fork_is_found_by_the_check_alone() {
    let (world, mut driver) = archived(30, 10);
    world.lose_to(20);
    driver.check().unwrap();
    assert_eq!((driver.forks.len(), driver.forks[0].at, driver.forks[0].found), (1, 20, None));
    let left = *driver.guard().coverage().last().unwrap();
    let newest = world.get(20).unwrap().published;
    assert_eq!((left.last, left.latest), (20, newest), "what a cut leaves is not wider than what stands");
    world.publish(3);
    driver.finish();
    assert_eq!(writes(&driver), 33);
}

#[test]
fn records_that_are_pending_when_the_tail_is_lost_are_orphaned_and_never_permitted() {
    let (world, mut driver) = archived(10, 10);
    world.publish(10);
    driver.pull(10).unwrap();
    world.lose_to(15);
    driver.consumer.after_loss(AfterLoss::Ahead);
    world.publish(10);
    driver.flush(Reason::Due).unwrap();
    assert_eq!(driver.forks.len(), 1);
    let orphaned: Vec<u64> = driver.forks[0].orphaned.iter().map(|id| id.sequence).collect();
    assert_eq!(orphaned, [16, 17, 18, 19, 20]);
    assert_eq!(driver.acked.len(), 10, "a fork permits nothing");
    driver.finish();
    assert_eq!(driver.disk.inside().durable.len(), 30);
    assert_eq!(driver.moves, [16]);
}

#[test]
fn records_that_are_not_durable_when_the_tail_is_lost_are_not_waited_for() {
    let world = World::new();
    world.publish(6);
    let mut driver = Driver::opened(&world);
    driver.pull(6).unwrap();
    world.lose_to(4);
    world.disconnect();
    driver.consumer.after_loss(AfterLoss::PulledBack);
    world.publish(2);
    driver.finish();
    assert_eq!(driver.guard().pending(), 0);
    assert_eq!(writes(&driver), 8);
}

#[test]
fn a_seam_inside_one_flush_is_found_though_all_sequences_are_in_order() {
    // The consumer is kept ahead: 21 comes right after 20, contiguous, and the new 16..20 never come by themselves.
    let world = World::new();
    world.publish(20);
    let mut driver = Driver::opened(&world);
    driver.pull(20).unwrap();
    world.lose_to(15);
    driver.consumer.after_loss(AfterLoss::Ahead);
    driver.consumer.progress.again.clear();
    world.publish(6);
    assert_eq!(driver.pull(10).unwrap(), 1);
    driver.flush(Reason::Due).unwrap();
    assert_eq!((driver.forks.len(), driver.forks[0].at), (1, 15));
    assert!(driver.acked.is_empty());
    assert_eq!(driver.moves, [16]);
    driver.finish();
    assert_eq!(driver.disk.inside().durable.len(), 26);
}

#[test]
fn a_seam_is_found_though_the_number_before_it_is_gone_in_the_new_life() {
    for gone in [vec![20], vec![19, 20], vec![17, 18, 19, 20]] {
        let world = World::new();
        world.publish(20);
        let mut driver = Driver::opened(&world);
        driver.pull(20).unwrap();
        world.lose_to(15);
        driver.consumer.progress.again.clear();
        world.publish(6);
        for sequence in &gone {
            world.delete(*sequence);
        }
        assert_eq!(driver.pull(10).unwrap(), 1);
        driver.flush(Reason::Due).unwrap();
        assert_eq!((driver.forks.len(), driver.acked.len()), (1, 0), "{gone:?}");
        driver.finish();
    }
}

#[test]
fn a_seam_between_two_flushes_is_found_though_all_sequences_are_in_order() {
    for work_queue in [false, true] {
        let world = World::new();
        world.state().work_queue = work_queue;
        world.publish(20);
        let mut driver = Driver::opened(&world);
        archive(&mut driver, 20);
        world.lose_to(15);
        world.publish(6);
        // On a work queue stale acks may have taken the message whose number the witness has.
        if work_queue {
            world.delete(20);
        }
        assert_eq!(driver.pull(10).unwrap(), 1);
        driver.flush(Reason::Due).unwrap();
        assert_eq!(driver.forks.len(), 1, "work queue {work_queue}");
        driver.finish();
        assert_eq!(driver.disk.inside().durable.len(), if work_queue { 25 } else { 26 });
    }
}

#[test]
fn a_fork_below_a_span_that_is_gone_again_in_the_new_life_is_found() {
    let world = World::new();
    world.state().per_subject = Some(1);
    for subject in ["a", "b", "c", "d", "e", "f"] {
        world.publish_to(subject);
    }
    let mut driver = Driver::opened(&world);
    archive(&mut driver, 10);
    world.delete(6);
    world.disconnect();
    world.publish_to("g");
    driver.pull(1).unwrap();
    driver.pull(1).unwrap();
    driver.flush(Reason::Due).unwrap();
    assert_eq!(driver.guard().spans(), 1, "the record that was deleted stands for nothing that could be missing");
    world.lose_to(3);
    for subject in ["u", "v", "w", "x", "x"] {
        world.publish_to(subject);
    }
    assert_eq!(driver.pull(1).unwrap(), 1, "8 follows 7; the new 7 is gone already");
    driver.flush(Reason::Due).unwrap();
    assert_eq!(driver.forks.len(), 1);
    driver.finish();
}

#[test]
fn a_stream_made_anew_is_archived_from_its_first_message() {
    for count in [100, 1_500] {
        let (world, mut driver) = archived(1_000, 100);
        driver.crash();
        world.recreate();
        driver.consumer.forget();
        world.publish(count);
        driver.open().unwrap();
        assert_eq!(driver.guard().report().trust, Trust::Nothing);
        assert_eq!((driver.guard().report().origin, driver.moves.as_slice()), (1, &[1][..]));
        driver.finish();
        assert_eq!(writes(&driver), 1_000 + count);
    }
}

#[test]
fn the_same_contradiction_twice_stops_the_guard_and_shows_both_sides() {
    let (world, mut driver) = archived(5, 5);
    world.publish(1);
    let mut guard = driver.guard.take().unwrap();
    let false_record = || Record::new(6, 1_600_000_000_000_000_000, "orders.new", "not what the stream holds");
    for round in 0..2 {
        _ = now(guard.offer(false_record(), None)).unwrap();
        match (round, now(guard.flush(Reason::Due))) {
            (0, Ok(permits)) => {
                assert!(permits.fork().is_some() && permits.acks().is_empty());
                guard.moved();
                _ = now(guard.begin_session()).unwrap();
            }
            (1, Err(GuardError::ForkAgain { archived, found, .. })) => {
                assert_eq!(archived.map(|id| id.published), Some(1_600_000_000_000_000_000));
                assert_eq!(found, world.get(6).map(|message| message.id(6)));
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(guard.is_closed());
}

#[test]
fn two_tail_losses_in_a_row_are_two_forks() {
    let (world, mut driver) = archived(10, 10);
    world.publish(10);
    driver.pull(10).unwrap();
    for to in [15, 13] {
        world.lose_to(to);
        world.disconnect();
        driver.consumer.after_loss(AfterLoss::PulledBack);
        driver.pull(1).unwrap();
    }
    assert_eq!(driver.forks.len(), 2);
    world.publish(5);
    driver.finish();
}

#[test]
fn a_second_fork_while_a_move_is_pending_moves_to_the_lower_place() {
    let (world, mut driver) = archived(30, 5);
    world.lose_to(25);
    let mut guard = driver.guard.take().unwrap();
    let permits = now(guard.begin_session()).unwrap();
    assert_eq!(permits.move_to(), Some(26));
    drop(guard);
    world.lose_to(10);
    world.publish(30);
    driver.consumer.progress.delivered = 40;
    driver.on_damage = OnDamage::Refuse;
    driver.open().unwrap();
    assert_eq!(driver.moves, [11]);
    driver.quiet().unwrap();
    for record in world.all("") {
        assert!(driver.disk.holds(&record), "{}", record.id());
    }
}

#[test]
fn nothing_but_a_move_gets_out_of_a_fork() {
    let (world, mut driver) = archived(10, 5);
    world.lose_to(5);
    let mut guard = driver.guard.take().unwrap();
    let permits = now(guard.begin_session()).unwrap();
    assert_eq!((permits.move_to(), guard.move_pending()), (Some(6), Some(6)));
    assert!(matches!(now(guard.flush(Reason::Due)), Err(GuardError::MovePending { to: 6 })));
    let record = Record::new(6, 1, "orders.new", "x");
    assert!(matches!(now(guard.offer(record, None)), Err(GuardError::MovePending { to: 6 })));
    assert!(!guard.is_closed());
}

#[test]
fn a_claim_never_joins_two_lives() {
    let world = World::new();
    world.publish(21);
    let mut driver = Driver::opened(&world);
    driver.disk.inside().recover = Recover::AtLeast;
    driver.pull(21).unwrap();
    world.lose_to(15);
    driver.consumer.after_loss(AfterLoss::Ahead);
    driver.consumer.progress.again.clear();
    driver.consumer.progress.delivered = 20;
    world.publish(7);
    // 21 and 22 of the new life come; 16..20 never do. The first delivery does not rise, which this loop does not see.
    let mut guard = driver.guard.take().unwrap();
    for sequence in [21, 22] {
        _ = now(guard.offer(world.get(sequence).unwrap().record(sequence), Some(20))).unwrap();
    }
    // The sink made all durable, with the claim; the process dies before anything is verified.
    world.state().silent = 1_000;
    let permits = now(guard.flush(Reason::Due)).unwrap();
    assert!(permits.unknown().is_some());
    drop(guard);
    world.state().silent = 0;
    driver.open().unwrap();
    driver.quiet().unwrap();
    for record in world.all("") {
        assert!(driver.disk.holds(&record), "{}", record.id());
    }
}

#[test]
pub(in crate::sim) fn a_skip_is_verified_at_its_own_span() {
    // A work queue, where the newest witness is gone by nature, and a clock that steps back into the times of the span.
    let world = World::new();
    world.state().work_queue = true;
    world.publish(10);
    let mut driver = Driver::opened(&world);
    archive(&mut driver, 10);
    world.disconnect();
    world.publish(10);
    driver.pull(1).unwrap();
    archive(&mut driver, 10);
    assert_eq!(driver.guard().spans(), 2);
    world.lose_to(5);
    world.state().clock -= 165 * crate::sim::MS;
    world.state().pace = 1_000;
    world.publish(16);
    world.delete(20);
    let mut guard = driver.guard.take().unwrap();
    let new = world.get(7).unwrap().record(7);
    assert_eq!(now(guard.offer(new, None)).unwrap(), Offer::Skipped, "it lies inside the times");
    let permits = now(guard.flush(Reason::Due)).unwrap();
    assert!(permits.fork().is_some() && permits.acks().is_empty());
}
