//! Directories and files that survive a power cut.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use parquet::errors::ParquetError;
use tempfile::NamedTempFile;

use crate::{crash, names};

/// Why the archive cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SinkError {
    #[error(
        "cannot create, write or sync the directory {path}; check that it is one, that this user may write to it, and that \
         its disk is well and has room"
    )]
    Directory { path: PathBuf, source: io::Error },
    #[error(
        "the archive's directory {path} is not there, although the checkpoint knows what was written to it; mount its disk, or \
         make the directory if its files were moved elsewhere on purpose"
    )]
    Gone { path: PathBuf },
    #[error("cannot write {path}; check that its disk is well and has room, and the permissions of its directory")]
    Write { path: PathBuf, source: io::Error },
    #[error(
        "cannot write {path} as Parquet; check that its disk is well and has room, and the permissions of its directory"
    )]
    Encode { path: PathBuf, source: ParquetError },
    #[error("cannot read {path}; check its disk and its permissions, or move it out of the archive if it is damaged")]
    Read { path: PathBuf, source: ParquetError },
    #[error("the task that writes into {path} ended without a result")]
    Task { path: PathBuf, source: tokio::task::JoinError },
}

impl SinkError {
    /// Whether a person chose a wrong directory. A disk that is full or fails is in trouble that passes.
    pub(crate) fn is_setting(&self) -> bool {
        use io::ErrorKind::{
            AlreadyExists, InvalidFilename, InvalidInput, IsADirectory, NotADirectory, NotFound, PermissionDenied,
            ReadOnlyFilesystem, Unsupported,
        };
        let (Self::Directory { source, .. } | Self::Write { source, .. }) = self else { return false };
        matches!(
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
        )
    }
}

/// Proves that a directory can be written, or, where it is missing, that it could be made: its nearest parent can.
///
/// It makes none. One that is made below the mount point of a disk that is not mounted would look like the archive later on.
pub(crate) fn try_directory(path: &Path) -> Result<(), SinkError> {
    let error = |source| SinkError::Directory { path: path.to_owned(), source };
    let absolute = std::path::absolute(path).map_err(error)?;
    let there = absolute.ancestors().find(|directory| directory.symlink_metadata().is_ok());
    tempfile::tempfile_in(there.unwrap_or(&absolute)).map_err(error).map(drop)
}

/// Creates a directory with its parents, so that all of them survive a power cut, and proves that files can be made there.
pub(crate) fn create_directory(path: &Path) -> Result<(), SinkError> {
    let error = |source| SinkError::Directory { path: path.to_owned(), source };
    let path = std::path::absolute(path).map_err(error)?;
    let missing = path.ancestors().take_while(|directory| !directory.exists()).count();
    let made = fs::create_dir_all(&path).map_err(|failed| match fs::metadata(&path) {
        // On a disk that fails it only says that something is there.
        Err(cause) if cause.kind() != io::ErrorKind::NotFound => cause,
        _ => failed,
    });
    made.map_err(error)?;
    tempfile::tempfile_in(&path).map_err(error)?;
    crash::point("directory-made");
    for (depth, directory) in path.ancestors().enumerate() {
        match sync_directory(directory) {
            // What was there before need not be ours to open. It is tried all the same: an earlier process, killed right
            // after it made the directory, may have left it in memory only.
            Err(_) if depth > missing => break,
            synced => synced.map_err(error)?,
        }
    }
    Ok(())
}

/// Creates a directory in one that is there, so that both survive a power cut.
pub(crate) fn create_within(directory: &Path, name: &str) -> Result<PathBuf, SinkError> {
    let path = directory.join(name);
    let error = |source| SinkError::Directory { path: path.clone(), source };
    match fs::create_dir(&path) {
        Err(failed) if failed.kind() != io::ErrorKind::AlreadyExists || !path.is_dir() => return Err(error(failed)),
        _ => {}
    }
    sync_directory(&path).map_err(error)?;
    sync_directory(directory).map_err(error)?;
    Ok(path)
}

/// A new file beside its final name. Its own name never repeats: a task that outlives the sink that started it must not
/// meet the file of its successor.
pub(crate) fn temporary(directory: &Path, name: &str) -> Result<NamedTempFile, SinkError> {
    let prefix = names::temporary_prefix(name);
    let mut builder = tempfile::Builder::new();
    builder.prefix(&prefix).suffix(names::TEMPORARY);
    // Others may read an archive; the umask still decides.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let file =
        builder.tempfile_in(directory).map_err(|source| SinkError::Write { path: directory.join(name), source })?;
    crash::point("file-made");
    Ok(file)
}

/// Gives a temporary file its final name, in the only order that survives a power cut: the data first, then the name, then
/// the directory that holds the name.
pub(crate) fn publish(file: NamedTempFile, path: &Path) -> Result<(), SinkError> {
    let error = |source| SinkError::Write { path: path.to_owned(), source };
    crash::point("file-written");
    crash::during("file-sync", || sync(file.as_file(), path)).map_err(error)?;
    crash::point("file-synced");
    file.persist(path).map_err(|failed| error(failed.error))?;
    crash::point("file-renamed");
    sync_parent(path).map_err(error)?;
    crash::point("file-durable");
    Ok(())
}

/// Moves a damaged file out of the way of a whole one and returns its new name.
pub(crate) fn set_aside(path: &Path) -> Result<PathBuf, SinkError> {
    let mut aside = path.with_extension("parquet.damaged-1");
    for n in 2_u32.. {
        if !aside.exists() {
            break;
        }
        aside = path.with_extension(format!("parquet.damaged-{n}"));
    }
    fs::rename(path, &aside).map_err(|source| SinkError::Write { path: aside.clone(), source })?;
    Ok(aside)
}

fn sync_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), sync_directory)
}

/// Opens a file that is to be read and synced.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    // Elsewhere only what may be written can be synced.
    options.read(true).write(cfg!(not(unix))).open(path)
}

/// Syncs a file. `path`: what it is called, or will be.
#[cfg_attr(not(test), expect(unused_variables, reason = "tests note what was synced"))]
pub(crate) fn sync(file: &File, path: &Path) -> io::Result<()> {
    file.sync_all()?;
    #[cfg(test)]
    tests::note(path);
    Ok(())
}

#[cfg(unix)]
pub(crate) fn sync_directory(path: &Path) -> io::Result<()> {
    sync(&File::open(path)?, path)
}

/// Elsewhere directories cannot be synced; the file system has to keep renames by itself.
#[cfg(not(unix))]
pub(crate) fn sync_directory(_path: &Path) -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::RefCell;

    use anyhow::Result;

    use super::*;

    thread_local! {
        static SYNCED: RefCell<Vec<(PathBuf, bool)>> = const { RefCell::new(Vec::new()) };
    }

    pub(super) fn note(path: &Path) {
        SYNCED.with_borrow_mut(|synced| synced.push((path.to_owned(), path.exists())));
    }

    /// What this thread synced since it was asked last, and whether it had its name then.
    pub(crate) fn synced() -> Vec<(PathBuf, bool)> {
        SYNCED.take()
    }

    #[test]
    fn a_file_is_synced_before_it_gets_its_name_and_its_directory_afterwards() -> Result<()> {
        let base = tempfile::tempdir()?;
        let path = base.path().join("file");
        synced();
        publish(temporary(base.path(), "file")?, &path)?;
        assert_eq!(synced(), [(path, false), (base.path().to_owned(), true)]);
        Ok(())
    }

    #[test]
    fn directories_are_made_with_their_parents_and_may_exist() -> Result<()> {
        let base = tempfile::tempdir()?;
        let path = base.path().join("a/b/c");
        try_directory(&path)?;
        assert!(!base.path().join("a").exists(), "it was only to be tried");
        create_directory(&path)?;
        create_directory(&path)?;
        try_directory(&path)?;
        assert_eq!(fs::read_dir(&path)?.count(), 0, "the trial files are gone");
        for _ in 0..2 {
            assert_eq!(create_within(&path, "d")?, path.join("d"));
        }
        fs::remove_dir_all(&path)?;
        assert!(create_within(&path, "d").is_err(), "its parent is not there");
        assert!(!path.exists());
        Ok(())
    }

    #[test]
    fn a_disk_in_trouble_is_no_wrong_setting() {
        let error = |source| SinkError::Directory { path: "archive".into(), source };
        // What ext4 and xfs answer when they are shut down.
        for passes in [io::Error::from(io::ErrorKind::StorageFull), io::Error::from_raw_os_error(5)] {
            assert!(!error(passes).is_setting());
        }
        for wrong in [io::ErrorKind::PermissionDenied, io::ErrorKind::NotADirectory, io::ErrorKind::NotFound] {
            assert!(error(wrong.into()).is_setting(), "{wrong}");
        }
    }

    #[test]
    fn a_place_that_cannot_be_written_is_named() -> Result<()> {
        let base = tempfile::tempdir()?;
        let file = base.path().join("file");
        fs::write(&file, "x")?;
        for path in [file.clone(), file.join("below"), PathBuf::from("/proc/archive")] {
            for attempt in [create_directory, try_directory] {
                let error = attempt(&path).map_or_else(|error| error.to_string(), |()| String::new());
                assert!(error.contains(&path.display().to_string()), "{error}");
            }
        }
        Ok(())
    }
}
