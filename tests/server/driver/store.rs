//! A store in files whose saves can be held up.

use replay_guard::{CheckpointStore, FileStore, Source, StoreError, Stored};

use super::rig::Rig;
use super::sink::Gate;

/// What a builder takes: saves wait at the gate.
pub(super) fn held_up(rig: &Rig, gate: &Gate) -> impl Fn(&Source) -> Box<dyn CheckpointStore> + Send + Sync + 'static {
    let (gate, state) = (gate.clone(), rig.state_dir());
    move |source| Box::new(Held { inner: FileStore::new(&state, source), gate: gate.clone() })
}

struct Held {
    inner: FileStore,
    gate: Gate,
}

impl CheckpointStore for Held {
    fn open(&mut self) -> futures_util::future::BoxFuture<'_, Result<Stored, StoreError>> {
        self.inner.open()
    }
    fn save(
        &mut self,
        version: u16,
        body: bytes::Bytes,
    ) -> futures_util::future::BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            self.gate.pass().await;
            self.inner.save(version, body).await
        })
    }
    fn set_aside(&mut self) -> futures_util::future::BoxFuture<'_, Result<Option<String>, StoreError>> {
        self.inner.set_aside()
    }
    fn location(&self) -> String {
        self.inner.location()
    }
}
