//! A checkpoint store that can be interrupted, damaged and copied.

use std::sync::{Arc, Mutex, MutexGuard};

use crate::{CheckpointStore, Saved, StoreError, Stored};
use bytes::Bytes;
use futures_util::future::BoxFuture;

use super::World;

#[derive(Debug, Default)]
pub(crate) struct Place {
    /// Newest first, two at most.
    pub(crate) states: Vec<Saved>,
    pub(crate) damaged: Vec<String>,
    pub(crate) aside: u32,
    pub(crate) saves: u64,
    pub(crate) fail_save: bool,
}

/// Clones are the same place.
#[derive(Clone, Debug)]
pub(crate) struct TestStore {
    place: Arc<Mutex<Place>>,
    world: World,
}

impl TestStore {
    pub(crate) fn new(world: &World) -> Self {
        Self { place: Arc::default(), world: world.clone() }
    }

    pub(crate) fn place(&self) -> MutexGuard<'_, Place> {
        self.place.lock().unwrap()
    }

    /// The newest state that was saved.
    pub(crate) fn newest(&self) -> Option<Bytes> {
        self.place().states.first().map(|state| state.body.clone())
    }

    /// Another place that holds the same.
    pub(crate) fn copy(&self) -> Self {
        let copy = Self::new(&self.world);
        copy.place().states.clone_from(&self.place().states);
        copy
    }
}

impl CheckpointStore for TestStore {
    fn open(&mut self) -> BoxFuture<'_, Result<Stored, StoreError>> {
        Box::pin(async {
            self.world.stutter().await;
            let place = self.place();
            let mut stored = Stored::default();
            stored.states.clone_from(&place.states);
            stored.damaged.clone_from(&place.damaged);
            Ok(stored)
        })
    }

    fn save(&mut self, version: u16, body: Bytes) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            self.world.stutter().await;
            {
                let mut place = self.place();
                if place.fail_save {
                    return Err(StoreError::Closed);
                }
                place.saves += 1;
                let counter = place.states.first().map_or(1, |newest| newest.counter + 1);
                place.states.insert(0, Saved::new(counter, version, body));
                place.states.truncate(2);
                place.damaged.clear();
            }
            self.world.stutter().await;
            Ok(())
        })
    }

    fn set_aside(&mut self) -> BoxFuture<'_, Result<Option<String>, StoreError>> {
        Box::pin(async {
            self.world.stutter().await;
            let mut place = self.place();
            if place.states.is_empty() && place.damaged.is_empty() {
                return Ok(None);
            }
            place.states.clear();
            place.damaged.clear();
            place.aside += 1;
            Ok(Some(format!("aside-{}", place.aside)))
        })
    }

    fn location(&self) -> String {
        "the test".to_owned()
    }
}
