//! Runs the tests with file systems that fill up, fail and lose power. As root: they mount.

mod cargo;

fn main() -> std::process::ExitCode {
    cargo::test(&["--package", "replay-guard-disk-tests", "--features", "power-cut", "--test", "power"])
}
