//! The command line.

#![expect(clippy::doc_markdown, reason = "the texts are printed as they stand")]

use std::path::PathBuf;
use std::time::Duration;

use archiver_support::SourceSettings;
use clap::{Args, Parser};

/// Archives a NATS JetStream stream into S3 objects, without loss and without writing anything twice
///
/// Reads the stream through a durable consumer, which is created if it does not exist, and writes one Parquet object per
/// flush: PREFIX/SOURCE/FIRST_LAST.parquet, where SOURCE stands for stream and filters, and FIRST and LAST for the sequences
/// and publish times of its records. A message is acknowledged only after the store has its object and the checkpoint is
/// safe on disk. While the NATS server or the store is away the archiver keeps trying.
///
/// Each object says in its footer which messages it holds, and is created only where there is none of its name. So each
/// message is written exactly once, also if the archiver is killed between upload and checkpoint, if an upload comes true
/// after the archiver has died, or if the checkpoint is lost. That takes a store that keeps to `If-None-Match` and `If-Match`,
/// also when two write at once, and lists what it has just taken, as Amazon S3 does. One that ignores the first is found out
/// at the start and refused.
///
/// Two small objects stand beside those of a source: `probe`, by which the store is found out, and `under-way`, the name of
/// the object that is being written. The latter is overwritten at each flush: let old versions expire where a bucket keeps
/// them. Nothing else that is in the bucket is touched, and nothing is ever deleted.
///
/// Credentials come from the environment: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, a web identity, a
/// container's or the instance's role. They need s3:PutObject and s3:GetObject on the objects and s3:ListBucket on the
/// bucket. Certificates are those that the system trusts, or those in the file that SSL_CERT_FILE names.
///
/// One archiver per stream and filters. Exit codes: 0 after a clean stop, 2 if a setting is wrong (no such bucket, no
/// permission, no such stream, ...), 1 for anything else.
#[derive(Debug, Parser)]
#[command(name = "s3_archiver", arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) source: SourceSettings,

    #[command(flatten)]
    pub(crate) bucket: BucketSettings,

    /// Directory of the checkpoint, which says what is archived; if it is lost, the objects in the bucket say it
    #[arg(long, value_name = "DIR", default_value = "state")]
    pub(crate) state: PathBuf,

    /// Write again what no object holds any more, from this stream sequence on
    ///
    /// For objects that were deleted. Without it an object may go once it is archived: nothing is written again. Do not set
    /// it where objects are merged or moved, and give a sequence above what the bucket's lifecycle removes.
    #[arg(long, value_name = "SEQUENCE")]
    pub(crate) rewrite_missing_from: Option<u64>,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct BucketSettings {
    /// Name of the bucket; it must exist
    #[arg(long, value_name = "NAME")]
    pub(crate) bucket: String,

    /// What the names of all objects begin with, such as `nats/orders` [default: nothing]
    #[arg(long, value_name = "PREFIX", default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,

    /// Where the bucket is [default: AWS_REGION, else us-east-1]
    #[arg(long, value_name = "REGION")]
    pub(crate) region: Option<String>,

    /// Address of a store other than Amazon's, such as https://s3.example.org:9000 [default: AWS_ENDPOINT_URL]
    #[arg(long, value_name = "URL")]
    pub(crate) endpoint: Option<String>,

    /// Allow an address without TLS: everybody on the way can read and change what is archived
    #[arg(long)]
    pub(crate) allow_http: bool,

    /// Use a store that ignores conditions (`If-None-Match`)
    ///
    /// Then it is not guaranteed any more that each message is written once: the archiver only looks before it writes. An
    /// upload that comes true after its archiver died, or a second archiver, may write messages twice, and may replace an
    /// object by another one of the same first and last message.
    #[arg(long)]
    pub(crate) unconditional: bool,

    /// How long one request may take, in seconds; an upload must fit in, which is at most about --flush-bytes
    #[arg(long, value_name = "SECONDS", default_value = "120", value_parser = seconds)]
    pub(crate) request_timeout: Duration,
}

fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(0) => Err("must be at least 1".into()),
        Ok(seconds) => Ok(Duration::from_secs(seconds)),
        Err(error) => Err(format!("{error}")),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn what_supervisors_pass_is_understood() -> Result<(), clap::Error> {
        let words = "x --server nats://h:1 --stream S --consumer arch --bucket b --prefix p/q --endpoint http://h:2 \
                     --allow-http --state s --flush-records 500";
        let settings = Cli::try_parse_from(words.split_whitespace())?;
        assert_eq!(settings.source.consumer.as_deref(), Some("arch"));
        assert_eq!((settings.bucket.bucket.as_str(), settings.bucket.prefix.as_str()), ("b", "p/q"));
        assert_eq!((settings.state, settings.bucket.unconditional), ("s".into(), false));
        Ok(())
    }

    #[test]
    fn numbers_that_make_no_sense_are_refused() {
        for timeout in ["0", "-1", "x"] {
            let line = ["x", "--stream", "S", "--bucket", "b", "--request-timeout", timeout];
            assert!(Cli::try_parse_from(line).is_err(), "{timeout}");
        }
    }
}
