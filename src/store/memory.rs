//! A store that forgets with the process.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use futures_util::future::BoxFuture;

use super::{CheckpointStore, Saved, StoreError, Stored};

/// Keeps a checkpoint in memory, for tests and for archives that may be written again after a restart.
///
/// Clones share what is stored, so a clone stands for the same place opened again:
///
/// ```
/// use replay_guard::{CheckpointStore, MemoryStore, StoreError};
///
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// let place = MemoryStore::new();
/// let mut first = place.clone();
/// first.open().await?;
/// first.save(1, "where we are".into()).await?;
///
/// let mut second = place.clone();
/// assert!(matches!(second.open().await, Err(StoreError::Locked { .. })));
/// drop(first);
/// assert_eq!(second.open().await?.states[0].body, "where we are");
/// # Ok::<(), StoreError>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// The clone that is opened holds the lock until it is dropped; a clone of it is not open itself. The calls do their work
/// at once when first polled, so a future dropped before that has done nothing.
#[derive(Debug, Default)]
pub struct MemoryStore {
    shared: Arc<Mutex<Shared>>,
    /// Whether this clone holds the lock.
    open: bool,
    /// Whether a call failed since.
    closed: bool,
}

#[derive(Debug, Default)]
struct Shared {
    locked: bool,
    /// The newest and the one before, newest first.
    states: Vec<Saved>,
    aside: u64,
}

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open_now(&mut self) -> Result<Stored, StoreError> {
        let mut shared = self.shared();
        if shared.locked && !self.open {
            return Err(StoreError::Locked { path: PathBuf::from("memory") });
        }
        shared.locked = true;
        let states = shared.states.clone();
        drop(shared);
        self.open = true;
        self.closed = false;
        Ok(Stored { states, damaged: Vec::new() })
    }

    fn save_now(&mut self, version: u16, body: Bytes) -> Result<(), StoreError> {
        self.ready()?;
        if body.is_empty() {
            self.closed = true;
            return Err(StoreError::Empty);
        }
        let mut shared = self.shared();
        let counter = shared.states.first().map_or(1, |newest| newest.counter.saturating_add(1));
        shared.states.insert(0, Saved::new(counter, version, body));
        shared.states.truncate(2);
        Ok(())
    }

    fn set_aside_now(&mut self) -> Result<Option<String>, StoreError> {
        self.ready()?;
        let mut shared = self.shared();
        if shared.states.is_empty() {
            return Ok(None);
        }
        shared.states.clear();
        shared.aside += 1;
        Ok(Some(format!("memory.corrupt-{} (dropped)", shared.aside)))
    }

    const fn ready(&self) -> Result<(), StoreError> {
        if self.open && !self.closed { Ok(()) } else { Err(StoreError::Closed) }
    }
}

impl Clone for MemoryStore {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), open: false, closed: false }
    }
}

impl Drop for MemoryStore {
    fn drop(&mut self) {
        if self.open {
            self.shared().locked = false;
        }
    }
}

impl CheckpointStore for MemoryStore {
    fn open(&mut self) -> BoxFuture<'_, Result<Stored, StoreError>> {
        Box::pin(async { self.open_now() })
    }

    fn save(&mut self, version: u16, body: Bytes) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move { self.save_now(version, body) })
    }

    fn set_aside(&mut self) -> BoxFuture<'_, Result<Option<String>, StoreError>> {
        Box::pin(async { self.set_aside_now() })
    }

    fn location(&self) -> String {
        "memory".to_owned()
    }
}
