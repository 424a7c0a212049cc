//! Names of directories and files: the same records always get the same name, two sources or two lives of a stream never
//! share one.

use replay_guard::{RecordId, Source};

const ENDING: &str = ".parquet";

/// The longest readable part taken from a stream's name or from the filters.
const READABLE: usize = 60;

/// The directory of one source: stream and filter in a readable, lossy form, and a hash of what they really are, so that
/// `order/1`, `order:1` and `order_1`, or `A` and `a` on a file system that ignores case, stay apart.
pub fn directory(source: &Source) -> String {
    let filters = if source.filters().is_empty() { "all".to_owned() } else { readable(&source.filters().join("+")) };
    format!("{}-{filters}-{:08x}", readable(source.stream()), hash(source))
}

/// The file that holds the records from `first` to `last`. Their publish times are part of it: a stream that lost its tail
/// gives the same sequences to other messages.
pub fn file(first: RecordId, last: RecordId) -> String {
    format!("{:020}-{}_{:020}-{}{ENDING}", first.sequence, first.published, last.sequence, last.published)
}

/// The first and the last record of a file with such a name; `None` if [`file`] makes no such names.
pub fn ids(name: &str) -> Option<(RecordId, RecordId)> {
    let (first, last) = name.strip_suffix(ENDING)?.split_once('_')?;
    let (first, last) = (id(first)?, id(last)?);
    // Numbers can be written in more ways than one.
    (file(first, last) == name).then_some((first, last))
}

fn id(text: &str) -> Option<RecordId> {
    let (sequence, published) = text.split_once('-')?;
    Some(RecordId::new(sequence.parse().ok()?, published.parse().ok()?))
}

fn hash(source: &Source) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    let parts = source.domain().into_iter().chain([source.stream()]).chain(source.filters().iter().map(String::as_str));
    // What no name and no subject can hold stands between the parts, and an absent domain differs from an empty one.
    hasher.update(&[u8::from(source.domain().is_some())]);
    for part in parts {
        hasher.update(part.as_bytes());
        hasher.update(&[0]);
    }
    hasher.finalize()
}

fn readable(text: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '+') { c } else { '_' };
    let name: String = text.chars().take(READABLE).map(plain).collect();
    // A leading dot hides a directory, and `..` is another one.
    if name.starts_with('.') { name.replacen('.', "_", 1) } else { name }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn m5_subjects_that_look_alike_get_directories_of_their_own() {
        let subjects = ["order/1", "order:1", "order_1", "order.1", "order.>", "order.*", "all", "ALL"];
        let mut names: BTreeSet<String> =
            subjects.iter().map(|s| directory(&Source::new("S").with_filters([*s])).to_lowercase()).collect();
        names.insert(directory(&Source::new("S")).to_lowercase());
        names.insert(directory(&Source::new("s")).to_lowercase());
        names.insert(directory(&Source::new("S").with_domain("hub")).to_lowercase());
        names.insert(directory(&Source::new("S").with_filters(["order.>", "order.*"])).to_lowercase());
        assert_eq!(names.len(), subjects.len() + 4);
        let safe = |c: char| c.is_ascii_alphanumeric() || "._-+".contains(c);
        assert!(names.iter().all(|name| name.chars().all(safe)), "{names:?}");
    }

    #[test]
    fn m3_two_chunks_of_equal_count_in_one_second_get_two_names() {
        let second = 1_700_000_000_000_000_000;
        let a = file(RecordId::new(1, second), RecordId::new(10, second + 9));
        let b = file(RecordId::new(11, second + 10), RecordId::new(20, second + 19));
        assert_ne!(a, b);
        assert!(a < b, "names sort as the records do");
        assert_eq!(ids(&a), Some((RecordId::new(1, second), RecordId::new(10, second + 9))));
    }

    #[test]
    fn two_lives_of_a_stream_never_share_a_name() {
        let old = file(RecordId::new(901, 5_000), RecordId::new(1_000, 6_000));
        let new = file(RecordId::new(901, 7_000), RecordId::new(1_000, 8_000));
        assert_ne!(old, new);
    }

    #[test]
    fn long_and_odd_names_stay_short_and_visible() {
        let name = directory(&Source::new("..").with_filters([&"x".repeat(5_000)]));
        assert!(name.len() < 160 && name.starts_with('_'), "{name}");
    }

    #[test]
    fn only_names_of_this_kind_are_recognised() {
        let (first, last) = (RecordId::new(u64::MAX, -1), RecordId::new(u64::MAX, i64::MAX));
        let name = file(first, last);
        assert_eq!(ids(&name), Some((first, last)), "{name}");
        assert_eq!(ids(&name.replace("--1", "--01")), None, "another name for the same records");
        for other in ["a.parquet", "1-1_2-2.parquet", "a.parquet.x.tmp"] {
            assert_eq!(ids(other), None, "{other}");
        }
    }
}
