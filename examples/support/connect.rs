//! The connection to the NATS server.

use std::error::Error as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, anyhow};
use replay_guard::async_nats::{Client, ConnectError, ConnectErrorKind, ConnectOptions, Event};
use replay_guard::jetstream::Denials;

use crate::failure::Failure;
use crate::run::{FIRST_DELAY, Stop, pause, stopped};
use crate::settings::ServerSettings;

/// Connects, however long that takes; nothing if told to stop first.
///
/// Not by `retry_on_initial_connect`, which also retries what will never be right, such as a wrong password. Once
/// connected, the client reconnects for ever by itself.
pub(crate) async fn connect(
    settings: &ServerSettings,
    name: &str,
    denials: Denials,
    stop: &mut Stop,
) -> Result<Option<Client>, Failure> {
    let options = options(settings, name, denials).await.map_err(Failure::Setting)?;
    let mut delay = FIRST_DELAY;
    loop {
        let connected = tokio::select! {
            connected = options.clone().connect(&settings.urls) => connected,
            () = stopped(stop) => return Ok(None),
        };
        match connected {
            Ok(client) => return Ok(Some(client)),
            Err(error) if is_setting(&error) => {
                let context = format!("cannot connect to {}", settings.urls.join(", "));
                return Err(Failure::Setting(anyhow!(error).context(context)));
            }
            Err(error) => tracing::warn!("cannot reach {} yet, trying again: {error}", settings.urls.join(", ")),
        }
        if pause(&mut delay, stop).await.is_break() {
            return Ok(None);
        }
    }
}

fn is_setting(error: &ConnectError) -> bool {
    use ConnectErrorKind::{Authentication, AuthorizationViolation, ServerParse, Tls};
    // What rustls refuses (no TLS at the other end, an untrusted certificate) comes as invalid data.
    let refused = |error: &std::io::Error| error.kind() == std::io::ErrorKind::InvalidData;
    matches!(error.kind(), ServerParse | Authentication | AuthorizationViolation | Tls)
        || error.source().and_then(|source| source.downcast_ref()).is_some_and(refused)
}

async fn options(settings: &ServerSettings, name: &str, denials: Denials) -> anyhow::Result<ConnectOptions> {
    let connected_before = Arc::new(AtomicBool::new(false));
    let mut options = ConnectOptions::new().name(name).max_reconnects(None).event_callback(move |event| {
        denials.note(&event);
        log_event(&event, &connected_before);
        std::future::ready(())
    });
    if let Some(path) = &settings.creds {
        let text = tokio::fs::read_to_string(path).await.with_context(|| format!("cannot read {}", path.display()))?;
        options = options.credentials(&text).with_context(|| format!("no credentials in {}", path.display()))?;
    }
    if let Some(path) = &settings.tls_ca {
        let text = tokio::fs::read_to_string(path).await.with_context(|| format!("cannot read {}", path.display()))?;
        anyhow::ensure!(text.contains("BEGIN CERTIFICATE"), "no certificate in PEM format in {}", path.display());
        options = options.add_root_certificates(path.clone()).require_tls(true);
    }
    if let Some(user) = &settings.user {
        let password = settings.password.clone().or_else(|| std::env::var("NATS_PASSWORD").ok()).unwrap_or_default();
        options = options.user_and_password(user.clone(), password);
    }
    Ok(options)
}

/// The client's own log is off: this says what matters of it.
fn log_event(event: &Event, connected_before: &AtomicBool) {
    match event {
        Event::Connected if connected_before.swap(true, Ordering::Relaxed) => tracing::info!("connected again"),
        Event::Disconnected => tracing::warn!("the connection to the server is lost, reconnecting"),
        Event::ServerError(error) => tracing::warn!("the server says: {error}"),
        // While the server is away, one of these comes with every attempt.
        other => tracing::debug!("{other}"),
    }
}
