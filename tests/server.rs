//! Runs the tests against real servers, with the arguments it is given. They are a package of their own, built without the
//! optimisation that the simulation in this one wants.

use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    let mut tests = Command::new(env!("CARGO"));
    tests
        .args(["test", "--package", "replay-guard-server-tests", "--test", "server", "--"])
        .args(std::env::args().skip(1));
    match tests.status() {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("cannot run {}: {error}", env!("CARGO"));
            ExitCode::FAILURE
        }
    }
}
