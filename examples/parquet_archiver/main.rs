//! Archives a NATS `JetStream` stream into Parquet files, without loss and without writing anything twice, whatever the
//! server forgot.
//!
//! ```text
//! parquet_archiver archive --stream ORDERS --filter 'orders.>' --out archive --state state
//! parquet_archiver demo
//! ```
//!
//! Where to look first: `sink.rs` is all that replay-guard asks for, `run.rs` beside this directory, in `support`, is how
//! it is driven. The rest is the Parquet format (`file.rs`), files that survive a power cut (`disk.rs`, `names.rs`), what
//! they say of themselves (`recover.rs`: with it each message is archived exactly once), the command line and the
//! demonstration.

mod cli;
#[cfg(test)]
mod conformance;
mod demo;
mod disk;
#[cfg(test)]
mod exactly_once;
mod file;
mod names;
mod parts;
mod recover;
mod sink;
mod turn;

/// Where tests kill the process; otherwise a point is nothing.
#[cfg(not(feature = "crash-points"))]
mod crash {
    pub(crate) const fn point(_name: &str) {}

    pub(crate) fn during<T>(_name: &str, work: impl FnOnce() -> T) -> T {
        work()
    }
}

use std::process::ExitCode;

use archiver_support::Failure;
use clap::Parser;
#[cfg(feature = "crash-points")]
use replay_guard::crash;

use crate::cli::{Cli, Command};
use crate::sink::Archive;

#[tokio::main]
async fn main() -> ExitCode {
    let ended = match Cli::parse().command {
        Command::Archive(settings) => {
            let archive = Archive::new(settings.out)
                .rewrite_missing_from(settings.rewrite_missing_from)
                .partitioned_by(settings.partition_by);
            let state = Some(settings.state);
            Box::pin(archiver_support::main(settings.source, "parquet-archiver", state, archive)).await
        }
        Command::Demo(settings) => demo::main(settings).await.map_err(Failure::Fatal),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            failure.exit_code()
        }
    }
}
