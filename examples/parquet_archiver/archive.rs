//! `archive`: connects, opens the driver, and runs it until the process is told to stop.

use std::error::Error as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use replay_guard::async_nats::jetstream::{self, Context};
use replay_guard::async_nats::{Client, ConnectError, ConnectErrorKind, ConnectOptions, Event};
use replay_guard::jetstream::Denials;
use replay_guard::{Driver, DriverError, Ended, Source, Start};
use tokio::sync::watch;

use crate::cli::{ArchiveSettings, FlushSettings, ServerSettings};
use crate::failure::Failure;
use crate::progress::{self, Progress};
use crate::sink::ParquetSink;

/// How long to wait before the server is asked again; doubled each time.
const FIRST_DELAY: Duration = Duration::from_millis(250);
const LONGEST_DELAY: Duration = Duration::from_secs(5);
/// How long after the first signal another one counts as impatience.
const ONCE_MORE: Duration = Duration::from_secs(1);

/// What is to be archived, and where to.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) stream: String,
    pub(crate) filters: Vec<String>,
    pub(crate) consumer: String,
    pub(crate) out: PathBuf,
    pub(crate) state: PathBuf,
    pub(crate) flush: FlushSettings,
    pub(crate) start: Option<Start>,
    pub(crate) rewrite_missing_from: Option<u64>,
    pub(crate) fast_forward: bool,
    /// Fed by the connection, so that a missing permission is told from a server that does not answer.
    pub(crate) denials: Denials,
}

impl Job {
    fn source(&self) -> Source {
        Source::new(&self.stream).with_filters(&self.filters)
    }

    /// The driver works with one of two consumers: this one, or one that took its place.
    pub(crate) fn consumer_names(&self) -> [String; 2] {
        [self.consumer.clone(), format!("{}-rg", self.consumer)]
    }
}

/// Told to stop: the value became true. A sender that is gone means the same.
type Stop = watch::Receiver<bool>;

/// The command.
pub(crate) async fn main(settings: ArchiveSettings) -> Result<(), Failure> {
    let (rewrite_missing_from, fast_forward) = (settings.rewrite_missing_from, !settings.no_fast_forward);
    let bar = progress::start_log(&settings.log).map_err(Failure::Setting)?;
    let stop = stop_on_signals().map_err(Failure::Fatal)?;
    let ArchiveSettings { server, stream, filters, consumer, out, state, flush, start, .. } = settings;
    let (start, denials) = (start.map(Start::from), Denials::default());
    let Some(client) = connect(&server, denials.clone(), stop.clone()).await? else { return Ok(()) };
    let job = Job { stream, filters, consumer, out, state, flush, start, rewrite_missing_from, fast_forward, denials };
    let jetstream = jetstream::new(client);
    let progress = Arc::new(Progress::default());
    let watched = progress::watch(jetstream.clone(), job.clone(), Arc::clone(&progress), bar.clone());
    let ended = tokio::select! {
        ended = run(jetstream, job, Arc::clone(&progress), stop) => ended,
        () = watched => Ok(None),
    };
    bar.finish_and_clear();
    if let Some(ended) = ended? {
        tracing::info!(archived = progress.records(), ?ended, "stopped");
    }
    Ok(())
}

/// Archives until told to stop; nothing if that came before the driver was open.
pub(crate) async fn run(
    jetstream: Context,
    job: Job,
    progress: Arc<Progress>,
    mut stop: Stop,
) -> Result<Option<Ended>, Failure> {
    // A directory that cannot be written now is a setting; one that fails later may come back.
    sink(&job, &progress).await.map_err(Failure::setting)?;
    let mut delay = FIRST_DELAY;
    let driver = loop {
        let opened = tokio::select! {
            opened = open(&jetstream, &job, &progress) => opened,
            () = stopped(&mut stop) => return Ok(None),
        };
        match opened {
            Ok(driver) => break driver,
            Err(error) if error.is_setting() => return Err(failure(error)),
            Err(error) => {
                let error = anyhow!(error);
                tracing::warn!("cannot begin yet, trying again: {error:#}");
            }
        }
        if pause(&mut delay, &mut stop).await.is_break() {
            return Ok(None);
        }
    };
    progress.begin();
    tracing::info!(source = %job.source(), out = %job.out.display(), "archiving");
    let ended = driver.run_until(async move { stopped(&mut stop).await }).await;
    ended.map(Some).map_err(failure)
}

fn failure(error: DriverError) -> Failure {
    if error.is_setting() { Failure::setting(error) } else { Failure::Fatal(error.into()) }
}

/// The one place where the driver is put together.
async fn open(jetstream: &Context, job: &Job, progress: &Arc<Progress>) -> Result<Driver<ParquetSink>, DriverError> {
    let mut builder = Driver::builder(jetstream.clone(), &job.stream)
        .consumer(&job.consumer)
        .state_dir(&job.state)
        .fast_forward(job.fast_forward)
        .flush_every(job.flush.records as u64, job.flush.after)
        .flush_bytes(job.flush.bytes as u64)
        .denials(job.denials.clone());
    if let Some(start) = job.start {
        builder = builder.start(start);
    }
    for filter in &job.filters {
        builder = builder.filter(filter);
    }
    let (job, progress) = (job.clone(), Arc::clone(progress));
    // After a failure the driver asks for a new sink and goes on.
    let factory = move || {
        let (job, progress) = (job.clone(), Arc::clone(&progress));
        async move { sink(&job, &progress).await }
    };
    builder.open_with(factory).await
}

async fn sink(job: &Job, progress: &Arc<Progress>) -> Result<ParquetSink, crate::disk::SinkError> {
    let sink = ParquetSink::open(&job.out, job.source(), job.flush.bytes, Arc::clone(progress)).await?;
    Ok(sink.rewrite_missing_from(job.rewrite_missing_from))
}

/// Connects, however long that takes; nothing if told to stop first.
///
/// Not by `retry_on_initial_connect`, which also retries what will never be right, such as a wrong password. Once
/// connected, the client reconnects for ever by itself.
async fn connect(settings: &ServerSettings, denials: Denials, mut stop: Stop) -> Result<Option<Client>, Failure> {
    let options = options(settings, denials).await.map_err(Failure::Setting)?;
    let mut delay = FIRST_DELAY;
    loop {
        let connected = tokio::select! {
            connected = options.clone().connect(&settings.urls) => connected,
            () = stopped(&mut stop) => return Ok(None),
        };
        match connected {
            Ok(client) => return Ok(Some(client)),
            Err(error) if is_setting(&error) => {
                let context = format!("cannot connect to {}", settings.urls.join(", "));
                return Err(Failure::Setting(anyhow!(error).context(context)));
            }
            Err(error) => tracing::warn!("cannot reach {} yet, trying again: {error}", settings.urls.join(", ")),
        }
        if pause(&mut delay, &mut stop).await.is_break() {
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

async fn options(settings: &ServerSettings, denials: Denials) -> anyhow::Result<ConnectOptions> {
    let connected_before = Arc::new(AtomicBool::new(false));
    let mut options =
        ConnectOptions::new().name("parquet_archiver").max_reconnects(None).event_callback(move |event| {
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

/// Waits; breaks if told to stop meanwhile.
async fn pause(delay: &mut Duration, stop: &mut Stop) -> std::ops::ControlFlow<()> {
    let told = tokio::time::timeout(*delay, stopped(stop)).await;
    *delay = (*delay * 2).min(LONGEST_DELAY);
    if told.is_ok() { std::ops::ControlFlow::Break(()) } else { std::ops::ControlFlow::Continue(()) }
}

async fn stopped(stop: &mut Stop) {
    // An error means that the sender is gone.
    let _ = stop.wait_for(|stop| *stop).await;
}

/// Ctrl-C and SIGTERM stop cleanly; a second one stops at once.
fn stop_on_signals() -> anyhow::Result<Stop> {
    let (sender, stop) = watch::channel(false);
    let mut signals = Signals::listen().context("cannot listen for signals")?;
    tokio::spawn(async move {
        signals.next().await;
        tracing::info!("stopping; once more stops at once");
        // Nobody listens any more where the work has ended already.
        let _ = sender.send(true);
        let told = Instant::now();
        loop {
            signals.next().await;
            // Some supervisors signal the process and then its group.
            if told.elapsed() > ONCE_MORE {
                std::process::exit(130);
            }
        }
    });
    Ok(stop)
}

#[cfg(unix)]
struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    fn listen() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

#[cfg(not(unix))]
struct Signals;

#[cfg(not(unix))]
impl Signals {
    fn listen() -> std::io::Result<Self> {
        Ok(Self)
    }

    async fn next(&mut self) {
        // Without a handler there is nothing to wait for.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending().await
        }
    }
}
