//! What goes wrong with the database.

use std::time::Duration;

use sqlx::postgres::PgDatabaseError;

/// Why the database cannot be used, or not now.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SinkError {
    /// Somebody has to change something.
    #[error("{0}")]
    Setting(String),
    /// The connection was refused, or lost, or the server said no.
    #[error("cannot {action}")]
    Sql {
        /// What was tried, as a verb.
        action: &'static str,
        /// What the server or the system said.
        source: sqlx::Error,
    },
    /// Nothing came back. What was asked for may still happen.
    #[error("cannot {action}: the database does not answer within {after:?}")]
    Silent {
        /// What was tried, as a verb.
        action: &'static str,
        /// How long was waited.
        after: Duration,
    },
    /// It can be read only, for now.
    #[error("{place} is a standby that can be read only")]
    Standby {
        /// Which database.
        place: String,
    },
    /// Another archiver has the source.
    #[error("another archiver is at work: {place}")]
    Locked {
        /// Which source, and where.
        place: String,
    },
    /// Another archiver took the source over, so what this one was about to write was not written.
    #[error("another archiver took over: {place}")]
    Fenced {
        /// Which source, and where.
        place: String,
    },
    /// An earlier call failed, or nobody opened the checkpoint.
    #[error("the connection was closed by an earlier failure")]
    Closed,
    /// The database accepted fewer rows than it was given.
    #[error("of {given} records the database kept {kept}: does a trigger or a rule drop rows?")]
    Dropped {
        /// How many it was given.
        given: u64,
        /// How many it says it has.
        kept: u64,
    },
    /// A row with this record's id holds another message.
    #[error("sequence {sequence}, published {published_ns}, is in the table with another subject or payload")]
    Differs {
        /// The stream sequence.
        sequence: i64,
        /// The publish time, Unix nanoseconds.
        published_ns: i64,
    },
    /// A stream sequence that a `bigint` cannot hold.
    #[error("sequence {0} is beyond what a bigint column holds")]
    Sequence(u64),
}

impl SinkError {
    /// Whether somebody has to change something: trying again does not help.
    pub(crate) fn is_setting(&self) -> bool {
        match self {
            Self::Setting(_) => true,
            Self::Sql { source, .. } => is_setting(source),
            _ => false,
        }
    }

    /// Whether the database refused a row since one with its id is there.
    pub(crate) fn is_duplicate(&self) -> bool {
        matches!(self, Self::Sql { source: sqlx::Error::Database(error), .. } if error.code().as_deref() == Some("23505"))
    }

    /// Whether the wait for a lock was given up.
    pub(crate) fn is_lock_timeout(&self) -> bool {
        matches!(self, Self::Sql { source: sqlx::Error::Database(error), .. } if error.code().as_deref() == Some("55P03"))
    }
}

/// Says what was tried.
pub(crate) fn sql(action: &'static str) -> impl Fn(sqlx::Error) -> SinkError {
    move |source| SinkError::Sql { action, source }
}

fn is_setting(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Configuration(_) | sqlx::Error::Tls(_) | sqlx::Error::Protocol(_) => true,
        // What rustls refuses, such as an untrusted certificate. A socket that is not there may come.
        sqlx::Error::Io(error) => error.kind() == std::io::ErrorKind::InvalidData,
        sqlx::Error::Database(error) => {
            error.try_downcast_ref::<PgDatabaseError>().is_some_and(|error| is_setting_code(error.code()))
        }
        _ => false,
    }
}

/// By class: who may connect, no such database or schema, no permission and what else is wrong with a statement, filters
/// that are too long for an index.
fn is_setting_code(code: &str) -> bool {
    // A serialization failure and a deadlock are of class 40; what a server says while it starts or stops, of 57.
    ["28", "3D", "3F", "42", "54"].iter().any(|class| code.starts_with(class))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_person_must_change_is_told_from_what_may_pass() {
        for (code, expected) in [
            ("28P01", true),  // wrong password
            ("28000", true),  // not in pg_hba.conf
            ("3D000", true),  // no such database
            ("42501", true),  // no permission
            ("57P03", false), // starting up
            ("57P01", false), // shutting down
            ("53300", false), // too many connections
            ("53100", false), // disk full
            ("40001", false), // serialization failure
        ] {
            assert_eq!(is_setting_code(code), expected, "{code}");
        }
        assert!(SinkError::Setting(String::new()).is_setting());
        assert!(!SinkError::Closed.is_setting());
        let refused = sqlx::Error::Io(std::io::ErrorKind::ConnectionRefused.into());
        assert!(!sql("connect")(refused).is_setting());
        let no_socket = sqlx::Error::Io(std::io::ErrorKind::NotFound.into());
        assert!(!sql("connect")(no_socket).is_setting());
        let untrusted = sqlx::Error::Io(std::io::ErrorKind::InvalidData.into());
        assert!(sql("connect")(untrusted).is_setting());
    }
}
