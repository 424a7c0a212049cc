//! Where the objects of one source are, and how each becomes exactly one.
//!
//! An upload may come true after the process that sent it has died: the store had all of it, or the kernel sent the rest.
//! By then another process may have looked at what is there, and be about to write the same records in other portions. So
//! the name of each object is written down before its upload begins, in one small object per source that is overwritten each
//! time. Who opens an archive reads it and creates an object without rows under that name: either that fails, and what was
//! under way is there to be read; or whatever is still under way fails, since an object of that name is there.

use std::time::{SystemTime, UNIX_EPOCH};

use archiver_parquet::{Footer, TAIL, encode_empty, footer_of, names};
use bytes::Bytes;
use object_store::path::Path;
use object_store::{
    Error as StoreError, GetOptions, GetRange, ObjectMeta, ObjectStoreExt as _, PutMode, PutPayload, UpdateVersion,
};
use replay_guard::{Claim, RecordId, Source};

use crate::bucket::Bucket;
use crate::error::SinkError;

/// The object that holds the name of the object that is being written.
const UNDER_WAY: &str = "under-way";

/// How often an object changes while it is looked at before that is an error.
const ROUNDS: usize = 5;

/// The objects of one source.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) bucket: Bucket,
    pub(crate) source: Source,
    pub(crate) directory: Path,
}

/// What an object is, and which version of it.
struct Held {
    footer: Footer,
    version: UpdateVersion,
}

impl Place {
    pub(crate) fn new(bucket: Bucket, source: Source) -> Self {
        let directory = bucket.prefix.clone().join(names::directory(&source));
        Self { bucket, source, directory }
    }

    pub(crate) fn object(&self, name: &str) -> Path {
        self.directory.clone().join(name)
    }

    /// Writes down which object is written next.
    pub(crate) async fn announce(&self, name: &str) -> Result<(), SinkError> {
        if !self.bucket.conditional {
            // Nothing could be made of it.
            return Ok(());
        }
        let object = self.object(UNDER_WAY);
        self.put(&object, Bytes::copy_from_slice(name.as_bytes()), PutMode::Overwrite)
            .await
            .map_err(|source| SinkError::request("write", &object, source))
    }

    /// Writes an object where there is none, and only there. One with the same claim is the one that was to be written: this
    /// very request may have been sent twice.
    pub(crate) async fn create(&self, name: &str, content: Bytes, claim: &Claim) -> Result<(), SinkError> {
        let object = self.object(name);
        let mut mode = if self.bucket.conditional { Some(PutMode::Create) } else { None };
        for _ in 0..ROUNDS {
            if let Some(mode) = mode.take() {
                match self.put(&object, content.clone(), mode).await {
                    Ok(()) => return Ok(()),
                    // 404: what was to be replaced is gone; 409: somebody writes or deletes it right now.
                    Err(StoreError::AlreadyExists { .. } | StoreError::Precondition { .. }) => {}
                    Err(StoreError::NotFound { .. }) if self.bucket.conditional => {}
                    Err(source) => return Err(SinkError::request("write", &object, source)),
                }
            }
            mode = Some(match self.held(&object).await? {
                Some(Held { footer: Footer::Claim(there), .. }) if there == *claim => return Ok(()),
                Some(Held { footer: Footer::Empty, version }) if self.bucket.conditional => PutMode::Update(version),
                None if self.bucket.conditional => PutMode::Create,
                None | Some(Held { footer: Footer::Empty, .. }) => PutMode::Overwrite,
                Some(Held { footer, .. }) => {
                    return Err(SinkError::Taken { object, there: describe(&footer), here: named(claim) });
                }
            });
        }
        Err(SinkError::Contended { object })
    }

    /// Sees to it that what an earlier process had under way, if it is `wanted` by its first and last record, is there now,
    /// or will never be.
    pub(crate) async fn settle(&self, wanted: impl Fn(RecordId, RecordId) -> bool + Send) -> Result<(), SinkError> {
        let Some((name, first, last)) = self.announced().await? else { return Ok(()) };
        if !wanted(first, last) {
            return Ok(());
        }
        let object = self.object(&name);
        let mut mode = PutMode::Create;
        for _ in 0..ROUNDS {
            match self.put(&object, self.empty(&object)?, mode).await {
                Ok(()) => {
                    tracing::warn!(%object, "an upload had begun; it will not be taken any more");
                    return Ok(());
                }
                Err(
                    StoreError::AlreadyExists { .. } | StoreError::Precondition { .. } | StoreError::NotFound { .. },
                ) => {}
                Err(source) => return Err(SinkError::request("write", &object, source)),
            }
            mode = match self.held(&object).await? {
                // What is under way may be meant to replace that one.
                Some(Held { footer: Footer::Empty, version }) => PutMode::Update(version),
                Some(_) => return Ok(()),
                None => PutMode::Create,
            };
        }
        Err(SinkError::Contended { object })
    }

    /// The name that was written down last, if it is one of ours, and the records it stands for.
    async fn announced(&self) -> Result<Option<(String, RecordId, RecordId)>, SinkError> {
        if !self.bucket.conditional {
            return Ok(None);
        }
        let object = self.object(UNDER_WAY);
        let Some(content) = self.content(&object).await? else { return Ok(None) };
        let name = String::from_utf8_lossy(&content).into_owned();
        let Some((first, last)) = names::ids(&name) else {
            tracing::warn!(%object, "this object should hold the name of another one, and does not");
            return Ok(None);
        };
        Ok(Some((name, first, last)))
    }

    /// An object without rows. No two are the same, so that each has a version of its own.
    fn empty(&self, object: &Path) -> Result<Bytes, SinkError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let note = format!("given up at {} ns by process {}", now.as_nanos(), std::process::id());
        let content = encode_empty(Vec::new(), &self.source, note);
        content.map(Bytes::from).map_err(|source| SinkError::Encode { object: object.clone(), source })
    }

    async fn put(&self, object: &Path, content: Bytes, mode: PutMode) -> Result<(), StoreError> {
        self.bucket.store.put_opts(object, PutPayload::from_bytes(content), mode.into()).await.map(|_| ())
    }

    /// All of an object; nothing if there is none.
    pub(crate) async fn content(&self, object: &Path) -> Result<Option<Bytes>, SinkError> {
        let read = match self.bucket.store.get(object).await {
            Ok(found) => found.bytes().await,
            Err(error) => Err(error),
        };
        match read {
            Ok(content) => Ok(Some(content)),
            Err(StoreError::NotFound { .. }) => Ok(None),
            Err(source) => Err(SinkError::request("read", object, source)),
        }
    }

    async fn held(&self, object: &Path) -> Result<Option<Held>, SinkError> {
        match self.bucket.store.head(object).await {
            Ok(meta) => self.look(meta).await,
            Err(StoreError::NotFound { .. }) => Ok(None),
            Err(source) => Err(SinkError::request("read", object, source)),
        }
    }

    /// What the end of an object says; nothing if it is gone.
    pub(crate) async fn footer(&self, meta: ObjectMeta) -> Result<Option<Footer>, SinkError> {
        Ok(self.look(meta).await?.map(|held| held.footer))
    }

    async fn look(&self, mut meta: ObjectMeta) -> Result<Option<Held>, SinkError> {
        let object = meta.location.clone();
        let mut wanted = TAIL;
        for _ in 0..ROUNDS {
            let tail = match meta.size {
                0 => Bytes::new(),
                size => {
                    let range = Some(GetRange::Bounded(size.saturating_sub(wanted)..size));
                    let options = GetOptions { range, if_match: meta.e_tag.clone(), ..Default::default() };
                    let read = match self.bucket.store.get_opts(&object, options).await {
                        Ok(found) => found.bytes().await,
                        Err(error) => Err(error),
                    };
                    match read {
                        Ok(tail) => tail,
                        Err(StoreError::NotFound { .. }) => return Ok(None),
                        // It was replaced since.
                        Err(StoreError::Precondition { .. }) => match self.bucket.store.head(&object).await {
                            Ok(now) => {
                                meta = now;
                                continue;
                            }
                            Err(StoreError::NotFound { .. }) => return Ok(None),
                            Err(source) => return Err(SinkError::request("read", &object, source)),
                        },
                        Err(source) => return Err(SinkError::request("read", &object, source)),
                    }
                }
            };
            match footer_of(meta.size, &tail) {
                Ok(footer) => {
                    let version = UpdateVersion { e_tag: meta.e_tag, version: meta.version };
                    return Ok(Some(Held { footer, version }));
                }
                Err(more) => wanted = more,
            }
        }
        Err(SinkError::Contended { object })
    }
}

fn describe(footer: &Footer) -> String {
    match footer {
        Footer::Claim(claim) => format!("holds {}", named(claim)),
        Footer::Empty => "is empty".into(),
        Footer::NoClaim(reason) => format!("does not say what it holds ({reason})"),
        Footer::Damaged(reason) => format!("is no whole Parquet file ({reason})"),
    }
}

/// A short name for a claim.
fn named(claim: &Claim) -> String {
    format!("what the claim {:08x} names", crc32fast::hash(claim.as_bytes()))
}

#[cfg(test)]
mod tests;
