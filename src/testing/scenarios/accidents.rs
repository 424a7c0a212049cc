//! The process dies, calls are dropped, the storage fails, the checkpoint is lost.

use super::{After, Strike, plain};
use crate::sink::Reason;
use crate::testing::Storage;
use crate::testing::life::{Crash, Life, Stop};

/// A short archive: flushes of several sizes, a record that comes late, copies.
async fn script<S: Storage>(life: &mut Life<'_, S>) -> Result<(), Stop> {
    life.open().await?;
    life.publish(4);
    life.archive(2).await?;
    life.publish(4);
    life.queue.rotate_left(1);
    life.archive(3).await?;
    life.deliver(2).await?;
    life.publish(3);
    while life.deliver_next().await? {}
    life.deliver(life.last()).await?;
    life.flush(Reason::Everything).await
}

/// After a planned accident goes on as it is told; then all must be there.
async fn survive<S: Storage>(life: &mut Life<'_, S>, outcome: Result<(), Stop>, after: After) -> Result<(), Stop> {
    match outcome {
        Err(Stop::Died) => after.happen(life).await?,
        Err(broken) => return Err(broken),
        Ok(()) => {
            life.mend().await?;
            life.watch.calm_plans();
        }
    }
    life.finish().await
}

pub(super) async fn crash<S: Storage>(life: &mut Life<'_, S>, case: u64) -> Result<(), Stop> {
    if case == u64::MAX {
        return script(life).await;
    }
    let ways = super::ways(super::Scenario::Crash, life.facts);
    let (place, way) = (case / ways, case % ways);
    life.watch.strike_at(place, if way % 2 == 0 { Strike::Die } else { Strike::Fail });
    let after = After::of(life.facts, way / 2);
    let outcome = script(life).await;
    survive(life, outcome, after).await
}

pub(super) async fn dropped<S: Storage>(life: &mut Life<'_, S>, case: u64) -> Result<(), Stop> {
    if case == u64::MAX {
        return script(life).await;
    }
    let ways = super::ways(super::Scenario::Dropped, life.facts);
    life.watch.cut_off_after(case / ways);
    let after = After::of(life.facts, case % ways);
    let outcome = script(life).await;
    survive(life, outcome, after).await
}

pub(super) async fn failing<S: Storage>(life: &mut Life<'_, S>) -> Result<(), Stop> {
    let operation = life.rng.below(40);
    let after = After::of(life.facts, life.rng.below(60));
    life.fail_at(operation).await?;
    let outcome = script(life).await;
    survive(life, outcome, after).await
}

pub(super) async fn checkpoint_lost<S: Storage>(life: &mut Life<'_, S>) -> Result<(), Stop> {
    life.open().await?;
    for _ in 0..=life.rng.below(4) {
        let count = 1 + life.rng.below(12);
        life.publish(count);
        if life.rng.one_in(2) {
            plain::shuffle(life);
        }
        let each = 1 + few(life, 4);
        life.archive(each).await?;
    }
    let left = life.rng.below(3);
    life.publish(left);
    while life.deliver_next().await? {}
    let power = life.rng.one_in(2);
    life.crash(Crash { power, checkpoint: true }).await?;
    life.finish().await
}

fn few<S: Storage>(life: &mut Life<'_, S>, below: u64) -> usize {
    usize::try_from(life.rng.below(below)).unwrap_or(0)
}

/// All of it in any order.
pub(super) async fn lives<S: Storage>(life: &mut Life<'_, S>) -> Result<(), Stop> {
    life.open().await?;
    for _ in 0..12 + life.rng.below(12) {
        match turn(life).await {
            Ok(()) => {}
            Err(Stop::Died) => {
                let how = any_crash(life);
                life.crash(how).await?;
                life.open().await?;
            }
            Err(broken) => return Err(broken),
        }
    }
    if life.watch.calm_plans() || life.is_failing() {
        let how = any_crash(life);
        life.crash(how).await?;
    }
    life.finish().await
}

fn any_crash<S: Storage>(life: &mut Life<'_, S>) -> Crash {
    Crash { power: life.rng.one_in(2), checkpoint: life.facts.recovers && life.rng.one_in(5) }
}

async fn turn<S: Storage>(life: &mut Life<'_, S>) -> Result<(), Stop> {
    match life.rng.below(24) {
        0..=6 => {
            let count = 1 + life.rng.below(7);
            life.publish(count);
            if life.rng.one_in(3) {
                plain::shuffle(life);
            }
            for _ in 0..life.rng.below(10) {
                life.deliver_next().await?;
            }
            Ok(())
        }
        7..=10 => life.flush_for_some_reason().await,
        11 | 12 => {
            let each = 1 + few(life, 5);
            life.archive(each).await
        }
        13 => {
            let sequence = 1 + life.rng.below(life.last().max(1));
            life.deliver(sequence).await
        }
        14 => life.session().await,
        15 => life.rewind().await,
        16 => Err(Stop::Died),
        17 | 18 => {
            let strike = if life.rng.one_in(2) { Strike::Die } else { Strike::Fail };
            let place = life.rng.below(12);
            life.watch.strike_at(place, strike);
            Ok(())
        }
        19 => {
            let waits = life.rng.below(20);
            life.watch.cut_off_after(waits);
            Ok(())
        }
        20 if life.can_fail() => {
            let operation = life.rng.below(8);
            life.fail_at(operation).await
        }
        21 if life.books.lives() < 4 && life.last() > 0 => {
            let at = life.rng.below(life.last());
            life.lose_above(at);
            let count = 1 + life.rng.below(6);
            life.publish(count);
            life.session().await
        }
        22 if life.books.lives() < 3 => {
            life.recreate();
            let count = 1 + life.rng.below(6);
            life.publish(count);
            life.session().await
        }
        _ => Ok(()),
    }
}
