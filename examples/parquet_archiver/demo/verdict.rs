//! The count: what was published against what can be read back from the Parquet files.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;

use crate::file;

/// What identifies a message over all lives of the stream: number, subject, payload.
pub(super) type Published = (u64, String, Bytes);

/// How far the archive is from what was published.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Verdict {
    /// Different messages in the archive.
    pub(super) archived: i64,
    /// Rows beyond the first of each message, also those that replaced a row.
    pub(super) twice: i64,
    /// Published messages that the archive does not hold.
    pub(super) lost: i64,
}

impl Verdict {
    /// Reads every Parquet file below a directory; `written` is how many rows the sink says it wrote there.
    pub(super) fn read(archive: &Path, published: &[Published], written: u64) -> Result<Self> {
        let mut rows = Vec::new();
        read_below(archive, &mut rows)?;
        Self::count(rows, published, usize::try_from(written)?)
    }

    fn count(rows: Vec<Published>, published: &[Published], written: usize) -> Result<Self> {
        let all = rows.len().max(written);
        let mut held: HashMap<Published, bool> = rows.into_iter().map(|row| (row, false)).collect();
        let archived = held.len();
        let mut lost = 0;
        for message in published {
            match held.get_mut(message) {
                Some(known) => *known = true,
                None => lost += 1,
            }
        }
        if let Some(((sequence, subject, _), _)) = held.iter().find(|(_, known)| !**known) {
            bail!("the archive holds message {sequence} of {subject}, which nobody published");
        }
        Ok(Self { archived: i64::try_from(archived)?, twice: i64::try_from(all - archived)?, lost })
    }

    /// What changed since an earlier count.
    pub(super) const fn since(self, before: Self) -> Self {
        Self {
            archived: self.archived - before.archived,
            twice: self.twice - before.twice,
            lost: self.lost - before.lost,
        }
    }

    pub(super) const fn is_clean(self) -> bool {
        self.twice == 0 && self.lost == 0
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} lost, {} written twice", self.lost, self.twice)
    }
}

fn read_below(directory: &Path, rows: &mut Vec<Published>) -> Result<()> {
    let entries = directory.read_dir().with_context(|| format!("cannot read {}", directory.display()))?;
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            read_below(&path, rows)?;
        } else if path.extension().is_some_and(|extension| extension == "parquet") {
            rows.extend(file::read(&path)?.into_iter().map(|row| (row.id.sequence, row.subject, row.payload)));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(sequence: u64, payload: &'static str) -> Published {
        (sequence, "s".into(), Bytes::from_static(payload.as_bytes()))
    }

    #[test]
    fn what_is_missing_or_there_twice_is_counted() -> Result<()> {
        // The second life gave number 2 to another message.
        let published = [message(1, "a"), message(2, "b"), message(2, "c"), message(3, "d")];
        let rows = vec![message(2, "b"), message(1, "a"), message(2, "c"), message(1, "a"), message(1, "a")];
        let verdict = Verdict::count(rows, &published, 5)?;
        assert_eq!(verdict, Verdict { archived: 3, twice: 2, lost: 1 });
        assert!(!verdict.is_clean());
        assert!(Verdict::count(published.to_vec(), &published, 4)?.is_clean());
        assert_eq!(Verdict::count(published.to_vec(), &published, 6)?.twice, 2, "two rows replaced others");
        Ok(())
    }

    #[test]
    fn what_nobody_published_is_an_error() {
        assert!(Verdict::count(vec![message(1, "x")], &[message(1, "a")], 1).is_err());
    }
}
