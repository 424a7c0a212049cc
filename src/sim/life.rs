//! One life: how the world is, what happens in it, then rest, then the books.

use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, Config};

use super::accident::{Accident, publish};
use super::archiver::{Archiver, Stop};
use super::later::Later;
use super::law::{Broken, Law, broken};
use super::sink::Disk;
use super::{MS, Partial, Recover, Rng, World};
use crate::Source;
use crate::jetstream::builder::FlushEvery;
use crate::store::sim::{Fault as DiskFault, SimDisk};

/// How the world is.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a coin of its own")]
pub(crate) struct Nature {
    pub(crate) version: &'static str,
    pub(crate) reconciles: bool,
    pub(crate) ack_all: bool,
    pub(crate) work_queue: bool,
    pub(crate) per_subject: Option<usize>,
    pub(crate) filtered: bool,
    pub(crate) removals: bool,
    pub(crate) steps_back: bool,
    pub(crate) recover: Recover,
    /// Whether the sink says record by record what it holds, so many at a time.
    pub(crate) tells: Option<usize>,
    pub(crate) partial: bool,
    pub(crate) full_at: Option<usize>,
    pub(crate) rejects: bool,
    /// Whether a dead-letter hook takes what is rejected.
    pub(crate) hook: bool,
    pub(crate) flush_count: u64,
    pub(crate) flush_age: u64,
    pub(crate) window: i64,
    pub(crate) ack_wait: u64,
    pub(crate) max_spans: usize,
    pub(crate) stutter: u32,
    pub(crate) pace: i64,
    /// A consumer that somebody used before, and how far.
    pub(crate) used: Option<u64>,
}

/// What happens.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// The process does so many things.
    Drive(u32),
    Publish(u64),
    Now(Accident),
    /// At the n-th request from now.
    Later(u32, Accident),
    Pass(u64),
    Kill,
    /// Killed after so many polls.
    KillIn(u32),
    /// The machine of the archiver loses power.
    PowerCut,
    /// The n-th operation of its disk from now fails, or is the last.
    Disk(u64, DiskFault),
    /// Both slots of the checkpoint turn bad, while nobody looks.
    Rot,
    /// The sink fails at the next call.
    SinkFails {
        write: bool,
    },
    SinkHangs,
    /// The dead-letter hook fails at the next so many calls.
    HookFails(u32),
    HookHangs,
    /// A person stops the process and starts it again.
    Restart,
}

#[derive(Clone, Debug)]
pub(crate) struct Life {
    pub(crate) seed: u64,
    pub(crate) nature: Nature,
    pub(crate) later: Later,
    pub(crate) steps: Vec<Step>,
}

fn pick<T: Copy>(rng: &mut Rng, from: &[T]) -> T {
    from[usize::try_from(rng.below(from.len() as u64)).unwrap()]
}

impl Life {
    /// The life of this seed, without what came to the model later.
    pub(crate) fn plain(seed: u64) -> Self {
        let rng = &mut Rng::new(seed);
        // What came to the model later is drawn from numbers of its own, so that a seed stays the life it was.
        let aside = &mut Rng::new(seed ^ 0xdead);
        let tells = &mut Rng::new(seed ^ 0x7e11);
        let work_queue = rng.one_in(5);
        let version = pick(rng, &["2.10.26", "2.12.8", "2.14.6", "2.14.6"]);
        let removals = !rng.one_in(3);
        let ack_all = !work_queue && rng.one_in(4);
        let nature = Nature {
            version,
            reconciles: version == "2.14.6" && !rng.one_in(3),
            ack_all,
            work_queue,
            per_subject: (removals && rng.one_in(5)).then(|| 1 + usize::try_from(rng.below(3)).unwrap()),
            filtered: rng.one_in(3),
            removals,
            // Together with messages that go, a clock that steps back is beyond what is promised; a test of its own says so.
            steps_back: rng.one_in(2) && !removals && !work_queue,
            recover: pick(rng, &[Recover::Unknown, Recover::Unknown, Recover::AtLeast, Recover::Exactly(1)]),
            tells: tells.one_in(2).then(|| 16 + usize::try_from(tells.below(50)).unwrap()),
            partial: rng.one_in(4),
            full_at: rng.one_in(5).then(|| 1 + usize::try_from(rng.below(6)).unwrap()),
            rejects: rng.one_in(6),
            hook: !aside.one_in(3),
            flush_count: 1 + rng.below(14),
            flush_age: pick(rng, &[500, 5_000, 40_000]),
            window: if rng.one_in(3) { i64::try_from(2 + rng.below(20)).unwrap() } else { 1_000 },
            ack_wait: pick(rng, &[1_000, 30_000]),
            max_spans: if !ack_all && rng.one_in(8) { 2 + usize::try_from(rng.below(4)).unwrap() } else { 10_000 },
            stutter: u32::from(rng.one_in(2)),
            pace: pick(rng, &[1_000, MS, 40 * MS, 250 * MS]),
            used: rng.one_in(6).then(|| rng.below(12)),
        };
        let mut steps = vec![Step::Publish(rng.below(30)), Step::Drive(20)];
        for _ in 0..8 + rng.below(22) {
            let step = Self::step(rng, &nature);
            steps.push(step);
            if !rng.one_in(3) {
                steps.push(Step::Drive(u32::try_from(1 + rng.below(25)).unwrap()));
            }
        }
        for _ in 0..if nature.rejects && nature.hook { aside.below(5) } else { 0 } {
            let at = usize::try_from(aside.below(steps.len() as u64)).unwrap();
            let step = if aside.one_in(4) {
                Step::HookHangs
            } else {
                Step::HookFails(1 + u32::try_from(aside.below(12)).unwrap())
            };
            steps.insert(at, step);
        }
        Self { seed, nature, later: Later::default(), steps }
    }

    fn step(rng: &mut Rng, nature: &Nature) -> Step {
        let small = |rng: &mut Rng, n: u64| u32::try_from(1 + rng.below(n)).unwrap();
        match rng.below(32) {
            0..=5 => Step::Publish(1 + rng.below(12)),
            6..=14 => Step::Now(Accident::any(rng, nature.removals, nature.steps_back)),
            15..=19 => Step::Later(small(rng, 40), Accident::any(rng, nature.removals, nature.steps_back)),
            20 => Step::Pass(pick(rng, &[50, 1_000, 31_000, 61_000])),
            21 | 22 => Step::Kill,
            23 | 24 => Step::KillIn(small(rng, 120)),
            25 => Step::PowerCut,
            26 | 27 => Step::Disk(rng.below(30), pick(rng, &[DiskFault::Kill, DiskFault::Power, DiskFault::Fail])),
            28 if rng.one_in(4) => Step::Rot,
            28 => Step::SinkHangs,
            29 => Step::SinkFails { write: rng.one_in(2) },
            30 => Step::Restart,
            _ => Step::Drive(small(rng, 60)),
        }
    }

    /// Lives it. With `tell`, the history comes with what was broken.
    pub(crate) fn live(&self, tell: bool) -> (Result<(), Broken>, Vec<String>) {
        crate::guard::seed_state_ids(self.seed);
        let mut archiver = self.begin();
        archiver.history = tell.then(Vec::new);
        let outcome = self.run(&mut archiver);
        archiver.note(|| "END".to_owned());
        (outcome, archiver.history.take().unwrap_or_default())
    }

    fn begin(&self) -> Archiver {
        let nature = &self.nature;
        let world = World::new();
        let source = Source::new("ORDERS");
        let source = if nature.filtered { source.with_filters(["orders.>"]) } else { source };
        let mut config = Config {
            durable_name: Some("archiver".to_owned()),
            name: Some("archiver".to_owned()),
            ack_policy: if nature.ack_all { AckPolicy::All } else { AckPolicy::Explicit },
            ack_wait: Duration::from_millis(nature.ack_wait),
            max_ack_pending: nature.window,
            ..Config::default()
        };
        if nature.filtered {
            "orders.>".clone_into(&mut config.filter_subject);
        }
        {
            let mut state = world.state();
            state.work_queue = nature.work_queue;
            state.per_subject = nature.per_subject;
            state.stutter = nature.stutter;
            state.pace = nature.pace;
            state.server.request = MS / 2;
            state.server.removals = nature.removals;
            state.server.version = nature.version;
            state.server.reconciles = nature.reconciles;
            state.server.prefix = if nature.filtered { "orders.".to_owned() } else { String::new() };
            state.server.rng = Rng::new(self.seed ^ 0x5eed);
        }
        let sink = Disk::new();
        self.later.begin(&sink);
        {
            let mut inside = sink.inside();
            (inside.recover, inside.tells) = (nature.recover, nature.tells);
            inside.full_at = nature.full_at;
            if nature.partial {
                inside.partial = Partial::Some(Rng::new(self.seed ^ 0xbad));
            }
            if nature.rejects {
                inside.rejects.insert("orders.2".into());
                inside.hook.there = nature.hook;
            }
        }
        let flush =
            FlushEvery { count: nature.flush_count, bytes: u64::MAX, age: Duration::from_millis(nature.flush_age) };
        let disk = SimDisk::new(self.seed);
        let mut archiver = Archiver::new(&world, &sink, &disk, &source, flush, config.clone());
        archiver.max_spans = nature.max_spans;
        if let Some(used) = nature.used {
            use_before(&mut archiver, config, used);
        }
        archiver
    }

    fn run(&self, archiver: &mut Archiver) -> Result<(), Broken> {
        for step in &self.steps {
            archiver.note(|| format!("--- {step:?}"));
            Self::happen(archiver, step)?;
        }
        rest(archiver)
    }

    fn happen(archiver: &mut Archiver, step: &Step) -> Result<(), Broken> {
        match step {
            Step::Drive(count) => {
                for _ in 0..*count {
                    drive(archiver)?;
                }
            }
            Step::Publish(count) => publish(&mut archiver.world.state(), *count),
            Step::Now(accident) => accident.happen(&mut archiver.world.state()),
            Step::Later(requests, accident) => {
                archiver.world.state().server.later.push((*requests, accident.clone()));
            }
            Step::Pass(milliseconds) => archiver.world.pass(i64::try_from(*milliseconds).unwrap() * MS),
            Step::Kill => archiver.die(),
            Step::KillIn(polls) => archiver.budget = Some(*polls),
            Step::PowerCut => {
                archiver.die();
                archiver.disk.cut_power();
            }
            Step::Disk(operations, fault) => archiver.disk.fault_after(*operations, *fault),
            Step::Rot => {
                archiver.die();
                archiver.disk.rot();
                archiver.books.lost_checkpoint();
            }
            Step::SinkFails { write: true } => archiver.sink.inside().fail_write = true,
            Step::SinkFails { write: false } => archiver.sink.inside().fail_flush = true,
            Step::SinkHangs => archiver.sink.inside().hang = true,
            Step::HookFails(calls) => archiver.sink.inside().hook.fail = *calls,
            Step::HookHangs => archiver.sink.inside().hook.hang = true,
            Step::Restart => {
                if let Some(alive) = &mut archiver.alive {
                    alive.plan.stop();
                }
            }
        }
        Ok(())
    }
}

/// Somebody else used the consumer, and acked so much of what was there.
fn use_before(archiver: &mut Archiver, config: Config, used: u64) {
    let world = archiver.world.clone();
    let mut state = world.state();
    publish(&mut state, used + 3);
    state.server.held = Some(super::held::Held::made(config, &state));
    for _ in 0..used {
        let Some(wire) = state.deliver() else { break };
        state.answered(&wire.reply, crate::jetstream::ack::Answer::Ack);
    }
    let acked = std::mem::take(&mut state.server.acked);
    // What others acked does not come back in this model.
    state.server.removed.clear();
    archiver.books.theirs = acked.into_iter().flat_map(|ack| ack.reached).map(|(id, _)| id).collect();
    let stands_at = state.server.held.as_ref().map_or(0, super::held::Held::ack_floor);
    let below = state.messages.range(..=stands_at).map(|(at, message)| message.id(*at));
    archiver.books.theirs.extend(below);
}

/// One step of the process; one that died is followed by another.
fn drive(archiver: &mut Archiver) -> Result<(), Broken> {
    match archiver.step() {
        Ok(()) => Ok(()),
        Err(Stop::Broken(broken)) => Err(broken),
        Err(Stop::Died(why)) => {
            archiver.note(|| format!("died: {why}"));
            archiver.die();
            // As the driver waits between two tries.
            archiver.world.pass(100 * MS);
            Ok(())
        }
    }
}

/// Accidents are over: everything comes to rest within a bound.
fn rest(archiver: &mut Archiver) -> Result<(), Broken> {
    {
        let mut state = archiver.world.state();
        state.silent = 0;
        let server = &mut state.server;
        server.later.clear();
        (server.lose_acks, server.lose_deliveries, server.refuse_resets) = (0, 0, 0);
    }
    archiver.budget = None;
    archiver.disk.spare();
    let mut inside = archiver.sink.inside();
    (inside.fail_write, inside.fail_flush, inside.hang) = (false, false, false);
    (inside.hook.fail, inside.hook.hang) = (0, false);
    drop(inside);
    archiver.note(|| "=== rest".to_owned());
    for round in 0..3 {
        come_to_rest(archiver)?;
        if round == 0 || archiver.max_spans < 100 {
            settle(archiver)?;
        }
        let before = (archiver.forks, archiver.moves, archiver.sink.inside().writes, archiver.deaths);
        wait(archiver)?;
        archiver.books.complete()?;
        let after = (archiver.forks, archiver.moves, archiver.sink.inside().writes, archiver.deaths);
        if before != after {
            return broken(Law::Rest, format!("forks, moves, writes, deaths at rest: {before:?} then {after:?}"));
        }
        if round < 2 {
            publish(&mut archiver.world.state(), 3);
            archiver.note(|| "publish".to_owned());
        }
    }
    // What the stream drops is told when a session begins, at the latest.
    archiver.world.state().reconnect(MS);
    come_to_rest(archiver)?;
    archiver.dropped()
}

/// What no event told of is found by a look that the driver takes by the clock, and so is what was forgotten at the limit of
/// spans. It ends.
fn settle(archiver: &mut Archiver) -> Result<(), Broken> {
    for _ in 0..12 {
        let before = (archiver.forks, archiver.moves);
        wait(archiver)?;
        come_to_rest(archiver)?;
        if before == (archiver.forks, archiver.moves) {
            return Ok(());
        }
    }
    broken(Law::Rest, "forks or moves without end")
}

/// Long enough for the looks that the driver takes by the clock: three, since where all is quiet each asks half of the questions.
fn wait(archiver: &mut Archiver) -> Result<(), Broken> {
    let until = archiver.world.state().server.mono + 200_000 * MS;
    for _ in 0..5_000 {
        drive(archiver)?;
        if archiver.world.state().server.mono > until {
            return Ok(());
        }
    }
    broken(Law::Rest, "busy although nothing happens")
}

fn come_to_rest(archiver: &mut Archiver) -> Result<(), Broken> {
    let backlog = archiver.world.state().messages.len() as u64;
    // What a flush leaves is flushed again when it is old.
    let old = 900_000 / u64::try_from(archiver.flush.age.as_millis()).unwrap();
    let flushes = archiver.flushes + 40 + 4 * backlog + old;
    let until = archiver.world.state().server.mono + 900_000 * MS;
    for _ in 0..20_000 {
        drive(archiver)?;
        let state = archiver.world.state();
        let quiet =
            state.server.held.as_ref().is_some_and(|held| held.progress.pending.is_empty()) && state.remaining() == 0;
        let late = state.server.mono > until;
        drop(state);
        let idle = archiver.alive.as_ref().is_some_and(|alive| {
            alive.guard.pending() == 0 && alive.guard.move_pending().is_none() && !alive.plan.is_starting()
        });
        if quiet && idle && archiver.books.complete().is_ok() {
            return Ok(());
        }
        if late || archiver.flushes > flushes {
            break;
        }
    }
    archiver.books.complete()?;
    broken(Law::Rest, "the archiver does not come to rest")
}
