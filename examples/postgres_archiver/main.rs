//! Archives a NATS `JetStream` stream into `PostgreSQL`, each message exactly once, whatever the server forgot.
//!
//! ```text
//! PGPASSWORD=... postgres_archiver --stream ORDERS --database postgres://archiver@db/archive?sslmode=verify-full
//! ```
//!
//! Where to look first: `sink.rs` is all that replay-guard asks for, `records.rs` the transaction of a flush, `session.rs` the
//! lock and what makes a commit durable. `store.rs` keeps the checkpoint in the same database.
//!
//! # What is where
//!
//! Messages are in `records`, in any order of insertion: `source` (a row of `sources`), `sequence`, `published` (cut to the
//! microsecond) and `published_ns` (exact), `subject`, `headers` (a JSON array of objects with `name` and `value`), `payload`.
//! The key is source, sequence **and** `published_ns`, for a stream that was made anew, or lost its end, gives a sequence
//! again. `text` and `jsonb` cannot hold a NUL: a subject or header that has one shows U+FFFD in its place, and `exact` has both
//! as they are. The table may be partitioned by `published_ns`, and may have more columns, if they fill themselves.
//!
//! # Why each message is there once
//!
//! - Rows and claim are one transaction, committed with `synchronous_commit` on. An answer that is lost leaves a claim, or
//!   nothing; whoever comes next reads it. The checkpoint is saved after that, so the claims beyond it are those of one flush;
//!   1,024 are kept, and none need be read through at the opening of an archive of years.
//! - One connection holds the source's lock, and each transaction first proves, on a locked row, that no other archiver has
//!   come since. An old transaction that still runs is waited for.
//! - After a fork within a flush the table says which records it holds, so that none of those that stand is written again.
//! - What the guard offers again all the same (where it is in doubt, or checkpoint and claims were deleted) meets the key: the same message is left as it is, and counted in the log; another message in its place is an error, and nothing
//!   of that transaction is stored.
//!
//! # Housekeeping
//!
//! Old rows and partitions may be deleted: nothing is written again. To fill holes on purpose, stop the archiver, delete the
//! source's rows in `checkpoints` and `claims`, and start it once with `--start beginning`: what the stream still has and the
//! table has not is stored. Records that a sink can never store do not occur, so nothing is reported twice.
//!
//! # What it rests on
//!
//! The server's `fsync` and its disks. With synchronous standbys a commit waits for them; who cancels such a wait
//! (`pg_cancel_backend`) makes the server answer as if they had it, with a warning that stands in the archiver's log. After a
//! failover that lost commits, rows and checkpoint are older together, and the stream is asked for what is missing; on a
//! work-queue stream that is gone.

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
