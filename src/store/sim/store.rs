//! The real store's logic over the simulated disk, as a guard uses it: at once, on the thread that asks.

use std::path::Path;
use std::task::Poll;

use bytes::Bytes;
use futures_util::future::{BoxFuture, poll_fn};

use super::disk::SimDisk;
use crate::source::Source;
use crate::store::names::Paths;
use crate::store::slots::SlotFile;
use crate::store::{CheckpointStore, StoreError, Stored};

/// A checkpoint store on a simulated disk. Each call is pending once before its work and once after, so that it can be
/// dropped half way.
#[derive(Debug)]
pub(crate) struct SimStore {
    slots: SlotFile<SimDisk>,
    /// As in the store of the crate: what was dropped half way never becomes true again.
    ready: bool,
}

impl SimStore {
    pub(crate) fn new(disk: &SimDisk, source: &Source) -> Self {
        Self { slots: SlotFile::new(disk.clone(), Paths::new(Path::new("/var"), source)), ready: false }
    }

    /// The newest state that a power cut now would certainly leave.
    pub(crate) fn durable(disk: &SimDisk, source: &Source) -> Option<(u16, Bytes)> {
        let mut store = Self::new(&disk.durable(), source);
        let stored = store.slots.open().ok()?;
        stored.states.first().map(|saved| (saved.version, saved.body.clone()))
    }

    async fn run<T>(
        &mut self,
        work: impl FnOnce(&mut SlotFile<SimDisk>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.ready = false;
        pause().await;
        let done = work(&mut self.slots);
        pause().await;
        self.ready = done.is_ok();
        done
    }
}

async fn pause() {
    let mut waited = false;
    poll_fn(|context| {
        if waited {
            return Poll::Ready(());
        }
        waited = true;
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

impl CheckpointStore for SimStore {
    fn open(&mut self) -> BoxFuture<'_, Result<Stored, StoreError>> {
        Box::pin(self.run(SlotFile::open))
    }

    fn save(&mut self, version: u16, body: Bytes) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            if !self.ready {
                return Err(StoreError::Closed);
            }
            self.run(move |slots| slots.save(version, &body)).await
        })
    }

    fn set_aside(&mut self) -> BoxFuture<'_, Result<Option<String>, StoreError>> {
        Box::pin(async {
            if !self.ready {
                return Err(StoreError::Closed);
            }
            self.run(SlotFile::set_aside).await
        })
    }

    fn location(&self) -> String {
        "the simulated disk".to_owned()
    }
}
