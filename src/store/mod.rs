//! Where a checkpoint lives. A store knows opaque bytes with a version and nothing of what they mean.

mod disk;
mod file;
mod frame;
mod memory;
mod names;
#[cfg(test)]
pub(crate) mod sim;
mod slots;

use std::path::PathBuf;

use bytes::Bytes;
use futures_util::future::BoxFuture;

pub use file::FileStore;
pub use memory::MemoryStore;

/// One state that a store holds, or held and cannot give back whole.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Saved {
    /// Counts the saves of this store, from 1; the highest is the newest.
    pub counter: u64,
    /// The version the bytes were saved with.
    pub version: u16,
    /// The bytes.
    pub body: Bytes,
}

impl Saved {
    /// A saved state from its parts.
    pub const fn new(counter: u64, version: u16, body: Bytes) -> Self {
        Self { counter, version, body }
    }
}

/// What a store found when it was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stored {
    /// The states that are whole, newest first.
    pub states: Vec<Saved>,
    /// What is damaged and why, one sentence each, with expected and found values. A slot never written is not damaged.
    /// Without any whole state it must be [set aside](CheckpointStore::set_aside) before the next save.
    pub damaged: Vec<String>,
}

/// Why a store failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The file system refused.
    #[error("cannot {action} {path}; {}", advice(source), path = path.display())]
    Io {
        /// What was tried, as a verb.
        action: &'static str,
        /// On which path.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Another process, or another guard in this one, holds the checkpoint.
    #[error(
        "the checkpoint is in use: {path} is locked; one source can have one guard only: end the other one, or give this \
         one a directory or a filter of its own",
        path = path.display()
    )]
    Locked {
        /// The lock file.
        path: PathBuf,
    },
    /// A save or sync failed before, so what the disk holds is not known. Opening it again reads it afresh.
    #[error("the checkpoint store was closed by an earlier failure; open it again")]
    Closed,
    /// The file holds no whole state and is still in its place, where a save would destroy what is left of it.
    #[error("the checkpoint {path} is damaged; set it aside before saving", path = path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
    },
    /// The state has no bytes.
    #[error("the checkpoint has no bytes; at least 1 is needed")]
    Empty,
    /// The state is larger than a store can hold.
    #[error("the checkpoint has {bytes} bytes; at most {limit} can be stored")]
    TooLarge {
        /// Size of the state in bytes.
        bytes: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// A store outside this crate failed.
    #[error("the checkpoint store failed")]
    Other(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl StoreError {
    /// Whether a person chose wrong, or has to let go of something. A disk that is full or fails is in trouble that passes.
    pub(crate) fn is_setting(&self) -> bool {
        use std::io::ErrorKind::{
            AlreadyExists, InvalidFilename, InvalidInput, IsADirectory, NotADirectory, NotFound, PermissionDenied,
            ReadOnlyFilesystem, Unsupported,
        };
        match self {
            Self::Io { source, .. } => matches!(
                source.kind(),
                AlreadyExists
                    | InvalidFilename
                    | InvalidInput
                    | IsADirectory
                    | NotADirectory
                    | NotFound
                    | PermissionDenied
                    | ReadOnlyFilesystem
                    | Unsupported
            ),
            Self::Locked { .. } => true,
            _ => false,
        }
    }
}

/// What a person can do about it.
fn advice(error: &std::io::Error) -> &'static str {
    use std::io::ErrorKind::{
        AlreadyExists, InvalidInput, IsADirectory, NotADirectory, NotFound, PermissionDenied, QuotaExceeded,
        ReadOnlyFilesystem, StorageFull,
    };
    match error.kind() {
        StorageFull | QuotaExceeded => "make room on its disk",
        PermissionDenied => "let this user read and write it and its directory",
        ReadOnlyFilesystem => "make its file system writable, or choose another directory",
        NotFound => "put its directory back, or let it be made anew",
        AlreadyExists | InvalidInput | IsADirectory | NotADirectory => {
            "move what stands in its way, or choose another directory"
        }
        _ => "check its disk",
    }
}

/// Keeps the newest state of one source, durable, over crashes.
///
/// A store belongs to one guard. None of its calls is cancel safe: one that was dropped half way, or failed, leaves the
/// store closed ([`StoreError::Closed`]) until [`open`](Self::open) is called again, since a sync that is tried again
/// after a failure may lie.
pub trait CheckpointStore: Send {
    /// Opens the store, or opens it again after a failure, and reads what it holds. Takes the lock that keeps a second
    /// guard out and keeps it until the store is dropped.
    ///
    /// # Errors
    ///
    /// [`StoreError::Locked`] where another guard has it, [`StoreError::Io`] where the system refuses. Never for damaged
    /// contents: those are reported in [`Stored::damaged`].
    fn open(&mut self) -> BoxFuture<'_, Result<Stored, StoreError>>;

    /// Makes a state durable. When this returns `Ok`, the state survives a power cut, and a crash at any moment of the
    /// call leaves the state before or this one.
    ///
    /// What [`open`](Self::open) found may not be durable yet, for it may have been read from a cache that the process
    /// before left behind. It is after the first save, so save once, the same state if there is no other, before
    /// anything is done that relies on it.
    ///
    /// # Errors
    ///
    /// Any error leaves the store closed.
    fn save(&mut self, version: u16, body: Bytes) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Puts what is there out of the way, for a person to look at, so that the store is empty; says where it is now.
    /// `None` where there was nothing. Never overwrites what was put aside before.
    ///
    /// A store that outlives its process reports it as [damage](Stored::damaged) at every opening until the next save: a
    /// crash in between must not look like a source that was never held.
    ///
    /// # Errors
    ///
    /// Any error leaves the store closed.
    fn set_aside(&mut self) -> BoxFuture<'_, Result<Option<String>, StoreError>>;

    /// Where the state lives, for messages.
    fn location(&self) -> String;
}

impl<T: CheckpointStore + ?Sized> CheckpointStore for Box<T> {
    fn open(&mut self) -> BoxFuture<'_, Result<Stored, StoreError>> {
        (**self).open()
    }
    fn save(&mut self, version: u16, body: Bytes) -> BoxFuture<'_, Result<(), StoreError>> {
        (**self).save(version, body)
    }
    fn set_aside(&mut self) -> BoxFuture<'_, Result<Option<String>, StoreError>> {
        (**self).set_aside()
    }
    fn location(&self) -> String {
        (**self).location()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Error, ErrorKind};

    use super::*;

    #[test]
    fn an_error_names_the_path_the_cause_and_what_to_do_and_a_disk_in_trouble_is_no_setting() {
        for (kind, advice, is_setting) in [
            (ErrorKind::StorageFull, "make room", false),
            (ErrorKind::QuotaExceeded, "make room", false),
            (ErrorKind::Other, "check its disk", false),
            (ErrorKind::TimedOut, "check its disk", false),
            (ErrorKind::PermissionDenied, "let this user", true),
            (ErrorKind::ReadOnlyFilesystem, "make its file system writable", true),
            (ErrorKind::NotADirectory, "move what stands in its way", true),
            (ErrorKind::NotFound, "put its directory back", true),
        ] {
            let error = StoreError::Io { action: "write", path: "/state/x".into(), source: Error::from(kind) };
            let text = crate::error::chain(&error);
            assert!(text.starts_with("cannot write /state/x; ") && text.contains(advice), "{text}");
            assert!(text.ends_with(&Error::from(kind).to_string()), "{text}");
            assert_eq!(error.is_setting(), is_setting, "{text}");
        }
        // What ext4 and xfs answer when they are shut down.
        let error = StoreError::Io { action: "sync", path: "/state/x".into(), source: Error::from_raw_os_error(5) };
        assert!(!error.is_setting(), "{error}");
        assert!(StoreError::Locked { path: "/state/x".into() }.is_setting());
        assert!(!StoreError::Closed.is_setting());
    }
}
