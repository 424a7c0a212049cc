//! The part of the command line that all archivers share.

#![expect(clippy::doc_markdown, reason = "the texts are printed as they stand")]

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use replay_guard::Start;

/// What to archive, and how: the options that every archiver has.
#[derive(Clone, Debug, Args)]
pub struct SourceSettings {
    /// Where the stream is.
    #[command(flatten)]
    pub server: ServerSettings,

    /// Name of the stream; it must exist
    #[arg(long, value_name = "NAME")]
    pub stream: String,

    /// Archive only subjects that match, such as `orders.>`; may be given more than once [default: the whole stream]
    ///
    /// What is archived under one filter has a checkpoint and a place of its own: another filter begins anew.
    #[arg(long = "filter", value_name = "SUBJECT")]
    pub filters: Vec<String>,

    /// Name of the durable consumer; created if it does not exist [default: the archiver's name, with a hyphen]
    #[arg(long, value_name = "NAME")]
    pub consumer: Option<String>,

    /// When to flush.
    #[command(flatten)]
    pub flush: FlushSettings,

    /// Where to begin if nothing is known of this stream and filter [default: consumer]
    #[arg(long, value_enum)]
    pub start: Option<StartAt>,

    /// Read and skip what is archived when the server forgot it, instead of moving the consumer over it
    #[arg(long)]
    pub no_fast_forward: bool,

    /// What to log: `error`, `warn`, `info`, `debug`, or by module, such as `info,replay_guard=debug`
    #[arg(long, value_name = "FILTER", default_value = "info,async_nats=off")]
    pub log: String,
}

/// Where to begin.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum StartAt {
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

/// A flush, which is one file, object or transaction, comes when the first of these is reached.
#[derive(Clone, Copy, Debug, Args)]
pub struct FlushSettings {
    /// Flush after this many messages
    #[arg(long = "flush-records", value_name = "N", default_value = "10000", value_parser = at_least_one)]
    pub records: usize,

    /// Flush once its first message has waited this long, in seconds
    #[arg(long = "flush-after", value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    pub after: Duration,

    /// Flush once the messages take this many bytes in memory
    #[arg(long = "flush-bytes", value_name = "BYTES", default_value = "67108864", value_parser = at_least_one)]
    pub bytes: usize,
}

/// Where the stream is, and who asks.
#[derive(Clone, Debug, Args)]
pub struct ServerSettings {
    /// Address of the server; several, separated by commas, for a cluster
    #[arg(long = "server", value_name = "URL", default_value = "nats://127.0.0.1:4222", value_delimiter = ',')]
    pub urls: Vec<String>,

    /// File with the user's credentials (JWT and NKEY seed)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["user", "password"])]
    pub creds: Option<PathBuf>,

    /// File with the certificates to trust, in PEM format; the connection must then be encrypted
    #[arg(long, value_name = "FILE")]
    pub tls_ca: Option<PathBuf>,

    /// User name
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,

    /// Password; others on this machine can see it, so rather set the environment variable NATS_PASSWORD
    #[arg(long, value_name = "PASSWORD", requires = "user")]
    pub password: Option<String>,
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("must be at least 1".into()),
        Ok(number) => Ok(number),
        Err(error) => Err(format!("{error}")),
    }
}

/// An option in seconds, more than 0, in parts of one if need be.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|error| format!("{error}"))?;
    match Duration::try_from_secs_f64(seconds) {
        Ok(duration) if !duration.is_zero() => Ok(duration),
        Ok(_) => Err("must be more than 0".into()),
        Err(error) => Err(format!("{error}")),
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        source: SourceSettings,
    }

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn what_supervisors_pass_is_understood() -> Result<(), clap::Error> {
        let words = "x --server nats://h:1,nats://i:2 --stream S --filter s.> --filter t.* --consumer arch \
                     --flush-records 500 --flush-after 0.5";
        let settings = Cli::try_parse_from(words.split_whitespace())?.source;
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
            let line = format!("x --stream S {words}");
            assert!(Cli::try_parse_from(line.split_whitespace()).is_err(), "{words}");
        }
    }
}
