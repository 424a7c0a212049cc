//! The store over a disk that forgets: it must give back the last state it promised, or the one it was just saving.

#![expect(clippy::cast_possible_truncation, reason = "sizes of a few kilobytes")]

mod disk;
mod store;

use std::path::Path;

use self::disk::Rng;
pub(crate) use self::disk::{Fault, SimDisk};
pub(crate) use self::store::SimStore;
use super::disk::Disk as _;
use super::frame;
use super::slots::SlotFile;
use super::{StoreError, Stored};

/// A store that is driven, and what it may give back.
struct Run {
    disk: SimDisk,
    store: Option<SlotFile<SimDisk>>,
    /// The last state promised, then those that were tried since. `None` is an empty store.
    allowed: Vec<Option<Vec<u8>>>,
    aside: usize,
    next: u8,
}

impl Run {
    fn new(seed: u64) -> Self {
        Self { disk: SimDisk::new(seed), store: None, allowed: vec![None], aside: 0, next: 0 }
    }

    fn body(&mut self, length: usize) -> Vec<u8> {
        self.next += 1;
        (0..length).map(|i| self.next ^ (i % 251) as u8).collect()
    }

    /// Opens, in the same process if it lives, and checks what is there.
    fn open(&mut self) -> Result<Stored, StoreError> {
        let store = self.store.get_or_insert_with(|| self.disk.store());
        let stored = store.open()?;
        if self.disk.world().dead {
            // Killed while it read: nobody sees what it made of that.
            return Err(StoreError::Closed);
        }
        let newest = stored.states.first().map(|saved| saved.body.to_vec());
        assert!(
            self.allowed.contains(&newest),
            "found {}, damaged {:?}, allowed {:?}",
            brief(newest.as_deref()),
            stored.damaged,
            self.allowed.iter().map(|state| brief(state.as_deref())).collect::<Vec<_>>()
        );
        let aside = self.disk.set_aside_files();
        assert!(
            newest.is_some() || aside > 0 || stored.damaged.is_empty(),
            "nothing was saved, yet {:?}",
            stored.damaged
        );
        assert!(self.disk.set_aside_files() >= self.aside, "what was put aside is gone");
        Ok(stored)
    }

    fn save(&mut self, body: Vec<u8>) -> Result<(), StoreError> {
        self.allowed.push(Some(body.clone()));
        let store = self.store.as_mut().unwrap();
        let done = store.save(1, &body);
        match &done {
            Ok(()) => self.allowed = vec![Some(body)],
            Err(_) => assert!(matches!(store.save(1, b"x"), Err(StoreError::Closed)), "open after a failure"),
        }
        done
    }

    /// As the guard does: what was found is saved before anything else.
    fn recover(&mut self) -> Result<(), StoreError> {
        let stored = self.open()?;
        match stored.states.first() {
            Some(newest) => self.save(newest.body.to_vec()),
            None => Ok(()),
        }
    }

    fn set_aside(&mut self) -> Result<(), StoreError> {
        self.allowed.push(None);
        if self.store.as_mut().unwrap().set_aside()?.is_some() {
            self.aside += 1;
        }
        self.allowed = vec![None];
        Ok(())
    }

    /// The process ends, one way or another, and begins again.
    fn restart(&mut self) {
        self.store = None;
        if self.disk.restart() {
            // What came through is all there is; it cannot change any more.
            let stored = self.open().unwrap();
            self.store = None;
            self.allowed = vec![stored.states.first().map(|saved| saved.body.to_vec())];
        }
    }

    fn cut_power(&mut self) {
        self.disk.fault_after(0, Fault::Power);
        let _ = self.disk.node(Path::new("/"));
        self.restart();
    }

    /// First file, saves in place, two growths, one putting aside.
    fn script(&mut self) -> Result<(), StoreError> {
        self.recover()?;
        for length in [100, 4068, 3000, 5000, 40, 9000, 20, 30] {
            let body = self.body(length);
            self.save(body)?;
        }
        self.set_aside()?;
        let body = self.body(10);
        self.save(body)
    }
}

fn brief(state: Option<&[u8]>) -> String {
    state.map_or("nothing".to_owned(), |state| format!("{} bytes from {:?}", state.len(), state.first()))
}

fn operations_of_the_script() -> u64 {
    let mut run = Run::new(0);
    run.script().unwrap();
    let operations = run.disk.world().operations;
    assert!(operations > 40, "{operations}");
    operations
}

#[test]
pub(crate) fn every_operation_may_be_the_last() {
    for at in 0..operations_of_the_script() {
        for fault in [Fault::Kill, Fault::Power, Fault::Fail] {
            for seed in 0..10 {
                println!("operation {at}, {fault:?}, seed {seed}");
                let mut run = Run::new(seed);
                run.disk.fault_after(at, fault);
                let _ = run.script();
                if fault != Fault::Fail {
                    run.restart();
                }
                run.recover().unwrap();
                run.cut_power();
                run.open().unwrap();
            }
        }
    }
}

/// What a killed process or a failed sync left in the caches is read by the next, and its recovery is cut off too.
#[test]
fn a_recovery_may_be_cut_off_at_every_operation() {
    for at in 0..operations_of_the_script() {
        for fault in [Fault::Kill, Fault::Fail] {
            for again in 0..40 {
                println!("operation {at}, {fault:?}, power cut {again} operations later");
                let mut run = Run::new(at << 8 | again);
                run.disk.fault_after(at, fault);
                let _ = run.script();
                if fault == Fault::Kill {
                    run.restart();
                }
                run.disk.fault_after(again, Fault::Power);
                if run.recover().is_ok() {
                    let body = run.body(50);
                    let _ = run.save(body);
                }
                run.cut_power();
                run.recover().unwrap();
            }
        }
    }
}

#[test]
fn long_lives_with_many_faults() {
    for seed in 0..1_000 {
        println!("seed {seed}");
        let mut run = Run::new(seed);
        let mut rng = Rng(!seed);
        for _ in 0..30 {
            if rng.one_in(2) {
                let fault = [Fault::Kill, Fault::Power, Fault::Fail][rng.below(3) as usize];
                run.disk.fault_after(rng.below(30), fault);
            }
            let mut opened = run.store.is_some() || run.recover().is_ok();
            for _ in 0..rng.below(6) {
                if opened && rng.one_in(20) {
                    opened = run.set_aside().is_ok();
                } else if opened {
                    let length = if rng.one_in(6) { rng.below(20_000) } else { rng.below(4_000) } + 1;
                    let body = run.body(length as usize);
                    opened = run.save(body).is_ok();
                }
            }
            let dead = run.disk.world().dead;
            if dead {
                run.restart();
            } else if !opened {
                // The same process opens again what failed, or dies of it.
                run.disk.world().fault = None;
                if rng.one_in(2) {
                    run.store = None;
                } else {
                    run.recover().unwrap();
                }
            }
        }
        run.restart();
        run.cut_power();
        run.open().unwrap();
    }
}

#[test]
fn a_save_in_place_is_one_write_and_one_sync() {
    let disk = SimDisk::new(1);
    let mut store = disk.store();
    store.open().unwrap();
    store.save(1, b"one").unwrap();
    let before = disk.world().operations;
    store.save(1, b"two").unwrap();
    // And a look whether the file is still in its place.
    assert_eq!(disk.world().operations - before, 3);
}

#[test]
fn an_unreadable_slot_leaves_the_other() {
    for (bad, left) in [(0, b"two"), (25, b"two"), (4096, b"six"), (4121, b"six")] {
        let disk = SimDisk::new(1);
        let mut store = disk.store();
        store.open().unwrap();
        for body in [b"one", b"six", b"two"] {
            store.save(1, body).unwrap();
        }
        disk.world().bad_byte = Some(bad);
        let stored = store.open().unwrap();
        assert_eq!(stored.states.iter().map(|saved| &saved.body[..]).collect::<Vec<_>>(), [left]);
        assert!(stored.damaged.iter().all(|why| why.contains("cannot be read")), "{stored:?}");
        assert_eq!(stored.damaged.len(), 1);
    }
}

#[test]
fn a_read_that_fails_once_costs_no_state() {
    for at in 0..20 {
        let disk = SimDisk::new(at);
        let mut store = disk.store();
        store.open().unwrap();
        for body in [b"one", b"two"] {
            store.save(1, body).unwrap();
        }
        disk.fault_after(at, Fault::Fail);
        match store.open() {
            Ok(stored) => assert_eq!((stored.states.len(), stored.damaged.len()), (2, 0)),
            Err(error) => assert!(matches!(error, StoreError::Io { .. }), "{error:?}"),
        }
    }
}

#[test]
fn a_file_of_which_nothing_can_be_read_is_an_error_and_no_damage() {
    let disk = SimDisk::new(1);
    let mut store = disk.store();
    store.open().unwrap();
    store.save(1, &[1; 100]).unwrap();
    disk.world().inodes.iter_mut().for_each(|inode| inode.live.truncate(100));
    disk.world().bad_byte = Some(10);
    assert!(matches!(store.open(), Err(StoreError::Io { action: "read", .. })));
}

#[test]
fn a_damaged_slot_beside_one_that_cannot_be_read_is_an_error_and_no_damage() {
    for (body, slot) in [(100, 4096), (5_000, 8192)] {
        let disk = SimDisk::new(1);
        let mut store = disk.store();
        store.open().unwrap();
        store.save(1, &vec![1; body]).unwrap();
        for inode in disk.world().inodes.iter_mut().filter(|inode| inode.live.len() == 2 * slot) {
            inode.live[0] ^= 0xff;
        }
        disk.world().bad_byte = Some(slot + 10);
        assert!(matches!(store.open(), Err(StoreError::Io { action: "read", .. })), "slots of {slot} bytes");
        disk.world().bad_byte = None;
        assert_eq!(store.open().unwrap().states.len(), 1, "once it can be read again");
    }
}

#[test]
fn every_save_is_numbered_above_the_one_before() {
    let disk = SimDisk::new(1);
    let mut store = disk.store();
    store.open().unwrap();
    for body in [b"one", b"two", b"six", b"ten"] {
        store.save(1, body).unwrap();
    }
    let stored = store.open().unwrap();
    let found: Vec<(u64, &[u8])> = stored.states.iter().map(|saved| (saved.counter, &saved.body[..])).collect();
    assert_eq!(found, [(4, &b"ten"[..]), (3, b"six")]);
    store.save(1, b"new").unwrap();
    assert_eq!(store.open().unwrap().states[0].counter, 5, "also in a new file");
}

#[test]
fn what_is_put_aside_never_replaces_what_was() {
    let disk = SimDisk::new(1);
    let mut store = disk.store();
    store.open().unwrap();
    for n in 1..=3 {
        store.save(1, b"one").unwrap();
        let aside = store.set_aside().unwrap().unwrap();
        assert!(aside.ends_with(&format!(".corrupt-{n}")), "{aside}");
    }
    assert_eq!(disk.set_aside_files(), 3);
}

#[test]
fn after_the_highest_counter_a_new_file_begins_again() {
    let disk = SimDisk::new(1);
    let mut store = disk.store();
    store.open().unwrap();
    store.save(1, b"one").unwrap();
    let frame = frame::encode(frame::MIN_LOG2, frame::MAX_COUNTER - 1, 1, b"old").unwrap();
    for inode in disk.world().inodes.iter_mut().filter(|inode| inode.live.len() == 2 * frame.len()) {
        inode.live = frame.repeat(2);
    }
    assert_eq!(store.open().unwrap().states[0].counter, frame::MAX_COUNTER - 1);
    for body in [b"two", b"six", b"ten"] {
        store.save(1, body).unwrap();
    }
    let stored = store.open().unwrap();
    assert_eq!((&stored.states[0].body[..], stored.states[0].counter, stored.damaged.len()), (&b"ten"[..], 2, 0));
}
