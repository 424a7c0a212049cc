//! Archives a NATS `JetStream` stream into a ClickHouse table, without loss and without writing anything twice, whatever the
//! server forgot.
//!
//! ```text
//! clickhouse_archiver --stream ORDERS --filter 'orders.>' --clickhouse http://127.0.0.1:8123 --state state
//! ```
//!
//! Where to look first: `sink.rs` is all that replay-guard asks for. ClickHouse has no transactions; what stands in for one
//! is `session.rs`: how a block is inserted at once, and how a new sink makes sure that nothing of an earlier one comes
//! after it. `recover.rs` asks the table what it holds. The rest is the table (`table.rs`), its rows (`batch.rs`), what the
//! server can do (`abilities.rs`), errors and the command line.

mod abilities;
mod batch;
mod cli;
mod error;
mod recover;
mod session;
mod sink;
mod table;

use std::process::ExitCode;

use archiver_support::Failure;
use clap::Parser;

use crate::cli::Cli;
use crate::error::SinkError;
use crate::sink::Archive;

#[tokio::main]
async fn main() -> ExitCode {
    match run(Cli::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            failure.exit_code()
        }
    }
}

async fn run(cli: Cli) -> Result<(), Failure> {
    cli.target.check().map_err(|reason| Failure::setting(SinkError::Option(reason)))?;
    let archive = Archive::new(cli.target);
    Box::pin(archiver_support::main(cli.source, "clickhouse-archiver", Some(cli.state), archive)).await
}
