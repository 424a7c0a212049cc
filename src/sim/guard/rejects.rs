//! Records that the sink rejects, on their way to the dead-letter hook.

use crate::{GuardError, Offer, Reason, RecordId, Reported};

use super::{archived, writes};
use crate::sim::{AfterLoss, Driver, Recover, Stop, TestStore, World, now, run};

/// Three messages, of which the second can never be stored, and a hook that fails so often.
fn poisoned(failures: u32, recover: Recover) -> (World, Driver, RecordId) {
    let world = World::new();
    world.publish(1);
    world.publish_to("orders.bad");
    world.publish(1);
    let mut driver = Driver::new(&world);
    {
        let mut inside = driver.disk.inside();
        inside.recover = recover;
        inside.rejects.insert("orders.bad".into());
        (inside.hook.there, inside.hook.fail) = (true, failures);
    }
    driver.open().unwrap();
    let bad = world.get(2).unwrap().id(2);
    (world, driver, bad)
}

/// How often the hook took a record.
fn taken(driver: &Driver, id: RecordId) -> usize {
    driver.disk.inside().hook.taken.get(&id).map_or(0, Vec::len)
}

#[test]
fn a_rejected_record_is_permitted_only_after_the_hook_took_it() {
    let (_, mut driver, bad) = poisoned(3, Recover::Unknown);
    driver.pull(3).unwrap();
    assert_eq!((driver.guard().unreported().0, driver.guard().pending()), (1, 3));
    for failures in 1..=3 {
        driver.flush(Reason::Everything).unwrap();
        assert_eq!(driver.acked.len(), 2, "the others do not wait for it");
        let guard = driver.guard();
        assert_eq!((guard.pending(), guard.floor(), guard.coverage().find(2)), (1, 1, None));
        assert_eq!((guard.counters().reports_failed, guard.counters().reported), (failures, 0));
    }
    let mut guard = driver.guard.take().unwrap();
    let again = driver.world.get(2).unwrap().record(2);
    assert_eq!(now(guard.offer(again, None)).unwrap(), Offer::Pending, "not handed to the sink again");
    let permits = now(guard.flush(Reason::Due)).unwrap();
    assert_eq!((permits.acks(), permits.pending(), permits.unreported()), (&[][..], 1, 1));
    assert!(matches!(now(guard.report_rejected()), Ok(Reported::Taken(id)) if id == bad));
    assert!(matches!(now(guard.report_rejected()), Ok(Reported::Nothing)));
    assert_eq!((guard.unreported(), guard.floor()), ((0, 0), 1), "done only after a flush");
    let permits = now(guard.flush(Reason::Due)).unwrap();
    assert_eq!((permits.acks(), permits.rejected()), (&[bad][..], &[bad][..]));
    assert_eq!((permits.floor(), permits.pending(), permits.unreported()), (3, 0, 0));
    let counters = guard.counters();
    assert_eq!((counters.rejected, counters.reported, counters.reports_failed, counters.archived), (1, 1, 3, 2));
    driver.guard = Some(guard);
    driver.open().unwrap();
    driver.finish();
    assert_eq!((taken(&driver, bad), writes(&driver)), (1, 3));
}

#[test]
fn a_record_that_the_hook_can_never_take_holds_up_no_other() {
    let (world, mut driver, bad) = poisoned(0, Recover::Unknown);
    world.publish_to("orders.bad");
    driver.pull(4).unwrap();
    driver.disk.inside().hook.fail = 1;
    driver.report().unwrap();
    driver.report().unwrap();
    let order = driver.disk.inside().hook.calls;
    assert_eq!((taken(&driver, bad), order), (1, 3), "the first one, then the other and the first one again");
    assert_eq!(taken(&driver, world.get(4).unwrap().id(4)), 1);
}

#[test]
fn a_record_at_which_the_hook_hangs_holds_up_no_other() {
    let (world, mut driver, bad) = poisoned(0, Recover::Unknown);
    world.publish_to("orders.bad");
    driver.pull(4).unwrap();
    driver.disk.inside().hook.hang = true;
    let guard = driver.guard.as_mut().unwrap();
    assert!(run(&mut Some(20), guard.report_rejected()).is_none(), "it hangs");
    let other = world.get(4).unwrap().id(4);
    for next in [other, bad] {
        assert!(matches!(now(guard.report_rejected()), Ok(Reported::Taken(id)) if id == next));
    }
    assert_eq!(guard.unreported(), (0, 0));
}

#[test]
fn a_crash_between_hook_and_checkpoint_hands_the_record_over_again() {
    let (_, mut driver, bad) = poisoned(0, Recover::Unknown);
    driver.pull(3).unwrap();
    driver.store.place().fail_save = true;
    let stop = driver.flush(Reason::Due).unwrap_err();
    assert!(matches!(stop, Stop::Guard(GuardError::Store(_))), "{stop:?}");
    assert_eq!((taken(&driver, bad), driver.acked.len()), (1, 0));
    driver.store.place().fail_save = false;
    driver.open().unwrap();
    driver.finish();
    assert_eq!((taken(&driver, bad), driver.acked.len()), (2, 3));
}

#[test]
fn a_claim_names_a_rejected_record_only_after_the_hook_took_it() {
    for (failures, again) in [(1, 1), (0, 0)] {
        let (world, mut driver, bad) = poisoned(failures, Recover::AtLeast);
        driver.pull(3).unwrap();
        driver.flush(Reason::Due).unwrap();
        // The checkpoint is lost; what the sink's claims name is all that is known.
        driver.store = TestStore::new(&world);
        driver.consumer.forget();
        let before = writes(&driver);
        driver.open().unwrap();
        assert_eq!(driver.guard().coverage().find(2).is_some(), again == 0);
        driver.finish();
        assert_eq!((writes(&driver) - before, taken(&driver, bad)), (again, 1));
    }
}

#[test]
fn a_call_of_the_hook_that_is_dropped_leaves_the_guard_open_and_the_record_waiting() {
    let (_, mut driver, bad) = poisoned(0, Recover::Unknown);
    driver.pull(3).unwrap();
    driver.disk.inside().hook.hang = true;
    let mut guard = driver.guard.take().unwrap();
    assert!(run(&mut Some(20), guard.report_rejected()).is_none(), "it hangs");
    assert_eq!((guard.is_closed(), guard.unreported().0, guard.counters().reports_failed), (false, 1, 1));
    let permits = now(guard.flush(Reason::Everything)).unwrap();
    assert_eq!((permits.acks().len(), permits.unreported()), (2, 1));
    driver.guard = Some(guard);
    driver.finish();
    assert_eq!((taken(&driver, bad), driver.guard().counters().reports_failed), (2, 1), "at least once");
}

#[test]
fn a_record_that_waits_over_the_end_of_a_session_is_acked_in_the_next() {
    let (world, mut driver, bad) = poisoned(2, Recover::Unknown);
    driver.pull(3).unwrap();
    driver.flush(Reason::Due).unwrap();
    world.disconnect();
    driver.session().unwrap();
    driver.pull(3).unwrap();
    assert_eq!((driver.guard().counters().pending, driver.guard().unreported().0), (1, 1));
    driver.flush(Reason::Due).unwrap();
    assert!(!driver.acked.contains(&bad));
    driver.finish();
    assert_eq!((driver.acked.contains(&bad), taken(&driver, bad), writes(&driver)), (true, 1, 3));
}

#[test]
fn a_record_that_loses_its_place_while_it_waits_is_reported_and_acked_nowhere() {
    let (world, mut driver, bad) = poisoned(1, Recover::Unknown);
    driver.pull(3).unwrap();
    driver.flush(Reason::Due).unwrap();
    world.lose_to(1);
    driver.consumer.after_loss(AfterLoss::Ahead);
    world.disconnect();
    world.publish(2);
    driver.finish();
    assert_eq!(driver.forks.len(), 1);
    assert!(driver.forks[0].orphaned.contains(&bad), "{:?}", driver.forks);
    assert_eq!((taken(&driver, bad), driver.acked.contains(&bad)), (1, false));
    assert_eq!(driver.guard().unreported(), (0, 0));
    assert!(driver.disk.holds(&world.get(2).unwrap().record(2)), "the new message of its number is archived");
}

#[test]
fn a_closed_guard_calls_no_hook() {
    let (_, mut driver, bad) = poisoned(0, Recover::Unknown);
    driver.pull(3).unwrap();
    driver.disk.inside().fail_flush = true;
    let mut guard = driver.guard.take().unwrap();
    now(guard.flush(Reason::Due)).unwrap_err();
    assert!(matches!(now(guard.report_rejected()), Err(GuardError::Closed)));
    driver.guard = Some(guard);
    assert_eq!(taken(&driver, bad), 0);
}

#[test]
fn without_a_rejected_record_the_hook_is_not_called() {
    let (world, mut driver) = archived(10, 5);
    driver.disk.inside().hook.there = true;
    driver.open().unwrap();
    world.publish(10);
    driver.finish();
    let calls = driver.disk.inside().hook.calls;
    assert_eq!((calls, writes(&driver)), (0, 20));
}
