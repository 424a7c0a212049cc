//! Who must not know whom. A module that can be tested by millions of random steps has no clock, no file and no client.

use std::fs;
use std::path::{Path, PathBuf};

/// Source files and what none of their code may name.
const WALLS: &[(&[&str], &[&str])] = &[
    (
        &["coverage.rs", "ledger.rs", "trust.rs", "checkpoint.rs", "witness.rs", "claim.rs", "skip.rs"],
        &[
            "std::fs",
            "std::io",
            "std::time",
            "tokio",
            "async ",
            ".await",
            "async_nats",
            "futures",
            "store::",
            "guard::",
        ],
    ),
    (&["store"], &["async_nats", "jetstream", "crate::checkpoint", "crate::guard", "crate::ledger", "crate::record"]),
    (&["guard"], &["async_nats", "jetstream", "tokio", "std::fs", "Instant", "sleep", ".ack(", "ack_with", "nak"]),
    (
        &[
            "jetstream/ack.rs",
            "jetstream/pace.rs",
            "jetstream/plan.rs",
            "jetstream/plan",
            "jetstream/position.rs",
            "jetstream/resume.rs",
            "jetstream/session.rs",
        ],
        &["tokio", ".await", "async ", "Client", "Instant", "std::fs"],
    ),
    // The kit runs on whatever runtime its user has, and never waits for a clock.
    (&["testing"], &["jetstream", "tokio", "std::fs", "std::thread", "Instant", "SystemTime", "sleep", "crate::sim"]),
    (&["observer.rs", "sink.rs", "error.rs", "source.rs", "dead_letter.rs"], &["jetstream", "tokio", "std::fs"]),
];

fn sources(path: &Path) -> Vec<PathBuf> {
    if path.is_file() {
        return vec![path.to_owned()];
    }
    let entries = fs::read_dir(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    entries.flat_map(|entry| sources(&entry.unwrap().path())).filter(|path| path.extension().is_some()).collect()
}

/// The lines of code of a file, without comments and without its tests.
fn code(path: &Path) -> Vec<(usize, String)> {
    let text = fs::read_to_string(path).unwrap();
    let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    let lines = code.lines().enumerate();
    lines
        .map(|(number, line)| (number + 1, line.split("//").next().unwrap_or_default().to_owned()))
        .filter(|(_, line)| !line.trim().is_empty())
        .collect()
}

#[test]
fn the_walls_between_the_modules_stand() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut broken = Vec::new();
    for (modules, forbidden) in WALLS {
        for path in modules.iter().flat_map(|module| sources(&src.join(module))) {
            for (number, line) in code(&path) {
                for word in forbidden.iter().filter(|word| line.contains(**word)) {
                    broken.push(format!("{}:{number} names {word}: {}", path.display(), line.trim()));
                }
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn the_walls_see_a_forbidden_name() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pure.rs");
    fs::write(&path, "//! tokio in a comment\nuse tokio::fs; // and here\n#[cfg(test)]\nmod tests { use std::fs; }\n")
        .unwrap();
    assert_eq!(code(&path), [(2, "use tokio::fs; ".to_owned())]);
}
