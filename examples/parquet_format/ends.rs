//! What the names of files tell of their records.

use std::ops::RangeInclusive;

use replay_guard::RecordId;

/// The first and last records of files where no other file can hold one of the same sequence.
pub fn ends_of(files: &[(RecordId, RecordId)], range: &RangeInclusive<u64>) -> Vec<RecordId> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_files_the_ends_are_named_where_no_other_file_reaches() {
        let id = |sequence| RecordId::new(sequence, 7);
        let files = [(1, 5), (6, 9), (8, 12), (13, 13), (20, 30)].map(|(first, last)| (id(first), id(last)));
        let named: std::collections::BTreeSet<u64> = ends_of(&files, &(2..=25)).iter().map(|id| id.sequence).collect();
        assert_eq!(named.into_iter().collect::<Vec<_>>(), [5, 6, 12, 13, 20], "8 and 9 may be in two files");
    }
}
