//! A disk that forgets: what was not synced is lost or torn when the power goes, and a process can be killed at every
//! operation. The store must give back the last state it promised, or the one it was just saving.

#![expect(clippy::cast_possible_truncation, reason = "sizes of a few kilobytes")]

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::disk::{Disk, Node};
use super::names::Paths;
use super::slots::SlotFile;
use super::{StoreError, Stored};
use crate::source::Source;

const SECTOR: usize = 512;

/// A small generator, so that a seed says everything.
#[derive(Debug)]
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

#[derive(Debug, Default)]
struct Inode {
    live: Vec<u8>,
    durable: Vec<u8>,
    pending: Vec<(usize, Vec<u8>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entry {
    Dir,
    File(usize),
}

#[derive(Clone, Debug)]
enum NameOp {
    Add(PathBuf, Entry),
    Remove(PathBuf),
    Rename(PathBuf, PathBuf, Entry),
}

impl NameOp {
    fn apply(&self, names: &mut BTreeMap<PathBuf, Entry>) {
        match self {
            Self::Add(path, entry) => {
                names.insert(path.clone(), *entry);
            }
            Self::Remove(path) => {
                names.remove(path);
            }
            Self::Rename(from, to, entry) => {
                names.remove(from);
                names.insert(to.clone(), *entry);
            }
        }
    }

    fn dir(&self) -> &Path {
        let (Self::Add(path, _) | Self::Remove(path) | Self::Rename(path, _, _)) = self;
        path.parent().unwrap()
    }
}

/// What happens at a chosen operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// The process dies; the caches live on.
    Kill,
    /// The power goes.
    Power,
    /// The operation fails; a failed sync throws the dirty pages away, as Linux does.
    Fail,
}

#[derive(Debug)]
struct World {
    rng: Rng,
    inodes: Vec<Inode>,
    live: BTreeMap<PathBuf, Entry>,
    durable: BTreeMap<PathBuf, Entry>,
    pending: Vec<NameOp>,
    locked: BTreeMap<PathBuf, usize>,
    /// Operations until the fault.
    fault: Option<(u64, Fault)>,
    dead: bool,
    /// A place in every file that cannot be read.
    bad_byte: Option<usize>,
    operations: u64,
}

impl World {
    /// Each sector of a write that was not synced arrived or not.
    fn tear(rng: &mut Rng, inode: &mut Inode) {
        let mode = rng.below(4);
        for (offset, bytes) in std::mem::take(&mut inode.pending) {
            let until = rng.below(bytes.len() as u64 / SECTOR as u64 + 1) as usize;
            for (i, sector) in bytes.chunks(SECTOR).enumerate() {
                let arrived = match mode {
                    0 => false,
                    1 => i < until,
                    2 => rng.one_in(2),
                    _ => true,
                };
                if arrived {
                    let start = offset + i * SECTOR;
                    let end = start + sector.len();
                    inode.durable.resize(inode.durable.len().max(end), 0);
                    inode.durable[start..end].copy_from_slice(sector);
                }
            }
        }
    }

    fn power_cut(&mut self) {
        let all_or_some = self.rng.below(3);
        let until = self.rng.below(self.pending.len() as u64 + 1);
        for (i, op) in std::mem::take(&mut self.pending).into_iter().enumerate() {
            let arrived = match all_or_some {
                0 => false,
                1 => (i as u64) < until,
                _ => self.rng.one_in(2),
            };
            if arrived {
                op.apply(&mut self.durable);
            }
        }
        // What hangs from a directory that is gone is gone.
        let names: Vec<_> = self.durable.keys().cloned().collect();
        for name in names {
            if name.parent().is_some_and(|dir| !self.durable.contains_key(dir)) {
                self.durable.remove(&name);
            }
        }
        self.live = self.durable.clone();
        for inode in &mut self.inodes {
            Self::tear(&mut self.rng, inode);
            inode.live = inode.durable.clone();
        }
    }

    /// Counts an operation; true if it is to fail.
    fn step(&mut self) -> Result<bool, io::Error> {
        if self.dead {
            return Err(io::Error::other("dead"));
        }
        self.operations += 1;
        match &mut self.fault {
            Some((0, fault)) => {
                self.dead = *fault != Fault::Fail;
                self.fault = self.fault.filter(|(_, fault)| *fault == Fault::Power);
                Ok(true)
            }
            Some((left, _)) => {
                *left -= 1;
                Ok(false)
            }
            None => Ok(false),
        }
    }

    fn name(&mut self, op: &NameOp) {
        op.apply(&mut self.live);
        self.pending.push(op.clone());
    }
}

fn broken<T>() -> io::Result<T> {
    Err(io::Error::other("made to fail"))
}

#[derive(Clone, Debug)]
struct SimDisk(Arc<Mutex<World>>);

#[derive(Debug)]
struct SimFile {
    inode: usize,
    lock: Option<(SimDisk, PathBuf)>,
}

impl Drop for SimFile {
    fn drop(&mut self) {
        if let Some((disk, path)) = &self.lock {
            disk.world().locked.remove(path);
        }
    }
}

impl SimDisk {
    fn new(seed: u64) -> Self {
        let root = BTreeMap::from([(PathBuf::from("/"), Entry::Dir)]);
        Self(Arc::new(Mutex::new(World {
            rng: Rng(seed),
            inodes: Vec::new(),
            live: root.clone(),
            durable: root,
            pending: Vec::new(),
            locked: BTreeMap::new(),
            fault: None,
            dead: false,
            bad_byte: None,
            operations: 0,
        })))
    }

    fn world(&self) -> MutexGuard<'_, World> {
        // A test that stops while it looks at the world is no reason to abort all of them.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn store(&self) -> SlotFile<Self> {
        SlotFile::new(self.clone(), Paths::new(Path::new("/var/archive"), &Source::new("S")))
    }

    fn fault_after(&self, operations: u64, fault: Fault) {
        self.world().fault = Some((operations, fault));
    }

    /// After a kill or a power cut: true if the power went.
    fn restart(&self) -> bool {
        let mut world = self.world();
        world.dead = false;
        let power = world.fault.take().is_some_and(|(left, fault)| left == 0 && fault == Fault::Power);
        if power {
            world.power_cut();
        }
        power
    }

    fn set_aside_files(&self) -> usize {
        self.world().live.keys().filter(|path| path.to_string_lossy().contains(".corrupt-")).count()
    }
}

impl Disk for SimDisk {
    type File = SimFile;

    fn node(&self, path: &Path) -> io::Result<Node> {
        let mut world = self.world();
        if world.step()? {
            return broken();
        }
        Ok(match world.live.get(path) {
            None => Node::Missing,
            Some(Entry::File(_)) => Node::File,
            Some(Entry::Dir) => Node::Other("a directory"),
        })
    }

    fn is_dir(&self, path: &Path) -> io::Result<bool> {
        self.node(path).map(|node| node == Node::Other("a directory"))
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        let mut world = self.world();
        assert!(world.dead || world.live.contains_key(path.parent().unwrap()), "no parent of {path:?}");
        let fail = world.step()?;
        if !fail || world.rng.one_in(2) {
            world.name(&NameOp::Add(path.to_owned(), Entry::Dir));
        }
        if fail { broken() } else { Ok(()) }
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let mut world = self.world();
        if world.step()? && world.rng.one_in(2) {
            return broken();
        }
        let (here, other) = std::mem::take(&mut world.pending).into_iter().partition(|op| op.dir() == path);
        world.pending = other;
        let here: Vec<NameOp> = here;
        for op in here {
            op.apply(&mut world.durable);
        }
        if world.dead { broken() } else { Ok(()) }
    }

    fn lock(&self, path: &Path) -> io::Result<Option<SimFile>> {
        let mut world = self.world();
        if world.step()? {
            return broken();
        }
        if world.locked.contains_key(path) {
            return Ok(None);
        }
        let inode = if let Some(Entry::File(inode)) = world.live.get(path) {
            *inode
        } else {
            world.inodes.push(Inode::default());
            let inode = world.inodes.len() - 1;
            world.name(&NameOp::Add(path.to_owned(), Entry::File(inode)));
            inode
        };
        world.locked.insert(path.to_owned(), inode);
        Ok(Some(SimFile { inode, lock: Some((self.clone(), path.to_owned())) }))
    }

    fn open(&self, path: &Path) -> io::Result<SimFile> {
        let mut world = self.world();
        if world.step()? {
            return broken();
        }
        match world.live.get(path) {
            Some(Entry::File(inode)) => Ok(SimFile { inode: *inode, lock: None }),
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn create(&self, path: &Path) -> io::Result<SimFile> {
        let mut world = self.world();
        let fail = world.step()?;
        if world.live.contains_key(path) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        world.inodes.push(Inode::default());
        let inode = world.inodes.len() - 1;
        world.name(&NameOp::Add(path.to_owned(), Entry::File(inode)));
        if fail { broken() } else { Ok(SimFile { inode, lock: None }) }
    }

    fn is_at(&self, file: &SimFile, path: &Path) -> io::Result<bool> {
        let mut world = self.world();
        if world.step()? {
            return broken();
        }
        Ok(world.live.get(path) == Some(&Entry::File(file.inode)))
    }

    fn len(&self, file: &SimFile) -> io::Result<u64> {
        let mut world = self.world();
        if world.step()? {
            return broken();
        }
        Ok(world.inodes[file.inode].live.len() as u64)
    }

    fn read_at(&self, file: &SimFile, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let mut world = self.world();
        if world.step()? {
            return broken();
        }
        let start = usize::try_from(offset).unwrap();
        if world.bad_byte.is_some_and(|bad| (start..start + bytes.len()).contains(&bad)) {
            return broken();
        }
        bytes.copy_from_slice(&world.inodes[file.inode].live[start..start + bytes.len()]);
        Ok(())
    }

    fn write_at(&self, file: &SimFile, offset: u64, bytes: &[u8]) -> io::Result<()> {
        assert!(offset.is_multiple_of(4096) && bytes.len().is_multiple_of(4096), "{} bytes at {offset}", bytes.len());
        let mut world = self.world();
        let fail = world.step()?;
        let mut length = bytes.len();
        if fail {
            length = world.rng.below(bytes.len() as u64 + 1) as usize;
        }
        let start = usize::try_from(offset).unwrap();
        let inode = &mut world.inodes[file.inode];
        inode.live.resize(inode.live.len().max(start + length), 0);
        inode.live[start..start + length].copy_from_slice(&bytes[..length]);
        inode.pending.push((start, bytes[..length].to_vec()));
        if fail { broken() } else { Ok(()) }
    }

    fn sync_data(&self, file: &SimFile) -> io::Result<()> {
        let mut guard = self.world();
        let fail = guard.step()?;
        let world = &mut *guard;
        let inode = &mut world.inodes[file.inode];
        if fail {
            if !world.dead || world.rng.one_in(2) {
                World::tear(&mut world.rng, inode);
            }
            return broken();
        }
        for (start, bytes) in std::mem::take(&mut inode.pending) {
            inode.durable.resize(inode.durable.len().max(start + bytes.len()), 0);
            inode.durable[start..start + bytes.len()].copy_from_slice(&bytes);
        }
        Ok(())
    }

    fn sync_all(&self, file: &SimFile) -> io::Result<()> {
        self.sync_data(file)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut world = self.world();
        let fail = world.step()?;
        let Some(entry) = world.live.get(from).copied() else { return Err(io::ErrorKind::NotFound.into()) };
        if !fail || world.rng.one_in(2) {
            world.name(&NameOp::Rename(from.to_owned(), to.to_owned(), entry));
        }
        if fail { broken() } else { Ok(()) }
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut world = self.world();
        let fail = world.step()?;
        if !fail || world.rng.one_in(2) {
            world.name(&NameOp::Remove(path.to_owned()));
        }
        if fail { broken() } else { Ok(()) }
    }
}

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
        assert!(newest.is_some() || stored.damaged.is_empty(), "nothing was saved, yet {:?}", stored.damaged);
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
    assert!(operations > 60, "{operations}");
    operations
}

#[test]
fn every_operation_may_be_the_last() {
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
