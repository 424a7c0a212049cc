//! The checkpoint, in the database that holds the records: a backup has both or neither, and who restores one restores what
//! the archiver knows.

use bytes::Bytes;
use futures_util::future::BoxFuture;
use replay_guard::{CheckpointStore, Saved, StoreError, Stored};

use crate::error::SinkError;
use crate::session::Kept;
use crate::sink::{Held, Shared};

/// Keeps the checkpoint of one source over the connection of the sink that was made last.
#[derive(Debug)]
pub(crate) struct Checkpoints {
    location: String,
    held: Held,
    session: Option<Shared>,
}

impl Checkpoints {
    pub(crate) const fn new(location: String, held: Held) -> Self {
        Self { location, held, session: None }
    }

    fn session(&self) -> Result<&Shared, StoreError> {
        self.session.as_ref().ok_or(StoreError::Closed)
    }
}

impl CheckpointStore for Checkpoints {
    fn open(&mut self) -> BoxFuture<'_, Result<Stored, StoreError>> {
        Box::pin(async move {
            let session = self.held.get().ok_or_else(|| other(SinkError::Closed))?;
            let kept = session.lock().await.lock().await.map_err(other)?;
            self.session = Some(session);
            Ok(stored(kept))
        })
    }

    fn save(&mut self, version: u16, body: Bytes) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            if body.is_empty() {
                return Err(StoreError::Empty);
            }
            self.session()?.lock().await.save(version, body).await.map_err(other)
        })
    }

    fn set_aside(&mut self) -> BoxFuture<'_, Result<Option<String>, StoreError>> {
        Box::pin(async move {
            let aside = self.session()?.lock().await.set_aside().await.map_err(other)?;
            Ok((aside > 0).then(|| format!("{}, table checkpoints, column aside", self.location)))
        })
    }

    fn location(&self) -> String {
        self.location.clone()
    }
}

fn other(error: SinkError) -> StoreError {
    match error {
        SinkError::Locked { place } => StoreError::Locked { path: place.into() },
        error => StoreError::Other(Box::new(error)),
    }
}

/// What is put aside is damage until something was saved after it.
fn stored(kept: Vec<Kept>) -> Stored {
    let mut stored = Stored::default();
    let whole = kept.iter().any(|state| !state.aside);
    for Kept { counter, version, body, aside } in kept {
        match (u64::try_from(counter), u16::try_from(version)) {
            _ if aside && whole => {}
            _ if aside => stored.damaged.push(format!("checkpoint {counter} was set aside, and none was saved since")),
            (Ok(counter), Ok(version)) => stored.states.push(Saved::new(counter, version, body.into())),
            _ => stored.damaged.push(format!("checkpoint {counter} has the version {version}")),
        }
    }
    stored
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(counter: i64, version: i32, aside: bool) -> Kept {
        Kept { counter, version, body: vec![1], aside }
    }

    #[test]
    fn what_is_aside_is_damage_until_the_next_save() {
        assert_eq!(stored(Vec::new()), Stored::default());
        let only = stored(vec![kept(3, 1, true)]);
        assert!(only.states.is_empty());
        assert_eq!(only.damaged, ["checkpoint 3 was set aside, and none was saved since"]);
        let since = stored(vec![kept(4, 1, false), kept(3, 1, true)]);
        assert_eq!((since.states.len(), since.damaged.len()), (1, 0));
        assert_eq!(stored(vec![kept(4, 70_000, false)]).damaged, ["checkpoint 4 has the version 70000"]);
    }
}
