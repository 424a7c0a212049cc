//! What the archive itself says it holds: the claims in the footers of its files.

use std::cmp::Reverse;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use replay_guard::{Claim, RecordId, Recovered};

use crate::disk::{self, SinkError};
use crate::file::{self, Footer};
use crate::names;

/// How many bytes of claims are kept in memory, the newest first: some hundred thousand files that were written in order.
pub(crate) const MAX_CLAIMS: usize = 16 << 20;

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

fn read(path: &Path) -> io::Result<Footer> {
    let mut file = disk::open(path)?;
    disk::sync(&file, path)?;
    file::footer_of(&mut file)
}

#[cfg(test)]
mod tests;
