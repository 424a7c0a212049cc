//! Runs the tests against real servers. They are a package of their own, built without the optimisation that the simulation
//! in this one wants.

mod cargo;

fn main() -> std::process::ExitCode {
    cargo::test(&["--package", "replay-guard-server-tests", "--test", "server"])
}
