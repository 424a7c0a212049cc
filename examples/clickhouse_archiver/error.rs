//! Why the table cannot be written or read.

use std::time::Duration;

use clickhouse::error::Error;

/// A code of the server's: another query holds the session.
pub(crate) const SESSION_IS_LOCKED: u32 = 373;

#[derive(Debug, thiserror::Error)]
pub(crate) enum SinkError {
    #[error("{0}")]
    Option(&'static str),
    #[error("cannot {what}")]
    Server { what: &'static str, source: Error },
    #[error("cannot {what}: no answer from ClickHouse within {timeout:?}")]
    Timeout { what: &'static str, timeout: Duration },
    #[error("the table {table} {reason}; give another --table, or move this one out of the way")]
    Table { table: String, reason: String },
    #[error(
        "an earlier insert of this stream and filter is still under way in ClickHouse after {waited:?}, or a part of it \
         was received and the rest is waited for (the server's http_receive_timeout); nothing is written before it ended"
    )]
    Busy { waited: Duration },
}

impl SinkError {
    /// Whether trying again does not help.
    pub(crate) fn is_setting(&self) -> bool {
        match self {
            Self::Option(_)
            | Self::Table { .. }
            | Self::Server { source: Error::InvalidParams(_) | Error::Unsupported(_), .. } => true,
            Self::Timeout { .. } | Self::Busy { .. } => false,
            Self::Server { source, .. } => code(source).is_some_and(is_setting),
        }
    }
}

/// The server's number for what went wrong.
pub(crate) fn code(error: &Error) -> Option<u32> {
    let Error::BadResponse(text) = error else { return None };
    let (_, rest) = text.split_once("Code: ")?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).map_or(rest, |end| rest.split_at(end).0);
    digits.parse().ok()
}

/// No such database, no permission, a wrong password, a profile that forbids what is needed.
const fn is_setting(code: u32) -> bool {
    const UNKNOWN_DATABASE: u32 = 81;
    const READONLY: u32 = 164;
    const UNKNOWN_USER: u32 = 192;
    const WRONG_PASSWORD: u32 = 193;
    const REQUIRED_PASSWORD: u32 = 194;
    const IP_ADDRESS_NOT_ALLOWED: u32 = 195;
    const DATABASE_ACCESS_DENIED: u32 = 291;
    const SETTING_CONSTRAINT_VIOLATION: u32 = 452;
    const ACCESS_DENIED: u32 = 497;
    const AUTHENTICATION_FAILED: u32 = 516;
    matches!(
        code,
        UNKNOWN_DATABASE
            | READONLY
            | UNKNOWN_USER
            | WRONG_PASSWORD
            | REQUIRED_PASSWORD
            | IP_ADDRESS_NOT_ALLOWED
            | DATABASE_ACCESS_DENIED
            | SETTING_CONSTRAINT_VIOLATION
            | ACCESS_DENIED
            | AUTHENTICATION_FAILED
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_says_is_told_apart() {
        let server = |text: &str| SinkError::Server { what: "insert", source: Error::BadResponse(text.into()) };
        for (text, setting) in [
            ("Code: 81, e.displayText() = DB::Exception: Database nope doesn't exist", true),
            ("Code: 516. DB::Exception: default: Authentication failed", true),
            ("Code: 252. DB::Exception: Too many parts", false),
            ("Code: 373", false),
            ("<html>502 Bad Gateway</html>", false),
        ] {
            assert_eq!(server(text).is_setting(), setting, "{text}");
        }
        assert_eq!(code(&Error::BadResponse("Code: 373".into())), Some(SESSION_IS_LOCKED));
        assert_eq!(code(&Error::TimedOut), None);
    }
}
