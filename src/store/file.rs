//! A store in one file with two slots.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;

use super::disk::{Disk, RealDisk};
use super::frame;
use super::names::Paths;
use super::slots::SlotFile;
use super::{CheckpointStore, StoreError, Stored};
use crate::source::Source;

/// Keeps a checkpoint in a file of its own, `DIR/<stream>-<crc32>/<filter>-<crc32>.ckpt`, with a lock file beside it.
///
/// The file has two slots that are written in turn, each with a checksum, so that a torn write leaves the state before.
/// A save is one write and one sync; only the first one after an opening, and one that needs a larger file, write a
/// new file and rename it. The file is for its owner only, as are directories that have to be made.
///
/// The disk must keep what it says it has synced, and the file system must rename atomically and know `flock`; network
/// file systems often do neither. Where `flock` works per machine only, two machines are not kept apart.
///
/// Opening makes missing directories and the lock file, and removes the temporary file that a crash may have left;
/// it changes no state. All work is done by [`spawn_blocking`], so a tokio runtime is needed.
///
/// # Cancel safety
///
/// None of the calls is cancel safe. What was begun goes on in the background after its future was dropped; the store is
/// closed then, and [`open`](CheckpointStore::open) waits for the end of it before it reads. The lock, too, is kept until
/// then, also when the store itself was dropped.
///
/// ```
/// use replay_guard::{CheckpointStore, FileStore, Source};
///
/// # let dir = tempfile::tempdir()?;
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// let mut store = FileStore::new(dir.path(), &Source::new("ORDERS"));
/// store.open().await?;
/// store.save(1, "where we are".into()).await?;
/// drop(store);
///
/// let mut store = FileStore::new(dir.path(), &Source::new("ORDERS"));
/// let found = store.open().await?;
/// assert_eq!(found.states[0].body, "where we are");
/// assert!(found.damaged.is_empty());
/// # Ok::<(), replay_guard::StoreError>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct FileStore {
    path: PathBuf,
    slots: Background<RealDisk>,
}

impl FileStore {
    /// The largest state that can be saved, in bytes: a little less than 64 MiB.
    pub const MAX_BODY: usize = frame::MAX_BODY;

    /// The store of a source below a directory. Nothing is read or written before it is opened.
    ///
    /// A relative directory is meant from where the process stands now.
    pub fn new(dir: impl Into<PathBuf>, source: &Source) -> Self {
        let mut dir = dir.into();
        if dir.as_os_str().is_empty() {
            dir.push(".");
        }
        let paths = Paths::new(&std::path::absolute(&dir).unwrap_or(dir), source);
        Self { path: paths.file.clone(), slots: Background::new(SlotFile::new(RealDisk, paths)) }
    }
}

impl fmt::Debug for FileStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileStore").field("path", &self.path).field("ready", &self.slots.ready).finish_non_exhaustive()
    }
}

impl CheckpointStore for FileStore {
    fn open(&mut self) -> BoxFuture<'_, Result<Stored, StoreError>> {
        Box::pin(self.slots.open())
    }

    fn save(&mut self, version: u16, body: Bytes) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(self.slots.save(version, body))
    }

    fn set_aside(&mut self) -> BoxFuture<'_, Result<Option<String>, StoreError>> {
        Box::pin(self.slots.set_aside())
    }

    fn location(&self) -> String {
        self.path.display().to_string()
    }
}

/// Runs the slots on threads that may block.
struct Background<D: Disk> {
    /// Held by the work that runs, also when nobody waits for it any more.
    slots: Arc<Mutex<SlotFile<D>>>,
    /// False from the begin of each call to its success: what was dropped half way never becomes true again.
    ready: bool,
}

impl<D: Disk> Background<D> {
    fn new(slots: SlotFile<D>) -> Self {
        Self { slots: Arc::new(Mutex::new(slots)), ready: false }
    }

    async fn open(&mut self) -> Result<Stored, StoreError> {
        self.run(SlotFile::open).await
    }

    async fn save(&mut self, version: u16, body: Bytes) -> Result<(), StoreError> {
        self.run_ready(move |slots| slots.save(version, &body)).await
    }

    async fn set_aside(&mut self) -> Result<Option<String>, StoreError> {
        self.run_ready(SlotFile::set_aside).await
    }

    async fn run_ready<T, W>(&mut self, work: W) -> Result<T, StoreError>
    where
        T: Send + 'static,
        W: FnOnce(&mut SlotFile<D>) -> Result<T, StoreError> + Send + 'static,
    {
        if self.ready { self.run(work).await } else { Err(StoreError::Closed) }
    }

    async fn run<T, W>(&mut self, work: W) -> Result<T, StoreError>
    where
        T: Send + 'static,
        W: FnOnce(&mut SlotFile<D>) -> Result<T, StoreError> + Send + 'static,
    {
        self.ready = false;
        let mut slots = Arc::clone(&self.slots).lock_owned().await;
        let done = spawn_blocking(move || work(&mut slots)).await;
        let done = done.map_err(|error| StoreError::Other(Box::new(error)))?;
        self.ready = done.is_ok();
        done
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::future_not_send, reason = "a test on one thread")]

    use std::fs::File;
    use std::io;
    use std::path::Path;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;
    use crate::store::disk::Node;

    /// The real disk, whose every sync of data waits for a word.
    struct SlowDisk {
        begun: Sender<()>,
        word: std::sync::Mutex<Receiver<()>>,
    }

    impl Disk for SlowDisk {
        type File = File;

        fn sync_data(&self, file: &File) -> io::Result<()> {
            self.begun.send(()).map_err(io::Error::other)?;
            self.word.lock().unwrap().recv().map_err(io::Error::other)?;
            RealDisk.sync_data(file)
        }
        fn node(&self, path: &Path) -> io::Result<Node> {
            RealDisk.node(path)
        }
        fn is_dir(&self, path: &Path) -> io::Result<bool> {
            RealDisk.is_dir(path)
        }
        fn create_dir(&self, path: &Path) -> io::Result<()> {
            RealDisk.create_dir(path)
        }
        fn sync_dir(&self, path: &Path) -> io::Result<()> {
            RealDisk.sync_dir(path)
        }
        fn lock(&self, path: &Path) -> io::Result<Option<File>> {
            RealDisk.lock(path)
        }
        fn open(&self, path: &Path) -> io::Result<File> {
            RealDisk.open(path)
        }
        fn create(&self, path: &Path) -> io::Result<File> {
            RealDisk.create(path)
        }
        fn is_at(&self, file: &File, path: &Path) -> io::Result<bool> {
            RealDisk.is_at(file, path)
        }
        fn len(&self, file: &File) -> io::Result<u64> {
            RealDisk.len(file)
        }
        fn read_at(&self, file: &File, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
            RealDisk.read_at(file, offset, bytes)
        }
        fn write_at(&self, file: &File, offset: u64, bytes: &[u8]) -> io::Result<()> {
            RealDisk.write_at(file, offset, bytes)
        }
        fn sync_all(&self, file: &File) -> io::Result<()> {
            RealDisk.sync_all(file)
        }
        fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
            RealDisk.rename(from, to)
        }
        fn remove(&self, path: &Path) -> io::Result<()> {
            RealDisk.remove(path)
        }
    }

    /// A store whose save of "two" was dropped in the middle of its sync, and what lets the sync go on.
    async fn dropped_half_way(dir: &Path) -> (Background<SlowDisk>, Sender<()>) {
        let (begun, has_begun) = channel();
        let (word, wait) = channel();
        let disk = SlowDisk { begun, word: std::sync::Mutex::new(wait) };
        let mut slots = Background::new(SlotFile::new(disk, Paths::new(dir, &Source::new("S"))));
        slots.open().await.unwrap();
        slots.save(1, "one".into()).await.unwrap();
        tokio::select! {
            biased;
            () = async { while has_begun.try_recv().is_err() { tokio::task::yield_now().await } } => {}
            _ = slots.save(1, "two".into()) => unreachable!("it has not got its word"),
        }
        (slots, word)
    }

    #[tokio::test]
    async fn an_opening_waits_for_the_save_that_was_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let (mut slots, word) = dropped_half_way(dir.path()).await;
        let next = timeout(Duration::from_secs(5), slots.save(1, "three".into())).await;
        assert!(matches!(next, Ok(Err(StoreError::Closed))));
        assert!(matches!(slots.set_aside().await, Err(StoreError::Closed)));

        let mut opening = Box::pin(slots.open());
        assert!(timeout(Duration::from_millis(50), &mut opening).await.is_err());
        word.send(()).unwrap();
        let stored = opening.await.unwrap();
        assert_eq!(stored.states.first().unwrap().body, "two");
        assert!(stored.damaged.is_empty());
        slots.save(1, "three".into()).await.unwrap();
    }

    #[tokio::test]
    async fn the_lock_is_kept_until_the_write_behind_a_dropped_store_ends() {
        let dir = tempfile::tempdir().unwrap();
        let (slots, word) = dropped_half_way(dir.path()).await;
        drop(slots);
        let mut other = FileStore::new(dir.path(), &Source::new("S"));
        assert!(matches!(other.open().await, Err(StoreError::Locked { .. })));
        word.send(()).unwrap();
        let stored = loop {
            match other.open().await {
                Err(StoreError::Locked { .. }) => tokio::task::yield_now().await,
                done => break done.unwrap(),
            }
        };
        assert_eq!(stored.states.first().unwrap().body, "two");
    }
}
