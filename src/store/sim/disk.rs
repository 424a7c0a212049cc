//! A disk that forgets: what was not synced is lost or torn when the power goes, and a process can be killed at every
//! operation.

#![expect(clippy::cast_possible_truncation, reason = "sizes of a few kilobytes")]

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::source::Source;
use crate::store::disk::{Disk, Node};
use crate::store::names::Paths;
use crate::store::slots::SlotFile;

const SECTOR: usize = 512;

/// A small generator, so that a seed says everything.
#[derive(Clone, Debug)]
pub(super) struct Rng(pub(super) u64);

impl Rng {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub(super) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Inode {
    pub(super) live: Vec<u8>,
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
pub(crate) enum Fault {
    /// The process dies; the caches live on.
    Kill,
    /// The power goes.
    Power,
    /// The operation fails; a failed sync throws the dirty pages away, as Linux does.
    Fail,
}

#[derive(Clone, Debug)]
pub(super) struct World {
    pub(super) rng: Rng,
    pub(super) inodes: Vec<Inode>,
    live: BTreeMap<PathBuf, Entry>,
    durable: BTreeMap<PathBuf, Entry>,
    pending: Vec<NameOp>,
    locked: BTreeMap<PathBuf, usize>,
    /// Operations until the fault.
    pub(super) fault: Option<(u64, Fault)>,
    pub(super) dead: bool,
    /// A place in every file that cannot be read.
    pub(super) bad_byte: Option<usize>,
    pub(super) operations: u64,
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
pub(crate) struct SimDisk(Arc<Mutex<World>>);

#[derive(Debug)]
pub(crate) struct SimFile {
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
    pub(crate) fn new(seed: u64) -> Self {
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

    pub(super) fn world(&self) -> MutexGuard<'_, World> {
        // A test that stops while it looks at the world is no reason to abort all of them.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn store(&self) -> SlotFile<Self> {
        SlotFile::new(self.clone(), Paths::new(Path::new("/var/archive"), &Source::new("S")))
    }

    pub(crate) fn fault_after(&self, operations: u64, fault: Fault) {
        self.world().fault = Some((operations, fault));
    }

    /// After a kill or a power cut: true if the power went.
    pub(crate) fn restart(&self) -> bool {
        let mut world = self.world();
        world.dead = false;
        let power = world.fault.take().is_some_and(|(left, fault)| left == 0 && fault == Fault::Power);
        if power {
            world.power_cut();
        }
        power
    }

    /// Whether the process that used it was killed, or its power went.
    pub(crate) fn is_dead(&self) -> bool {
        self.world().dead
    }

    /// The power goes, whatever else was to happen.
    pub(crate) fn cut_power(&self) {
        self.world().fault = Some((0, Fault::Power));
        self.restart();
    }

    /// No fault is to come any more.
    pub(crate) fn spare(&self) {
        self.world().fault = None;
    }

    /// The disk as it would be if the power went now and nothing came through that was not synced.
    pub(crate) fn durable(&self) -> Self {
        let world = self.world();
        let image = |inode: &Inode| Inode { live: inode.durable.clone(), ..Inode::default() };
        let mut inodes: Vec<Inode> = Vec::new();
        inodes.resize_with(world.inodes.len(), Inode::default);
        for entry in world.durable.values() {
            if let Entry::File(inode) = entry {
                inodes[*inode] = image(&world.inodes[*inode]);
            }
        }
        let copy = World {
            rng: world.rng.clone(),
            inodes,
            live: world.durable.clone(),
            durable: world.durable.clone(),
            pending: Vec::new(),
            locked: BTreeMap::new(),
            fault: None,
            dead: false,
            bad_byte: None,
            operations: 0,
        };
        Self(Arc::new(Mutex::new(copy)))
    }

    /// A byte of every file turns bad: neither slot can be read.
    pub(crate) fn rot(&self) {
        for inode in &mut self.world().inodes {
            for image in [&mut inode.live, &mut inode.durable] {
                for at in [30, 4096 + 30] {
                    if let Some(byte) = image.get_mut(at) {
                        *byte ^= 0x55;
                    }
                }
            }
        }
    }

    pub(super) fn set_aside_files(&self) -> usize {
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
