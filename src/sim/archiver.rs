//! The archiver: the driver's plan, executed against the world in the order in which the driver executes it.

mod pull;

use std::collections::VecDeque;
use std::time::Duration;

use async_nats::jetstream::consumer::Config;
use futures_util::future::LocalBoxFuture;

use super::books::Books;
use super::client::{InHand, brief, poll, send};
use super::held::Wire;
use super::law::{Broken, Law};
use super::sink::{Disk, TestSink};
use super::stream::WorldObserver;
use super::{MS, World};
use crate::jetstream::builder::{FlushEvery, StoreFactory};
use crate::jetstream::consumer::Consumer;
use crate::jetstream::driver::{DriverError, Opened, Opener};
use crate::jetstream::error::ConsumerError;
use crate::jetstream::pace::Limits;
use crate::jetstream::plan::{Action, Note, Plan};
use crate::jetstream::resume::{Start, StartError};
use crate::jetstream::switch::take_over;
use crate::store::sim::{SimDisk, SimStore};
use crate::{Guard, GuardError, OnDamage, Permits, Placement, Reported, Source};

/// The consumer's first name.
const NAME: &str = "archiver";

/// Why a step did not end well.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The process is gone; another one goes on.
    Died(String),
    Broken(Broken),
}

impl From<Broken> for Stop {
    fn from(broken: Broken) -> Self {
        Self::Broken(broken)
    }
}

/// What is gone when the process dies.
pub(crate) struct Alive {
    pub(crate) guard: Guard<TestSink>,
    pub(crate) plan: Plan,
    /// The subscription, with what it buffers.
    buffer: Option<VecDeque<Wire>>,
    config: Config,
    mark: String,
}

pub(crate) struct Archiver {
    pub(crate) world: World,
    pub(crate) sink: Disk,
    pub(crate) disk: SimDisk,
    pub(crate) books: Books,
    pub(crate) alive: Option<Alive>,
    /// How often futures may still be polled before the process is killed.
    pub(crate) budget: Option<u32>,
    pub(crate) source: Source,
    consumer: Consumer,
    leftovers: Vec<Consumer>,
    pub(crate) flush: FlushEvery,
    pub(crate) config: Config,
    pub(crate) max_spans: usize,
    pub(crate) fast_forward: bool,
    start: Option<Start>,
    /// What happened, if somebody wants to read it.
    pub(crate) history: Option<Vec<String>>,
    pub(crate) deaths: u64,
    /// When the step before ended, by the clock that never steps.
    looked: i64,
    pub(crate) flushes: u64,
    pub(crate) moves: u64,
    pub(crate) forks: u64,
}

impl Archiver {
    pub(crate) fn new(
        world: &World,
        sink: &Disk,
        disk: &SimDisk,
        source: &Source,
        flush: FlushEvery,
        config: Config,
    ) -> Self {
        Self {
            world: world.clone(),
            sink: sink.clone(),
            disk: disk.clone(),
            books: Books::new(world, sink, disk, source),
            alive: None,
            budget: None,
            source: source.clone(),
            consumer: Consumer::simulated(world, source, NAME),
            leftovers: Vec::new(),
            flush,
            config,
            max_spans: 10_000,
            fast_forward: true,
            start: None,
            history: None,
            deaths: 0,
            looked: 0,
            flushes: 0,
            moves: 0,
            forks: 0,
        }
    }

    pub(crate) fn note(&mut self, what: impl FnOnce() -> String) {
        let told = std::mem::take(&mut self.world.state().server.told);
        let Some(history) = &mut self.history else { return };
        history.extend(told);
        let state = self.world.state();
        let consumer = state.server.held.as_ref().map_or("none".to_owned(), |held| {
            let progress = &held.progress;
            format!("{}/{} ({} open)", progress.delivered, held.ack_floor(), progress.pending.len())
        });
        let guard = self.alive.as_ref().map_or_else(String::new, |alive| {
            let spans: Vec<_> = alive.guard.coverage().spans().map(|span| (span.first, span.last)).collect();
            format!(" | floor {} pending {} spans {spans:?}", alive.guard.floor(), alive.guard.pending())
        });
        history.push(format!(
            "{:<44} | t {} ms, last {}, consumer {consumer}{guard}",
            what(),
            state.server.mono / MS,
            state.last
        ));
    }

    fn now(&self) -> Duration {
        Duration::from_nanos(u64::try_from(self.world.state().server.mono).unwrap())
    }

    pub(crate) fn observer(&self) -> WorldObserver {
        let prefix = self.world.state().server.prefix.clone();
        self.world.observer(&prefix)
    }

    /// The process is gone, whatever it was doing.
    pub(crate) fn die(&mut self) {
        if let Some(alive) = self.alive.take() {
            self.books.died(&alive.guard);
        }
        if self.disk.is_dead() {
            self.disk.restart();
        }
        let mut inside = self.sink.inside();
        (inside.fail_write, inside.fail_flush, inside.hang, inside.hook.hang) = (false, false, false, false);
        drop(inside);
        self.budget = None;
        self.deaths += 1;
        // A process that was started again looks for the consumer under its first name, one that only failed does not.
        if self.deaths.is_multiple_of(2) {
            self.consumer = Consumer::simulated(&self.world, &self.source, NAME);
        }
    }

    fn killed(&self) -> Stop {
        Stop::Died(if self.budget.is_some() { "killed".to_owned() } else { "hung, and cut off".to_owned() })
    }

    /// One thing that the process does.
    pub(crate) fn step(&mut self) -> Result<(), Stop> {
        self.world.state().stood_still(self.looked);
        let done = if self.alive.is_some() { self.act() } else { self.open() };
        self.looked = self.world.state().server.mono;
        self.books.acked()?;
        done?;
        self.books.begun()?;
        Ok(())
    }

    /// As the driver opens, and opens again after a failure.
    fn open(&mut self) -> Result<(), Stop> {
        if self.world.state().is_down() {
            self.world.pass(100 * MS);
            return Ok(());
        }
        self.books.asks()?;
        let sink = self.sink.sink(&self.world);
        let hook = self.sink.hook(&self.world);
        let (disk, observer) = (self.disk.clone(), self.observer());
        let mut store: StoreFactory = Box::new(move |source| Box::new(SimStore::new(&disk, source)));
        let mut opener = Opener {
            source: &self.source,
            consumer: &self.consumer,
            observer: &observer,
            config: &self.config,
            flush: self.flush,
            start: self.start,
            on_damage: OnDamage::WriteAgain,
            max_spans: self.max_spans,
            hook: hook.as_ref(),
        };
        let outcome = poll(&self.world, &mut self.budget, None, opener.open(&mut store, sink));
        let Opened { guard, config, consumer, leftovers } = match outcome.ok_or_else(|| self.killed())? {
            Ok(all) => all,
            Err(DriverError::Start(StartError::Beyond { .. })) if self.start.is_none() => {
                self.start = Some(Start::Beginning);
                return Ok(());
            }
            Err(error) => return Err(self.failed(&error)),
        };
        self.start = None;
        self.consumer = consumer;
        self.leftovers = leftovers;
        let mark = guard.state_id().to_string();
        let limits = Limits { count: self.flush.count, bytes: self.flush.bytes, age: self.flush.age, window: None };
        let plan = Plan::new(limits, self.fast_forward, mark.clone(), guard.move_pending(), guard.floor(), 7);
        self.alive = Some(Alive { guard, plan, buffer: None, config, mark });
        self.note(|| "open".to_owned());
        let Some(alive) = &self.alive else { return Ok(()) };
        self.books.opened(&alive.guard)?;
        Ok(())
    }

    /// What the driver does about a failure: a new guard, unless a person has to change something.
    fn failed(&self, error: &DriverError) -> Stop {
        let dead = self.disk.is_dead();
        // A consumer that a power cut brought back between two requests stops the archiver, which is safe.
        let rejected = matches!(error, DriverError::Consumer(ConsumerError::Rejected { .. }));
        if error.is_setting() && !dead && !rejected && !matches!(error, DriverError::Open(crate::OpenError::Store(_))) {
            return Stop::Broken(Broken { law: Law::Stopped, why: error.to_string() });
        }
        Stop::Died(crate::error::chain(error))
    }

    fn act(&mut self) -> Result<(), Stop> {
        let connection = self.world.connection();
        let now = self.now();
        let Some(alive) = &mut self.alive else { return Ok(()) };
        alive.plan.unreported(alive.guard.unreported());
        let pulls_on = alive.plan.pulls_on(now);
        let action = alive.plan.next(now, connection);
        // On the session's connection the one stands for the other.
        assert!(!pulls_on || matches!(action, Action::Pull(_)) || alive.plan.is_starting(), "{action:?}");
        if alive.plan.is_starting() {
            alive.buffer = None;
        }
        let mut told = String::new();
        for note in alive.plan.notes() {
            match note {
                Note::SessionEnded(why) => told.push_str(&format!("session ended: {why}")),
                Note::Retry { what, why, .. } => told.push_str(&format!("{what} again: {why}")),
                Note::Shared { .. } if !self.world.state().server.shared => {
                    return Err(Broken { law: Law::Told, why: "nobody else takes deliveries".to_owned() }.into());
                }
                Note::Paused { .. } if !self.world.state().server.paused => {
                    return Err(Broken { law: Law::Told, why: "nobody paused the consumer".to_owned() }.into());
                }
                _ => {}
            }
        }
        if !told.is_empty() {
            self.note(|| told);
        }
        if !matches!(action, Action::Pull(_) | Action::KeepAlive) {
            self.note(|| brief(&action));
        }
        match action {
            Action::Connect => self.world.pass(100 * MS),
            Action::Wait(until) => self.sleep(until),
            Action::Begin => {
                self.with(|alive| {
                    if alive.plan.distrusts() {
                        alive.guard.forget_links();
                    }
                });
                let permits = self.ask(|guard| Box::pin(guard.begin_session()))?;
                let now = self.now();
                self.said(&permits, true)?;
                self.with(|alive| alive.plan.began(&permits, connection, now));
            }
            Action::Find => {
                let Some(alive) = &mut self.alive else { return Ok(()) };
                let in_hand = Some(InHand { plan: &mut alive.plan, buffer: &alive.buffer });
                let found = poll(&self.world, &mut self.budget, in_hand, self.consumer.find());
                if let Some(position) = self.passes("find", found)? {
                    let now = self.now();
                    self.with(|alive| alive.plan.found(position, now));
                }
            }
            Action::Mark => {
                let mark = self.mark();
                let marked = poll(&self.world, &mut self.budget, None, self.consumer.mark(&mark));
                if let Some(position) = self.passes("mark", marked)? {
                    let now = self.now();
                    self.with(|alive| alive.plan.found(Some(position), now));
                }
            }
            Action::Make(from) => {
                let (mark, config) = (self.mark(), self.alive_config());
                let made = poll(&self.world, &mut self.budget, None, self.consumer.create(&config, from, &mark));
                if let Some(made) = self.passes("make", made)? {
                    self.with(|alive| {
                        alive.config = made.position.config.clone();
                        alive.plan.made(made);
                    });
                }
            }
            Action::Move(to) => {
                let (mark, config) = (self.mark(), self.alive_config());
                let moved = poll(&self.world, &mut self.budget, None, self.consumer.move_to(to, &config, &mark));
                if let Some(moved) = self.passes("move", moved)? {
                    self.moves += 1;
                    self.with(|alive| {
                        alive.config = moved.position.config;
                        alive.guard.moved();
                        alive.plan.moved();
                    });
                }
            }
            Action::Switch(to) => {
                let mark = self.mark();
                let Some(alive) = &mut self.alive else { return Ok(()) };
                let (consumer, leftovers) = (&mut self.consumer, &mut self.leftovers);
                let call = take_over(&mut alive.guard, consumer, leftovers, &mut alive.config, to, &mark);
                let switched = match poll(&self.world, &mut self.budget, None, call).ok_or_else(|| self.killed())? {
                    Ok(switched) => switched,
                    Err(error) => return Err(self.failed(&error.into())),
                };
                if self.passes("switch", Some(switched))?.is_some() {
                    self.moves += 1;
                    self.books.switched();
                    self.with(|alive| {
                        alive.guard.moved();
                        alive.plan.moved();
                    });
                }
            }
            Action::Look(position) => self.look(|guard| Box::pin(guard.check(position)))?,
            Action::Reread(position) => self.look(|guard| Box::pin(guard.reread(position)))?,
            Action::Subscribe => {
                let now = self.now();
                self.with(|alive| {
                    alive.buffer = Some(VecDeque::new());
                    alive.plan.subscribed(now);
                });
            }
            Action::Pull(until) => self.pull(until)?,
            Action::Report => self.report()?,
            Action::Flush(reason) => {
                self.flushes += 1;
                let permits = self.ask(|guard| Box::pin(guard.flush(reason)))?;
                self.said(&permits, false)?;
                let now = self.now();
                self.with(|alive| alive.plan.flushed(&permits, now));
            }
            Action::Answer(answers) => {
                let Some(alive) = &mut self.alive else { return Ok(()) };
                send(&self.world, &alive.plan, answers);
                alive.plan.answered();
            }
            Action::KeepAlive => {
                let Some(alive) = &mut self.alive else { return Ok(()) };
                InHand { plan: &mut alive.plan, buffer: &alive.buffer }.keep_alive(&self.world);
            }
            Action::End => {
                self.note(|| "stopped".to_owned());
                return Err(Stop::Died("stopped".to_owned()));
            }
        }
        Ok(())
    }

    /// The dead-letter hook takes one record, or is cut off.
    fn report(&mut self) -> Result<(), Stop> {
        let Some(alive) = &mut self.alive else { return Ok(()) };
        let call = alive.guard.report_rejected();
        let failure = match poll(
            &self.world,
            &mut self.budget,
            Some(InHand { plan: &mut alive.plan, buffer: &alive.buffer }),
            call,
        ) {
            Some(Ok(Reported::Failed(error))) => Some(error.to_string()),
            Some(Ok(_)) => None,
            Some(Err(error)) => return Err(self.failed(&error.into())),
            None if self.budget.is_some() => return Err(self.killed()),
            None => Some("no answer".to_owned()),
        };
        let now = self.now();
        self.with(|alive| alive.plan.reported(failure, now));
        Ok(())
    }

    fn look(
        &mut self,
        call: impl FnOnce(&mut Guard<TestSink>) -> LocalBoxFuture<'_, Result<Placement, GuardError>>,
    ) -> Result<(), Stop> {
        let placement = self.ask(call)?;
        if let Placement::Fork(permits) = &placement {
            self.said(permits, false)?;
        }
        let now = self.now();
        self.with(|alive| alive.plan.looked(&placement, now));
        Ok(())
    }

    fn with(&mut self, change: impl FnOnce(&mut Alive)) {
        if let Some(alive) = &mut self.alive {
            change(alive);
        }
    }

    /// In the end: what was dropped before it was archived.
    pub(crate) fn dropped(&self) -> Result<(), Broken> {
        let Some(alive) = &self.alive else { return Ok(()) };
        self.books.dropped(alive.guard.counters(), alive.guard.report().origin)
    }

    fn mark(&self) -> String {
        self.alive.as_ref().map_or_else(String::new, |alive| alive.mark.clone())
    }

    fn alive_config(&self) -> Config {
        self.alive.as_ref().map_or_else(|| self.config.clone(), |alive| alive.config.clone())
    }

    fn said(&mut self, permits: &Permits, all: bool) -> Result<(), Stop> {
        self.forks += u64::from(permits.fork().is_some());
        let Some(alive) = &self.alive else { return Ok(()) };
        Ok(self.books.said(&alive.guard, permits, all)?)
    }

    /// A call of the guard, during which the plan keeps deliveries alive.
    fn ask<T>(
        &mut self,
        call: impl FnOnce(&mut Guard<TestSink>) -> LocalBoxFuture<'_, Result<T, GuardError>>,
    ) -> Result<T, Stop> {
        self.books.asks()?;
        let Some(alive) = &mut self.alive else { return Err(Stop::Died("nobody".to_owned())) };
        let outcome = poll(
            &self.world,
            &mut self.budget,
            Some(InHand { plan: &mut alive.plan, buffer: &alive.buffer }),
            call(&mut alive.guard),
        );
        match outcome.ok_or_else(|| self.killed())? {
            Ok(value) => Ok(value),
            Err(error) => Err(self.failed(&error.into())),
        }
    }

    /// The value; nothing, and a note to the plan, for a failure that may pass; any other failure.
    fn passes<T>(&mut self, what: &'static str, outcome: Option<Result<T, ConsumerError>>) -> Result<Option<T>, Stop> {
        let now = self.now();
        match outcome.ok_or_else(|| self.killed())? {
            Ok(value) => Ok(Some(value)),
            Err(error) => {
                let Some(alive) = &mut self.alive else { return Ok(None) };
                match alive.plan.refused(what, error, now) {
                    Ok(()) => Ok(None),
                    Err(error) => Err(self.failed(&error.into())),
                }
            }
        }
    }
}
