//! Tests against real nats-server binaries, each test with a server of its own.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use archiver_support::nats;

mod consumer;
mod driver;
mod facts;
mod harness;
mod observer;

/// Tests that are run with a server of each of two versions, or of those that `REPLAY_GUARD_NATS_VERSIONS` names. Where it
/// matters which, `on_all_versions!`.
macro_rules! on_versions {
    ($( $(#[$attribute:meta])* async fn $name:ident($server:ident: Server) $body:block )*) => {
        $( crate::on_each! { &crate::nats::APART, $(#[$attribute])* $name, $server, $body } )*
    };
}
/// The same for what differs between versions: all that are tested.
macro_rules! on_all_versions {
    ($( $(#[$attribute:meta])* async fn $name:ident($server:ident: Server) $body:block )*) => {
        $( crate::on_each! { &crate::nats::VERSIONS, $(#[$attribute])* $name, $server, $body } )*
    };
}
macro_rules! on_each {
    ($versions:expr, $(#[$attribute:meta])* $name:ident, $server:ident, $body:block) => {
        $(#[$attribute])*
        #[test]
        fn $name() {
            crate::run_on($versions, async |version| {
                #[allow(unused_mut, reason = "not every test stops its server")]
                let mut $server = crate::nats::Server::start(version).await.unwrap();
                $body
            });
        }
    };
}
pub(crate) use {on_all_versions, on_each, on_versions};

/// Runs a test with one version after the other, all of them even if one fails.
fn run_on(versions: &[&'static str], test: impl AsyncFn(&'static str) + Sync) {
    let mut failed = Vec::new();
    for version in nats::versions(versions) {
        let run = || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
            runtime.block_on(test(version));
        };
        // The thread's name stands before what it says when it fails.
        let ended = std::thread::scope(|scope| {
            std::thread::Builder::new().name(format!("nats-server {version}")).spawn_scoped(scope, run).unwrap().join()
        });
        if ended.is_err() {
            failed.push(version);
        }
    }
    assert!(failed.is_empty(), "failed with nats-server {}", failed.join(", "));
}
