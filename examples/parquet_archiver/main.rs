//! Archives a NATS `JetStream` stream into Parquet files, without loss and without writing anything twice, whatever the
//! server forgot.
//!
//! ```text
//! parquet_archiver archive --stream ORDERS --filter 'orders.>' --out archive --state state
//! parquet_archiver demo
//! ```
//!
//! Where to look first: `sink.rs` is all that replay-guard asks for, `archive.rs` is how it is driven. The rest is the
//! Parquet format (`file.rs`), files that survive a power cut (`disk.rs`, `names.rs`), what they say of themselves
//! (`recover.rs`: with it each message is archived exactly once), the command line and the demonstration.

mod archive;
mod cli;
mod demo;
mod disk;
#[cfg(test)]
mod exactly_once;
mod failure;
mod file;
mod names;
#[path = "../support/nats.rs"]
mod nats;
mod progress;
mod recover;
mod sink;

use std::process::ExitCode;

use clap::Parser;

use crate::cli::{Cli, Command};
use crate::failure::Failure;

#[tokio::main]
async fn main() -> ExitCode {
    let ended = match Cli::parse().command {
        Command::Archive(settings) => Box::pin(archive::main(*settings)).await,
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
