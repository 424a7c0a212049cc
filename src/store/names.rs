//! Where the files of a source lie. Pure: nothing here touches a disk.

use std::path::{Path, PathBuf};

use crate::source::Source;

/// How many characters of a stream or filter are kept readable in a name.
const READABLE: usize = 64;

/// The paths of one source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Paths {
    /// The directory of the stream.
    pub(super) dir: PathBuf,
    /// The checkpoint.
    pub(super) file: PathBuf,
    /// What becomes the checkpoint by a rename.
    pub(super) temp: PathBuf,
    /// The lock, never renamed and never deleted.
    pub(super) lock: PathBuf,
}

impl Paths {
    pub(super) fn new(root: &Path, source: &Source) -> Self {
        let dir = root.join(stream_name(source));
        let name = filter_name(source);
        Self {
            file: dir.join(format!("{name}.ckpt")),
            temp: dir.join(format!("{name}.ckpt.tmp")),
            lock: dir.join(format!("{name}.lock")),
            dir,
        }
    }

    /// The n-th name for a checkpoint that is put out of the way.
    pub(super) fn aside(&self, n: u64) -> PathBuf {
        let mut name = self.file.clone().into_os_string();
        name.push(format!(".corrupt-{n}"));
        name.into()
    }
}

fn stream_name(source: &Source) -> String {
    let mut crc = crc32fast::Hasher::new();
    crc.update(source.stream().as_bytes());
    if let Some(domain) = source.domain() {
        crc.update(&[0]);
        crc.update(domain.as_bytes());
    }
    format!("{}-{:08x}", readable(source.stream()), crc.finalize())
}

fn filter_name(source: &Source) -> String {
    let filters = source.filters().join("\0");
    let words = if filters.is_empty() { "all".to_owned() } else { readable(&filters) };
    format!("{words}-{:08x}", crc32fast::hash(filters.as_bytes()))
}

/// For a person to read; the hash beside it tells apart what looks the same here, also where case does not count.
fn readable(exact: &str) -> String {
    if exact.is_empty() {
        return "_".to_owned();
    }
    let keep = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
    exact.chars().take(READABLE).map(keep).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(source: &Source) -> String {
        Paths::new(Path::new("/d"), source).file.display().to_string()
    }

    #[test]
    fn names_are_fixed_for_ever() {
        assert_eq!(path(&Source::new("ORDERS")), "/d/ORDERS-15d73a68/all-00000000.ckpt");
        assert_eq!(
            path(&Source::new("ORDERS").with_domain("hub").with_filters(["orders.*", "a b"])),
            "/d/ORDERS-e2bec0da/a_b_orders__-6c1a0512.ckpt"
        );
    }

    #[test]
    fn what_looks_the_same_has_another_hash() {
        let names = [
            Source::new("S"),
            Source::new("s"),
            Source::new("S").with_domain(""),
            Source::new("S").with_domain("hub"),
            Source::new("S").with_filters(["all"]),
            Source::new("S").with_filters(["a.b"]),
            Source::new("S").with_filters(["a_b"]),
            Source::new("S").with_filters(["A.b"]),
            Source::new("S").with_filters(["a", "b"]),
            Source::new("S").with_filters(["x".repeat(300)]),
            Source::new("S").with_filters(["x".repeat(301)]),
            Source::new(""),
            Source::new("../../etc"),
            Source::new("\u{e9}\u{4e16}"),
        ]
        .map(|source| path(&source).to_lowercase());
        for (i, name) in names.iter().enumerate() {
            assert!(!names.iter().take(i).any(|other| other == name), "{name} twice");
            assert!(name.is_ascii() && !name.contains(".."), "{name}");
            assert!(name.split('/').all(|part| part.len() < 100), "{name}");
        }
    }

    #[test]
    fn everything_of_a_source_lies_in_one_directory() {
        let paths = Paths::new(Path::new("/d"), &Source::new("S"));
        for path in [&paths.file, &paths.temp, &paths.lock, &paths.aside(7)] {
            assert_eq!(path.parent(), Some(paths.dir.as_path()));
        }
        assert!(paths.aside(7).display().to_string().ends_with("/all-00000000.ckpt.corrupt-7"));
    }
}
