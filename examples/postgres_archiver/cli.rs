//! The command line.

#![expect(clippy::doc_markdown, reason = "the texts are printed as they stand")]

use std::time::Duration;

use archiver_support::SourceSettings;
use clap::Parser;

use crate::address;
use crate::error::SinkError;
use crate::schema::Schema;
use crate::session::Access;

/// Archives a NATS JetStream stream into PostgreSQL, each message exactly once.
///
/// Reads the stream through a durable consumer, which is created if it does not exist, and writes one transaction per flush:
/// the messages, and a claim that says which. A message is acknowledged only after that is committed and safe on the
/// server's disk (synchronous_commit is set to on for each transaction), and the checkpoint is too. The checkpoint is kept in
/// the same database, so nothing else needs a backup: who restores the database to an older state goes on from there, with
/// what the stream still has. While the NATS server or the database is away the archiver keeps trying.
///
/// The tables are made in a schema of their own if they are not there. Messages are in the table records, with the stream's
/// name in sources; the primary key is source, sequence and publish time in nanoseconds, so that a stream that was made anew,
/// or lost its end, finds a place beside the old one. Old rows may be deleted: they are not written again.
///
/// One archiver for each stream and filter: a second one waits 10 seconds for the first to end, and then ends itself.
///
/// Exit codes: 0 after a clean stop (SIGTERM or Ctrl-C), 2 if a setting is wrong (no such stream or database, no permission,
/// a table of another shape, ...), 1 for anything else.
#[derive(Debug, Parser)]
#[command(name = "postgres_archiver", arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) source: SourceSettings,

    #[command(flatten)]
    pub(crate) database: DatabaseSettings,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DatabaseSettings {
    /// Address of the database, as in libpq: postgres://USER@HOST:PORT/NAME?sslmode=verify-full [default: what the PG
    /// variables say]
    ///
    /// What it does not say, the variables PGHOST, PGPORT, PGUSER, PGDATABASE, PGPASSWORD, PGSSLMODE, PGSSLROOTCERT and
    /// PGPASSFILE do, and the file ~/.pgpass. Others on this machine can see a password in it, so rather put that into one of
    /// these, or the whole address into DATABASE_URL. sslmode=require encrypts, and trusts any server; verify-full does not.
    #[arg(long, value_name = "URL", env = "DATABASE_URL", hide_env_values = true)]
    pub(crate) database: Option<String>,

    /// Schema of the tables; created if it does not exist
    #[arg(long, value_name = "NAME", default_value = "archive")]
    pub(crate) schema: String,

    /// How long the database may take for one transaction, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) database_timeout: u64,

    /// Go on although the database server says that its fsync is off
    ///
    /// Only where the service that runs it keeps the log safe in another way. On a server of your own, a power cut then loses
    /// messages that were acknowledged, and may leave a database that cannot be used.
    #[arg(long)]
    pub(crate) without_fsync: bool,
}

impl DatabaseSettings {
    /// What they say, checked.
    pub(crate) fn access(&self) -> Result<Access, SinkError> {
        let ssl_mode = std::env::var("PGSSLMODE").ok();
        Ok(Access {
            options: address::options(self.database.as_deref(), ssl_mode.as_deref())?,
            schema: Schema::new(&self.schema)?,
            patience: Duration::from_secs(self.database_timeout),
            without_fsync: self.without_fsync,
        })
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
        let words = "x --server nats://h:1 --stream S --database postgres://h/d --schema a --database-timeout 5";
        let settings = Cli::try_parse_from(words.split_whitespace())?;
        assert_eq!(settings.source.stream, "S");
        assert_eq!((settings.database.schema.as_str(), settings.database.database_timeout), ("a", 5));
        assert!(Cli::try_parse_from("x --stream S --database-timeout 0".split_whitespace()).is_err());
        Ok(())
    }

    #[test]
    fn the_help_shows_no_password() {
        let mut command = Cli::command();
        let database = command.get_arguments().find(|argument| argument.get_id() == "database");
        assert!(database.is_some_and(clap::Arg::is_hide_env_values_set));
        let help = command.render_long_help().to_string();
        for word in ["Exit codes", "DATABASE_URL", "PGPASSWORD", "exactly once"] {
            assert!(help.contains(word), "{word}");
        }
    }
}
