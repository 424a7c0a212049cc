//! Runs the tests with real processes on real disks. They are a package of their own, since their archiver is built with
//! points at which it can be told to die.

mod cargo;

fn main() -> std::process::ExitCode {
    cargo::test(&["--package", "replay-guard-disk-tests"])
}
