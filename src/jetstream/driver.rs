//! The loop: pulls, offers, flushes in time, acks what is permitted, moves the consumer, stops cleanly.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use async_nats::jetstream::Context;
use async_nats::jetstream::consumer::Config;
use tokio::sync::watch;

use super::builder::{DriverBuilder, FlushEvery, SinkFactory, StoreFactory};
use super::consumer::Consumer;
use super::error::ConsumerError;
use super::observe::StreamObserver;
use super::pace::Backoff;
use super::permissions;
use super::resume::{self, First, Start, StartError};
use super::settings::{self, Expected};
use crate::crash;
use crate::dead_letter::Hook;
use crate::error::{GuardError, OpenError, SinkFailure, chain};
use crate::events;
use crate::guard::{Counters, Guard, OnDamage, OpenReport, Opening, Origin};
use crate::observer::{ObserveError, Observer};
use crate::sink::Sink;
use crate::source::Source;
use crate::store::StoreError;

/// Why a driver could not be opened, or ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DriverError {
    /// The guard could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The guard cannot go on: the sink or the checkpoint store failed.
    #[error(transparent)]
    Guard(#[from] GuardError),
    /// Something is wrong with the consumer.
    #[error(transparent)]
    Consumer(#[from] ConsumerError),
    /// A first opening needs a decision.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The factory could not make a sink.
    #[error("a sink could not be made")]
    Factory(#[source] SinkFailure),
}

impl DriverError {
    /// Whether somebody has to change something: a setting, a permission, a directory. Trying again does not help. A disk
    /// that is full or fails is no setting: its trouble may pass.
    pub fn is_setting(&self) -> bool {
        match self {
            Self::Open(OpenError::Store(error)) => error.is_setting(),
            Self::Start(_) => true,
            Self::Open(OpenError::Observe(error)) => {
                matches!(error, ObserveError::NoStream { .. } | ObserveError::Denied { .. })
            }
            Self::Open(error) => {
                matches!(error, OpenError::Foreign { .. } | OpenError::Damaged { .. } | OpenError::Undecodable { .. })
            }
            Self::Guard(error) => matches!(error, GuardError::Observe(_)),
            // One that was deleted under our hands is made again the next time.
            Self::Consumer(ConsumerError::Missing { .. }) | Self::Factory(_) => false,
            Self::Consumer(error) => !error.is_retriable() || matches!(error, ConsumerError::NoStream { .. }),
        }
    }

    /// Whether, in a driver that has run before, waiting may help all the same: a disk in trouble, a stream that is made
    /// again, the lock of a predecessor that is still writing.
    const fn may_pass(&self) -> bool {
        matches!(
            self,
            Self::Open(
                OpenError::Store(StoreError::Io { .. } | StoreError::Locked { .. })
                    | OpenError::Observe(ObserveError::NoStream { .. })
            ) | Self::Consumer(ConsumerError::NoStream { .. })
        )
    }
}

/// What a driver is doing; see [`Driver::status`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// What was counted since the driver was opened.
    pub counters: Counters,
    /// The highest sequence through which everything is archived.
    pub floor: u64,
    /// How many messages the consumer had not delivered, as the last delivery, or the last look at the consumer, said.
    pub remaining: u64,
    /// How many sessions were begun.
    pub sessions: u64,
    /// How often somebody else was found to take deliveries of the consumer; once in a session at most.
    pub shared: u64,
}

/// How a driver ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ended {
    /// What was counted since the driver was opened.
    pub counters: Counters,
    /// The highest sequence through which everything is archived.
    pub floor: u64,
    /// Records left without a checkpoint, since the stream could not be asked at the end, or the dead-letter hook did not
    /// take them. They are delivered again.
    pub unverified: usize,
}

/// Pulls from a durable consumer into a guarded sink: the loop around a [`Guard`].
pub struct Driver<S> {
    pub(super) context: Context,
    pub(super) source: Source,
    pub(super) consumer: Consumer,
    /// Those it took over from, until they are deleted.
    pub(super) leftovers: Vec<Consumer>,
    pub(super) observer: StreamObserver,
    pub(super) config: Config,
    pub(super) flush: FlushEvery,
    pub(super) fast_forward: bool,
    pub(super) check_every: Duration,
    on_damage: OnDamage,
    max_spans: usize,
    hook: Option<Hook>,
    store: StoreFactory,
    factory: Option<SinkFactory<S>>,
    pub(super) guard: Guard<S>,
    /// What guards before this one counted.
    past: Counters,
    pub(super) status: watch::Sender<Status>,
}

impl<S> std::fmt::Debug for Driver<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver")
            .field("source", &self.source)
            .field("consumer", &self.consumer.name())
            .finish_non_exhaustive()
    }
}

/// The wish to stop, asked for in many places, over once it came.
pub(super) struct Stop<F> {
    future: Pin<Box<F>>,
    came: bool,
}

impl<F: Future<Output = ()>> Stop<F> {
    /// Waits for the wish. Cancel safe.
    pub(super) async fn wait(&mut self) {
        if !self.came {
            self.future.as_mut().await;
            self.came = true;
        }
    }

    pub(super) const fn came(&self) -> bool {
        self.came
    }
}

impl Driver<()> {
    /// Begins to put a driver together, for a stream in the context's account and domain.
    pub fn builder(context: Context, stream: impl Into<String>) -> DriverBuilder {
        DriverBuilder::new(context, stream.into())
    }
}

impl<S: Sink + 'static> Driver<S> {
    pub(super) async fn open(
        builder: DriverBuilder,
        sink: Option<S>,
        mut factory: Option<SinkFactory<S>>,
    ) -> Result<Self, DriverError> {
        let DriverBuilder { context, stream, domain, filters, consumer, config, store, .. } = builder;
        let mut source = Source::new(stream).with_filters(filters);
        if let Some(domain) = domain {
            source = source.with_domain(domain);
        }
        let consumer = Consumer::new(context.clone(), &source, consumer)?.with_denials(builder.denials.clone());
        let observer = StreamObserver::new(context.clone(), &source).with_denials(builder.denials);
        let window = i64::try_from(builder.flush.count.saturating_mul(2)).unwrap_or(i64::MAX).max(1_000);
        let config = match config {
            Some(config) => settings::named(config, consumer.name(), &source),
            None => consumer.default_config(window),
        };
        // The server may be away: nothing is opened, and no sink is made, before it answers.
        let mut backoff = Backoff::new(Backoff::seed());
        let mut permissions = None;
        loop {
            if permissions.is_none() {
                permissions = permissions::check(context.client(), &source, &consumer).await?;
            }
            let Err(error) = observer.stream().await else { break };
            if !error.is_retriable() || matches!(error, ObserveError::NoStream { .. }) {
                return Err(OpenError::Observe(error).into());
            }
            let wait = backoff.wait();
            events::retry(&source, "open", &error.to_string(), wait);
            tokio::time::sleep(wait).await;
        }
        if let Some(missing) = permissions.filter(|missing| !missing.is_empty()) {
            let setting = format!(
                "there is no permission to publish to {}: a consumer that forgot what is archived, or is damaged, may not \
                 be moved or replaced",
                missing.join(", ")
            );
            events::setting(&source, consumer.name(), &setting);
        }
        let sink = match (sink, &mut factory) {
            (Some(sink), _) => sink,
            (None, Some(factory)) => factory().await.map_err(DriverError::Factory)?,
            (None, None) => return Err(DriverError::Guard(GuardError::Closed)),
        };
        let mut opener = Opener {
            source: &source,
            consumer: &consumer,
            observer: &observer,
            config: &config,
            flush: builder.flush,
            start: builder.start,
            on_damage: builder.on_damage,
            max_spans: builder.max_spans,
            hook: builder.hook.as_ref(),
        };
        let mut store = store;
        let Opened { guard, config, consumer, leftovers } = opener.open(&mut store, sink).await?;
        Ok(Self {
            context,
            consumer,
            leftovers,
            observer,
            config,
            flush: builder.flush,
            fast_forward: builder.fast_forward,
            check_every: builder.check_every,
            on_damage: builder.on_damage,
            max_spans: builder.max_spans,
            hook: builder.hook,
            store,
            factory,
            guard,
            past: Counters::default(),
            status: watch::Sender::new(Status::default()),
            source,
        })
    }

    /// Runs until the future is done, then flushes, acks, and ends.
    ///
    /// Survives restarts of the server, lost connections, a consumer that was deleted, and, if the driver was opened with a
    /// factory, failures of the sink and of the checkpoint store.
    ///
    /// # Errors
    ///
    /// See [`DriverError`].
    ///
    /// # Cancel safety
    ///
    /// Dropping it loses nothing: what was not checkpointed is delivered again, and, for a sink that keeps no claims, what
    /// the last flush made durable without a checkpoint is written again.
    pub async fn run_until(mut self, stop: impl Future<Output = ()> + Send) -> Result<Ended, DriverError> {
        let mut stop = Stop { future: Box::pin(stop), came: false };
        let mut backoff = Backoff::new(Backoff::seed());
        loop {
            let before = self.guard.counters().archived;
            match self.serve(&mut stop).await {
                Ok(unverified) => {
                    self.publish(0, 0);
                    let Status { counters, floor, .. } = *self.status.borrow();
                    return Ok(Ended { counters, floor, unverified });
                }
                Err(error) => {
                    if self.factory.is_none() || error.is_setting() || stop.came() {
                        return Err(error);
                    }
                    if self.guard.counters().archived > before {
                        backoff.reset();
                    }
                    self.reopen(error, &mut backoff, &mut stop).await?;
                }
            }
        }
    }

    /// After a failure: a new sink, a new guard over the checkpoint, with growing waits.
    async fn reopen<F: Future<Output = ()>>(
        &mut self,
        error: DriverError,
        backoff: &mut Backoff,
        stop: &mut Stop<F>,
    ) -> Result<(), DriverError> {
        let mut error = error;
        loop {
            let wait = backoff.wait();
            events::retry(&self.source, "reopen", &chain(&error), wait);
            tokio::select! {
                () = stop.wait() => return Err(error),
                () = tokio::time::sleep(wait) => {}
            }
            self.guard.release();
            // A sink may take its time to be made; nothing is lost by cutting that off.
            let reopened = tokio::select! {
                biased;
                () = stop.wait() => return Err(error),
                reopened = self.try_reopen() => reopened,
            };
            match reopened {
                Ok(()) => return Ok(()),
                Err(next) if next.is_setting() && !next.may_pass() => return Err(next),
                Err(next) => error = next,
            }
        }
    }

    async fn try_reopen(&mut self) -> Result<(), DriverError> {
        let Some(factory) = &mut self.factory else { return Err(GuardError::Closed.into()) };
        let sink = factory().await.map_err(DriverError::Factory)?;
        let mut opener = Opener {
            source: &self.source,
            consumer: &self.consumer,
            observer: &self.observer,
            config: &self.config,
            flush: self.flush,
            start: None,
            on_damage: self.on_damage,
            max_spans: self.max_spans,
            hook: self.hook.as_ref(),
        };
        let Opened { guard, config, consumer, leftovers } = opener.open(&mut self.store, sink).await?;
        self.past = self.past.plus(self.guard.counters());
        self.guard = guard;
        self.config = config;
        self.consumer = consumer;
        self.leftovers = leftovers;
        Ok(())
    }

    /// Publishes what the driver is doing.
    pub(super) fn publish(&self, remaining: u64, sessions: u64) {
        let (counters, floor) = (self.past.plus(self.guard.counters()), self.guard.floor());
        self.status.send_modify(|status| {
            status.counters = counters;
            status.floor = floor;
            status.remaining = remaining;
            status.sessions += sessions;
        });
    }

    /// Forgets, on the operator's wish, that anything from this sequence on is archived, so that it is written again, once.
    /// Call it between opening and running; the wish is recorded in the checkpoint's history.
    ///
    /// # Errors
    ///
    /// As [`Guard::replay_from`].
    pub async fn replay_from(&mut self, sequence: u64) -> Result<(), DriverError> {
        let permits = self.guard.replay_from(sequence).await?;
        if permits.unknown().is_some() {
            let reason = "the stream could not be asked".to_owned();
            return Err(OpenError::Observe(ObserveError::Unavailable { reason }).into());
        }
        Ok(())
    }
}

impl<S> Driver<S> {
    /// What the opening found.
    pub const fn report(&self) -> &OpenReport {
        self.guard.report()
    }

    /// Follows what the driver is doing; changes at every flush, and whenever the consumer was looked at.
    pub fn status(&self) -> watch::Receiver<Status> {
        self.status.subscribe()
    }
}

/// Opens a guard for a driver. The simulation opens its guards with the same.
pub(crate) struct Opener<'a, O> {
    pub(crate) source: &'a Source,
    pub(crate) consumer: &'a Consumer,
    pub(crate) observer: &'a O,
    pub(crate) config: &'a Config,
    pub(crate) flush: FlushEvery,
    pub(crate) start: Option<Start>,
    pub(crate) on_damage: OnDamage,
    pub(crate) max_spans: usize,
    pub(crate) hook: Option<&'a Hook>,
}

impl<O: Observer + Clone + 'static> Opener<'_, O> {
    /// Checkpoint first, then the consumer's mark, then the first pull: so a mark without a checkpoint always means a lost
    /// checkpoint.
    pub(crate) async fn open<S: Sink>(
        &mut self,
        store: &mut StoreFactory,
        mut sink: S,
    ) -> Result<Opened<S>, DriverError> {
        let store = store(self.source);
        let location = store.location();
        let opening = Opening::load(self.source.clone(), store, self.on_damage).await?;
        let mut opening = opening.max_spans(self.max_spans).hook(self.hook.cloned());
        // The checkpoint says which of the names is in use, if they were ever switched.
        let in_use = opening.consumer().map(str::to_owned);
        let other = self.consumer.others().into_iter().find(|other| in_use.as_deref() == Some(other.name()));
        let consumer = other.unwrap_or_else(|| self.consumer.clone());
        let found = consumer.find().await?;
        if let Some(position) = &found {
            self.check(&consumer, &position.config)?;
        }
        opening.recover(&mut sink).await?;
        let id = opening.state_id().to_string();
        let fresh = !opening.has_checkpoint() && !opening.is_damaged();
        let first = if fresh {
            let last = self.observer.stream().await.map_err(OpenError::Observe)?.last;
            let ours = (!opening.is_new()).then_some(id.as_str());
            resume::first(consumer.name(), found.as_ref(), self.start, last, ours, &location)?
        } else {
            First { origin: Origin::Beginning, move_to: None }
        };
        let guard = opening.open(sink, self.observer.clone(), first.origin).await?;
        let config = found.as_ref().map_or_else(|| self.config.clone(), |position| position.config.clone());
        crash::point("consumer-unmarked");
        let done = match (&found, first.move_to) {
            (Some(_), Some(to)) => consumer.move_to(to, &config, &id).await.map(drop),
            (Some(_), None) => consumer.mark(&id).await.map(drop),
            // The first one of this source; later ones are made, with an event, when a session begins.
            (None, _) if fresh => match consumer.create(&config, guard.floor().saturating_add(1), &id).await {
                // The stream's own limits for consumers fill in what is not said.
                Ok(made) => self.check(&consumer, &made.position.config),
                Err(error) => Err(error),
            },
            (None, _) => Ok(()),
        };
        match done {
            // Another name serves, as soon as a session begins.
            Ok(()) | Err(ConsumerError::Damaged { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        crash::point("consumer-marked");
        // They may keep messages of an interest stream until the one in use is known to deliver them.
        let leftovers = if in_use.is_some() { consumer.others() } else { Vec::new() };
        Ok(Opened { guard, config, consumer, leftovers })
    }

    /// What is wrong with a consumer is an error, what could be better an event.
    fn check(&self, consumer: &Consumer, config: &Config) -> Result<(), ConsumerError> {
        let expected = Expected::new(self.flush.count, self.flush.age);
        for warning in consumer.check(config, expected)? {
            events::setting(self.source, consumer.name(), &warning.to_string());
        }
        Ok(())
    }
}

/// A guard, and the consumer it is fed by.
pub(crate) struct Opened<S> {
    pub(crate) guard: Guard<S>,
    pub(crate) config: Config,
    pub(crate) consumer: Consumer,
    /// Those of the other names, if they were ever switched.
    pub(crate) leftovers: Vec<Consumer>,
}
