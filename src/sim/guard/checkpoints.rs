//! The checkpoint: lost, damaged, foreign, older than the sink.

use crate::{OnDamage, OpenError, Saved, Trust};

use super::{archived, writes};
use crate::sim::{Driver, Stop, World};

/// Cuts the newest state, or both.
fn damage(driver: &Driver, states: usize) {
    for state in driver.store.place().states.iter_mut().take(states) {
        let half = state.body.len() / 2;
        *state = Saved::new(state.counter, state.version, state.body.slice(..half));
    }
}

#[test]
fn a_damaged_state_leaves_the_older_one() {
    let (_, mut driver) = archived(30, 10);
    driver.crash();
    damage(&driver, 1);
    driver.consumer.forget();
    driver.open().unwrap();
    let report = driver.guard().report();
    assert_eq!((report.trust.clone(), report.floor, report.damaged.len()), (Trust::Whole, 20, 1));
    assert_eq!(report.set_aside, None);
    driver.quiet().unwrap();
    assert_eq!(writes(&driver), 40, "the last flush again");
}

#[test]
fn what_a_store_calls_damaged_is_reported_beside_the_state_that_serves() {
    let (_, mut driver) = archived(30, 10);
    driver.crash();
    driver.store.place().damaged.push("slot 1: its checksum is 1, written was 2".into());
    driver.open().unwrap();
    assert_eq!((driver.guard().report().floor, driver.guard().report().damaged.len()), (30, 1));
    driver.finish();
    assert_eq!(writes(&driver), 30);
}

#[test]
fn a_checkpoint_of_which_nothing_is_left_is_put_aside_and_everything_written_again() {
    let (_, mut driver) = archived(30, 10);
    driver.crash();
    damage(&driver, 2);
    driver.open().unwrap();
    let report = driver.guard().report();
    assert_eq!((report.trust.clone(), report.floor, report.damaged.len()), (Trust::Damaged, 0, 2));
    assert_eq!(report.set_aside.as_deref(), Some("aside-1"));
    driver.finish();
    assert_eq!(writes(&driver), 60);
}

#[test]
fn whoever_refuses_a_damaged_checkpoint_finds_it_as_it_was() {
    let (_, mut driver) = archived(30, 10);
    driver.crash();
    damage(&driver, 2);
    driver.on_damage = OnDamage::Refuse;
    let before = driver.store.place().states.clone();
    let stop = driver.open().unwrap_err();
    assert!(matches!(stop, Stop::Open(OpenError::Undecodable { .. })), "{stop:?}");
    assert_eq!(driver.store.place().states, before);

    driver.store.place().states.clear();
    driver.store.place().damaged.push("slot 0: torn".into());
    let stop = driver.open().unwrap_err();
    assert!(matches!(stop, Stop::Open(OpenError::Damaged { .. })), "{stop:?}");
}

#[test]
fn an_older_state_beside_one_of_a_newer_program_is_not_gone_back_to() {
    let (_, mut driver) = archived(30, 10);
    driver.crash();
    {
        let mut place = driver.store.place();
        let newest = &place.states[0];
        place.states[0] = Saved::new(newest.counter, 2, newest.body.clone());
    }
    driver.on_damage = OnDamage::Refuse;
    let stop = driver.open().unwrap_err();
    let Stop::Open(OpenError::Undecodable { source, .. }) = stop else { panic!("{stop:?}") };
    assert_eq!(source.to_string(), "the checkpoint has format version 2; this program reads version 1");
    driver.on_damage = OnDamage::WriteAgain;
    driver.open().unwrap();
    assert_eq!(driver.guard().report().trust, Trust::Damaged);
    driver.finish();
}

#[test]
fn the_checkpoint_of_another_source_is_an_error() {
    let (world, mut driver) = archived(5, 5);
    driver.crash();
    let mut other = Driver::filtered(&world, "orders.");
    other.store = driver.store.clone();
    let stop = other.open().unwrap_err();
    assert!(matches!(stop, Stop::Open(OpenError::Foreign { .. })), "{stop:?}");
}

#[test]
fn what_is_acked_is_in_the_checkpoint_that_was_saved() {
    let world = World::new();
    world.publish(30);
    let mut driver = Driver::opened(&world);
    for round in 1..=6 {
        driver.pull(5).unwrap();
        driver.flush(crate::Reason::Due).unwrap();
        assert_eq!(driver.acked.len(), round * 5);
        // Another process opens a copy of what is saved at this moment.
        let mut copy = Driver::new(&world);
        copy.store = driver.store.copy();
        copy.open().unwrap();
        for id in &driver.acked {
            assert!(copy.guard().coverage().find(id.sequence).is_some_and(|span| span.knows(id.published)), "{id}");
        }
    }
}

#[test]
fn an_opening_saves_what_it_found_before_anything_else() {
    let (_, mut driver) = archived(5, 5);
    driver.crash();
    let saves = driver.store.place().saves;
    driver.open_guard().unwrap();
    assert_eq!(driver.store.place().saves, saves + 1);
    driver.crash();
    driver.store.place().fail_save = true;
    assert!(matches!(driver.open_guard().unwrap_err(), Stop::Open(OpenError::Store(_))));
}
