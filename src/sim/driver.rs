//! The loop around a guard, as a real driver runs it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::{
    Fork, Guard, GuardError, Offer, OnDamage, OpenError, Opening, Origin, Permits, Placement, Reason, Record, RecordId,
    Reported, SkipRun, Source, Trust,
};

use super::consumer::Delivery;
use super::{Consumer, Disk, TestSink, TestStore, World, run};

/// Why the loop does not go on.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The process died: a call was dropped half way.
    Crashed,
    Guard(GuardError),
    Open(OpenError),
    /// A promise was broken.
    Broken(String),
}

pub(crate) struct Driver {
    pub(crate) world: World,
    pub(crate) consumer: Consumer,
    pub(crate) disk: Disk,
    pub(crate) store: TestStore,
    pub(crate) guard: Option<Guard<TestSink>>,
    /// How often futures may still be polled before the process dies.
    pub(crate) budget: Option<u32>,
    pub(crate) origin: Origin,
    pub(crate) on_damage: OnDamage,
    pub(crate) max_spans: usize,
    /// Whether `follows` is passed to the guard.
    pub(crate) links: bool,
    prefix: String,
    session: u64,
    connection: u64,
    ackers: BTreeMap<RecordId, u64>,
    /// Consumer and stream sequence of the last delivery of a chain.
    chain: Option<(u64, u64)>,
    highest: u64,
    pub(crate) buffer: VecDeque<Delivery>,
    waiting: bool,
    passed: Option<u64>,
    sessions_in_a_row: u32,
    /// How many forks this guard has reported.
    forks_told: u64,
    died_opening: bool,
    pub(crate) forks: Vec<Fork>,
    pub(crate) moves: Vec<u64>,
    pub(crate) runs: Vec<SkipRun>,
    pub(crate) acked: Vec<RecordId>,
    pub(crate) unknown: u64,
    /// Handed to the sink and not permitted yet.
    pub(crate) open_records: BTreeSet<RecordId>,
    /// How often each record may be durable beyond once.
    pub(crate) allowed: BTreeMap<RecordId, usize>,
}

impl Driver {
    /// A loop over the whole stream.
    pub(crate) fn new(world: &World) -> Self {
        Self::filtered(world, "")
    }

    /// A loop over the subjects that begin with this.
    pub(crate) fn filtered(world: &World, prefix: &str) -> Self {
        Self {
            world: world.clone(),
            consumer: Consumer::new(world, prefix),
            disk: Disk::new(),
            store: TestStore::new(world),
            guard: None,
            budget: None,
            origin: Origin::Beginning,
            on_damage: OnDamage::WriteAgain,
            max_spans: 10_000,
            links: true,
            prefix: prefix.to_owned(),
            session: 0,
            connection: 0,
            ackers: BTreeMap::new(),
            chain: None,
            highest: 0,
            buffer: VecDeque::new(),
            waiting: false,
            passed: None,
            sessions_in_a_row: 0,
            forks_told: 0,
            died_opening: false,
            forks: Vec::new(),
            moves: Vec::new(),
            runs: Vec::new(),
            acked: Vec::new(),
            unknown: 0,
            open_records: BTreeSet::new(),
            allowed: BTreeMap::new(),
        }
    }

    /// A loop that is open.
    pub(crate) fn opened(world: &World) -> Self {
        let mut driver = Self::new(world);
        driver.open().unwrap();
        driver
    }

    pub(crate) fn source(&self) -> Source {
        let source = Source::new("ORDERS");
        if self.prefix.is_empty() { source } else { source.with_filters([format!("{}>", self.prefix)]) }
    }

    pub(crate) fn guard(&self) -> &Guard<TestSink> {
        self.guard.as_ref().unwrap()
    }

    /// Opens a guard over a new sink, moves the consumer if that is wanted, and begins a session.
    pub(crate) fn open(&mut self) -> Result<(), Stop> {
        self.crash();
        self.open_guard()?;
        if let Some(to) = self.guard().report().move_to {
            self.move_to(to);
        }
        self.consumer.expire();
        self.session()?;
        self.check()
    }

    pub(crate) fn open_guard(&mut self) -> Result<(), Stop> {
        let (source, store, mut sink) = (self.source(), self.store.clone(), self.disk.sink(&self.world));
        let observer = self.world.observer(&self.prefix);
        let (origin, on_damage, max_spans) = (self.origin, self.on_damage, self.max_spans);
        let hook = self.disk.hook(&self.world);
        let opening = async {
            let mut opening = Opening::load(source, store, on_damage).await?.max_spans(max_spans).hook(hook);
            opening.recover(&mut sink).await?;
            opening.open(sink, observer, origin).await
        };
        let opened = run(&mut self.budget, opening);
        // The one that was dropped may have saved what it found.
        let died = std::mem::replace(&mut self.died_opening, opened.is_none());
        self.guard = Some(opened.ok_or(Stop::Crashed)?.map_err(Stop::Open)?);
        if died || matches!(self.guard().report().trust, Trust::Through(_) | Trust::Nothing | Trust::Damaged) {
            self.allow_uncovered();
        }
        self.forks_told = self.guard().counters().forks;
        Ok(())
    }

    /// After a fork what is archived and no longer covered may be written again.
    fn allow_uncovered(&mut self) {
        let durable: Vec<RecordId> = self.disk.inside().durable.iter().map(Record::id).collect();
        for id in durable {
            let guard = self.guard.as_ref().unwrap();
            if guard.coverage().find(id.sequence).is_none_or(|span| !span.knows(id.published)) {
                let count = self.disk.count(id);
                self.allowed.insert(id, count);
            }
        }
    }

    /// The process dies. What the sink made durable and the store saved is all that is left.
    pub(crate) fn crash(&mut self) {
        // A fork that was found by the call that was dropped.
        if self.guard.as_ref().is_some_and(|guard| guard.is_closed() && guard.counters().forks > self.forks_told) {
            self.allow_uncovered();
        }
        self.forks_told = 0;
        if self.guard.take().is_some() {
            for id in std::mem::take(&mut self.open_records) {
                *self.allowed.entry(id).or_default() += 1;
            }
        }
        self.buffer.clear();
        self.ackers.clear();
        self.waiting = false;
        self.passed = None;
    }

    /// A new subscription: older deliveries and their ackers are thrown away, what is pending comes again.
    pub(crate) fn session(&mut self) -> Result<(), Stop> {
        self.sessions_in_a_row += 1;
        if self.sessions_in_a_row > 40 {
            return Err(Stop::Broken("session follows session and nothing is delivered".into()));
        }
        self.session += 1;
        self.connection = self.world.state().connection;
        self.buffer.clear();
        self.chain = None;
        self.highest = 0;
        self.consumer.expire();
        let guard = self.guard.as_mut().unwrap();
        let permits = run(&mut self.budget, guard.begin_session()).ok_or(Stop::Crashed)?.map_err(Stop::Guard)?;
        if !permits.acks().is_empty() {
            return Err(Stop::Broken("the start of a session permits acks".into()));
        }
        self.obey(&permits)
    }

    fn move_to(&mut self, to: u64) {
        self.consumer.move_to(to);
        self.moves.push(to);
        self.guard.as_mut().unwrap().moved();
    }

    fn obey(&mut self, permits: &Permits) -> Result<(), Stop> {
        self.waiting = permits.unknown().is_some();
        self.unknown += u64::from(self.waiting);
        self.runs.extend(permits.skip_run());
        if (self.waiting || permits.fork().is_some() || permits.move_to().is_some()) && !permits.acks().is_empty() {
            return Err(Stop::Broken("acks are permitted beside a fork or an outage".into()));
        }
        if let Some(fork) = permits.fork() {
            self.forks.push(fork.clone());
            self.forks_told += 1;
            self.allow_uncovered();
            self.open_records.retain(|id| !fork.orphaned.contains(id));
        }
        for id in permits.acks() {
            self.ack(*id)?;
        }
        if let Some(to) = permits.move_to() {
            self.move_to(to);
            self.session()?;
        }
        Ok(())
    }

    fn ack(&mut self, id: RecordId) -> Result<(), Stop> {
        self.open_records.remove(&id);
        let durable = self.disk.count(id) > 0 || self.disk.is_buried(id);
        if !durable {
            return Err(Stop::Broken(format!("{id} is permitted and not durable")));
        }
        if self.ackers.remove(&id) == Some(self.session) && self.connection == self.world.state().connection {
            self.consumer.ack(id);
            self.acked.push(id);
            if !self.consumer.wrong_acks.is_empty() {
                return Err(Stop::Broken(format!("{id} was acked and another message stands there")));
            }
        }
        Ok(())
    }

    /// Takes deliveries, and offers them.
    pub(crate) fn pull(&mut self, count: usize) -> Result<usize, Stop> {
        self.fetch(count);
        self.offer_buffered()
    }

    /// Takes deliveries without offering them yet.
    pub(crate) fn fetch(&mut self, count: usize) {
        if !self.waiting {
            let deliveries = self.consumer.pull(count);
            self.buffer.extend(deliveries);
        }
    }

    /// Offers what was taken. Returns how many deliveries there were.
    pub(crate) fn offer_buffered(&mut self) -> Result<usize, Stop> {
        let mut offered = 0;
        while let Some(delivery) = self.buffer.pop_front() {
            if self.connection != self.world.state().connection
                || (delivery.first && delivery.record.sequence <= self.highest)
            {
                self.session()?;
                break;
            }
            let follows = self.follows(&delivery);
            let id = delivery.record.id();
            let guard = self.guard.as_mut().unwrap();
            let outcome = run(&mut self.budget, guard.offer(delivery.record.clone(), follows));
            match outcome.ok_or_else(|| {
                self.open_records.insert(id);
                Stop::Crashed
            })? {
                Ok(offer) => {
                    offered += 1;
                    self.sessions_in_a_row = 0;
                    self.took(&delivery, &offer);
                    if offer == Offer::Full {
                        self.flush(Reason::Due)?;
                    }
                }
                Err(GuardError::FlushDue) => {
                    self.buffer.push_front(delivery);
                    self.flush(Reason::Due)?;
                    if self.waiting {
                        break;
                    }
                }
                Err(error) => return Err(Stop::Guard(error)),
            }
        }
        Ok(offered)
    }

    fn follows(&self, delivery: &Delivery) -> Option<u64> {
        if !delivery.first || !self.links {
            return None;
        }
        match self.chain {
            Some((consumer, stream)) => (consumer + 1 == delivery.consumer_sequence).then_some(stream),
            None if delivery.consumer_sequence == 1 => self.consumer.begins.map(|begins| begins - 1),
            None => None,
        }
    }

    fn took(&mut self, delivery: &Delivery, offer: &Offer) {
        let id = delivery.record.id();
        self.ackers.insert(id, self.session);
        if matches!(offer, Offer::Written | Offer::Full | Offer::Rejected(_)) {
            self.open_records.insert(id);
        }
        if delivery.first {
            self.highest = id.sequence;
            self.chain = Some((delivery.consumer_sequence, id.sequence));
        } else {
            self.chain = self.chain.map(|(_, stream)| (delivery.consumer_sequence, stream));
        }
    }

    /// Hands what was rejected to the hook, until it fails.
    pub(crate) fn report(&mut self) -> Result<(), Stop> {
        let guard = self.guard.as_mut().unwrap();
        loop {
            let reported = run(&mut self.budget, guard.report_rejected()).ok_or(Stop::Crashed)?;
            match reported.map_err(Stop::Guard)? {
                Reported::Taken(_) => {}
                Reported::Nothing | Reported::Failed(_) => return Ok(()),
            }
        }
    }

    pub(crate) fn flush(&mut self, reason: Reason) -> Result<(), Stop> {
        self.report()?;
        let guard = self.guard.as_mut().unwrap();
        let permits = run(&mut self.budget, guard.flush(reason)).ok_or(Stop::Crashed)?.map_err(Stop::Guard)?;
        self.obey(&permits)
    }

    /// Looks whether the consumer stands where it should; acts on a passed-over message when it is seen twice.
    pub(crate) fn check(&mut self) -> Result<(), Stop> {
        let position = self.consumer.position();
        let guard = self.guard.as_mut().unwrap();
        let placement = run(&mut self.budget, guard.check(position)).ok_or(Stop::Crashed)?.map_err(Stop::Guard)?;
        let passed = self.passed.take();
        match placement {
            Placement::Stands | Placement::StandsSoFar => Ok(()),
            Placement::PassedOver(sequence) if passed == Some(sequence) => {
                self.move_to(sequence);
                self.session()
            }
            Placement::PassedOver(sequence) => {
                self.passed = Some(sequence);
                Ok(())
            }
            Placement::Beyond { to } => {
                self.move_to(to);
                self.session()
            }
            Placement::Fork(permits) => self.obey(&permits),
            Placement::Unknown(_) => {
                self.waiting = true;
                Ok(())
            }
        }
    }

    /// Pulls, flushes and checks until nothing happens any more.
    pub(crate) fn quiet(&mut self) -> Result<(), Stop> {
        let mut still = 0;
        for _ in 0..60 {
            let taken = self.pull(1_000)?;
            self.flush(Reason::Everything)?;
            self.check()?;
            if taken == 0 && self.guard().pending() == 0 && self.buffer.is_empty() && self.passed.is_none() {
                still += 1;
                if still == 3 {
                    return Ok(());
                }
                self.consumer.expire();
            } else {
                still = 0;
            }
        }
        Err(Stop::Broken("the loop does not come to rest".into()))
    }

    /// What must hold whenever the loop is at rest.
    pub(crate) fn audit(&self) -> Result<(), Stop> {
        let Some(guard) = &self.guard else { return Ok(()) };
        for record in self.world.all(&self.prefix) {
            let claimed = guard.coverage().find(record.sequence).is_some_and(|span| span.knows(record.published));
            if claimed && !self.disk.holds(&record) {
                return Err(Stop::Broken(format!("{} is claimed and the sink does not hold it", record.id())));
            }
        }
        let mut counts: BTreeMap<RecordId, usize> = BTreeMap::new();
        for record in &self.disk.inside().durable {
            *counts.entry(record.id()).or_default() += 1;
        }
        for (id, count) in counts {
            if count > 1 + self.allowed.get(&id).copied().unwrap_or(0) {
                return Err(Stop::Broken(format!("{id} was made durable {count} times")));
            }
        }
        Ok(())
    }

    /// Every message of the source that the stream holds is in the sink.
    pub(crate) fn complete(&self) -> Result<(), Stop> {
        self.audit()?;
        for record in self.world.all(&self.prefix) {
            if !self.disk.holds(&record) {
                return Err(Stop::Broken(format!("{} was lost", record.id())));
            }
        }
        Ok(())
    }

    /// Comes to rest and has everything.
    pub(crate) fn finish(&mut self) {
        self.quiet().unwrap();
        self.complete().unwrap();
    }
}
