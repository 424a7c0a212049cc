//! Archives a NATS `JetStream` stream into `PostgreSQL`, each message exactly once, whatever the server forgot.
//!
//! ```text
//! PGPASSWORD=... postgres_archiver --stream ORDERS --database postgres://archiver@db/archive?sslmode=verify-full
//! ```
//!
//! Where to look first: `sink.rs` is all that replay-guard asks for, `records.rs` the transaction of a flush, `session.rs` the
//! lock and what makes a commit durable. `store.rs` keeps the checkpoint in the same database.

mod address;
mod cli;
mod error;
mod records;
mod row;
mod schema;
mod session;
mod sink;
mod store;

use std::process::ExitCode;

use archiver_support::Failure;
use clap::Parser;

use crate::cli::Cli;
use crate::sink::Database;

#[tokio::main]
async fn main() -> ExitCode {
    let settings = Cli::parse();
    let ended = match settings.database.access() {
        Ok(access) => {
            let database = Database::new(access);
            Box::pin(archiver_support::main(settings.source, "postgres-archiver", None, database)).await
        }
        Err(error) => Err(Failure::setting(error)),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            failure.exit_code()
        }
    }
}
