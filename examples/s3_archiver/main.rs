//! Archives a NATS `JetStream` stream into S3 objects, without loss and without writing anything twice, whatever the server
//! forgot.
//!
//! ```text
//! s3_archiver --stream ORDERS --filter 'orders.>' --bucket archive --prefix orders --state state
//! ```
//!
//! Where to look first: `sink.rs` is all that replay-guard asks for. `place.rs` is what makes an object exactly one, also
//! where an upload outlives the process that began it; `bucket.rs` opens the store and asks whether it keeps to the
//! conditions that this rests on; `recover.rs` reads what the objects say they hold. Their format is that of the Parquet
//! archiver (`parquet_format` beside this directory).

mod bucket;
mod cli;
mod error;
mod place;
mod recover;
mod sink;

use std::process::ExitCode;

use archiver_support::Failure;
use clap::Parser;

use crate::bucket::Bucket;
use crate::cli::Cli;
use crate::sink::Archive;

#[tokio::main]
async fn main() -> ExitCode {
    // Two of them are built in, by async-nats and by object_store: without a choice, TLS panics.
    if rustls::crypto::aws_lc_rs::default_provider().install_default().is_err() {
        eprintln!("error: the cryptography was chosen already");
        return ExitCode::FAILURE;
    }
    match archive(Cli::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            failure.exit_code()
        }
    }
}

/// Objects are written with one request, and stores take no more than 5 GB in one.
const MAX_FLUSH_BYTES: usize = 4 << 30;

async fn archive(settings: Cli) -> Result<(), Failure> {
    if settings.source.flush.bytes > MAX_FLUSH_BYTES {
        let text = "--flush-bytes must be 4 GiB at most: an object is written with one request, which takes 5 GB";
        return Err(Failure::Setting(anyhow::anyhow!(text)));
    }
    let bucket = Bucket::new(&settings.bucket).map_err(Failure::setting)?;
    let archive = Archive::new(bucket).rewrite_missing_from(settings.rewrite_missing_from);
    Box::pin(archiver_support::main(settings.source, "s3-archiver", Some(settings.state), archive)).await
}
