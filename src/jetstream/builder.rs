//! How a driver is put together.

use std::future::Future;
use std::path::PathBuf;
use std::time::Duration;

use async_nats::jetstream::Context;
use async_nats::jetstream::consumer::Config;
use futures_util::future::BoxFuture;

use super::denials::Denials;
use super::driver::{Driver, DriverError};
use super::plan::CHECK_EVERY;
use super::resume::Start;
use crate::dead_letter::{DeadLetters, Hook, shared};
use crate::error::SinkFailure;
use crate::guard::OnDamage;
use crate::sink::Sink;
use crate::source::Source;
use crate::store::{CheckpointStore, FileStore};

pub(super) type SinkFactory<S> = Box<dyn FnMut() -> BoxFuture<'static, Result<S, SinkFailure>> + Send>;
pub(crate) type StoreFactory = Box<dyn FnMut(&Source) -> Box<dyn CheckpointStore> + Send>;

/// When to flush, by count, bytes and age.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FlushEvery {
    pub(crate) count: u64,
    pub(crate) bytes: u64,
    pub(crate) age: Duration,
}

/// Settings of a [`Driver`]; made by [`Driver::builder`].
#[must_use = "a builder does nothing until it opens a driver"]
pub struct DriverBuilder {
    pub(super) context: Context,
    pub(super) stream: String,
    pub(super) domain: Option<String>,
    pub(super) filters: Vec<String>,
    pub(super) consumer: String,
    pub(super) config: Option<Config>,
    pub(super) store: StoreFactory,
    pub(super) flush: FlushEvery,
    pub(super) fast_forward: bool,
    pub(super) check_every: Duration,
    pub(super) start: Option<Start>,
    pub(super) on_damage: OnDamage,
    pub(super) max_spans: usize,
    pub(super) denials: Denials,
    pub(super) hook: Option<Hook>,
}

impl std::fmt::Debug for DriverBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DriverBuilder")
            .field("stream", &self.stream)
            .field("filters", &self.filters)
            .field("consumer", &self.consumer)
            .field("flush", &self.flush)
            .finish_non_exhaustive()
    }
}

impl DriverBuilder {
    pub(super) fn new(context: Context, stream: String) -> Self {
        Self {
            context,
            stream,
            domain: None,
            filters: Vec::new(),
            consumer: "replay-guard".to_owned(),
            config: None,
            store: Box::new(|source| Box::new(FileStore::new("state", source))),
            flush: FlushEvery { count: 1_000, bytes: 64 * 1024 * 1024, age: Duration::from_secs(5) },
            fast_forward: true,
            check_every: CHECK_EVERY,
            start: None,
            on_damage: OnDamage::WriteAgain,
            max_spans: 10_000,
            denials: Denials::default(),
            hook: None,
        }
    }

    /// The durable pull consumer's name; `replay-guard` if nothing is said. It is made where it is missing. Two sources on
    /// one stream need two consumers.
    pub fn consumer(mut self, name: impl Into<String>) -> Self {
        self.consumer = name.into();
        self
    }

    /// How a consumer that is missing is configured. Its name, filters, deliver policy and metadata are set by the driver;
    /// an existing consumer keeps its own configuration.
    pub fn consumer_config(mut self, config: Config) -> Self {
        self.config = Some(config);
        self
    }

    /// Only messages whose subject matches; call it again for more subjects. The whole stream if nothing is said.
    pub fn filter(mut self, subject: impl Into<String>) -> Self {
        self.filters.push(subject.into());
        self
    }

    /// The domain that the context was made for: part of the source, so that equal stream names in two domains are two
    /// checkpoints.
    pub fn domain(mut self, domain: impl Into<String>) -> Self {
        self.domain = Some(domain.into());
        self
    }

    /// The directory of the checkpoint files; `state` if nothing is said. Many sources may share one. It must be on a disk
    /// that survives what the archive survives.
    pub fn state_dir(mut self, directory: impl Into<PathBuf>) -> Self {
        let directory = directory.into();
        self.store = Box::new(move |source| Box::new(FileStore::new(&directory, source)));
        self
    }

    /// Another place for the checkpoint. Called for every opening: once, and again after each failure.
    pub fn store(mut self, mut make: impl FnMut(&Source) -> Box<dyn CheckpointStore> + Send + 'static) -> Self {
        self.store = Box::new(move |source| make(source));
        self
    }

    /// After how many deliveries, and how long after the first of them, to flush; 1,000 and 5 seconds if nothing is said.
    /// The count also bounds what is written twice after a crash, for a sink that keeps no claims.
    pub const fn flush_every(mut self, count: u64, age: Duration) -> Self {
        self.flush.count = if count == 0 { 1 } else { count };
        self.flush.age = age;
        self
    }

    /// After how many bytes of payload to flush; 64 MiB if nothing is said. Together with the count it bounds the memory.
    pub const fn flush_bytes(mut self, bytes: u64) -> Self {
        self.flush.bytes = if bytes == 0 { 1 } else { bytes };
        self
    }

    /// Whether a consumer that forgot what is archived is moved over it unread (yes, if nothing is said), instead of delivering
    /// it to be skipped. Only on streams that keep what is acked, and for no less than a flush's count.
    pub const fn fast_forward(mut self, yes: bool) -> Self {
        self.fast_forward = yes;
        self
    }

    /// How often, while a session lasts, the newest archived message is read back and the consumer is looked at; 60 seconds if
    /// nothing is said, 10 milliseconds at least. Four requests each time; while nothing happens, one, to the consumer and to the
    /// stream in turn, and all that an idle stream costs beside that is one pull a minute. A fork of a stream to which nobody
    /// publishes, a consumer that passed over a message, and a second worker on it are found this soon, or in twice or three
    /// times as long.
    pub fn check_every(mut self, interval: Duration) -> Self {
        self.check_every = interval.max(Duration::from_millis(10));
        self
    }

    /// Where archiving begins. Counts only if the store never held this source.
    pub const fn start(mut self, start: Start) -> Self {
        self.start = Some(start);
        self
    }

    /// What to do with a checkpoint that cannot be read; [`OnDamage::WriteAgain`] if nothing is said.
    pub const fn on_damage(mut self, on_damage: OnDamage) -> Self {
        self.on_damage = on_damage;
        self
    }

    /// How many spans the coverage may have, 10,000 if nothing is said; past it the smallest are forgotten, loudly.
    pub const fn max_spans(mut self, spans: usize) -> Self {
        self.max_spans = spans;
        self
    }

    /// Notes of the connection's events, so that a missing permission is told from a missing answer at any time. Without them
    /// it is at the opening only, and only where the user may ask the server what it may do.
    pub fn denials(mut self, denials: Denials) -> Self {
        self.denials = denials;
        self
    }

    /// Where records go that the sink rejects. What the hook does not take is tried again after a while, and meanwhile
    /// neither acked nor forgotten; when as much waits as one flush holds, nothing more is pulled. A call that takes 30
    /// seconds is cut off, as it is 5 seconds after the wish to stop.
    ///
    /// Without a hook rejected records are terminated with an event and nothing else, and opening warns.
    pub fn dead_letters(mut self, hook: impl DeadLetters + 'static) -> Self {
        self.hook = Some(shared(hook));
        self
    }

    /// Opens the driver over this sink. It ends when the sink fails.
    ///
    /// # Errors
    ///
    /// See [`DriverError`]; [`DriverError::is_setting`] tells what somebody has to change from what may pass. While the
    /// server does not answer, it waits.
    ///
    /// # Cancel safety
    ///
    /// May be dropped. A consumer may have been made by then.
    pub async fn open<S: Sink + 'static>(self, sink: S) -> Result<Driver<S>, DriverError> {
        Driver::open(self, Some(sink), None).await
    }

    /// Opens the driver over a sink made by `factory`, and goes on with a new one, after a while, when a sink fails.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open), and [`DriverError::Factory`] if the first sink cannot be made.
    ///
    /// # Cancel safety
    ///
    /// May be dropped. A consumer may have been made by then.
    pub async fn open_with<S, F, Fut, E>(self, mut factory: F) -> Result<Driver<S>, DriverError>
    where
        S: Sink + 'static,
        F: FnMut() -> Fut + Send + 'static,
        Fut: Future<Output = Result<S, E>> + Send + 'static,
        E: std::error::Error + Send + Sync + 'static,
    {
        let factory: SinkFactory<S> = Box::new(move || {
            let sink = factory();
            Box::pin(async move { sink.await.map_err(|error| Box::new(error) as SinkFailure) })
        });
        Driver::open(self, None, Some(factory)).await
    }
}
