//! What the archive itself says it holds: the claims in the footers of its files.

use std::cmp::Reverse;
use std::fs;
use std::io::{self, ErrorKind};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use archiver_parquet::{Claims, ends_of};
use replay_guard::RecordId;

use crate::disk::{self, SinkError};
use crate::file::{self, Footer};
use crate::names;
use crate::parts::is_partition;

/// How many files are read for the records in a range: their ids only. Each life of a stream that went over it has left some.
const FEW: usize = 32;

/// What was found in the directory of a source.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// All that is named is durable.
    pub(crate) claims: Claims,
    /// Archived files.
    pub(crate) files: usize,
    /// Files whose footers were read.
    pub(crate) read: usize,
    /// Where damaged files are kept now.
    pub(crate) damaged: Vec<PathBuf>,
    /// Files that were half written, and are gone.
    pub(crate) removed: usize,
}

/// Reads the claims of the files that are `wanted`, by the ids of their first and last record, newest first, up to so many
/// bytes; clears away what a crash left half written, and keeps damaged files aside.
///
/// Names come first: a footer costs a read from the disk and a sync. All that is reported is durable when this returns,
/// also where the process that wrote it died between the rename and the sync, or where somebody copied the file here.
pub(crate) fn recover(
    directory: &Path,
    wanted: impl Fn(RecordId, RecordId) -> bool,
    max_bytes: usize,
) -> Result<Found, SinkError> {
    let error = |source| SinkError::Directory { path: directory.to_owned(), source };
    let mut found = Found::default();
    let mut files = Vec::new();
    let directories = directories(directory)?;
    for (number, directory) in directories.iter().enumerate() {
        for entry in fs::read_dir(directory).map_err(error)? {
            let entry = entry.map_err(error)?;
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            if let Some((first, last)) = names::ids(name) {
                found.files += 1;
                if wanted(first, last) {
                    files.push((last, first, number));
                }
            } else if names::is_temporary(name) {
                fs::remove_file(entry.path()).map_err(|source| SinkError::Write { path: entry.path(), source })?;
                found.removed += 1;
            }
        }
    }
    files.sort_unstable_by_key(|file| Reverse(*file));
    for (last, first, number) in files {
        let Some(directory) = directories.get(number) else { continue };
        let path = directory.join(names::file(first, last));
        let footer = match read(&path) {
            Ok(footer) => footer,
            // Housekeeping was here just now.
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(source) => return Err(SinkError::Read { path, source: source.into() }),
        };
        found.read += 1;
        match footer {
            Footer::Claim(claim) => {
                if found.claims.push(last, claim, max_bytes).is_break() {
                    break;
                }
            }
            Footer::Empty => {}
            Footer::NoClaim(reason) => {
                tracing::warn!(file = %path.display(), reason, "an archived file does not say what it holds");
            }
            Footer::Damaged(reason) => {
                let kept = disk::set_aside(&path)?;
                tracing::error!(file = %path.display(), reason, kept = %kept.display(), "an archived file is damaged and is kept aside");
                found.damaged.push(kept);
            }
        }
    }
    for directory in &directories {
        disk::sync_directory(directory).map_err(error)?;
    }
    Ok(found)
}

/// Where the files of a source lie: in its own directory, and in those of partitions, whether there are any today or were once.
fn directories(directory: &Path) -> Result<Vec<PathBuf>, SinkError> {
    let error = |source| SinkError::Directory { path: directory.to_owned(), source };
    let mut directories = Vec::new();
    for entry in fs::read_dir(directory).map_err(error)? {
        let entry = entry.map_err(error)?;
        if entry.file_name().to_str().is_some_and(is_partition) && entry.file_type().map_err(error)?.is_dir() {
            directories.push(entry.path());
        }
    }
    directories.push(directory.to_owned());
    Ok(directories)
}

/// Records with a sequence in this range: all of them if few files hold them, else the first and last ones of files. What
/// the files do not tell is left out, and said.
pub(crate) fn records_in(directory: &Path, range: &RangeInclusive<u64>) -> Result<Vec<RecordId>, SinkError> {
    let error = |source| SinkError::Directory { path: directory.to_owned(), source };
    let mut files = Vec::new();
    let mut paths = Vec::new();
    for directory in directories(directory)? {
        for entry in fs::read_dir(&directory).map_err(error)? {
            let entry = entry.map_err(error)?;
            let ids = entry.file_name().to_str().and_then(names::ids);
            let ids = ids.filter(|(first, last)| first.sequence <= *range.end() && last.sequence >= *range.start());
            if let Some(ids) = ids {
                files.push(ids);
                paths.push(entry.path());
            }
        }
    }
    if files.len() > FEW {
        return Ok(ends_of(&files, range));
    }
    let mut found = Vec::new();
    for path in paths {
        match file::ids(&path) {
            Ok(ids) => found.extend(ids.into_iter().filter(|id| range.contains(&id.sequence))),
            Err(error) => {
                // Of its sequences all records would have to be named.
                tracing::warn!(file = %path.display(), %error, "an archived file cannot be read: some of it may be written again");
                return Ok(Vec::new());
            }
        }
    }
    Ok(found)
}

fn read(path: &Path) -> io::Result<Footer> {
    let mut file = disk::open(path)?;
    disk::sync(&file, path)?;
    file::footer_of(&mut file)
}

#[cfg(test)]
mod tests;
