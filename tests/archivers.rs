//! Runs the tests of the archivers that are packages of their own, so that whoever builds this one need not build what they
//! need.

mod cargo;

fn main() -> std::process::ExitCode {
    cargo::test(&["--package", "archiver-support", "--package", "postgres_archiver"])
}
