//! Tests against real nats-server binaries, each test with a server of its own.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

extern crate nats;

mod consumer;
mod driver;
mod harness;
mod observer;

/// One test per server version: `on_versions! { name: server => { ... } }`.
macro_rules! on_versions {
    ($( $(#[$attribute:meta])* async fn $name:ident($server:ident: Server) $body:block )*) => {
        $(
            $(#[$attribute])*
            mod $name {
                #[allow(unused_imports, reason = "not every test needs all of its parent")]
                use super::*;

                async fn run(#[allow(unused_mut)] mut $server: crate::nats::Server) $body

                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn v2_12_8() {
                    run(crate::nats::Server::start(crate::nats::V2_12).await.unwrap()).await;
                }

                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn v2_15_1() {
                    run(crate::nats::Server::start(crate::nats::V2_15).await.unwrap()).await;
                }
            }
        )*
    };
}
pub(crate) use on_versions;
