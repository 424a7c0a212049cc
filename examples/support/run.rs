//! Connects, opens the driver, and runs it until the process is told to stop.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use replay_guard::async_nats::jetstream::{self, Context};
use replay_guard::jetstream::{Consumer, Denials};
use replay_guard::{CheckpointStore, Driver, DriverError, Ended, FileStore, MemoryStore, Sink, Source, Start};
use tokio::sync::watch;

use crate::connect::connect;
use crate::failure::Failure;
use crate::progress::{self, Progress};
use crate::settings::{FlushSettings, SourceSettings};

/// How long to wait before a server is asked again; doubled each time.
pub(crate) const FIRST_DELAY: Duration = Duration::from_millis(250);
const LONGEST_DELAY: Duration = Duration::from_secs(5);
/// How long after the first signal another one counts as impatience.
const ONCE_MORE: Duration = Duration::from_secs(1);

/// Where an archiver puts the records.
pub trait Target: Clone + Send + Sync + 'static {
    /// What writes them.
    type Sink: Sink + 'static;

    /// A new sink: at the start, and after each failure.
    fn open(
        &self,
        job: &Job,
        progress: &Arc<Progress>,
    ) -> impl Future<Output = Result<Self::Sink, <Self::Sink as Sink>::Error>> + Send;

    /// Whether it was a setting that failed an opening, so that trying again does not help.
    fn is_setting(error: &<Self::Sink as Sink>::Error) -> bool;

    /// Where the checkpoint is kept: in the job's directory, if the target has no better place. Made after the sink, at
    /// each opening.
    fn store(&self, job: &Job, source: &Source) -> Box<dyn CheckpointStore> {
        match &job.state {
            Some(directory) => Box::new(FileStore::new(directory, source)),
            None => Box::new(MemoryStore::new()),
        }
    }
}

/// What is to be archived.
#[derive(Clone, Debug)]
pub struct Job {
    /// Name of the stream.
    pub stream: String,
    /// Which subjects; none: all.
    pub filters: Vec<String>,
    /// Name of the durable consumer.
    pub consumer: String,
    /// Directory of the checkpoint. None: the target keeps it, or what the target recovers stands for it.
    pub state: Option<PathBuf>,
    /// When to flush.
    pub flush: FlushSettings,
    /// Where to begin with a source that is not known.
    pub start: Option<Start>,
    /// Whether the consumer is moved over what is archived.
    pub fast_forward: bool,
    /// Fed by the connection, so that a missing permission is told from a server that does not answer.
    pub denials: Denials,
}

impl Job {
    /// What the options say. `name`: of the archiver.
    pub fn new(settings: &SourceSettings, name: &str, state: Option<PathBuf>) -> Self {
        Self {
            stream: settings.stream.clone(),
            filters: settings.filters.clone(),
            consumer: settings.consumer.clone().unwrap_or_else(|| name.to_owned()),
            state,
            flush: settings.flush,
            start: settings.start.map(Start::from),
            fast_forward: !settings.no_fast_forward,
            denials: Denials::default(),
        }
    }

    /// Stream and filters.
    pub fn source(&self) -> Source {
        Source::new(&self.stream).with_filters(&self.filters)
    }

    /// The driver works with one of these consumers: this one, or one that took its place.
    pub fn consumer_names(&self) -> impl Iterator<Item = String> {
        Consumer::names(&self.consumer)
    }
}

/// Told to stop: the value became true. A sender that is gone means the same.
pub type Stop = watch::Receiver<bool>;

/// An archiver's whole life. `name`: what the connection is called, and the consumer if no other name is given.
pub async fn main<T: Target>(
    settings: SourceSettings,
    name: &str,
    state: Option<PathBuf>,
    target: T,
) -> Result<(), Failure> {
    let bar = progress::start_log(&settings.log).map_err(Failure::Setting)?;
    let mut stop = stop_on_signals().map_err(Failure::Fatal)?;
    let job = Job::new(&settings, name, state);
    let connected = connect(&settings.server, name, job.denials.clone(), &mut stop).await?;
    let Some(client) = connected else { return Ok(()) };
    let jetstream = jetstream::new(client);
    let progress = Arc::new(Progress::default());
    let watched = progress::watch(Arc::clone(&progress), bar.clone());
    let ended = tokio::select! {
        ended = run(jetstream, job, target, Arc::clone(&progress), stop) => ended,
        () = watched => Ok(None),
    };
    bar.finish_and_clear();
    if let Some(ended) = ended? {
        tracing::info!(archived = progress.records(), ?ended, "stopped");
    }
    Ok(())
}

/// Archives until told to stop; nothing if that came before the driver was open.
pub async fn run<T: Target>(
    jetstream: Context,
    job: Job,
    target: T,
    progress: Arc<Progress>,
    mut stop: Stop,
) -> Result<Option<Ended>, Failure> {
    let mut delay = FIRST_DELAY;
    let driver = loop {
        let opened = tokio::select! {
            opened = open(&jetstream, &job, &target, &progress) => opened,
            () = stopped(&mut stop) => return Ok(None),
        };
        match opened {
            Ok(driver) => break driver,
            Err(failure @ Failure::Fatal(_)) => tracing::warn!("cannot begin yet, trying again: {failure}"),
            Err(failure) => return Err(failure),
        }
        if pause(&mut delay, &mut stop).await.is_break() {
            return Ok(None);
        }
    };
    progress.begin(driver.status());
    tracing::info!(source = %job.source(), "archiving");
    let ended = driver.run_until(async move { stopped(&mut stop).await }).await;
    ended.map(Some).map_err(failure)
}

fn failure(error: DriverError) -> Failure {
    if error.is_setting() { Failure::setting(error) } else { Failure::Fatal(error.into()) }
}

/// The one place where the driver is put together.
async fn open<T: Target>(
    jetstream: &Context,
    job: &Job,
    target: &T,
    progress: &Arc<Progress>,
) -> Result<Driver<T::Sink>, Failure> {
    // A target that cannot be written at the start may be a wrong setting; one that fails later may come back.
    if let Err(error) = target.open(job, progress).await {
        return Err(if T::is_setting(&error) { Failure::setting(error) } else { Failure::Fatal(error.into()) });
    }
    let mut builder = Driver::builder(jetstream.clone(), &job.stream)
        .consumer(&job.consumer)
        .fast_forward(job.fast_forward)
        .flush_every(job.flush.records as u64, job.flush.after)
        .flush_bytes(job.flush.bytes as u64)
        .denials(job.denials.clone());
    let (keeper, kept) = (target.clone(), job.clone());
    builder = builder.store(move |source| keeper.store(&kept, source));
    if let Some(start) = job.start {
        builder = builder.start(start);
    }
    for filter in &job.filters {
        builder = builder.filter(filter);
    }
    let (job, target, progress) = (job.clone(), target.clone(), Arc::clone(progress));
    // After a failure the driver asks for a new sink and goes on.
    let factory = move || {
        let (job, target, progress) = (job.clone(), target.clone(), Arc::clone(&progress));
        async move { target.open(&job, &progress).await }
    };
    builder.open_with(factory).await.map_err(failure)
}

/// Waits for the next try; breaks if told to stop meanwhile.
pub(crate) async fn pause(delay: &mut Duration, stop: &mut Stop) -> ControlFlow<()> {
    let told = tokio::time::timeout(*delay, stopped(stop)).await;
    *delay = (*delay * 2).min(LONGEST_DELAY);
    if told.is_ok() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}

pub(crate) async fn stopped(stop: &mut Stop) {
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
