//! What the archive itself says it holds: the claims in the footers of its files.

use std::cmp::Reverse;
use std::fs;
use std::io::{self, ErrorKind};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use replay_guard::{Claim, RecordId, Recovered};

use crate::disk::{self, SinkError};
use crate::file::{self, Footer};
use crate::names;

/// How many bytes of claims are kept in memory, the newest first: some hundred thousand files that were written in order.
pub(crate) const MAX_CLAIMS: usize = 16 << 20;

/// How many files are read for the records in a range.
const FEW: usize = 4;

/// What was found in the directory of a source.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Newest first. All that is named is durable.
    pub(crate) claims: Vec<Claim>,
    /// Archived files.
    pub(crate) files: usize,
    /// Files whose footers were read.
    pub(crate) read: usize,
    /// Where damaged files are kept now.
    pub(crate) damaged: Vec<PathBuf>,
    /// Files that were half written, and are gone.
    pub(crate) removed: usize,
    /// The newest file that was left out since there are too many claims.
    pub(crate) left_out: Option<RecordId>,
}

impl Found {
    /// What the guard is told; `from`: where the claims speak for everything.
    pub(crate) fn recovered(self, from: Option<u64>) -> Recovered {
        let Self { claims, left_out, .. } = self;
        match from {
            None => Recovered::AtLeast(claims),
            // Of what was left out nothing is said.
            Some(from) => {
                let spoken_for = left_out.map_or(0, |last| last.sequence.saturating_add(1));
                Recovered::Exactly { from: from.max(spoken_for), claims }
            }
        }
    }
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
    for entry in fs::read_dir(directory).map_err(error)? {
        let entry = entry.map_err(error)?;
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        if let Some((first, last)) = names::ids(name) {
            found.files += 1;
            if wanted(first, last) {
                files.push((first, last));
            }
        } else if names::is_temporary(name) {
            fs::remove_file(entry.path()).map_err(|source| SinkError::Write { path: entry.path(), source })?;
            found.removed += 1;
        }
    }
    files.sort_unstable_by_key(|(first, last)| Reverse((*last, *first)));
    let mut bytes = 0;
    for (first, last) in files {
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
                bytes += claim.as_bytes().len();
                if bytes > max_bytes {
                    tracing::warn!(through = %last, max_bytes, "the archive has too many claims, the older ones are left out");
                    found.left_out = Some(last);
                    break;
                }
                found.claims.push(claim);
            }
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
    disk::sync_directory(directory).map_err(error)?;
    Ok(found)
}

/// Records with a sequence in this range: all of them if few files hold them, else the first and last ones of files. What
/// the files do not tell is left out, and said.
pub(crate) fn records_in(directory: &Path, range: &RangeInclusive<u64>) -> Result<Vec<RecordId>, SinkError> {
    let error = |source| SinkError::Directory { path: directory.to_owned(), source };
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).map_err(error)? {
        let name = entry.map_err(error)?.file_name();
        let ids = name.to_str().and_then(names::ids);
        files.extend(ids.filter(|(first, last)| first.sequence <= *range.end() && last.sequence >= *range.start()));
    }
    if files.len() > FEW {
        return Ok(ends_of(&files, range));
    }
    let mut found = Vec::new();
    for (first, last) in files {
        let path = directory.join(names::file(first, last));
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

/// The first and last records of files where no other file can hold one of the same sequence.
fn ends_of(files: &[(RecordId, RecordId)], range: &RangeInclusive<u64>) -> Vec<RecordId> {
    let mut firsts: Vec<u64> = files.iter().map(|(first, _)| first.sequence).collect();
    let mut lasts: Vec<u64> = files.iter().map(|(_, last)| last.sequence).collect();
    firsts.sort_unstable();
    lasts.sort_unstable();
    let files_at = |sequence: u64| {
        firsts.partition_point(|first| *first <= sequence) - lasts.partition_point(|last| *last < sequence)
    };
    let ends = files.iter().flat_map(|(first, last)| [*first, *last]);
    ends.filter(|id| range.contains(&id.sequence) && files_at(id.sequence) == 1).collect()
}

fn read(path: &Path) -> io::Result<Footer> {
    let mut file = disk::open(path)?;
    disk::sync(&file, path)?;
    file::footer_of(&mut file)
}

#[cfg(test)]
mod tests;
