//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use archiver_support::{SourceSettings, seconds};
use clap::{Args, Parser, ValueEnum};

/// Archives a NATS JetStream stream into a ClickHouse table, without loss and without writing anything twice.
///
/// Reads the stream through a durable consumer, which is created if it does not exist. Each flush is one insert of one
/// block. A message is acknowledged only after the server has its block, and then the checkpoint is safe on disk. While the
/// NATS server or ClickHouse is away the archiver keeps trying.
///
/// Each block carries what it makes durable (the column `claim`, in its last row), and a starting archiver asks the table
/// for it. An insert of an earlier archiver that is still under way is waited for, and one that comes later finds nothing
/// to insert: so a crash at any moment, or the loss of the checkpoint, writes no message twice. A message has one row also
/// where that should fail: read the table with FINAL and it counts once.
///
/// What an acknowledged block survives is up to the server: a crash of it always, a power cut only where it syncs inserts
/// (`fsync_after_insert`). The table is made so where the server can do it, and the archiver warns where it cannot.
///
/// One archiver per stream and filter: a lock in the state directory sees to it, and nothing else does. The address must be
/// one server, or always lead to the same one, and an archiver that takes over must use the same user there.
///
/// A row is one message: source (stream and filters), stream, sequence, published (nanoseconds since 1970; `published_at`
/// shows it as a time), subject, `headers.name` and `headers.value` (pairs, in order), payload, and what belongs to claims.
///
/// Exit codes: 0 after a clean stop, 2 if a setting is wrong (no such stream or database, a table of another shape, no
/// permission, ...), 1 for anything else.
#[derive(Debug, Parser)]
#[command(name = "clickhouse_archiver", arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) source: SourceSettings,

    #[command(flatten)]
    pub(crate) target: TargetSettings,

    /// Directory of the checkpoint, which says what is archived; if it is lost, the table says it
    #[arg(long, value_name = "DIR", default_value = "state")]
    pub(crate) state: PathBuf,
}

/// Where the rows go.
#[derive(Clone, Debug, Args)]
pub(crate) struct TargetSettings {
    /// Address of ClickHouse's HTTP interface; `https://` encrypts
    #[arg(long = "clickhouse", value_name = "URL", default_value = "http://127.0.0.1:8123")]
    pub(crate) url: String,

    /// Database of the table; it must exist
    #[arg(long, value_name = "NAME", default_value = "default")]
    pub(crate) database: String,

    /// Table the messages go to; created if it does not exist. Several archivers may share one
    #[arg(long, value_name = "NAME", default_value = "messages")]
    pub(crate) table: String,

    /// User name at ClickHouse
    #[arg(id = "clickhouse-user", long = "clickhouse-user", value_name = "NAME", env = "CLICKHOUSE_USER")]
    pub(crate) user: Option<String>,

    /// Password at ClickHouse; others on this machine can see it, so rather set the environment variable
    #[arg(
        id = "clickhouse-password",
        long = "clickhouse-password",
        value_name = "PASSWORD",
        env = "CLICKHOUSE_PASSWORD",
        hide_env_values = true
    )]
    pub(crate) password: Option<String>,

    /// How the rows are compressed on their way
    #[arg(long, value_enum, default_value = "lz4")]
    pub(crate) compression: Compression,

    /// How long ClickHouse may take for one request, and for an earlier archiver's insert to end, in seconds
    #[arg(long = "clickhouse-timeout", value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    pub(crate) timeout: Duration,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Compression {
    Lz4,
    None,
}

impl TargetSettings {
    /// The first thing that cannot be right, without what might be a password.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        if !self.url.starts_with("http://") && !self.url.starts_with("https://") {
            return Err("--clickhouse takes the address of an HTTP interface, such as http://127.0.0.1:8123");
        }
        if self.url.contains('@') || self.url.contains('?') {
            return Err(
                "--clickhouse takes an address only: give the user with --clickhouse-user, the password in the \
                        environment variable CLICKHOUSE_PASSWORD, and the database with --database",
            );
        }
        if self.password.is_some() && self.user.is_none() {
            return Err("a ClickHouse password without a user: give --clickhouse-user too");
        }
        Ok(())
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
    fn an_address_with_a_password_is_refused_without_showing_it() -> Result<(), clap::Error> {
        for (words, fits) in [
            ("--clickhouse http://h:8123 --clickhouse-user u --clickhouse-password secret", true),
            ("--clickhouse http://u:secret@h:8123", false),
            ("--clickhouse http://h:8123/?password=secret", false),
            ("--clickhouse ftp://h", false),
            ("--clickhouse-password secret", false),
        ] {
            let line = format!("x --stream S {words}");
            let said = Cli::try_parse_from(line.split_whitespace())?.target.check();
            assert_eq!(said.is_ok(), fits, "{words}");
            assert!(!said.err().unwrap_or_default().contains("secret"), "{words}");
        }
        Ok(())
    }
}
