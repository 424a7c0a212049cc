//! Names of temporary files, beside those that all Parquet archivers give.

pub(crate) use archiver_parquet::names::{directory, file, ids};

/// What a temporary file's name ends with.
pub(crate) const TEMPORARY: &str = ".tmp";

/// What the name of a temporary file for `name` begins with; a part that never repeats and [`TEMPORARY`] follow.
pub(crate) fn temporary_prefix(name: &str) -> String {
    format!("{name}.")
}

/// Whether this is a temporary file of a file that [`file`] names.
pub(crate) fn is_temporary(name: &str) -> bool {
    name.strip_suffix(TEMPORARY).and_then(|rest| rest.rsplit_once('.')).is_some_and(|(file, _)| ids(file).is_some())
}

#[cfg(test)]
mod tests {
    use replay_guard::RecordId;

    use super::*;

    #[test]
    fn only_our_temporary_files_are_recognised() {
        let name = file(RecordId::new(u64::MAX, -1), RecordId::new(u64::MAX, i64::MAX));
        assert!(is_temporary(&format!("{}Ab3{TEMPORARY}", temporary_prefix(&name))));
        for other in ["a.parquet", "1-1_2-2.parquet", ".tmp", "notes.tmp", &name, "a.parquet.x.tmp"] {
            assert!(!is_temporary(other), "{other}");
        }
    }
}
