//! One piece of work at a time in each directory, over all sinks of this process.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, PoisonError, Weak};

use tokio::sync::{Mutex, OwnedMutexGuard};

type Lock = Mutex<()>;

/// By directory, as long as a sink or its work is left there.
static LOCKS: LazyLock<std::sync::Mutex<HashMap<PathBuf, Weak<Lock>>>> = LazyLock::new(Default::default);

/// The right to work in a directory, shared by all that want to.
#[derive(Clone, Debug)]
pub(crate) struct Turn(Arc<Lock>);

impl Turn {
    pub(crate) fn of(directory: &Path) -> Self {
        let mut locks = LOCKS.lock().unwrap_or_else(PoisonError::into_inner);
        locks.retain(|_, lock| lock.strong_count() > 0);
        if let Some(lock) = locks.get(directory).and_then(Weak::upgrade) {
            return Self(lock);
        }
        let lock = Arc::new(Lock::default());
        locks.insert(directory.to_owned(), Arc::downgrade(&lock));
        Self(lock)
    }

    /// Waits for it. Whoever holds it works.
    pub(crate) async fn come(&self) -> OwnedMutexGuard<()> {
        Arc::clone(&self.0).lock_owned().await
    }
}
