//! Where the database is: a URL and variables as libpq has them.

use sqlx::ConnectOptions as _;
use sqlx::postgres::PgConnectOptions;
use url::Url;

use crate::error::SinkError;

/// What the client understands. It would ignore anything else, such as a misspelt `sslmode`.
const PARAMETERS: [&str; 11] = [
    "application_name",
    "dbname",
    "host",
    "hostaddr",
    "options",
    "password",
    "port",
    "sslcert",
    "sslkey",
    "sslmode",
    "sslrootcert",
];

/// The ones of libpq, but for `allow`, which the client takes for `disable`.
const SSL_MODES: [&str; 5] = ["disable", "prefer", "require", "verify-ca", "verify-full"];

/// How to connect. What the URL does not say, the variables do (`PGHOST`, `PGUSER`, `PGPASSWORD`, `PGSSLMODE`, ...), and the
/// password file. No error shows the URL, in which a password may stand.
pub(crate) fn options(url: Option<&str>, ssl_mode: Option<&str>) -> Result<PgConnectOptions, SinkError> {
    let url = Url::parse(url.unwrap_or("postgres://"))
        .map_err(|error| SinkError::Setting(format!("--database is no URL: {error}")))?;
    if !["postgres", "postgresql"].contains(&url.scheme()) {
        return refused("--database must begin with postgres://".into());
    }
    if let Some(mode) = ssl_mode {
        check_ssl_mode(mode, "PGSSLMODE")?;
    }
    for name in ["PGSSLROOTCERT", "PGSSLCERT", "PGSSLKEY"] {
        if let Ok(path) = std::env::var(name) {
            check_file(&path, name)?;
        }
    }
    for (name, value) in url.query_pairs() {
        match &*name {
            "sslmode" => check_ssl_mode(&value, "sslmode")?,
            "sslrootcert" | "sslcert" | "sslkey" => check_file(&value, &name)?,
            "user" | "options" => {}
            name if PARAMETERS.contains(&name) => {}
            name => return refused(format!("--database has the parameter {name:?}, which is not supported")),
        }
    }
    let named =
        url.query_pairs().any(|(name, _)| name == "application_name") || std::env::var_os("PGAPPNAME").is_some();
    let options = PgConnectOptions::from_url(&url)
        .map_err(|error| SinkError::Setting(format!("--database is not understood: {error}")))?;
    if options.get_host().contains(',') {
        return refused("several hosts are not supported: give one address that leads to the server in charge".into());
    }
    let options = if named { options } else { options.application_name("postgres_archiver") };
    // What matters of it is said by us.
    Ok(options.disable_statement_logging())
}

/// Where the options lead, without user and password.
pub(crate) fn place(options: &PgConnectOptions) -> String {
    let host = options.get_socket().map_or_else(|| options.get_host().to_owned(), |path| path.display().to_string());
    let database = options.get_database().unwrap_or_else(|| options.get_username());
    format!("database {database} at {host}:{}", options.get_port())
}

/// The client would say that there is no such file, and not which.
fn check_file(path: &str, name: &str) -> Result<(), SinkError> {
    let found = std::fs::read(path).map(|_| ());
    found.map_err(|error| SinkError::Setting(format!("{name}: cannot read {path:?}: {error}")))
}

fn check_ssl_mode(mode: &str, name: &str) -> Result<(), SinkError> {
    if SSL_MODES.contains(&mode) {
        return Ok(());
    }
    refused(format!("{name} is {mode:?}, which is none of {}", SSL_MODES.join(", ")))
}

const fn refused<T>(text: String) -> Result<T, SinkError> {
    Err(SinkError::Setting(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_understood() -> Result<(), SinkError> {
        let found = options(Some("postgresql://u:p@h:5/d?sslmode=verify-full&application_name=x"), None)?;
        assert_eq!(place(&found), "database d at h:5");
        assert_eq!(found.get_application_name(), Some("x"));
        let found = options(Some("postgres:///d?host=/run/pg&user=u"), None)?;
        assert_eq!(place(&found), "database d at /run/pg:5432");
        assert_eq!(found.get_application_name(), Some("postgres_archiver"));
        Ok(())
    }

    #[test]
    fn what_would_be_ignored_is_refused_and_no_error_shows_a_password() {
        for (url, says) in [
            ("postgres://u:secret@h/d?sslmode=requier", "requier"),
            ("postgres://u:secret@h/d?sslmode=allow", "allow"),
            ("postgres://u:secret@h/d?target_session_attrs=read-write", "target_session_attrs"),
            ("postgres://u:secret@h/d?pasword=secret", "pasword"),
            ("postgres://u:secret@h/d?sslrootcert=/not/there", "/not/there"),
            ("postgres://u:secret@h:99999/d", "port"),
            ("postgres://u:secret@h,i/d", "several hosts"),
            ("mysql://u:secret@h/d", "postgres://"),
            ("host=h password=secret", "URL"),
        ] {
            let error = options(Some(url), None).map(|found| place(&found)).map_err(|error| error.to_string());
            let text = error.clone().err().unwrap_or_default();
            assert!(text.contains(says) && !text.contains("secret"), "{url}: {error:?}");
        }
        assert!(options(None, Some("requir")).is_err());
    }
}
