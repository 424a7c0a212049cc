//! Runs the tests of other packages of the workspace.

use std::process::{Command, ExitCode};

/// `cargo test` with these options, and the arguments this program was given.
pub(crate) fn test(options: &[&str]) -> ExitCode {
    let mut tests = Command::new(env!("CARGO"));
    tests.arg("test").args(options).arg("--").args(std::env::args().skip(1));
    match tests.status() {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("cannot run {}: {error}", env!("CARGO"));
            ExitCode::FAILURE
        }
    }
}
