//! One state in two slots, over crashes. Everything here is synchronous; it runs on any [`Disk`].
//!
//! What holds at every moment: the disk has, durable, the last state whose save returned `Ok`.
//!
//! - A save in place writes the slot that does *not* hold the newest state, and syncs. Torn, the newest is still there.
//! - Anything else (the first file, a larger one, the first save after an opening) is a new file that replaces the old
//!   one by a rename. Both its slots hold the new state under one counter, so it needs no second save to be safe.
//! - After an opening, what was read may live in the page cache alone: a process killed between write and sync leaves
//!   it there, and after a failed sync the next one reports success without writing. Overwriting the other slot then
//!   could destroy the only durable copy. Therefore the first save after an opening replaces the file, and syncs every
//!   directory above it as well, whose making a killed process may not have synced.

use std::io;
use std::path::Path;

use bytes::Bytes;

use super::disk::{Disk, Node};
use super::frame::{self, BLOCK, HEADER, Header, MAX_BODY, MAX_COUNTER, MAX_LOG2, MIN_LOG2};
use super::names::Paths;
use super::{Saved, StoreError, Stored};
use crate::crash;
use crate::fault::{self, Fault};

/// A checkpoint file on a disk.
#[derive(Debug)]
pub(super) struct SlotFile<D: Disk> {
    disk: D,
    paths: Paths,
    lock: Option<D::File>,
    state: State<D::File>,
    /// How many directories, from the file's own upwards, must be synced; the others above only may.
    owned: usize,
}

impl<D: Disk> Drop for SlotFile<D> {
    fn drop(&mut self) {
        if let Some(lock) = &self.lock {
            self.disk.unlock(lock);
        }
    }
}

#[derive(Debug)]
enum State<F> {
    /// Not opened, or something failed since.
    Closed,
    /// There is a file without one whole state.
    Damaged,
    /// Nothing was saved since the opening; the highest counter found, 0 where there is no file.
    Opened { counter: u64 },
    /// The file is this store's own work.
    Saved { file: F, log2: u16, newest: Side, counter: u64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    A,
    B,
}

impl Side {
    const fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }

    const fn offset(self, log2: u16) -> u64 {
        match self {
            Self::A => 0,
            Self::B => 1 << log2,
        }
    }
}

/// What stands in a slot.
enum Slot {
    Empty,
    Whole(Header, Bytes),
    /// What was expected and found, and the counter if the header is sound.
    Damaged(String, u64),
    /// The disk did not say.
    Unread(io::Error),
}

impl<D: Disk> SlotFile<D> {
    pub(super) fn new(disk: D, paths: Paths) -> Self {
        Self { disk, paths, lock: None, state: State::Closed, owned: 2 }
    }

    /// Takes the lock, unless it is held already, and reads what is on the disk.
    pub(super) fn open(&mut self) -> Result<Stored, StoreError> {
        self.state = State::Closed;
        self.make_dirs()?;
        self.take_lock()?;
        if self.is_file(&self.paths.temp)? {
            // Left by a crash; without its rename it never was a state.
            self.disk.remove(&self.paths.temp).map_err(failed("remove", &self.paths.temp))?;
        }
        if !self.is_file(&self.paths.file)? {
            self.state = State::Opened { counter: 0 };
            let mut stored = Stored::default();
            let aside = self.paths.aside(1);
            if self.node(&aside)? != Node::Missing {
                // A crash came between putting it aside and the first save: the store held a state all the same.
                stored.damaged.push(format!("expected a file, found only what was put aside as {}", aside.display()));
            }
            return Ok(stored);
        }
        let path = &self.paths.file;
        let file = self.disk.open(path).map_err(failed("open", path))?;
        let length = self.disk.len(&file).map_err(failed("read the size of", path))?;
        let found = Reader { disk: &self.disk, file: &file, length }.all().map_err(failed("read", path))?;
        self.state =
            if found.stored.states.is_empty() { State::Damaged } else { State::Opened { counter: found.counter } };
        Ok(found.stored)
    }

    /// Makes a state durable. Whatever fails leaves the store closed.
    pub(super) fn save(&mut self, version: u16, body: &[u8]) -> Result<(), StoreError> {
        let state = std::mem::replace(&mut self.state, State::Closed);
        if body.is_empty() {
            return Err(StoreError::Empty);
        }
        let Some(needed) = frame::slot_for(body.len()) else {
            return Err(StoreError::TooLarge { bytes: body.len(), limit: MAX_BODY });
        };
        self.state = match state {
            State::Closed => return Err(StoreError::Closed),
            State::Damaged => return Err(StoreError::Damaged { path: self.paths.file.clone() }),
            State::Opened { counter } => {
                let saved = self.replace(needed, counter, version, body)?;
                self.sync_dirs()?;
                crash::point("checkpoint-directories-synced");
                saved
            }
            State::Saved { file, log2, newest, counter } if needed <= log2 && counter < MAX_COUNTER => {
                let side = if fault::is(Fault::SlotOverwritten) { newest } else { newest.other() };
                self.write_slot(&file, side, log2, counter + 1, version, body)?;
                State::Saved { file, log2, newest: side, counter: counter + 1 }
            }
            State::Saved { counter, .. } => self.replace(needed, counter, version, body)?,
        };
        Ok(())
    }

    /// Renames the file to the first free name, which is returned.
    pub(super) fn set_aside(&mut self) -> Result<Option<String>, StoreError> {
        let state = std::mem::replace(&mut self.state, State::Closed);
        if matches!(state, State::Closed) {
            return Err(StoreError::Closed);
        }
        let mut aside = None;
        if self.is_file(&self.paths.file)? {
            let mut n = 1;
            // A rename would replace what has the name; nobody else makes such names while the lock is held.
            while self.node(&self.paths.aside(n))? != Node::Missing {
                n += 1;
            }
            let to = self.paths.aside(n);
            self.rename_durably(&self.paths.file, &to)?;
            aside = Some(to.display().to_string());
        } else {
            // An earlier try may have renamed it and failed to say so to the disk.
            self.disk.sync_dir(&self.paths.dir).map_err(failed("sync", &self.paths.dir))?;
        }
        self.state = State::Opened { counter: 0 };
        Ok(aside)
    }

    fn write_slot(
        &self,
        file: &D::File,
        side: Side,
        log2: u16,
        counter: u64,
        version: u16,
        body: &[u8],
    ) -> Result<(), StoreError> {
        let path = &self.paths.file;
        // A file that was moved or deleted takes every write, and nobody will ever read it.
        if !self.disk.is_at(file, path).map_err(failed("look at", path))? {
            let gone = io::Error::new(io::ErrorKind::NotFound, "it was moved, replaced or deleted while in use");
            return Err(failed("save to", path)(gone));
        }
        let frame = encode(log2, counter, version, body)?;
        crash::point("slot-unwritten");
        self.disk.write_at(file, side.offset(log2), &frame).map_err(failed("write", path))?;
        crash::point("slot-written");
        match crash::during("slot-sync", || self.disk.sync_data(file)) {
            Err(_) if fault::is(Fault::FailedSyncIgnored) => {}
            synced => synced.map_err(failed("sync", path))?,
        }
        crash::point("slot-synced");
        Ok(())
    }

    /// Puts a new file with the state in both slots in place of the old one.
    fn replace(&self, log2: u16, before: u64, version: u16, body: &[u8]) -> Result<State<D::File>, StoreError> {
        // Counters are compared within one file only, so a new one may begin again.
        let counter = if before < MAX_COUNTER { before + 1 } else { 1 };
        let temp = &self.paths.temp;
        let file = self.disk.create(temp).map_err(failed("create", temp))?;
        crash::point("checkpoint-made");
        let frame = encode(log2, counter, version, body)?;
        for side in [Side::A, Side::B] {
            let start = side.offset(log2);
            self.disk.write_at(&file, start, &frame).map_err(failed("write", temp))?;
            // Written out, so that later saves change no size and allocate nothing, which `sync_data` may leave out.
            let zeros = [0; BLOCK];
            for offset in (frame.len()..1 << log2).step_by(BLOCK) {
                self.disk.write_at(&file, start + offset as u64, &zeros).map_err(failed("write", temp))?;
            }
        }
        crash::point("checkpoint-written");
        crash::during("checkpoint-sync", || self.disk.sync_all(&file)).map_err(failed("sync", temp))?;
        crash::point("checkpoint-synced");
        self.rename_durably(temp, &self.paths.file)?;
        crash::point("checkpoint-durable");
        Ok(State::Saved { file, log2, newest: Side::B, counter })
    }

    /// A rename is not durable before its directory is: one function, so that no caller forgets.
    fn rename_durably(&self, from: &Path, to: &Path) -> Result<(), StoreError> {
        self.disk.rename(from, to).map_err(failed("rename", from))?;
        crash::point("checkpoint-renamed");
        if fault::is(Fault::RenameNotSynced) {
            return Ok(());
        }
        self.disk.sync_dir(&self.paths.dir).map_err(failed("sync", &self.paths.dir))
    }

    fn make_dirs(&mut self) -> Result<(), StoreError> {
        let mut missing = Vec::new();
        for dir in ancestors(&self.paths.dir) {
            if self.disk.is_dir(dir).map_err(failed("look at", dir))? {
                break;
            }
            missing.push(dir);
        }
        for dir in missing.iter().rev() {
            match self.disk.create_dir(dir) {
                // Another guard was quicker.
                Err(_) if self.disk.is_dir(dir).unwrap_or(false) => {}
                made => made.map_err(failed("create", dir))?,
            }
        }
        self.owned = self.owned.max(missing.len() + 1);
        Ok(())
    }

    /// Makes the names of all directories on the way to the file durable.
    fn sync_dirs(&self) -> Result<(), StoreError> {
        for (i, dir) in ancestors(&self.paths.dir).enumerate() {
            match self.disk.sync_dir(dir) {
                // Not ours, there before us, and not to be opened or synced by us.
                Err(error) if i >= self.owned && is_refusal(&error) => {}
                synced => synced.map_err(failed("sync", dir))?,
            }
        }
        Ok(())
    }

    fn take_lock(&mut self) -> Result<(), StoreError> {
        let path = &self.paths.lock;
        if let Some(lock) = &self.lock {
            if self.disk.is_at(lock, path).map_err(failed("look at", path))? {
                return Ok(());
            }
            // Someone deleted it, so it keeps nobody out any more.
            self.lock = None;
        }
        self.is_file(path)?;
        self.lock = self.disk.lock(path).map_err(failed("lock", path))?;
        if self.lock.is_some() { Ok(()) } else { Err(StoreError::Locked { path: path.clone() }) }
    }

    fn node(&self, path: &Path) -> Result<Node, StoreError> {
        self.disk.node(path).map_err(failed("look at", path))
    }

    /// Whether there is a file; something else in its place is an error.
    fn is_file(&self, path: &Path) -> Result<bool, StoreError> {
        match self.node(path)? {
            Node::Missing => Ok(false),
            Node::File => Ok(true),
            Node::Other(what) => {
                let wrong = io::Error::new(io::ErrorKind::InvalidInput, format!("expected a file, found {what}"));
                Err(failed("open", path)(wrong))
            }
        }
    }
}

fn encode(log2: u16, counter: u64, version: u16, body: &[u8]) -> Result<Vec<u8>, StoreError> {
    frame::encode(log2, counter, version, body).ok_or(StoreError::TooLarge { bytes: body.len(), limit: MAX_BODY })
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StoreError {
    move |source| StoreError::Io { action, path: path.to_owned(), source }
}

fn ancestors(dir: &Path) -> impl Iterator<Item = &Path> {
    dir.ancestors().filter(|dir| !dir.as_os_str().is_empty())
}

fn is_refusal(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidInput, PermissionDenied, ReadOnlyFilesystem, Unsupported};
    matches!(error.kind(), PermissionDenied | InvalidInput | Unsupported | ReadOnlyFilesystem)
}

/// Reads a file once.
struct Reader<'a, D: Disk> {
    disk: &'a D,
    file: &'a D::File,
    length: u64,
}

/// What a file holds, and the highest counter in it.
#[derive(Default)]
struct Found {
    stored: Stored,
    counter: u64,
    unread: Option<io::Error>,
}

impl<D: Disk> Reader<'_, D> {
    /// The states of both slots. An error only where the disk fails and leaves no whole state.
    fn all(&self) -> io::Result<Found> {
        let mut found = Found::default();
        let first = self.slot(Side::A, None);
        let (log2, second) = match &first {
            Slot::Whole(header, _) => (Some(header.log2), self.slot(Side::B, Some(header.log2))),
            // The size in an unsound slot is no more to be trusted than the rest of it.
            _ => self.search(),
        };
        // A new file has its state in both slots, so an empty one lost what it held. Only a first state, with the
        // second slot never written, has nothing to lose.
        let only_first = matches!((&first, &second), (Slot::Whole(header, _), Slot::Empty) if header.counter == 1);
        found.take("slot A", first, false);
        found.take("slot B", second, only_first);
        if let Some(expected) = log2.map(|log2| 2 << log2).filter(|expected| *expected < self.length) {
            found.stored.damaged.push(format!("the file: expected {expected} bytes, found {}", self.length));
        }
        match found.unread.take() {
            Some(error) if found.stored.states.is_empty() => Err(error),
            _ => Ok(found.sorted()),
        }
    }

    /// Looks for slot B where a slot size would put it, at every power of two in the file. From the far end, because
    /// what stands before it is slot A, whose body could look like anything.
    fn search(&self) -> (Option<u16>, Slot) {
        let mut best = Slot::Empty;
        for log2 in (MIN_LOG2..=MAX_LOG2).rev().filter(|log2| 1 << log2 < self.length) {
            match self.slot(Side::B, Some(log2)) {
                whole @ Slot::Whole(..) => return (Some(log2), whole),
                unread @ Slot::Unread(_) => best = unread,
                Slot::Damaged(why, counter) if counter > 0 && !matches!(best, Slot::Unread(_)) => {
                    best = Slot::Damaged(why, counter);
                }
                _ => {}
            }
        }
        if matches!(best, Slot::Empty) {
            best = Slot::Damaged(format!("expected one at a power of two, found none in {} bytes", self.length), 0);
        }
        (None, best)
    }

    /// Reads a slot, of a known size or of the size it says.
    fn slot(&self, side: Side, log2: Option<u16>) -> Slot {
        let offset = side.offset(log2.unwrap_or_default());
        // A passing failure must not cost the newest state, so it takes two to give a slot up.
        self.read(offset, log2).or_else(|_| self.read(offset, log2)).unwrap_or_else(Slot::Unread)
    }

    fn read(&self, offset: u64, log2: Option<u16>) -> io::Result<Slot> {
        let damaged = |why: String, counter| Ok(Slot::Damaged(format!("{why} (at byte {offset})"), counter));
        let left = self.length.saturating_sub(offset);
        if left < HEADER as u64 {
            return damaged(format!("expected a header of {HEADER} bytes, found {left}"), 0);
        }
        let mut bytes = [0; HEADER];
        self.disk.read_at(self.file, offset, &mut bytes)?;
        let header = match Header::parse(&bytes) {
            Ok(Some(header)) => header,
            Ok(None) => return Ok(Slot::Empty),
            Err(why) => return damaged(why, 0),
        };
        if let Some(expected) = log2.filter(|expected| *expected != header.log2) {
            return damaged(format!("expected a slot size of 2^{expected}, found 2^{}", header.log2), 0);
        }
        // Before anything of that size is allocated.
        if left < header.frame() as u64 {
            return damaged(format!("expected a frame of {} bytes, found {left}", header.frame()), header.counter);
        }
        let mut frame = vec![0; header.frame()];
        self.disk.read_at(self.file, offset, &mut frame)?;
        match frame::body(&header, frame) {
            Ok(body) => Ok(Slot::Whole(header, body)),
            Err(why) => damaged(why, header.counter),
        }
    }
}

impl Found {
    fn take(&mut self, name: &str, slot: Slot, may_be_empty: bool) {
        match slot {
            Slot::Whole(header, body) => {
                self.counter = self.counter.max(header.counter);
                let saved = Saved::new(header.counter, header.version, body);
                if !self.stored.states.contains(&saved) {
                    self.stored.states.push(saved);
                }
            }
            Slot::Damaged(why, counter) => {
                self.counter = self.counter.max(counter);
                self.stored.damaged.push(format!("{name}: {why}"));
            }
            Slot::Empty if may_be_empty => {}
            Slot::Empty => self.stored.damaged.push(format!("{name}: expected a state, found zeros")),
            Slot::Unread(error) => {
                self.stored.damaged.push(format!("{name}: cannot be read: {error}"));
                self.unread = Some(error);
            }
        }
    }

    fn sorted(mut self) -> Self {
        self.stored.states.sort_by_key(|saved| std::cmp::Reverse(saved.counter));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::super::disk::RealDisk;
    use super::*;
    use crate::source::Source;

    #[test]
    fn a_lock_ends_although_a_process_that_is_being_started_still_has_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let slots = || SlotFile::new(RealDisk, Paths::new(dir.path(), &Source::new("S")));
        let mut first = slots();
        first.open().unwrap();
        let inherited = first.lock.as_ref().unwrap().try_clone().unwrap();
        assert!(matches!(slots().open(), Err(StoreError::Locked { .. })));
        drop(first);
        slots().open().unwrap();
        drop(inherited);
    }
}
