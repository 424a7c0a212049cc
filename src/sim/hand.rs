//! Random lives: accidents in any order, then rest, then the books are checked.
//!
//! `REPLAY_GUARD_LIVES` says how many; a life that fails prints its seed and what happened in it.

use std::fmt::Write as _;

use crate::Reason;

use crate::sim::{AfterLoss, Driver, MS, Partial, Recover, Rng, Stop, World};

struct Life {
    rng: Rng,
    world: World,
    driver: Driver,
    history: String,
    flush_at: u64,
    after: AfterLoss,
    filtered: bool,
}

/// Seeds that failed once.
const SEEDS: &[u64] = &[
    562, 4032, 4908, 11175, 11186, 13803, 18242, 19780, 21943, 26295, 27423, 28321, 56732, 59432, 125_212, 138_627,
    160_702, 256_620, 258_374, 499_728, 512_736,
];

impl Life {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let world = World::new();
        {
            let mut state = world.state();
            state.work_queue = rng.one_in(5);
            state.per_subject = rng.one_in(5).then(|| 1 + usize::try_from(rng.below(3)).unwrap());
            state.stutter = u32::from(rng.one_in(2));
            state.pace = [1_000, MS, 40 * MS, 250 * MS][usize::try_from(rng.below(4)).unwrap()];
        }
        let filtered = rng.one_in(3);
        let mut driver = Driver::filtered(&world, if filtered { "orders." } else { "" });
        {
            let mut inside = driver.disk.inside();
            inside.recover = if rng.one_in(3) { Recover::AtLeast } else { Recover::Unknown };
            inside.tells = (seed % 5 < 2).then(|| 16 + usize::try_from(seed % 9).unwrap());
            inside.full_at = rng.one_in(4).then(|| 1 + usize::try_from(rng.below(6)).unwrap());
            if rng.one_in(3) {
                inside.partial = Partial::Some(rng.clone());
            }
            if rng.one_in(6) {
                inside.rejects.insert("orders.2".into());
                inside.hook.there = !seed.is_multiple_of(3);
                inside.hook.fail = u32::try_from(seed % 7).unwrap();
            }
        }
        driver.links = !rng.one_in(4);
        let after = if rng.one_in(2) { AfterLoss::Ahead } else { AfterLoss::PulledBack };
        let flush_at = 1 + rng.below(12);
        let mut history = String::new();
        let state = world.state();
        let inside = driver.disk.inside();
        writeln!(
            history,
            "work queue {}, per subject {:?}, pace {}, filtered {filtered}, {after:?}, flush at {flush_at}, links {}, {:?}, full {:?}, {:?}",
            state.work_queue, state.per_subject, state.pace, driver.links, inside.recover, inside.full_at, inside.partial
        )
        .unwrap();
        drop((state, inside));
        Self { rng, world, driver, history, flush_at, after, filtered }
    }

    fn note(&mut self, what: &str) {
        let (last, clock) = {
            let state = self.world.state();
            (state.last, (state.clock - 1_700_000_000_000_000_000) / 1_000)
        };
        let guard = self.driver.guard.as_ref();
        let floor = guard.map_or(0, crate::Guard::floor);
        let pending = guard.map_or(0, crate::Guard::pending);
        let spans: Vec<(u64, u64)> =
            guard.iter().flat_map(|guard| guard.coverage().spans()).map(|span| (span.first, span.last)).collect();
        let position = self.driver.consumer.position();
        writeln!(
            self.history,
            "{what:<28} | t {clock}us last {last} | consumer {}/{} | floor {floor} pending {pending} spans {spans:?}",
            position.delivered, position.ack_floor
        )
        .unwrap();
    }

    fn publish(&mut self) {
        for _ in 0..=self.rng.below(8) {
            let subject = match (self.filtered, self.rng.below(6)) {
                (true, 0 | 1) => "other.1".to_owned(),
                (_, n) => format!("orders.{n}"),
            };
            self.world.publish_to(&subject);
        }
        self.note("publish");
    }

    fn accident(&mut self) {
        let last = self.world.last();
        match self.rng.below(15) {
            0 | 1 => {
                let to = last.saturating_sub(self.rng.below(12));
                self.world.lose_to(to);
                self.driver.consumer.after_loss(self.after);
                // Sometimes nobody notices that the server went away.
                let noticed = !self.rng.one_in(3);
                if noticed {
                    self.world.disconnect();
                }
                if self.rng.one_in(2) {
                    self.publish();
                }
                self.note(&format!("LOSE to {to}{}", if noticed { "" } else { ", unnoticed" }));
            }
            2 => {
                let at = 1 + self.rng.below(last.max(1));
                self.world.delete(at);
                self.note(&format!("DELETE {at}"));
            }
            3 if self.rng.one_in(3) => {
                self.world.purge();
                self.note("PURGE");
            }
            3 => {
                let below = 1 + self.rng.below(last.max(1));
                self.world.expire_below(below);
                self.note(&format!("EXPIRE below {below}"));
            }
            4 if self.rng.one_in(3) => {
                self.world.recreate();
                self.driver.consumer.forget();
                self.world.disconnect();
                self.note("RECREATE");
            }
            4 => {
                self.world.drift();
                self.note("DRIFT");
            }
            5 => {
                self.driver.consumer.forget();
                self.world.disconnect();
                self.note("FORGET");
            }
            6 => {
                self.driver.consumer.fall_back();
                self.world.disconnect();
                self.note("FALL BACK");
            }
            7 => {
                self.driver.consumer.remember();
                self.note("snapshot");
            }
            8 | 9 => {
                self.driver.crash();
                self.note("CRASH");
            }
            10 if self.driver.budget.is_none() && self.world.state().stutter > 0 => {
                let left = u32::try_from(self.rng.below(40)).unwrap();
                self.driver.budget = Some(left);
                self.note(&format!("CRASH in {left}"));
            }
            10 | 11 => {
                let silent = u32::try_from(1 + self.rng.below(6)).unwrap();
                self.world.state().silent = silent;
                self.note(&format!("SILENT {silent}"));
            }
            12 => {
                self.driver.consumer.expire_shuffled(&mut self.rng);
                self.note("ack wait over");
            }
            13 => {
                self.world.disconnect();
                self.note("DISCONNECT");
            }
            _ => {
                self.world.pass(200 * MS);
                self.note("time passes");
            }
        }
    }

    /// One thing the driver does.
    fn step(&mut self) -> Result<(), Stop> {
        if self.driver.guard.is_none() {
            self.driver.open()?;
            self.note("open");
            return Ok(());
        }
        match self.rng.below(8) {
            0..=2 => {
                let count = usize::try_from(1 + self.rng.below(self.flush_at)).unwrap();
                self.driver.fetch(count);
                if self.rng.one_in(8) {
                    self.accident();
                    if self.driver.guard.is_none() {
                        return Ok(());
                    }
                }
                self.driver.offer_buffered()?;
                self.note(&format!("pull {count}"));
            }
            3..=5 => {
                let reason = if self.rng.one_in(4) { Reason::Everything } else { Reason::Due };
                self.driver.flush(reason)?;
                self.note("flush");
            }
            6 => {
                self.driver.check()?;
                self.note("check");
            }
            _ => self.publish(),
        }
        self.driver.audit()
    }

    /// A guard that closed and a process that died are followed by another one.
    fn survive(&mut self, outcome: Result<(), Stop>) -> Result<(), Stop> {
        match outcome {
            Err(Stop::Broken(why)) => Err(Stop::Broken(why)),
            Err(stop) => {
                self.driver.budget = None;
                self.driver.crash();
                self.note(&format!("died: {stop:?}"));
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    fn live(&mut self) -> Result<(), Stop> {
        for _ in 0..20 + self.rng.below(60) {
            if self.rng.one_in(4) {
                self.accident();
            } else {
                let outcome = self.step();
                self.survive(outcome)?;
            }
        }
        // The accidents are over.
        self.driver.budget = None;
        self.world.state().silent = 0;
        self.world.disconnect();
        self.note("--- rest");
        for _ in 0..3 {
            if self.driver.guard.is_none() {
                self.driver.open()?;
            }
            self.driver.quiet()?;
            self.note("quiet");
            self.driver.complete()?;
            self.world.publish_to("orders.last");
        }
        self.driver.quiet()?;
        self.driver.complete()?;
        let spans = self.driver.guard().spans();
        if spans > 60 {
            return Err(Stop::Broken(format!("{spans} spans are left")));
        }
        Ok(())
    }
}

fn live(seed: u64) -> Result<(), String> {
    let outcome = std::panic::catch_unwind(|| {
        let mut life = Life::new(seed);
        let outcome = life.live();
        outcome.map_err(|stop| {
            life.note("END");
            format!("seed {seed}: {stop:?}\n{}", life.history)
        })
    });
    outcome.unwrap_or_else(|_| Err(format!("seed {seed} panics")))
}

#[test]
fn lives_full_of_accidents_lose_nothing_and_write_nothing_twice() {
    let lives = std::env::var("REPLAY_GUARD_LIVES").ok().and_then(|number| number.parse().ok()).unwrap_or(5_000_u64);
    let first = std::env::var("REPLAY_GUARD_SEED").ok().and_then(|number| number.parse().ok()).unwrap_or(1_u64);
    let mut failed = Vec::new();
    let mut report = String::new();
    for seed in first..first + lives {
        if let Err(why) = live(seed) {
            failed.push(seed);
            eprintln!("{}", why.lines().next().unwrap_or_default());
            if report.len() < 20_000 || report.len() > why.len() {
                report = why;
            }
        }
    }
    assert!(failed.is_empty(), "{} of {lives} lives failed: {failed:?}\nthe shortest:\n{report}", failed.len());
}

#[test]
fn lives_that_failed_once_do_not_fail_again() {
    for seed in SEEDS {
        if let Err(why) = live(*seed) {
            panic!("{why}");
        }
    }
}
